"""Bootstrap: the variability of a number over test sets, and runs, of the same distribution."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special

_CHUNK_VALUES = 2**22  # counts in memory at a time


class Interval(NamedTuple):
    """A number with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        """Whether the interval contains 0."""
        return self.low <= 0 <= self.high


def resampled_sums(
    values: Float[np.ndarray, "n c"],
    num_resamples: int,
    seed: int = 0,
    groups: Int[np.ndarray, "n"] | None = None,
) -> Float[np.ndarray, "r c"]:
    """Sums of c numbers over n examples drawn with replacement, `num_resamples` times.

    The numbers of one example are drawn together, so ratios of sums and dependent answers are
    resampled correctly. Examples of one group are also drawn together. The number of examples then
    varies over the resamples: a mean is a ratio of two sums, of which one is of ones.

    Args:
      values: c numbers per example.
      num_resamples: r, 1 or more.
      seed: the draws depend only on it, num_resamples and the number of examples or groups.
      groups: number of the group of each example, such as the sentence of a token; None if the
        examples are independent.

    Raises:
      ValueError: num_resamples < 1, or there are no examples.

    Source: Efron (1979).
    """
    if groups is not None:
        values = _sums_by_group(values, groups)
    chunks = resampled_counts(len(values), num_resamples, seed)
    return np.concatenate([counts @ values.astype(np.float64) for counts in chunks])


def resampled_counts(
    num_examples: int, num_resamples: int, seed: int = 0
) -> Iterator[Int[np.ndarray, "_ n"]]:
    """How often each resample has each of n examples; in parts of a few resamples.

    See `resampled_sums` for the arguments and errors.
    """
    n = num_examples
    if num_resamples < 1 or not n:
        raise ValueError(
            f"num_resamples is {num_resamples} and values has {n} examples; both must be >= 1."
        )
    draws = np.random.Generator(np.random.Philox(key=seed))
    chunk_size = max(1, _CHUNK_VALUES // n)
    for start in range(0, num_resamples, chunk_size):
        indices = draws.integers(n, size=(min(chunk_size, num_resamples - start), n))
        yield np.stack([np.bincount(row, minlength=n) for row in indices])


def _sums_by_group(
    values: Float[np.ndarray, "n c"], groups: Int[np.ndarray, "n"]
) -> Float[np.ndarray, "g c"]:
    """In the order of the numbers of the groups."""
    rows = np.unique(groups, return_inverse=True)[1]
    return np.stack([np.bincount(rows, column) for column in values.T], axis=1)


def percentile_band(
    statistics: Float[np.ndarray, "r *c"], level: float = 0.95
) -> tuple[Float[np.ndarray, "*c"], Float[np.ndarray, "*c"]]:
    """Lower and upper end of the percentile interval of resampled statistics.

    Args:
      statistics: r resamples; nan are left out, and a statistic that is always nan has nan ends.
      level: probability of the interval, between 0 and 1.

    Raises:
      ValueError: level is out of range.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, but must be between 0 and 1.")
    ends = 50 * (1 - level), 50 * (1 + level)
    is_known = ~np.all(np.isnan(statistics), axis=0)
    filled = np.where(is_known, statistics, 0.0)
    low, high = np.where(is_known, np.nanpercentile(filled, ends, axis=0), np.nan)
    return low, high


def errors_of_runs(statistics: Float[np.ndarray, "r s"], seed: int = 0) -> Float[np.ndarray, "r"]:
    """By how much the mean of s other runs would differ, in each resample of the examples.

    It is the standard error over the runs of that resample, times a quantile of Student's t with
    s - 1 degrees of freedom; the quantiles are in random order. If the examples change nothing, the
    percentile interval of mean and error is the t interval over runs. Drawing few runs with
    replacement would make it too narrow: the variance would lack the factor s / (s - 1), and the
    interval the quantile of t. One run has no error.

    Args:
      statistics: of each run, by resample of the examples.
      seed: of the order of the quantiles.
    """
    num_resamples, num_runs = statistics.shape
    if num_runs == 1:
        return np.zeros(num_resamples)
    quantiles = special.stdtrit(num_runs - 1, (np.arange(num_resamples) + 0.5) / num_resamples)
    draws = np.random.Generator(np.random.Philox(key=seed))
    return draws.permutation(quantiles) * statistics.std(axis=1, ddof=1) / np.sqrt(num_runs)


def corrected_interval(
    value: float,
    draws: Float[np.ndarray, "r"],
    errors: Float[np.ndarray, "r"] | float = 0.0,
    level: float = 0.95,
) -> Interval:
    """The bias-corrected percentile interval of a number.

    A calibration error is larger in a resample than in the sample, as it is larger in the sample
    than in the population, and the correction accounts for both. It changes the interval of a mean
    little. The interval contains the number. Where the bias exceeds the error of the number, as for
    the calibration error of a calibrated model, it covers less often than its level.

    Args:
      value: of the sample itself.
      draws: the number in each resample; none is nan.
      errors: added to the corrected draws; see `errors_of_runs`. They have no bias.
      level: probability of the interval, between 0 and 1.

    Source: Efron (1981), Canadian Journal of Statistics 9 (2).
    """
    below = np.mean(draws < value) + 0.5 * np.mean(draws == value)
    # Kept off 0 and 1, where the normal quantile is infinite.
    bias = special.ndtri(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws)))
    ranks = np.argsort(np.argsort(draws, kind="stable")) / max(1, len(draws) - 1)
    corrected = np.quantile(draws, special.ndtr(2 * bias + special.ndtri(ranks)))
    low, high = np.quantile(corrected + errors, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value, float(min(low, value)), float(max(high, value)))
