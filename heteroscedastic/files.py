"""Files that are there whole or not at all."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np


def read_json(path: str | Path) -> Any:
    """A JSON file."""
    return json.loads(Path(path).read_text())


def write_json(path: str | Path, value: Any) -> None:
    """Writes the file whole or not at all."""
    write_whole(path, lambda file: file.write(json.dumps(value, indent=1).encode() + b"\n"))


def write_arrays(path: str | Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a compressed .npz file whole or not at all."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def write_whole(path: str | Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Lets `write` fill a file that takes the place of `path` only once it is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
