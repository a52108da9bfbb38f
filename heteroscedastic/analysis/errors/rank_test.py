"""Where one class ranks among others, and what chance would make of it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

_BLOCK_VALUES = 2**20  # sizes that are ranked at a time
_MOST_NAMED = (
    2 * 10**7
)  # names given over all renamings, which are fewer where there are many classes


def ranks(values: Float[np.ndarray, "n k"], true: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n k"]:
    """Of each class among all but the true one, 1 for the largest size, ties halfway; 0 for the
    true class.

    In float32, which holds them exactly below four million classes.
    """
    found = np.zeros(values.shape, np.float32)
    at_once = max(1, _BLOCK_VALUES // values.shape[1])
    for start in range(0, len(values), at_once):
        sizes, own = -np.abs(values[start : start + at_once]), true[start : start + at_once, None]
        np.put_along_axis(sizes, own, np.inf, axis=-1)
        ranked = stats.rankdata(sizes, axis=-1)
        np.put_along_axis(ranked, own, 0, axis=-1)
        found[start : start + at_once] = ranked
    return found


class Chance(NamedTuple):
    """The mean rank of the classes that images were taken for, and what chance would make of it."""

    mean: float
    of_classes: (
        float  # with the mean ranks of its true class for each image, which is what is tested
    )
    expected: float  # of that over the renamings, as is its deviation
    deviation: float
    p: float  # one-sided, of one as small


def chance(
    ranked: Float[np.ndarray, "n k"],
    true: Int[np.ndarray, "n"],
    taken_for: Int[np.ndarray, "n"],
    num_permutations: int = 9999,
) -> Chance:
    """A permutation test of the mean rank.

    Images of one true class share most of its covariances and are taken for the same few classes; a
    covariance is that of both classes, which are often taken for one another; and one class may
    have large covariances with all, another be a common mistake. So neither images nor true classes
    are independent draws. Under chance, therefore, classes are named anew all at once, as what an
    image is and as what it is taken for: the table of mean ranks by true and other class gets other
    names, and that of how many images are taken for what stays. What the ranks of an image have
    beyond those of its class is no evidence here. No rank is known of a true class without images,
    so true classes take one another's names, and the other classes theirs.

    Args:
      ranked: of `ranks`.
      true: class of each image.
      taken_for: another one.
      num_permutations: renamings to draw, from a seed of their own; of many classes fewer, to 999.

    Source: Mantel (1967), The detection of disease clustering and a generalized regression
    approach.
    """
    num_classes = ranked.shape[1]
    labels, row = np.unique(true, return_inverse=True)
    absent = np.setdiff1d(np.arange(num_classes), labels)
    means = np.stack([ranked[true == label].mean(axis=0, dtype=np.float64) for label in labels])
    # Where nothing was confused nothing counts, so of all pairs of classes those of the images are
    # enough.
    (rows, others), counts = np.unique(np.stack([row, taken_for]), axis=1, return_counts=True)
    weights = counts / len(true)
    draws = np.random.Generator(np.random.Philox(key=0))
    num = min(num_permutations, max(999, _MOST_NAMED // num_classes))
    renamed, name = np.empty(num), np.arange(num_classes)
    for i in range(num):
        order = draws.permutation(len(labels))
        name[labels], name[absent] = labels[order], draws.permutation(absent)
        renamed[i] = weights @ means[order[rows], name[others]]
    of_classes = weights @ means[rows, others]
    # Rounding must not part what is equal.
    p = (1 + np.sum(renamed <= of_classes * (1 + 1e-9))) / (1 + num)
    mean = np.mean(ranked[np.arange(len(true)), taken_for], dtype=np.float64)
    return Chance(
        float(mean), float(of_classes), float(renamed.mean()), float(renamed.std()), float(p)
    )
