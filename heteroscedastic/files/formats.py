"""JSON, CSV and .npz files, written completely or not at all."""

import contextlib
import csv
import fnmatch
import io
import json
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from heteroscedastic.files.paths import Path, as_path, in_bucket


def read_json(path: str | Path) -> Any:
    """A JSON file."""
    return json.loads(as_path(path).read_text())


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Every array of an .npz file; one that holds objects, which only running its code could make,
    is an error.
    """
    with as_path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def write_json(path: str | Path, value: Any) -> None:
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


def write_csv(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows under the names of the first one, whole or not at all.

    Texts are `printable`, and one that a spreadsheet would take for a formula gets an apostrophe in
    front.
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
    """The text in one line: control characters, other ends of lines and marks of direction as
    escapes.
    """
    return "".join(c.encode("unicode_escape").decode() if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    marks_of_direction = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return marks_of_direction or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def write_arrays(path: str | Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a compressed .npz file whole or not at all."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def write_whole(path: str | Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Lets `write` fill a file that takes the place of `path` only once it is complete.

    Raises:
      OSError: it could not be written; names it.
    """
    path = as_path(path)
    if in_bucket(path):
        return _upload(path, write)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with named(path), temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(
                file.fileno()
            )  # before the name is taken, so that a power cut leaves no empty file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append(path: str | Path, data: bytes) -> None:
    """Appends to a file on a disk, and returns once the data is on it.

    A write that fails leaves the file as it was; one that is killed may leave a part of the data.

    Raises:
      OSError: the data could not be written; names the file.
    """
    path, rest = as_path(path), memoryview(data)
    with named(path), path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def _upload(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """What is uploaded is seen once it is complete."""
    with tempfile.TemporaryFile() as file:
        write(file)
        file.seek(0)
        try:
            path.write_bytes(file.read())
        except Exception as error:  # after the client's own attempts, of whatever kind it raises
            told = str(error).partition("\n")[0]  # the rest is a page of the service
            raise OSError(
                f"{path} could not be written ({type(error).__name__}: {told})"
            ) from error


def sweep(directory: Path, pattern: str) -> None:
    """Removes what a kill left of files that `write_whole` was writing; in a bucket there is
    nothing.

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
def named(path: str | Path) -> Iterator[None]:
    """A full disk says which file it struck."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
