"""Average precision over any number of scores, from counts in bins that merge by addition.

The exact value needs all scores sorted at once; here positives and negatives are counted in bins
of the score, fixed beforehand. What is lost is the order within a bin, and the bounds say how
much that can be.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_LINEAR = 8.0  # log-odds up to which bins are of about one width
_LIMIT = 1e4  # log-odds beyond which everything is in the outermost bins


class RankingSums(NamedTuple):
    """Weights of the examples in each bin of the score, from the lowest."""

    positive: Float[Array, "m"]
    negative: Float[Array, "m"]


def log_odds_edges(num_bins: int = 2**12) -> Float[np.ndarray, "e"]:
    """Edges of bins of equal width in asinh(log-odds / 8), up to 10^4 either way.

    At 4096 bins the width is 0.03 nats at even odds, and 1/250 of the log-odds where they are
    large.
    """
    end = np.arcsinh(_LIMIT / _LINEAR)
    return (_LINEAR * np.sinh(np.linspace(-end, end, num_bins + 1))).astype(np.float32)


def sums(
    scores: Float[Array, "b k"],
    targets: Float[Array, "b k"],
    weights: Float[Array, "b"],
    edges: Float[np.ndarray, "e"],
) -> RankingSums:
    """Counts of all (example, class) pairs pooled, by bins open below and closed above.

    Args:
      scores: of any one order; infinite ones are in the outermost bins.
      targets: 1 where the class holds, else 0.
      weights: 0 means absent. A nan among the scores of a present example makes every sum nan.
      edges: ascending; what lies outside them counts in the outermost bins.
    """
    num_bins = len(edges) - 1
    bins = jnp.searchsorted(jnp.asarray(edges[1:-1]), scores, side="left")
    bins = bins + num_bins * (targets > 0)
    # Whole numbers by example: adding them up in float32 would stop at 2^24 in a bin.
    counts = jax.vmap(lambda x: jnp.bincount(x, length=2 * num_bins))(bins)
    weights = jnp.where((weights != 0) & jnp.any(jnp.isnan(scores), axis=-1), jnp.nan, weights)
    negative, positive = jnp.sum(weights[:, None] * counts, axis=0).reshape(2, num_bins)
    return RankingSums(positive=positive, negative=negative)


def average_precision(s: RankingSums) -> float:
    """sum_i (R_i - R_{i-1}) P_i over falling thresholds, as if each bin were evenly mixed.

    The precision of a bin's positives is the one halfway through it. This lies within the
    bounds, and is exact where all scores are equal. nan without positives.
    """
    positive, negative, positives_above, negatives_above = _falling(s)
    hits, misses = positives_above + positive / 2, negatives_above + negative / 2
    return (
        float(np.sum(positive * hits / (hits + misses)) / np.sum(positive))
        if len(positive)
        else float("nan")
    )


def average_precision_bounds(s: RankingSums) -> tuple[float, float]:
    """What the average precision of the scores themselves cannot be below and above.

    Of a bin with P positives and N negatives, T and F of them in the bins above, the positives
    add most if they are tied before all negatives, P (T + P) / (T + P + F), and least if they
    come one by one after them: with A = F + N, a sum of (T + j) / (T + j + A) that is no less
    than its integral over j from 0 to P, P - A log((T + P + A) / (T + A)), for weights of any size.
    """
    positive, negative, positives_above, negatives_above = _falling(s)
    if not len(positive):
        return float("nan"), float("nan")
    before = negatives_above + negative
    best = positive * (positives_above + positive) / (positives_above + positive + negatives_above)
    ahead = np.where(before > 0, positives_above + before, 1.0)
    worst = positive - before * np.log1p(positive / ahead)
    return tuple(float(np.sum(x) / np.sum(positive)) for x in (worst, best))


def _falling(s):
    """By bin that holds positives, from the highest: both counts, and both counts of the bins
    above.
    """
    positive, negative = (np.asarray(x, np.float64)[::-1] for x in s)
    above = [np.cumsum(x) - x for x in (positive, negative)]
    held = positive != 0  # a nan is kept, and shows
    return tuple(x[held] for x in (positive, negative, *above))
