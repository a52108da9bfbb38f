"""Bands that say how much a number would move with other examples of the same kind."""

import numpy as np
from jaxtyping import Float

_CHUNK_VALUES = 2**22  # counts held at a time


def resampled_sums(
    values: Float[np.ndarray, "n c"], num_resamples: int, seed: int = 0
) -> Float[np.ndarray, "r c"]:
    """Sums of c numbers over n examples drawn with replacement, `num_resamples` times.

    The numbers of an example stay together, so ratios of sums and answers of one example to
    several questions are resampled as they belong.

    Args:
      values: of each example.
      num_resamples: 1 or more.
      seed: of the draws, which depend on nothing else but n and num_resamples.

    Source: Efron (1979).
    """
    n = len(values)
    if num_resamples < 1 or not n:
        raise ValueError(
            f"num_resamples is {num_resamples} and there are {n} examples; both must be >= 1."
        )
    draws = np.random.Generator(np.random.Philox(key=seed))
    at_once = max(1, _CHUNK_VALUES // n)
    parts = []
    for start in range(0, num_resamples, at_once):
        chosen = draws.integers(n, size=(min(at_once, num_resamples - start), n))
        counts = np.stack([np.bincount(row, minlength=n) for row in chosen])
        parts.append(counts @ values.astype(np.float64))
    return np.concatenate(parts)


def percentile_band(
    statistics: Float[np.ndarray, "r *c"], level: float = 0.95
) -> tuple[Float[np.ndarray, "*c"], Float[np.ndarray, "*c"]]:
    """The lower and upper end of the middle `level` of resampled statistics; nan are left out.

    nan where every resample has nan.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, but must be between 0 and 1.")
    ends = 50 * (1 - level), 50 * (1 + level)
    told = ~np.all(np.isnan(statistics), axis=0)
    filled = np.where(told, statistics, 0.0)
    low, high = np.where(told, np.nanpercentile(filled, ends, axis=0), np.nan)
    return low, high
