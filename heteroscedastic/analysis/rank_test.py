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
    num_images, num_others = len(ranked), ranked.shape[1] - 1
    total = expected = variance = 0.0
    for label in np.unique(true):
        own = true == label
        taken, place = np.unique(taken_for[own], return_inverse=True)
        # By the class taken for, the rank it would have under each name; classes never taken for have sums of 0.
        sums = np.zeros((len(taken), ranked.shape[1]))
        np.add.at(sums, place, ranked[own])
        total += np.sum(sums[np.arange(len(taken)), taken])
        sums = np.delete(sums, label, axis=1)
        of_name, mean = sums.sum(axis=0) / num_others, sums.sum() / num_others**2
        centred = sums - of_name - sums.mean(axis=1, keepdims=True) + mean
        absent = (num_others - len(taken)) * np.sum(np.square(of_name - mean))
        expected += num_others * mean
        variance += (np.sum(np.square(centred)) + absent) / max(1, num_others - 1)
    deviation = np.sqrt(variance)
    p = stats.norm.cdf((total - expected) / deviation) if deviation > 0 else 1.0
    return Chance(*(float(x) for x in (total / num_images, expected / num_images, deviation / num_images, p)))
