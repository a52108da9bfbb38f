"""Paths on disks and in buckets."""

import importlib.util
import logging
import os
import pathlib
import threading
from typing import TYPE_CHECKING, Any

# Buckets are accessed by gcsfs whether TensorFlow is installed or not, as only this way is tested.
# Epath reads the variable once.
if importlib.util.find_spec("gcsfs"):
    os.environ.setdefault("EPATH_USE_TF", "0")

_TIMEOUT = 30.0  # seconds; the client of a bucket retries for longer
# pathlib.Path, or a path in a bucket, which has the same methods.
if TYPE_CHECKING:
    Path = pathlib.Path
else:
    Path = pathlib.PurePath


def as_path(name: str | os.PathLike) -> Path:
    """A path on a disk, or in a bucket if its name is gs://BUCKET/...

    Both have the methods of pathlib. On a disk, ~ is expanded, as a shell does not expand it in
    --workdir=~/runs/x.

    Raises:
      ValueError: the scheme is not gs, or the path is in the home of an unknown user.
      ModuleNotFoundError: gcsfs, which accesses buckets, is not installed.
    """
    scheme, separator, _ = os.fspath(name).partition("://")
    if not separator:
        try:
            return pathlib.Path(name).expanduser()
        except RuntimeError:
            raise ValueError(
                f"{name} is in the home of an unknown user; give the absolute path."
            ) from None
    if scheme != "gs":
        raise ValueError(
            f"{name} has the scheme {scheme}://, but only gs://BUCKET/... is supported."
        )
    if not importlib.util.find_spec("gcsfs"):
        raise ModuleNotFoundError(
            f"{name} is in a bucket, which requires gcsfs: pip install gcsfs."
        )
    import fsspec
    from etils import epath

    # Without the cache, files that other hosts write are visible.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return epath.Path(name)


def reach(path: Path) -> None:
    """Checks that the service of a bucket answers; returns at once for a path on a disk.

    It is called first, as the client would otherwise retry silently for minutes, or report a file
    as missing.

    Raises:
      OSError: the service cannot be reached or denies access; names the path.
    """
    if not in_bucket(path):
        return
    import fsspec

    answer: list[BaseException | None] = []

    def request():
        try:
            fsspec.filesystem("gs").info(
                f"{os.fspath(path).removeprefix('gs://').partition('/')[0]}/.reach"
            )
        except FileNotFoundError:
            answer.append(None)
        except Exception as error:  # the client raises many types
            answer.append(error)
        else:
            answer.append(None)

    logger = logging.getLogger("gcsfs")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it logs a traceback per attempt
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    logger.setLevel(level)
    error = answer[0] if answer else TimeoutError(f"no answer within {_TIMEOUT:.0f} s")
    if error:
        message = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(
            f"{path} cannot be reached ({message}); check the network and the credentials of Google"
            " Cloud."
        )


def in_bucket(path: Path) -> bool:
    """Whether a path is in a bucket.

    A bucket has no locks and no partial files, and renaming copies.
    """
    return "://" in os.fspath(path)


def size(path: Path) -> int:
    """The bytes of a file."""
    found: Any = path.stat()
    return found.length if in_bucket(path) else found.st_size


def absolute(path: Path) -> Path:
    """The absolute path; a path in a bucket is returned unchanged, as it is absolute."""
    return path if in_bucket(path) else path.absolute()


def resolved(path: Path) -> Path:
    """The absolute path with links resolved; a bucket has no links."""
    return path if in_bucket(path) else path.resolve()


def move(path: Path, target: Path) -> None:
    """Renames a directory; the target must not exist."""
    if not in_bucket(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        return
    import fsspec

    # The service copies object by object. Epath would require a parent directory, but a bucket has
    # no empty directories.
    fsspec.filesystem("gs").mv(os.fspath(path), os.fspath(target), recursive=True)


def user_cache() -> Path:
    """The directory of this package in the user's cache, which need not exist.

    Raises:
      RuntimeError: the user has no home directory.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "heteroscedastic"
