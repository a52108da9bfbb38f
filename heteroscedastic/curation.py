"""Which examples, with which labels, before training: (seed, ids, labels, num_classes) -> ids,
labels.

Every random choice is keyed by the seed and the example's id, so an example meets the same
fate in whatever company it comes. Labels are int32 [n], or [n, m] padded with -1; arrays are
numpy's.
"""

import zlib

import numpy as np
from jaxtyping import Float, Int

# What config.curation may name.
__all__ = ["confuse_pairs", "confuse_random_pairs", "drop_and_add", "subset"]

Ids = Int[np.ndarray, "n"]
Labels = Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]
Pairs = tuple


def confuse_pairs(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, pairs: Pairs, rate: float
) -> tuple[Ids, Labels]:
    """Labels of either class of a pair become the other with probability `rate`.

    Args:
      seed: of the noise.
      ids: positions in the stored split.
      labels: one class an example.
      num_classes: K.
      pairs: disjoint pairs of classes, such as ((1, 7), (4, 9)).
      rate: in [0, 1].
    """
    _check_share("rate", rate)
    _check_single(labels, "confuse_pairs")
    nested = all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    flat = [c for pair in pairs for c in pair] if nested else []
    if not nested or len(set(flat)) != len(flat):
        raise ValueError(f"pairs must be disjoint pairs of classes, but are {pairs}.")
    if any(not 0 <= c < num_classes for c in flat):
        raise ValueError(f"pairs {pairs} name a class outside 0 to {num_classes - 1}.")
    partner = np.arange(num_classes)
    for a, b in pairs:
        partner[a], partner[b] = b, a
    flip = uniforms(seed, "confuse_pairs", ids) < rate
    return ids, np.where(flip, partner[labels], labels).astype(np.int32)


def confuse_random_pairs(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, num_pairs: int, rate: float
) -> tuple[Ids, Labels]:
    """`confuse_pairs` with disjoint pairs drawn by the seed."""
    if not 0 <= 2 * num_pairs <= num_classes:
        raise ValueError(
            f"num_pairs is {num_pairs}, but {num_classes} classes have at most {num_classes // 2}."
        )
    drawn = _generator(seed, "random_pairs").permutation(num_classes)[: 2 * num_pairs].tolist()
    pairs = tuple(zip(drawn[::2], drawn[1::2]))
    return confuse_pairs(seed, ids, labels, num_classes, pairs=pairs, rate=rate)


def drop_and_add(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, drop_rate: float, add_rate: float
) -> tuple[Ids, Int[np.ndarray, "n w"]]:
    """Every label that holds is lost at one rate, every other one appears at another.

    Args:
      seed: of the noise.
      ids: positions in the stored split.
      labels: lists of classes padded with -1.
      num_classes: K.
      drop_rate: share of the true labels that are missing.
      add_rate: share of the other classes that are wrongly there.
    """
    _check_share("drop_rate", drop_rate)
    _check_share("add_rate", add_rate)
    if labels.ndim != 2:
        raise ValueError("drop_and_add needs lists of labels; these examples have one label each.")
    hot = multi_hot(labels, num_classes)
    change = np.where(hot, drop_rate, add_rate)
    draws = np.stack([uniforms(seed, f"drop_and_add {c}", ids) for c in range(num_classes)], axis=1)
    return ids, label_lists(hot ^ (draws < change))


def subset(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, num_examples: int
) -> tuple[Int[np.ndarray, "kept"], Int[np.ndarray, "kept"] | Int[np.ndarray, "kept m"]]:
    """`num_examples` of the examples, or all where there are fewer."""
    if num_examples < 1:
        raise ValueError(f"num_examples is {num_examples}, but must be >= 1.")
    keep = np.sort(np.argsort(uniforms(seed, "subset", ids), kind="stable")[:num_examples])
    return ids[keep], labels[keep]


def uniforms(seed: int, purpose: str, ids: Ids) -> Float[np.ndarray, "n"]:
    """A number in [0, 1) for each id, from seed, purpose and the id alone."""
    size = int(ids.max()) + 1 if ids.size else 0
    return _generator(seed, purpose).random(size)[ids]


def multi_hot(labels: Int[np.ndarray, "n m"], num_classes: int) -> np.ndarray:
    """Lists of labels as booleans [n, K]."""
    hot = np.zeros((len(labels), num_classes + 1), bool)
    hot[np.arange(len(labels))[:, None], labels] = True  # -1 falls into the spare last column
    return hot[:, :num_classes]


def label_lists(hot: np.ndarray) -> Int[np.ndarray, "n m"]:
    """Booleans [n, K] as lists of labels padded with -1, at least one place wide."""
    width = max(1, int(hot.sum(axis=1).max(initial=0)))
    order = np.argsort(~hot, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(hot, order, axis=1), order, -1).astype(np.int32)


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(purpose.encode())]))


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}, but must be in [0, 1].")


def _check_single(labels: Labels, name: str) -> None:
    if labels.ndim != 1:
        raise ValueError(f"{name} needs one label an example; these examples have lists of labels.")
