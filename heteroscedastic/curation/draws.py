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
_PART = 2**20  # numbers that are drawn at once
_PER_BLOCK = 4  # numbers that Philox makes of one value of its counter


def uniforms(seed: int, purpose: str, ids: Ids) -> Float[np.ndarray, "n"]:
    """A random number in [0, 1) per id, which depends on seed, purpose and id alone."""
    result = np.empty(len(ids))
    order = np.argsort(ids, kind="stable")
    parts = ids[order] // _PART
    # Only the parts of the sequence that have ids are drawn, as ids may be large.
    for rows in np.split(order, np.flatnonzero(np.diff(parts)) + 1) if len(ids) else ():
        first = int(ids[rows[0]]) // _PART * _PART
        places = ids[rows] - first
        draws = generator(seed, purpose, first).random(int(places[-1]) + 1)
        result[rows] = draws[places]
    return result


def generator(seed: int, purpose: str, first: int = 0) -> np.random.Generator:
    """The random numbers of a seed and purpose, from number `first` on, a multiple of 4."""
    bits = np.random.Philox(key=[seed, zlib.crc32(purpose.encode())])
    return np.random.Generator(bits.advance(first // _PER_BLOCK))


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
