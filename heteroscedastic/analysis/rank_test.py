"""Where one class ranks among others, and what chance would make of it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats


def ranks(values: Float[np.ndarray, "n k"], true: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n k"]:
    """Of each class among all but the true one, 1 for the largest size, ties halfway; 0 for the true class."""
    sizes = -np.abs(values)
    sizes[np.arange(len(values)), true] = np.inf
    found = stats.rankdata(sizes, axis=-1)
    found[np.arange(len(values)), true] = 0
    return found


class Chance(NamedTuple):
    """The mean rank of the classes that images were taken for, and what chance would make of it."""

    mean: float
    expected: float
    deviation: float
    p: float  # one-sided, of a mean as small, by the normal approximation


def chance(ranked: Float[np.ndarray, "n k"], true: Int[np.ndarray, "n"], taken_for: Int[np.ndarray, "n"]) -> Chance:
    """A permutation test of the mean rank.

    Images of one true class share most of its covariances and are taken for the same few classes, so
    they are no independent draws. Under chance, therefore, the other classes are named anew once a
    true class and not once an image: every naming is as likely, and true classes are independent.
    Mean and variance over the namings are in closed form.

    Source: Hoeffding (1951), A combinatorial central limit theorem, Eqs. 3 to 10.
    """
    num_images, num_classes = ranked.shape
    total = expected = variance = 0.0
    for label in np.unique(true):
        others = np.arange(num_classes) != label
        sums = np.zeros((num_classes, num_classes))  # by the class taken for: ranks of whatever it would be named
        np.add.at(sums, taken_for[true == label], ranked[true == label])
        sums = sums[np.ix_(others, others)]
        total, expected = total + np.trace(sums), expected + sums.mean() * len(sums)
        centred = sums - sums.mean(axis=0) - sums.mean(axis=1, keepdims=True) + sums.mean()
        variance += np.sum(np.square(centred)) / max(1, len(sums) - 1)
    deviation = np.sqrt(variance)
    p = stats.norm.cdf((total - expected) / deviation) if deviation > 0 else 1.0
    return Chance(*(float(x) for x in (total / num_images, expected / num_images, deviation / num_images, p)))
