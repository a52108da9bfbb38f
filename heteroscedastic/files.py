"""Files that are there whole or not at all."""

import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np


def read_json(path: str | Path) -> Any:
    """A JSON file."""
    return json.loads(Path(path).read_text())


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
    """Writes rows under the names of the first one, whole or not at all."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def write_arrays(path: str | Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a compressed .npz file whole or not at all."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def write_whole(path: str | Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Lets `write` fill a file that takes the place of `path` only once it is complete."""
    path = Path(path)
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


def sweep(directory: str | Path) -> None:
    """Removes what a kill left of files that were being written."""
    for path in Path(directory).rglob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def named(path: str | Path) -> Iterator[None]:
    """A full disk says which file it struck."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
