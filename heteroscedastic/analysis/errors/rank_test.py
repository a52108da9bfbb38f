"""Ranks of one class among others, and a permutation test of the mean rank."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

_BLOCK_VALUES = 2**20  # values ranked at a time
_MAX_RENAMED = 2 * 10**7  # classes times permutations; limits permutations for many classes


def ranks(values: Float[np.ndarray, "n k"], true: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n k"]:
    """Ranks the classes of each example, without its true class, by absolute value.

    Rank 1 is the largest absolute value; ties share the mean of their ranks. Ranks are float32,
    which is exact below four million classes.

    Args:
      values: one value per example and class.
      true: class of each example; its rank is 0.
    """
    result = np.zeros(values.shape, np.float32)
    block_size = max(1, _BLOCK_VALUES // values.shape[1])
    for start in range(0, len(values), block_size):
        block = slice(start, start + block_size)
        sizes, own = -np.abs(values[block]), true[block, None]
        np.put_along_axis(sizes, own, np.inf, axis=-1)
        block_ranks = stats.rankdata(sizes, axis=-1)
        np.put_along_axis(block_ranks, own, 0, axis=-1)
        result[block] = block_ranks
    return result


class RankTest(NamedTuple):
    """The mean rank of the predicted classes, and its distribution under the null hypothesis."""

    mean: float
    of_classes: float  # the test statistic: ranks averaged over the images of a true class first
    expected: float  # mean of the statistic over permutations
    deviation: float  # standard deviation of the statistic over permutations
    p: float  # one-sided: probability of a statistic at least as small


def permutation_test(
    class_ranks: Float[np.ndarray, "n k"],
    true: Int[np.ndarray, "n"],
    predicted: Int[np.ndarray, "n"],
    num_permutations: int = 9999,
) -> RankTest:
    """Tests whether the mean rank of the predicted classes is smaller than by chance.

    Images are not independent draws: images of one true class share most of its covariances and
    are predicted as the same few classes. True classes are not independent either: a covariance
    belongs to two classes, which are often confused with each other; one class may have large
    covariances with all others, and another may be a frequent mistake. The test therefore permutes
    class names, jointly for true and predicted classes: the table of mean ranks by true and
    predicted class is renamed, and the counts of predictions stay. Differences between the ranks
    of images of one true class do not enter the test. A true class without images has no ranks, so
    names are permuted separately among the classes with images and among those without.

    Args:
      class_ranks: result of `ranks`.
      true: class of each image.
      predicted: another class for each image.
      num_permutations: to draw, from a fixed seed. With many classes fewer are drawn, but at
        least 999.

    Source: Mantel (1967), The detection of disease clustering and a generalized regression
    approach.
    """
    num_classes = class_ranks.shape[1]
    labels, row = np.unique(true, return_inverse=True)
    absent = np.setdiff1d(np.arange(num_classes), labels)
    means = np.stack(
        [class_ranks[true == label].mean(axis=0, dtype=np.float64) for label in labels]
    )
    # Class pairs without images have weight 0, so only the pairs of the images are needed.
    (rows, others), counts = np.unique(np.stack([row, predicted]), axis=1, return_counts=True)
    weights = counts / len(true)
    draws = np.random.Generator(np.random.Philox(key=0))
    num = min(num_permutations, max(999, _MAX_RENAMED // num_classes))
    permuted, name = np.empty(num), np.arange(num_classes)
    for i in range(num):
        order = draws.permutation(len(labels))
        name[labels], name[absent] = labels[order], draws.permutation(absent)
        permuted[i] = weights @ means[order[rows], name[others]]
    of_classes = weights @ means[rows, others]
    # The tolerance counts statistics that differ only by rounding as equal.
    p = (1 + np.sum(permuted <= of_classes * (1 + 1e-9))) / (1 + num)
    mean = np.mean(class_ranks[np.arange(len(true)), predicted], dtype=np.float64)
    return RankTest(
        float(mean), float(of_classes), float(permuted.mean()), float(permuted.std()), float(p)
    )
