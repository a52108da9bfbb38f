"""Arrays in the user's cache, which later processes load instead of computing them again."""

import hashlib
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Shaped

from heteroscedastic.files import formats, paths

Arrays = dict[str, Shaped[np.ndarray, "..."]]
_FINGERPRINT = "fingerprint"  # the array of the fingerprint in each file


def digest(content: Any) -> str:
    """SHA-256 of a value of JSON types."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def cached_arrays(kind: str, fingerprint: str, compute: Callable[[], Arrays]) -> Arrays:
    """Loads arrays from `user_cache()`, or computes and saves them.

    A file that cannot be loaded or written is a warning, and the arrays are computed.

    Args:
      kind: of the arrays: the directory, and their name in warnings.
      fingerprint: of all that the arrays follow from.
      compute: the arrays; none has the name "fingerprint".
    """
    try:
        path = paths.user_cache() / kind / f"{fingerprint[:32]}.npz"
    except RuntimeError:  # the user has no home directory
        return compute()
    if _is_there(path):
        try:
            arrays = formats.read_arrays(path)
            if str(arrays.pop(_FINGERPRINT)) == fingerprint:
                return arrays
            reason: Any = "it is of other data"
        except Exception as error:  # zip, zlib or numpy, whichever meets damage first
            reason = error
        warnings.warn(f"{path} cannot be loaded ({reason}); computing it again.", stacklevel=3)
    arrays = compute()
    try:
        formats.write_arrays(path, arrays | {_FINGERPRINT: np.array(fingerprint)})
    except OSError as error:
        warnings.warn(f"{kind} is not saved: {error}.", stacklevel=3)
    return arrays


def _is_there(path: paths.Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a home directory of another user
        return False
