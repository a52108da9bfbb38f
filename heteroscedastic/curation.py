"""Curation before training: (seed, ids, labels, num_classes) -> ids, labels.

Curation selects examples and changes labels. Every random number depends on the seed and the id of
its example alone. Labels are int32 [n], or [n, m] padded with -1; all arrays are NumPy arrays.
"""

import zlib

import numpy as np
from jaxtyping import Bool, Float, Int

# The functions that config.curation may name.
__all__ = ["confuse_pairs", "confuse_random_pairs", "drop_and_add", "subset"]

Ids = Int[np.ndarray, "n"]
Labels = Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]
Pairs = tuple


def confuse_pairs(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, pairs: Pairs, rate: float
) -> tuple[Ids, Labels]:
    """Swaps the labels of the two classes of a pair, each example with probability `rate`.

    Args:
      seed: seed of the noise.
      ids: positions in the stored split.
      labels: one class per example.
      num_classes: K.
      pairs: disjoint pairs of classes, such as ((1, 7), (4, 9)).
      rate: probability in [0, 1].
    """
    _check_rate("rate", rate)
    _check_single(labels, "confuse_pairs")
    are_pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    flat = [c for pair in pairs for c in pair] if are_pairs else []
    if not are_pairs or len(set(flat)) != len(flat):
        raise ValueError(f"pairs must be disjoint pairs of classes, but are {pairs}.")
    if any(not 0 <= c < num_classes for c in flat):
        raise ValueError(f"pairs {pairs} contain a class outside 0 to {num_classes - 1}.")
    partner = np.arange(num_classes)
    for a, b in pairs:
        partner[a], partner[b] = b, a
    is_flipped = uniforms(seed, "confuse_pairs", ids) < rate
    return ids, np.where(is_flipped, partner[labels], labels).astype(np.int32)


def confuse_random_pairs(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, num_pairs: int, rate: float
) -> tuple[Ids, Labels]:
    """`confuse_pairs` with `num_pairs` random disjoint pairs."""
    if not 0 <= 2 * num_pairs <= num_classes:
        raise ValueError(
            f"num_pairs is {num_pairs}, but {num_classes} classes have at most {num_classes // 2}."
        )
    order = _generator(seed, "random_pairs").permutation(num_classes)
    classes = order[: 2 * num_pairs].tolist()
    pairs = tuple(zip(classes[::2], classes[1::2]))
    return confuse_pairs(seed, ids, labels, num_classes, pairs=pairs, rate=rate)


def drop_and_add(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, drop_rate: float, add_rate: float
) -> tuple[Ids, Int[np.ndarray, "n w"]]:
    """Removes correct labels at one rate and adds wrong labels at another.

    Args:
      seed: seed of the noise.
      ids: positions in the stored split.
      labels: lists of classes, padded with -1.
      num_classes: K.
      drop_rate: probability in [0, 1] that a label is removed.
      add_rate: probability in [0, 1] that a class that is not a label is added.
    """
    _check_rate("drop_rate", drop_rate)
    _check_rate("add_rate", add_rate)
    if labels.ndim != 2:
        raise ValueError(
            "drop_and_add requires lists of labels; these examples have one label each."
        )
    hot = multi_hot(labels, num_classes)
    rates = np.where(hot, drop_rate, add_rate)
    draws = np.stack([uniforms(seed, f"drop_and_add {c}", ids) for c in range(num_classes)], axis=1)
    return ids, label_lists(hot ^ (draws < rates))


def subset(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, num_examples: int
) -> tuple[Int[np.ndarray, "rows"], Int[np.ndarray, "rows"] | Int[np.ndarray, "rows m"]]:
    """Selects `num_examples` random examples, or all if there are fewer."""
    if num_examples < 1:
        raise ValueError(f"num_examples is {num_examples}, but must be >= 1.")
    order = np.argsort(uniforms(seed, "subset", ids), kind="stable")
    rows = np.sort(order[:num_examples])
    return ids[rows], labels[rows]


def uniforms(seed: int, purpose: str, ids: Ids) -> Float[np.ndarray, "n"]:
    """A random number in [0, 1) per id, which depends on seed, purpose and id alone."""
    size = int(ids.max()) + 1 if ids.size else 0
    return _generator(seed, purpose).random(size)[ids]


def multi_hot(labels: Int[np.ndarray, "n m"], num_classes: int) -> Bool[np.ndarray, "n k"]:
    """Converts lists of labels to booleans by class."""
    hot = np.zeros((len(labels), num_classes + 1), bool)
    hot[np.arange(len(labels))[:, None], labels] = True  # -1 indexes the extra last column
    return hot[:, :num_classes]


def label_lists(hot: Bool[np.ndarray, "n k"]) -> Int[np.ndarray, "n m"]:
    """Converts booleans by class to lists of labels, padded with -1 and at least one wide."""
    width = max(1, int(hot.sum(axis=1).max(initial=0)))
    order = np.argsort(~hot, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(hot, order, axis=1), order, -1).astype(np.int32)


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(purpose.encode())]))


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}, but must be in [0, 1].")


def _check_single(labels: Labels, name: str) -> None:
    if labels.ndim != 1:
        raise ValueError(
            f"{name} requires one label per example; these examples have lists of labels."
        )
