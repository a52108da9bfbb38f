"""Average precision of any number of scores, from counts in bins that merge by addition.

The exact value requires sorting all scores at once. Here positives and negatives are counted in
fixed bins of the score. The order within a bin is lost; `average_precision_bounds` bounds the error
that this can cause.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_LINEAR = 8.0  # log-odds below which bins have approximately equal width
_LIMIT = 1e4  # largest log-odds; values beyond are in the outermost bins


class RankingSums(NamedTuple):
    """Sums of the weights of (example, class) pairs in each bin of the score, lowest bin first."""

    positive: Float[Array, "m"]
    negative: Float[Array, "m"]


def log_odds_edges(num_bins: int = 2**12) -> Float[np.ndarray, "e"]:
    """Edges of bins of equal width in asinh(log-odds / 8), from -10^4 to 10^4.

    With 4096 bins the width is 0.03 nats at even odds, and 1/250 of the log-odds for large ones.
    """
    end = np.arcsinh(_LIMIT / _LINEAR)
    return (_LINEAR * np.sinh(np.linspace(-end, end, num_bins + 1))).astype(np.float32)


def sums(
    scores: Float[Array, "b k"],
    targets: Float[Array, "b k"],
    weights: Float[Array, "b"],
    edges: Float[np.ndarray, "e"],
) -> RankingSums:
    """Counts of all (example, class) pairs in bins that are open below and closed above.

    Args:
      scores: only their order matters; infinite scores are in the outermost bins. A nan among the
        scores of a present example makes every sum nan.
      targets: 1 for the labels of an example, 0 for the other classes.
      weights: 0 means absent.
      edges: ascending; scores outside them are in the outermost bins.
    """
    num_bins = len(edges) - 1
    bins = jnp.searchsorted(jnp.asarray(edges[1:-1]), scores, side="left")
    bins = bins + num_bins * (targets > 0)
    # Integer counts per example, because a float32 sum of ones stops growing at 2^24.
    counts = jax.vmap(lambda x: jnp.bincount(x, length=2 * num_bins))(bins)
    weights = jnp.where((weights != 0) & jnp.any(jnp.isnan(scores), axis=-1), jnp.nan, weights)
    negative, positive = jnp.sum(weights[:, None] * counts, axis=0).reshape(2, num_bins)
    return RankingSums(positive=positive, negative=negative)


def average_precision(s: RankingSums) -> float:
    """sum_i (R_i - R_{i-1}) P_i over falling thresholds; nan without positives.

    R is the recall and P the precision. Positives and negatives of a bin are treated as evenly
    mixed: the positives of a bin have the precision halfway through it. The result lies within
    `average_precision_bounds`, and is exact where all scores are equal.
    """
    positive, negative, positives_above, negatives_above = _bins_with_positives(s)
    hits, misses = positives_above + positive / 2, negatives_above + negative / 2
    return (
        float(np.sum(positive * hits / (hits + misses)) / np.sum(positive))
        if len(positive)
        else float("nan")
    )


def average_precision_bounds(s: RankingSums) -> tuple[float, float]:
    """Lower and upper bound of the exact average precision of the scores; nan without positives.

    Consider a bin with P positives and N negatives, and T positives and F negatives in the bins
    above it. Its positives add most if they are tied and precede all its negatives:

        P (T + P) / (T + P + F).

    They add least if they follow the negatives one by one. With A = F + N this is a sum of
    (T + j) / (T + j + A), which is at least its integral over j from 0 to P,

        P - A log((T + P + A) / (T + A)),

    for weights of any size.
    """
    positive, negative, positives_above, negatives_above = _bins_with_positives(s)
    if not len(positive):
        return float("nan"), float("nan")
    before = negatives_above + negative
    best = positive * (positives_above + positive) / (positives_above + positive + negatives_above)
    ahead = np.where(before > 0, positives_above + before, 1.0)
    worst = positive - before * np.log1p(positive / ahead)
    total = np.sum(positive)
    return float(np.sum(worst) / total), float(np.sum(best) / total)


def _bins_with_positives(s):
    """Positives, negatives, and both in the bins above, for each such bin, highest bin first."""
    positive, negative = (np.asarray(x, np.float64)[::-1] for x in s)
    above = [np.cumsum(x) - x for x in (positive, negative)]
    has_positives = positive != 0  # also for nan, so that the result is nan
    return tuple(x[has_positives] for x in (positive, negative, *above))
