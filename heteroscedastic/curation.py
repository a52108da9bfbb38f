"""Curation before training: (seed, ids, labels, num_classes) -> ids, labels.

Curation selects examples and changes labels. Every random number of an example depends on the seed
and the id alone. Subsets are therefore nested, and wrong labels at a lower rate are among those at
a higher rate, except for `permute_labels`. A function with the argument `images` also receives the
images of the examples. Labels are int32 [n], or [n, m] padded with -1; all arrays are NumPy arrays.
"""

import zlib

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from scipy import special, stats

# The functions that config.curation may name.
__all__ = [
    "confuse_pairs",
    "confuse_random_pairs",
    "drop_and_add",
    "exponential",
    "instance_dependent",
    "permute_labels",
    "rising_noise",
    "step",
    "subset",
    "symmetric",
    "transitions",
    "undersample",
]

Ids = Int[np.ndarray, "n"]
Labels = Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]
SelectedIds = Int[np.ndarray, "rows"]
SelectedLabels = Int[np.ndarray, "rows"] | Int[np.ndarray, "rows m"]
Pairs = tuple
_RATE_DEVIATION = 0.1  # of the rates of instance_dependent


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
    flat = _paired_classes("pairs", pairs, num_classes)
    if len(set(flat)) != len(flat):
        raise ValueError(f"pairs must be disjoint pairs of classes, but are {pairs}.")
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


def symmetric(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, rate: float
) -> tuple[Ids, Labels]:
    """Replaces each label, with probability `rate`, by a uniformly random other class."""
    _check_rate("rate", rate)
    _check_single(labels, "symmetric")
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}, but must be >= 2.")
    shift = 1 + (uniforms(seed, "symmetric target", ids) * (num_classes - 1)).astype(np.int32)
    is_changed = uniforms(seed, "symmetric", ids) < rate
    return ids, np.where(is_changed, (labels + shift) % num_classes, labels).astype(np.int32)


def instance_dependent(
    seed: int,
    ids: Ids,
    labels: Labels,
    num_classes: int,
    images: UInt8[np.ndarray, "n h w c"],
    *,
    rate: float,
) -> tuple[Ids, Labels]:
    """Label noise whose rate and wrong class depend on the example.

    The rate q of an example is drawn from a normal distribution with mean `rate` and standard
    deviation 0.1, truncated to [0, 1]. A label y becomes class j with probability
    q softmax(x W_y)_j over the other classes, where x are the standardised pixels of the image and
    the entries of W_y are standard normal. As x has many entries, nearly all of the probability is
    on one class.

    Args:
      seed: seed of the noise.
      ids: positions in the stored split.
      labels: one class per example.
      num_classes: K, 2 or more.
      images: of the examples.
      rate: in (0, 1). Truncation raises the mean rate of small rates: 0.129 for a rate of 0.1.

    Raises:
      ValueError: a setting is out of range, the labels are lists, or images are not in memory.

    Source: Xia et al. (2020), arXiv:2006.07836, Algorithm 2. It standardises the pixels by the mean
    and the deviation of the data set; here each image has its own, so that the noise of an example
    does not depend on the others.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate is {rate}, but must be above 0 and below 1.")
    _check_single(labels, "instance_dependent")
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}, but must be >= 2.")
    pixels = images.reshape(len(images), int(np.prod(images.shape[1:])))
    if not pixels.shape[1]:
        raise ValueError(
            "instance_dependent requires the images in memory; set config.data.pipeline to"
            " 'resident'."
        )
    low, high = stats.norm.cdf([-rate / _RATE_DEVIATION, (1 - rate) / _RATE_DEVIATION])
    share = low + uniforms(seed, "instance_dependent rate", ids) * (high - low)
    rates = rate + _RATE_DEVIATION * stats.norm.ppf(share)
    is_changed = uniforms(seed, "instance_dependent", ids) < rates
    points = uniforms(seed, "instance_dependent target", ids)
    noisy = labels.astype(np.int32)
    for y in np.unique(labels[is_changed]):
        rows = np.flatnonzero(is_changed & (labels == y))
        projection = _generator(seed, f"instance_dependent {y}").standard_normal(
            (pixels.shape[1], num_classes), np.float32
        )
        x = pixels[rows].astype(np.float32)
        x -= x.mean(axis=1, keepdims=True)
        x /= np.maximum(x.std(axis=1, keepdims=True), 1e-6)
        scores = x @ projection
        scores[:, y] = -np.inf
        ends = np.cumsum(special.softmax(scores.astype(np.float64), axis=1), axis=1)
        ends[:, -1] = np.inf  # in spite of rounding, a point is before an end
        chosen = (points[rows, None] >= ends).sum(axis=1)
        # A point beyond all ends of positive probability belongs to the last such class.
        last = num_classes - 1 if y != num_classes - 1 else num_classes - 2
        noisy[rows] = np.minimum(chosen, last)
    return ids, noisy


def transitions(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, moves: Pairs, rate: float
) -> tuple[Ids, Labels]:
    """Changes the label of one class to another class, each example with probability `rate`.

    Args:
      seed: seed of the noise.
      ids: positions in the stored split.
      labels: one class per example.
      num_classes: K.
      moves: pairs of a class and its wrong label. The moves of CIFAR-10 in Patrini et al. (2017),
        arXiv:1609.03683, are ((9, 1), (2, 0), (4, 7), (3, 5), (5, 3)).
      rate: probability in [0, 1].
    """
    _check_rate("rate", rate)
    _check_single(labels, "transitions")
    sources = _paired_classes("moves", moves, num_classes)[::2]
    if len(set(sources)) != len(sources) or any(a == b for a, b in moves):
        raise ValueError(f"moves must change each class once, to another class, but are {moves}.")
    target = np.arange(num_classes)
    for a, b in moves:
        target[a] = b
    is_changed = uniforms(seed, "transitions", ids) < rate
    return ids, np.where(is_changed, target[labels], labels).astype(np.int32)


def rising_noise(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, highest: float = 0.5
) -> tuple[Ids, Labels]:
    """Label noise whose rate rises linearly from 0 to `highest` over randomly ordered classes.

    A label of class i is wrong with probability p_i. It becomes class j, another class, with
    probability p_i p_j / (S - p_i), where S is the sum of all p. The order of the classes is not
    that of `exponential`, so that frequency and noise of a class are independent.
    """
    _check_rate("highest", highest)
    _check_single(labels, "rising_noise")
    if num_classes < 3:
        raise ValueError(
            f"num_classes is {num_classes}, but must be >= 3: the only class with noise has no"
            " other class with noise to become."
        )
    classes = rising_order(seed, num_classes)
    position_of_class = np.argsort(classes)  # also the probability, in units of the lowest p > 0
    is_changed = uniforms(seed, "rising_noise", ids) < highest * (
        position_of_class[labels] / (num_classes - 1)
    )
    own = position_of_class[labels[is_changed]]
    ends = np.cumsum(np.arange(num_classes))  # of the intervals [end - position, end)
    points = uniforms(seed, "rising_noise target", ids[is_changed]) * (ends[-1] - own)
    points += np.where(points >= ends[own] - own, own, 0)  # skips the interval of the own class
    noisy = labels.astype(np.int32)
    noisy[is_changed] = classes[np.searchsorted(ends[:-1], points, side="right")]
    return ids, noisy


def rising_order(seed: int, num_classes: int) -> Int[np.ndarray, "k"]:
    """The classes in the order in which `rising_noise` with this seed raises the rate."""
    return _generator(seed, "rising_noise classes").permutation(num_classes)


def permute_labels(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, rate: float
) -> tuple[Ids, Labels]:
    """Permutes the labels of a random share of the examples among these examples.

    Class counts stay the same, and about 1/K of the permuted labels stay correct. The examples at a
    lower rate are among those at a higher rate, but their labels are permuted anew.

    Args:
      seed: seed of the noise.
      ids: positions in the stored split.
      labels: one class per example.
      num_classes: K.
      rate: share of the examples in [0, 1], rounded to a whole number of them.
    """
    _check_rate("rate", rate)
    _check_single(labels, "permute_labels")
    rows = _random_rows(seed, "permute_labels", ids, round(rate * len(ids)))
    rows = rows[np.argsort(ids[rows], kind="stable")]  # the order of the rows has no effect
    noisy = labels.astype(np.int32)
    noisy[rows] = labels[_generator(seed, "permutation").permutation(rows)]
    return ids, noisy


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
    _check_single(labels, "exponential")
    return _class_shares(seed, ids, labels, ratio, ratio ** -np.linspace(0, 1, num_classes))


def step(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, ratio: float
) -> tuple[SelectedIds, SelectedLabels]:
    """Keeps floor(n / ratio) of the n examples of each class in a random half of the classes.

    Of an odd number of classes it reduces the smaller half. See `exponential` for the arguments.
    """
    _check_ratio(ratio)
    _check_single(labels, "step")
    shares = np.ones(num_classes)
    shares[(num_classes + 1) // 2 :] = 1 / ratio
    return _class_shares(seed, ids, labels, ratio, shares)


def undersample(
    seed: int, ids: Ids, labels: Labels, num_classes: int
) -> tuple[SelectedIds, SelectedLabels]:
    """Keeps as many random examples of each class as the smallest class has."""
    _check_single(labels, "undersample")
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
        _check_rate("fraction", fraction)
        num_examples = round(fraction * len(ids))
        if not num_examples:
            raise ValueError(f"fraction {fraction} of {len(ids):,} examples is none of them.")
    if num_examples < 1:
        raise ValueError(f"num_examples is {num_examples}, but must be >= 1.")
    rows = _random_rows(seed, "subset", ids, num_examples)
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


def _random_rows(seed: int, purpose: str, ids: Ids, number: int) -> SelectedIds:
    """The rows of `number` random examples, in order; all if there are fewer."""
    order = np.argsort(uniforms(seed, purpose, ids), kind="stable")
    return np.sort(order[:number])


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
    share_of_class[_generator(seed, "class_order").permutation(num_classes)] = shares
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
    order = np.lexsort((uniforms(seed, "class_subsets", ids), short))
    sorted_labels = labels[order]
    counts = np.bincount(labels, minlength=len(num_kept))
    rank = np.arange(len(ids)) - (np.cumsum(counts) - counts)[sorted_labels]
    is_kept = np.zeros(len(ids), bool)
    is_kept[order[rank < num_kept[sorted_labels]]] = True
    return ids[is_kept], labels[is_kept]


def _paired_classes(name: str, pairs: Pairs, num_classes: int) -> list[int]:
    """The classes of all pairs, in order."""
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"{name} must be pairs of classes, but are {pairs}.")
    classes = [c for pair in pairs for c in pair]
    if any(not 0 <= c < num_classes for c in classes):
        raise ValueError(f"{name} {pairs} contain a class outside 0 to {num_classes - 1}.")
    return classes


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}, but must be in [0, 1].")


def _check_ratio(value: float) -> None:
    if not 1 <= value < np.inf:
        raise ValueError(f"ratio is {value}, but must be a finite number >= 1.")


def _check_single(labels: Labels, name: str) -> None:
    if labels.ndim != 1:
        raise ValueError(
            f"{name} requires one label per example; these examples have lists of labels."
        )
