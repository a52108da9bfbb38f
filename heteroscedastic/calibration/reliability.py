"""Confidence against accuracy in bins: sums that merge by addition, and the errors read off them.

Bins are open below and closed above; what lies at or below the lowest edge counts in the lowest
bin, what lies above the highest in the highest. They are found by binary search among edges in
float32, so a probability that is a whole ulp above an edge is above it, on every device.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Numbers = float | Float[np.ndarray, "..."]


class ReliabilitySums(NamedTuple):
    """Sums over the examples of each bin; where classes are held apart, their axis leads."""

    weight: Float[Array, "*k m"]
    confidence: Float[Array, "*k m"]
    correct: Float[Array, "*k m"]
    correct_confidence: Float[Array, "*k m"]  # of the confidence of those that are right


def equal_edges(num_bins: int, low: float = 0.0, high: float = 1.0) -> Float[np.ndarray, "e"]:
    """The num_bins + 1 edges of equal bins on [low, high]."""
    if num_bins < 1:
        raise ValueError(f"num_bins is {num_bins}, but must be >= 1.")
    return np.linspace(low, high, num_bins + 1).astype(np.float32)


def sums(
    confidence: Float[Array, "*b"],
    correct: Float[Array, "*b"],
    weights: Float[Array, "*b"],
    edges: Float[np.ndarray, "e"],
) -> ReliabilitySums:
    """Sums over the bins between the edges.

    Args:
      confidence: probability of the predicted class.
      correct: 1 where the prediction is right, else 0.
      weights: 0 means absent.
      edges: of m = e - 1 bins, ascending.
    """
    # What is absent may be nan, and 0 * nan is nan.
    confidence, correct = (jnp.where(weights != 0, x, 0.0) for x in (confidence, correct))
    bins = _bins(confidence, edges)
    # A sum over a one-hot axis adds in one order; scattered additions on a GPU would not.
    one_hot = (bins[..., None] == jnp.arange(len(edges) - 1)) * weights[..., None]
    axes = tuple(range(confidence.ndim))
    return ReliabilitySums(
        weight=jnp.sum(one_hot, axis=axes),
        confidence=jnp.sum(one_hot * confidence[..., None], axis=axes),
        correct=jnp.sum(one_hot * correct[..., None], axis=axes),
        correct_confidence=jnp.sum(one_hot * (correct * confidence)[..., None], axis=axes),
    )


def sums_by_class(
    confidence: Float[Array, "b"],
    correct: Float[Array, "b"],
    labels: Int[Array, "b"],
    weights: Float[Array, "b"],
    edges: Float[np.ndarray, "e"],
    num_classes: int,
) -> ReliabilitySums:
    """`sums` over the examples of each true class apart (reading D3 of class-wise calibration
    error).
    """

    def of_class(c):
        return sums(confidence, correct, weights * (labels == c), edges)

    return jax.lax.map(of_class, jnp.arange(num_classes))


def sums_one_against_all(
    probs: Float[Array, "b k"],
    targets: Float[Array, "b k"],
    weights: Float[Array, "b"],
    edges: Float[np.ndarray, "e"],
) -> ReliabilitySums:
    """For each class c, `sums` of p_c against whether c holds, over all examples.

    The mean over classes of their expected errors is the class-wise error of Kull et al.
    (2019), arXiv:1910.12656, and the static calibration error of Nixon et al. (2019),
    arXiv:1904.01685. Of several labels an example, it is that of the yes/no answers.
    """

    def of_class(c):
        return sums(probs[:, c], targets[:, c], weights, edges)

    return jax.lax.map(of_class, jnp.arange(probs.shape[-1]))


def centered(confidence: Float[Array, "*b"], edges: Float[np.ndarray, "e"]) -> Float[Array, "*b"]:
    """Each confidence moved to the centre of its bin; the errors of these are those by bin centre.

    Such an error may be below |accuracy - mean confidence|. On [1/K, 1] it is that of pycalib
    (reading L5), but for two slips there: its points lie up to 1/(2 K m) from the centres, and
    its bins are closed below.
    """
    centers = jnp.asarray((edges[1:] + edges[:-1]) / 2)
    return jnp.where(jnp.isnan(confidence), confidence, centers[_bins(confidence, edges)])


def expected_calibration_error(s: ReliabilitySums) -> Numbers:
    """sum_m (n_m / n) |accuracy_m - mean confidence_m|, a fraction; nan where nothing was counted.

    Source: Guo et al. (2017), Eq. 3.
    """
    return _ratio(np.sum(_gaps(s), axis=-1), np.sum(s.weight, axis=-1))


def maximum_calibration_error(s: ReliabilitySums) -> Numbers:
    """max over bins that are not empty of |accuracy_m - mean confidence_m|; nan where all are.

    Source: Guo et al. (2017), Eq. 5.
    """
    occupied = np.asarray(s.weight) > 0
    largest = np.max(np.where(occupied, _ratio(_gaps(s), s.weight), -np.inf), axis=-1)
    return np.where(np.any(occupied, axis=-1), largest, np.nan)[()]


def mean_confidence(s: ReliabilitySums) -> Numbers:
    """Mean confidence, whether right or wrong."""
    return _ratio(np.sum(s.confidence, axis=-1), np.sum(s.weight, axis=-1))


def overconfidence(s: ReliabilitySums) -> Numbers:
    """Mean confidence of the predictions that are wrong (reading L8); nan where none is."""
    wrong = np.subtract(s.confidence, s.correct_confidence)
    return _ratio(np.sum(wrong, axis=-1), np.sum(np.subtract(s.weight, s.correct), axis=-1))


def underconfidence(s: ReliabilitySums) -> Numbers:
    """Mean of 1 - confidence of the predictions that are right (reading L8); nan where none is."""
    lacking = np.subtract(s.correct, s.correct_confidence)
    return _ratio(np.sum(lacking, axis=-1), np.sum(s.correct, axis=-1))


def _bins(confidence, edges):
    return jnp.searchsorted(jnp.asarray(edges[1:-1]), confidence, side="left")


def _gaps(s):
    return np.abs(np.subtract(s.correct, s.confidence))


def _ratio(total, weight):
    """total / weight, and nan where nothing was counted."""
    return np.divide(
        total, weight, out=np.full(np.shape(total), np.nan), where=np.asarray(weight) > 0
    )[()]
