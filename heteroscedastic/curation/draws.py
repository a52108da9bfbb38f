"""Random numbers of curation, and the checks of its settings.

Every random number of an example depends on the seed and the id alone.
"""

import zlib

import numpy as np
from jaxtyping import Float, Int

Ids = Int[np.ndarray, "n"]
Labels = Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]
SelectedIds = Int[np.ndarray, "rows"]
SelectedLabels = Int[np.ndarray, "rows"] | Int[np.ndarray, "rows m"]


def uniforms(seed: int, purpose: str, ids: Ids) -> Float[np.ndarray, "n"]:
    """A random number in [0, 1) per id, which depends on seed, purpose and id alone."""
    size = int(ids.max()) + 1 if ids.size else 0
    return generator(seed, purpose).random(size)[ids]


def generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(purpose.encode())]))


def random_rows(seed: int, purpose: str, ids: Ids, number: int) -> SelectedIds:
    """The rows of `number` random examples, in order; all if there are fewer."""
    order = np.argsort(uniforms(seed, purpose, ids), kind="stable")
    return np.sort(order[:number])


def check_rate(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}, but must be in [0, 1].")


def check_single(labels: Labels, name: str) -> None:
    if labels.ndim != 1:
        raise ValueError(
            f"{name} requires one label per example; these examples have lists of labels."
        )
