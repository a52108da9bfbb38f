"""Paths on disks and in buckets."""

import importlib.util
import logging
import os
import pathlib
import threading

# One way to a bucket whether TensorFlow is installed or not, and the one that is tested. Epath
# looks at this once.
if importlib.util.find_spec("gcsfs"):
    os.environ.setdefault("EPATH_USE_TF", "0")

_SECONDS_TO_REACH = 30.0  # a bucket; its own client tries for longer
Path = pathlib.PurePath  # pathlib.Path, or a path in a bucket, which has the same methods


def as_path(name: str | os.PathLike) -> Path:
    """A path on a disk, or in a bucket where its name is gs://BUCKET/...; both have the methods of
    pathlib.

    On a disk ~ is a home directory, also where no shell replaced it, as in --workdir=~/runs/x.

    Raises:
      ValueError: a scheme other than gs, or the home of an unknown user.
      ModuleNotFoundError: what reads and writes buckets is not installed.
    """
    scheme, found, _ = os.fspath(name).partition("://")
    if not found:
        try:
            return pathlib.Path(name).expanduser()
        except RuntimeError:
            raise ValueError(
                f"{name} is in the home of a user that is unknown here; give the path in full."
            ) from None
    if scheme != "gs":
        raise ValueError(
            f"{name} is in {scheme}://, but buckets are read and written as gs://BUCKET/... alone."
        )
    if not importlib.util.find_spec("gcsfs"):
        raise ModuleNotFoundError(f"{name} is in a bucket, which needs: pip install gcsfs.")
    import fsspec
    from etils import epath

    # What other hosts write is to be seen.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return epath.Path(name)


def reach(path: Path) -> None:
    """Returns at once for a path on a disk, and for one in a bucket once its service has answered.

    Asked first, as a client that tries for minutes, or takes no answer for no file, says nothing
    meanwhile.

    Raises:
      OSError: the service cannot be reached, or refuses; names the path.
    """
    if not in_bucket(path):
        return
    import fsspec

    answer: list[BaseException | None] = []

    def ask():
        try:
            fsspec.filesystem("gs").info(
                f"{os.fspath(path).removeprefix('gs://').partition('/')[0]}/.reach"
            )
        except FileNotFoundError:
            answer.append(None)
        except Exception as error:  # of whatever kind its client raises
            answer.append(error)
        else:
            answer.append(None)

    logger = logging.getLogger("gcsfs")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it logs a traceback for each attempt
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_SECONDS_TO_REACH)
    logger.setLevel(level)
    error = answer[0] if answer else TimeoutError(f"no answer within {_SECONDS_TO_REACH:.0f} s")
    if error:
        told = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(
            f"{path} cannot be reached ({told}); check the network and the credentials of Google"
            " Cloud."
        )


def in_bucket(path: Path) -> bool:
    """Whether a path is in a bucket, where there are no locks, nothing is half written and renaming
    is copying.
    """
    return "://" in os.fspath(path)


def absolute(path: Path) -> Path:
    """The path from the root; of a bucket it is so already, which its own method does not know."""
    return path if in_bucket(path) else path.absolute()


def resolved(path: Path) -> Path:
    """The path from the root without links, of which a bucket has none."""
    return path if in_bucket(path) else path.resolve()


def move(path: Path, to: Path) -> None:
    """A directory under another name, which nothing may have yet."""
    if not in_bucket(path):
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
        return
    import fsspec

    # Its service copies, object by object. Epath would ask for a parent, and a bucket has no empty
    # directories.
    fsspec.filesystem("gs").mv(os.fspath(path), os.fspath(to), recursive=True)
