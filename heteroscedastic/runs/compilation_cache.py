"""Compiled programs on disk, which later processes load in place of compiling them again."""

import hashlib
import os
import platform
import warnings
from pathlib import Path

import jax

from heteroscedastic import files

# Programs that compile faster than this are not worth a file.
_MIN_COMPILE_SECONDS = 0.2


def default_directory() -> Path:
    """The directory in the user's cache for this kind of processor.

    Programs are native code: another processor might not have their instructions. Versions of JAX
    and its flags are part of the names of the files.

    Raises:
      RuntimeError: the user has no home directory.
    """
    kind = f"{platform.machine()} {_cpu()}"
    return files.user_cache() / hashlib.sha256(kind.encode()).hexdigest()[:16]


def enable(directory: str | None = None) -> None:
    """Makes JAX save and load compiled programs; called by commands before they compile.

    Does nothing where JAX already has a directory, such as that of JAX_COMPILATION_CACHE_DIR.
    Without a writable directory, programs are compiled anew, with a warning.

    Args:
      directory: of the programs; None for `default_directory`, "" for no cache. Whoever can write
        to it can run code as the user.
    """
    if directory == "" or jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        path = files.as_path(directory) if directory else default_directory()
        if not files.in_bucket(path):  # which has no directories to make; JAX warns where it fails
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(path, os.W_OK):
                raise PermissionError(f"{path} is not writable")
    except (OSError, RuntimeError, ValueError, ModuleNotFoundError) as error:
        warnings.warn(f"compiled programs are not saved: {error}.", stacklevel=2)
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)


def _cpu() -> str:
    """The processor and its instruction sets, as far as the system lists them."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor()
    lines = path.read_text().splitlines()
    return " ".join(
        next((line for line in lines if line.startswith(name)), "")
        for name in ("model name", "flags", "Features")
    )
