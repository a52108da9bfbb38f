"""Bootstrap: the variability of a number over test sets from the same distribution."""

import numpy as np
from jaxtyping import Float

_CHUNK_VALUES = 2**22  # counts in memory at a time


def resampled_sums(
    values: Float[np.ndarray, "n c"], num_resamples: int, seed: int = 0
) -> Float[np.ndarray, "r c"]:
    """Sums of c numbers over n examples drawn with replacement, `num_resamples` times.

    The numbers of one example are drawn together, so ratios of sums and dependent answers are
    resampled correctly.

    Args:
      values: c numbers per example.
      num_resamples: r, 1 or more.
      seed: the draws depend only on it, n and num_resamples.

    Raises:
      ValueError: num_resamples < 1, or there are no examples.

    Source: Efron (1979).
    """
    n = len(values)
    if num_resamples < 1 or not n:
        raise ValueError(
            f"num_resamples is {num_resamples} and values has {n} examples; both must be >= 1."
        )
    draws = np.random.Generator(np.random.Philox(key=seed))
    chunk_size = max(1, _CHUNK_VALUES // n)
    parts = []
    for start in range(0, num_resamples, chunk_size):
        indices = draws.integers(n, size=(min(chunk_size, num_resamples - start), n))
        counts = np.stack([np.bincount(row, minlength=n) for row in indices])
        parts.append(counts @ values.astype(np.float64))
    return np.concatenate(parts)


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
