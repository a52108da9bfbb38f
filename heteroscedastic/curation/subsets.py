"""Choice of examples: (seed, ids, labels, num_classes) -> their ids, their labels."""

import numpy as np
from jaxtyping import Float, Int

from heteroscedastic.curation import draws
from heteroscedastic.curation.draws import Ids, Labels, SelectedIds, SelectedLabels


def exponential(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, ratio: float
) -> tuple[SelectedIds, SelectedLabels]:
    """Keeps a share of each class that falls exponentially over randomly ordered classes.

    Class i of 1 to K keeps floor(n_i ratio^(-(i - 1) / (K - 1))) of its n_i examples.

    Args:
      seed: seed of the selection; `exponential` and `step` order the classes alike.
      ids: positions in the stored split.
      labels: one class per example.
      num_classes: K.
      ratio: the share of the first class over that of the last; at least 1.
    """
    _check_ratio(ratio)
    draws.check_single(labels, "exponential")
    return _class_shares(seed, ids, labels, ratio, ratio ** -np.linspace(0, 1, num_classes))


def step(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, ratio: float
) -> tuple[SelectedIds, SelectedLabels]:
    """Keeps floor(n / ratio) of the n examples of each class in a random half of the classes.

    Of an odd number of classes it reduces the smaller half. See `exponential` for the arguments.
    """
    _check_ratio(ratio)
    draws.check_single(labels, "step")
    shares = np.ones(num_classes)
    shares[(num_classes + 1) // 2 :] = 1 / ratio
    return _class_shares(seed, ids, labels, ratio, shares)


def undersample(
    seed: int, ids: Ids, labels: Labels, num_classes: int
) -> tuple[SelectedIds, SelectedLabels]:
    """Keeps as many random examples of each class as the smallest class has."""
    draws.check_single(labels, "undersample")
    counts = np.bincount(labels, minlength=num_classes)
    if not counts.min():
        raise ValueError(
            f"class {counts.argmin()} has 0 examples, so all {len(ids):,} examples of the other"
            " classes would be dropped."
        )
    return _class_subsets(seed, ids, labels, np.full(num_classes, counts.min()))


def subset(
    seed: int,
    ids: Ids,
    labels: Labels,
    num_classes: int,
    *,
    num_examples: int | None = None,
    fraction: float | None = None,
) -> tuple[SelectedIds, SelectedLabels]:
    """Selects random examples.

    Args:
      seed: seed of the selection.
      ids: positions in the stored split.
      labels: one class or a list of classes per example.
      num_classes: K; ignored.
      num_examples: number of examples, at least 1; if there are fewer, all are selected.
      fraction: share of the examples in (0, 1], instead of `num_examples`; it is rounded to a whole
        number of examples.
    """
    if (num_examples is None) == (fraction is None):
        raise ValueError(
            f"num_examples is {num_examples} and fraction is {fraction}; set exactly one of them."
        )
    if fraction is not None:
        draws.check_rate("fraction", fraction)
        num_examples = round(fraction * len(ids))
        if not num_examples:
            raise ValueError(f"fraction {fraction} of {len(ids):,} examples is none of them.")
    if num_examples < 1:
        raise ValueError(f"num_examples is {num_examples}, but must be >= 1.")
    rows = draws.random_rows(seed, "subset", ids, num_examples)
    return ids[rows], labels[rows]


def _class_shares(
    seed: int,
    ids: Ids,
    labels: Int[np.ndarray, "n"],
    ratio: float,
    shares: Float[np.ndarray, "k"],
) -> tuple[SelectedIds, SelectedLabels]:
    """Keeps these shares, rounded down, of the classes in a random order.

    `ratio` is for the error message.
    """
    num_classes = len(shares)
    share_of_class = np.empty(num_classes)
    share_of_class[draws.generator(seed, "class_order").permutation(num_classes)] = shares
    counts = np.bincount(labels, minlength=num_classes)
    # Whole numbers that are rounded below themselves are not to lose an example.
    num_kept = np.floor(counts * share_of_class * (1 + 1e-12)).astype(int)
    emptied = np.flatnonzero((num_kept == 0) & (counts > 0))
    if emptied.size:
        raise ValueError(
            f"ratio {ratio} keeps none of the {counts[emptied[0]]:,} examples of class"
            f" {emptied[0]}; choose a smaller ratio."
        )
    return _class_subsets(seed, ids, labels, num_kept)


def _class_subsets(
    seed: int, ids: Ids, labels: Int[np.ndarray, "n"], num_kept: Int[np.ndarray, "k"]
) -> tuple[SelectedIds, SelectedLabels]:
    """Keeps `num_kept[c]` random examples of each class c."""
    short = labels.astype(np.min_scalar_type(len(num_kept)))  # NumPy sorts 16 bits much faster
    order = np.lexsort((draws.uniforms(seed, "class_subsets", ids), short))
    sorted_labels = labels[order]
    counts = np.bincount(labels, minlength=len(num_kept))
    rank = np.arange(len(ids)) - (np.cumsum(counts) - counts)[sorted_labels]
    is_kept = np.zeros(len(ids), bool)
    is_kept[order[rank < num_kept[sorted_labels]]] = True
    return ids[is_kept], labels[is_kept]


def _check_ratio(value: float) -> None:
    if not 1 <= value < np.inf:
        raise ValueError(f"ratio is {value}, but must be a finite number >= 1.")
