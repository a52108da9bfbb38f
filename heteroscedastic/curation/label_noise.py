"""Label noise that is planted: (seed, ids, labels, num_classes) -> ids, noisy labels."""

import numpy as np
from jaxtyping import Int, UInt8
from scipy import special

from heteroscedastic import label_lists
from heteroscedastic.curation import draws
from heteroscedastic.curation.draws import Ids, Labels

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
    draws.check_rate("rate", rate)
    draws.check_single(labels, "confuse_pairs")
    flat = _paired_classes("pairs", pairs, num_classes)
    if len(set(flat)) != len(flat):
        raise ValueError(f"pairs must be disjoint pairs of classes, but are {pairs}.")
    partner = np.arange(num_classes)
    for a, b in pairs:
        partner[a], partner[b] = b, a
    is_flipped = draws.uniforms(seed, "confuse_pairs", ids) < rate
    return ids, np.where(is_flipped, partner[labels], labels).astype(np.int32)


def confuse_random_pairs(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, num_pairs: int, rate: float
) -> tuple[Ids, Labels]:
    """`confuse_pairs` with `num_pairs` random disjoint pairs."""
    if not 0 <= 2 * num_pairs <= num_classes:
        raise ValueError(
            f"num_pairs is {num_pairs}, but {num_classes} classes have at most {num_classes // 2}."
        )
    order = draws.generator(seed, "random_pairs").permutation(num_classes)
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
    draws.check_rate("drop_rate", drop_rate)
    draws.check_rate("add_rate", add_rate)
    if labels.ndim != 2:
        raise ValueError(
            "drop_and_add requires lists of labels; these examples have one label each."
        )
    hot = label_lists.multi_hot(labels, num_classes)
    rates = np.where(hot, drop_rate, add_rate)
    points = np.stack(
        [draws.uniforms(seed, f"drop_and_add {c}", ids) for c in range(num_classes)], axis=1
    )
    return ids, label_lists.from_multi_hot(hot ^ (points < rates))


def symmetric(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, rate: float
) -> tuple[Ids, Labels]:
    """Replaces each label, with probability `rate`, by a uniformly random other class."""
    draws.check_rate("rate", rate)
    draws.check_single(labels, "symmetric")
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}, but must be >= 2.")
    shift = 1 + (draws.uniforms(seed, "symmetric target", ids) * (num_classes - 1)).astype(np.int32)
    is_changed = draws.uniforms(seed, "symmetric", ids) < rate
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
    draws.check_single(labels, "instance_dependent")
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}, but must be >= 2.")
    pixels = images.reshape(len(images), int(np.prod(images.shape[1:])))
    if not pixels.shape[1]:
        raise ValueError(
            "instance_dependent requires the images in memory; set config.data.pipeline to"
            " 'resident'."
        )
    low, high = special.ndtr([-rate / _RATE_DEVIATION, (1 - rate) / _RATE_DEVIATION])
    share = low + draws.uniforms(seed, "instance_dependent rate", ids) * (high - low)
    rates = rate + _RATE_DEVIATION * special.ndtri(share)
    is_changed = draws.uniforms(seed, "instance_dependent", ids) < rates
    points = draws.uniforms(seed, "instance_dependent target", ids)
    noisy = labels.astype(np.int32)
    for y in np.unique(labels[is_changed]):
        rows = np.flatnonzero(is_changed & (labels == y))
        projection = draws.generator(seed, f"instance_dependent {y}").standard_normal(
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
    draws.check_rate("rate", rate)
    draws.check_single(labels, "transitions")
    sources = _paired_classes("moves", moves, num_classes)[::2]
    if len(set(sources)) != len(sources) or any(a == b for a, b in moves):
        raise ValueError(f"moves must change each class once, to another class, but are {moves}.")
    target = np.arange(num_classes)
    for a, b in moves:
        target[a] = b
    is_changed = draws.uniforms(seed, "transitions", ids) < rate
    return ids, np.where(is_changed, target[labels], labels).astype(np.int32)


def rising_noise(
    seed: int, ids: Ids, labels: Labels, num_classes: int, *, highest: float = 0.5
) -> tuple[Ids, Labels]:
    """Label noise whose rate rises linearly from 0 to `highest` over randomly ordered classes.

    A label of class i is wrong with probability p_i. It becomes class j, another class, with
    probability p_i p_j / (S - p_i), where S is the sum of all p. The order of the classes is not
    that of `exponential`, so that frequency and noise of a class are independent.
    """
    draws.check_rate("highest", highest)
    draws.check_single(labels, "rising_noise")
    if num_classes < 3:
        raise ValueError(
            f"num_classes is {num_classes}, but must be >= 3: the only class with noise has no"
            " other class with noise to become."
        )
    classes = rising_order(seed, num_classes)
    position_of_class = np.argsort(classes)  # also the probability, in units of the lowest p > 0
    is_changed = draws.uniforms(seed, "rising_noise", ids) < highest * (
        position_of_class[labels] / (num_classes - 1)
    )
    own = position_of_class[labels[is_changed]]
    ends = np.cumsum(np.arange(num_classes))  # of the intervals [end - position, end)
    points = draws.uniforms(seed, "rising_noise target", ids[is_changed]) * (ends[-1] - own)
    points += np.where(points >= ends[own] - own, own, 0)  # skips the interval of the own class
    noisy = labels.astype(np.int32)
    noisy[is_changed] = classes[np.searchsorted(ends[:-1], points, side="right")]
    return ids, noisy


def rising_order(seed: int, num_classes: int) -> Int[np.ndarray, "k"]:
    """The classes in the order in which `rising_noise` with this seed raises the rate."""
    return draws.generator(seed, "rising_noise classes").permutation(num_classes)


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
    draws.check_rate("rate", rate)
    draws.check_single(labels, "permute_labels")
    rows = draws.random_rows(seed, "permute_labels", ids, round(rate * len(ids)))
    rows = rows[np.argsort(ids[rows], kind="stable")]  # the order of the rows has no effect
    noisy = labels.astype(np.int32)
    noisy[rows] = labels[draws.generator(seed, "permutation").permutation(rows)]
    return ids, noisy


def _paired_classes(name: str, pairs: Pairs, num_classes: int) -> list[int]:
    """The classes of all pairs, in order."""
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"{name} must be pairs of classes, but are {pairs}.")
    classes = [c for pair in pairs for c in pair]
    if any(not isinstance(c, int | np.integer) or not 0 <= c < num_classes for c in classes):
        raise ValueError(
            f"{name} {pairs} contain a class that is no whole number from 0 to {num_classes - 1}."
        )
    return classes
