"""Files on disks and in buckets, that are there whole or not at all."""

import contextlib
import csv
import fnmatch
import importlib.util
import io
import json
import logging
import os
import tempfile
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import IO, Any

import numpy as np

# One way to a bucket whether TensorFlow is installed or not, and the one that is tested. Epath looks at this once.
if importlib.util.find_spec("gcsfs"):
    os.environ.setdefault("EPATH_USE_TF", "0")

_SECONDS_TO_REACH = 30.0  # a bucket; its own client tries for longer
Place = PurePath  # a Path, or one of a bucket, which has the same methods


def place(name: str | os.PathLike) -> Place:
    """A path on a disk, or in a bucket where its name is gs://BUCKET/...; both have the methods of pathlib.

    On a disk ~ is a home directory, also where no shell replaced it, as in --workdir=~/runs/x.

    Raises:
      ValueError: a scheme other than gs, or the home of an unknown user.
      ModuleNotFoundError: what reads and writes buckets is not installed.
    """
    scheme, found, _ = os.fspath(name).partition("://")
    if not found:
        try:
            return Path(name).expanduser()
        except RuntimeError:
            raise ValueError(f"{name} is in the home of a user that is unknown here; give the path in full.") from None
    if scheme != "gs":
        raise ValueError(f"{name} is in {scheme}://, but buckets are read and written as gs://BUCKET/... alone.")
    if not importlib.util.find_spec("gcsfs"):
        raise ModuleNotFoundError(f"{name} is in a bucket, which needs: pip install gcsfs.")
    import fsspec
    from etils import epath

    # What other hosts write is to be seen.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return epath.Path(name)


def reach(path: Place) -> None:
    """Returns at once for a path on a disk, and for one in a bucket once its service has answered.

    Asked first, as a client that tries for minutes, or takes no answer for no file, says nothing meanwhile.

    Raises:
      OSError: the service cannot be reached, or refuses; names the path.
    """
    if not in_bucket(path):
        return
    import fsspec

    answer: list[BaseException | None] = []

    def ask():
        try:
            fsspec.filesystem("gs").info(f"{os.fspath(path).removeprefix('gs://').partition('/')[0]}/.reach")
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
        raise OSError(f"{path} cannot be reached ({told}); check the network and the credentials of Google Cloud.")


def in_bucket(path: Place) -> bool:
    """Whether a path is in a bucket, where there are no locks, nothing is half written and renaming is copying."""
    return "://" in os.fspath(path)


def absolute(path: Place) -> Place:
    """The path from the root; of a bucket it is so already, which its own method does not know."""
    return path if in_bucket(path) else path.absolute()


def resolved(path: Place) -> Place:
    """The path from the root without links, of which a bucket has none."""
    return path if in_bucket(path) else path.resolve()


def move(path: Place, to: Place) -> None:
    """A directory under another name, which nothing may have yet."""
    if not in_bucket(path):
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
        return
    import fsspec

    # Its service copies, object by object. Epath would ask for a parent, and a bucket has no empty directories.
    fsspec.filesystem("gs").mv(os.fspath(path), os.fspath(to), recursive=True)


def read_json(path: str | Place) -> Any:
    """A JSON file."""
    return json.loads(place(path).read_text())


def read_arrays(path: str | Place) -> dict[str, np.ndarray]:
    """Every array of an .npz file; one that holds objects, which only running its code could make, is an error."""
    with place(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def write_json(path: str | Place, value: Any) -> None:
    """Writes what `plain` makes of a value, whole or not at all."""
    text = json.dumps(plain(value), indent=1, allow_nan=False)
    write_whole(path, lambda file: file.write(text.encode() + b"\n"))


def plain(value: Any) -> Any:
    """As JSON knows it: named tuples as objects, arrays as lists, nan and infinities as null."""
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(name): plain(v) for name, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def write_csv(path: str | Place, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows under the names of the first one, whole or not at all.

    Texts are `printable`, and one that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        float(value)  # a number may begin with a sign
        return value
    return ("'" if value.startswith(("=", "+", "-", "@")) else "") + printable(value)


def printable(text: str) -> str:
    """The text in one line: control characters, other ends of lines and marks of direction as escapes."""
    return "".join(c.encode("unicode_escape").decode() if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    marks_of_direction = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return marks_of_direction or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def write_arrays(path: str | Place, arrays: dict[str, np.ndarray]) -> None:
    """Writes a compressed .npz file whole or not at all."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def write_whole(path: str | Place, write: Callable[[IO[bytes]], Any]) -> None:
    """Lets `write` fill a file that takes the place of `path` only once it is complete.

    Raises:
      OSError: it could not be written; names it.
    """
    path = place(path)
    if in_bucket(path):
        return _upload(path, write)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with named(path), temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # before the name is taken, so that a power cut leaves no empty file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _upload(path: Place, write: Callable[[IO[bytes]], Any]) -> None:
    """What is uploaded is seen once it is complete."""
    with tempfile.TemporaryFile() as file:
        write(file)
        file.seek(0)
        try:
            path.write_bytes(file.read())
        except Exception as error:  # after the client's own attempts, of whatever kind it raises
            told = str(error).partition("\n")[0]  # the rest is a page of the service
            raise OSError(f"{path} could not be written ({type(error).__name__}: {told})") from error


def sweep(directory: Place, pattern: str) -> None:
    """Removes what a kill left of files that `write_whole` was writing; in a bucket there is nothing.

    Args:
      directory: that holds them; what it links to, or has in other directories, is left alone.
      pattern: of the names that the files would have had.
    """
    if in_bucket(directory) or not directory.is_dir() or directory.is_symlink():
        return
    for path in directory.glob(".*.tmp"):
        name, _, process = path.name[1:].removesuffix(".tmp").rpartition(".")
        is_ours = process.isdigit() and fnmatch.fnmatchcase(name, pattern)
        if is_ours and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def named(path: str | Place) -> Iterator[None]:
    """A full disk says which file it struck."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
