"""What a result was made with."""

import hashlib
import json
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from heteroscedastic.training import schema

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def provenance() -> dict[str, Any]:
    """Device, versions of packages, and the commit of the code where it runs from a checkout."""
    return {
        "device": device(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def owner(config: dict[str, Any], fingerprint: str) -> str:
    """Whose a checkpoint is: a run of this config on these data, on any layout of devices."""
    return hashlib.sha256(json.dumps([schema.identity(config), fingerprint], sort_keys=True).encode()).hexdigest()


def device() -> str:
    """How many devices of which kind."""
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"


def _commit() -> str | None:
    """The commit, with "-dirty" where files that git follows differ from it."""
    if _git("rev-parse", "--show-toplevel") != str(Path(__file__).resolve().parents[2]):
        return None  # installed, maybe into the checkout of something else
    found = _git("rev-parse", "HEAD")
    return found and found + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
