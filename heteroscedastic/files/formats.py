"""JSON, CSV and .npz files; an interrupted write leaves no partial file."""

import contextlib
import csv
import fnmatch
import io
import json
import math
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from jaxtyping import Shaped

from heteroscedastic.files.paths import Path, as_path, in_bucket


def read_json(path: str | Path) -> Any:
    """Reads a JSON file.

    Raises:
      ValueError: it is not JSON; names the file and the place.
    """
    text = as_path(path).read_bytes()
    try:
        return json.loads(text)
    except ValueError as error:  # also of its encoding
        raise ValueError(f"{path} is not JSON: {error}; repair or replace it.") from error


def read_arrays(path: str | Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Reads all arrays of an .npz file; an array of objects is an error, as pickles run code."""
    with as_path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def write_json(path: str | Path, value: Any) -> None:
    """Writes a value, converted by `plain`, as a JSON file; see `write_atomically`."""
    text = json.dumps(plain(value), indent=1, allow_nan=False)
    write_atomically(path, lambda file: file.write(text.encode() + b"\n"))


def plain(value: Any) -> Any:
    """Converts to JSON types: named tuples to objects, arrays to lists, nan and inf to null."""
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


def nan_for_null(value: Any) -> Any:
    """The numbers of a JSON value that `plain` made of nan or inf are nan again."""
    if isinstance(value, dict):
        return {name: nan_for_null(v) for name, v in value.items()}
    if isinstance(value, list):
        return [nan_for_null(v) for v in value]
    return math.nan if value is None else value


def write_csv(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows as a CSV file (see `csv_text` and `write_atomically`)."""
    write_atomically(path, lambda file: file.write(csv_text(rows).encode()))


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as the text of a CSV file, with the names of the first row as header.

    Strings are made `printable`. A string that a spreadsheet would evaluate as a formula is
    prefixed with an apostrophe.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        float(value)  # a number may begin with a sign
        return value
    return ("'" if value.startswith(("=", "+", "-", "@")) else "") + printable(value)


def printable(text: str) -> str:
    """The text in one line, with control characters, line ends and direction marks escaped."""
    if text.isprintable():  # as most are; no character below is
        return text
    return "".join(c.encode("unicode_escape").decode() if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    is_direction_mark = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return is_direction_mark or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def write_arrays(path: str | Path, arrays: dict[str, Shaped[np.ndarray, "..."]]) -> None:
    """Writes a compressed .npz file; see `write_atomically`."""
    # To mypy the arrays might be `allow_pickle`.
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore


def write_atomically(path: str | Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes a file that replaces `path` only once it is complete.

    Args:
      path: path of the file.
      write: function that writes the content to an open file.

    Raises:
      OSError: the file could not be written; names the path.
    """
    path = as_path(path)
    if in_bucket(path):
        return _upload(path, write)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with error_path(path), temporary.open("wb") as file:
            write(file)
            file.flush()
            # Flushed before the rename, so that a power failure leaves no empty file.
            os.fsync(file.fileno())
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
    with error_path(path), path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def _upload(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Uploads a file to a bucket; it becomes visible once it is complete."""
    with tempfile.TemporaryFile() as file:
        write(file)
        file.seek(0)
        try:
            path.write_bytes(file.read())
        except Exception as error:  # the client raises many types, after its own retries
            message = str(error).partition("\n")[0]  # further lines are a page of the service
            raise OSError(
                f"{path} could not be written ({type(error).__name__}: {message})"
            ) from error


def sweep(directory: Path, pattern: str) -> None:
    """Removes temporary files that an interrupted `write_atomically` left; a bucket has none.

    Args:
      directory: directory of the files; symbolic links and subdirectories are ignored.
      pattern: pattern of the final file names.
    """
    if in_bucket(directory) or not directory.is_dir() or directory.is_symlink():
        return
    for path in directory.glob(".*.tmp"):
        name, _, process = path.name[1:].removesuffix(".tmp").rpartition(".")
        is_temporary = process.isdigit() and fnmatch.fnmatchcase(name, pattern)
        if is_temporary and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def error_path(path: str | Path) -> Iterator[None]:
    """Adds the path to an OSError without one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
