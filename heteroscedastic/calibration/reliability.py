"""Confidence against accuracy in bins: sums that merge by addition, and the errors read off them."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class ReliabilitySums(NamedTuple):
    """Sums over the examples of each bin."""

    weight: Float[Array, "m"]
    confidence: Float[Array, "m"]
    correct: Float[Array, "m"]


def sums(
    confidence: Float[Array, "*b"],
    correct: Float[Array, "*b"],
    weights: Float[Array, "*b"],
    num_bins: int = 15,
) -> ReliabilitySums:
    """Sums over `num_bins` equal bins on [0, 1], each open below and closed above.

    Args:
      confidence: probability of the predicted class.
      correct: 1 where the prediction is right, else 0.
      weights: 0 means absent.
      num_bins: m.
    """
    # What is absent may be nan, and 0 * nan is nan.
    confidence, correct = (jnp.where(weights != 0, x, 0.0) for x in (confidence, correct))
    edges = jnp.linspace(0.0, 1.0, num_bins + 1)[1:-1]
    bins = jnp.searchsorted(edges, confidence, side="left")
    one_hot = (bins[..., None] == jnp.arange(num_bins)) * weights[..., None]
    axes = tuple(range(confidence.ndim))
    return ReliabilitySums(
        weight=jnp.sum(one_hot, axis=axes),
        confidence=jnp.sum(one_hot * confidence[..., None], axis=axes),
        correct=jnp.sum(one_hot * correct[..., None], axis=axes),
    )


def expected_calibration_error(s: ReliabilitySums) -> float:
    """sum_m (n_m / n) |accuracy_m - mean confidence_m|, a fraction; nan where nothing was counted.

    Source: Guo et al. (2017), Eq. 3.
    """
    total = np.sum(s.weight)
    return float(np.sum(np.abs(np.subtract(s.correct, s.confidence))) / total) if total else float("nan")
