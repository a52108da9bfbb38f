"""Confidence against accuracy in bins: sums that merge by addition, and calibration errors.

Bins are open below and closed above. A confidence outside the edges counts in the outermost bin.
Bins are determined by binary search among float32 edges, so a probability that exceeds an edge by
one ulp lies above it on every device.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Numbers = float | Float[np.ndarray, "..."]
Sums = Float[Array, "*k m"] | Float[np.ndarray, "*k m"]


class ReliabilitySums(NamedTuple):
    """Sums over the examples of each of m bins; sums per class have a leading class axis."""

    weight: Sums
    confidence: Sums
    correct: Sums
    correct_confidence: Sums  # confidence of the correct predictions only


def equal_edges(num_bins: int, low: float = 0.0, high: float = 1.0) -> Float[np.ndarray, "e"]:
    """The num_bins + 1 edges of bins of equal width on [low, high]."""
    if num_bins < 1:
        raise ValueError(f"num_bins is {num_bins}, but must be >= 1.")
    return np.linspace(low, high, num_bins + 1).astype(np.float32)


def sums(
    confidence: Float[Array, "*b"],
    correct: Float[Array, "*b"],
    weights: Float[Array, "*b"],
    edges: Float[np.ndarray, "e"],
) -> ReliabilitySums:
    """Sums over the examples in each bin.

    Args:
      confidence: probability of the predicted class.
      correct: 1 where the prediction is correct, else 0.
      weights: 0 means absent.
      edges: the edges of m = e - 1 bins, ascending.
    """
    # The values of an absent example may be nan, and 0 * nan is nan.
    confidence, correct = (jnp.where(weights != 0, x, 0.0) for x in (confidence, correct))
    bins = _bins(confidence, edges)
    # A sum over a one-hot axis has a fixed order; scattered additions on a GPU do not.
    one_hot = (bins[..., None] == jnp.arange(len(edges) - 1)) * weights[..., None]
    axes = tuple(range(confidence.ndim))
    return ReliabilitySums(
        weight=jnp.sum(one_hot, axis=axes),
        confidence=jnp.sum(one_hot * confidence[..., None], axis=axes),
        correct=jnp.sum(one_hot * correct[..., None], axis=axes),
        correct_confidence=jnp.sum(one_hot * (correct * confidence)[..., None], axis=axes),
    )


def bin_numbers(
    values: Float[np.ndarray, "*n"], edges: Float[np.ndarray, "e"]
) -> Int[np.ndarray, "*n"]:
    """The bin of each value on the host; bins are open below and closed above, as in `sums`."""
    # In float32, as the device has them: a value at an edge is then in the same bin.
    return np.searchsorted(edges[1:-1], values.astype(np.float32), side="left")


def sums_by_class(
    confidence: Float[np.ndarray, "n"],
    correct: Float[np.ndarray, "n"] | Bool[np.ndarray, "n"],
    labels: Int[np.ndarray, "n"],
    edges: Float[np.ndarray, "e"],
    num_classes: int,
) -> ReliabilitySums:
    """`sums` over the examples of each true class (reading D3 of class-wise calibration error).

    One pass over the examples, in float64 on the host.
    """
    num_bins = len(edges) - 1
    bins = bin_numbers(confidence, edges)
    cells = labels.astype(np.int64) * num_bins + bins

    def total(values):
        counts = np.bincount(cells, values, minlength=num_classes * num_bins)
        return counts.reshape(num_classes, num_bins)

    return ReliabilitySums(
        weight=total(None).astype(float),
        confidence=total(confidence),
        correct=total(correct),
        correct_confidence=total(correct * confidence),
    )


def sums_one_against_all(
    probs: Float[np.ndarray, "n k"], targets: Bool[np.ndarray, "n k"], edges: Float[np.ndarray, "e"]
) -> ReliabilitySums:
    """For each class c, `sums` of the probability p_c against the target of c, over all examples.

    The mean over the classes of the expected calibration errors is the class-wise error of Kull et
    al. (2019), arXiv:1910.12656, and the static calibration error of Nixon et al. (2019),
    arXiv:1904.01685. With several labels per example it is the error of the K binary answers.

    One pass over the probabilities, in float64 on the host. Only those above the first bin are
    sorted into bins, which are few if they sum to one; the first bin is what remains.
    """
    num_classes, num_bins = probs.shape[-1], len(edges) - 1

    def binned(is_chosen):
        entries = np.flatnonzero(is_chosen)  # much faster than the rows and columns
        confidence = probs.ravel()[entries]
        bins = bin_numbers(confidence, edges)
        cells = entries % num_classes * num_bins + bins

        def total(values=None):
            counts = np.bincount(cells, values, minlength=num_classes * num_bins)
            return counts.reshape(num_classes, num_bins).astype(np.float64)

        return total(), total(confidence)

    weight, confidence = binned(probs > edges[1])
    correct, correct_confidence = binned(targets)
    weight[:, 0] = len(probs) - weight[:, 1:].sum(axis=-1)
    all_confidence = probs.sum(axis=0, dtype=np.float64)
    confidence[:, 0] = np.maximum(all_confidence - confidence[:, 1:].sum(axis=-1), 0)
    return ReliabilitySums(weight, confidence, correct, correct_confidence)


def centered(confidence: Float[Array, "*b"], edges: Float[np.ndarray, "e"]) -> Float[Array, "*b"]:
    """The centre of the bin of each confidence, for calibration errors by bin centre.

    Such an error may be smaller than |accuracy - mean confidence|. On [1/K, 1] it is that of
    pycalib (reading L5), except for two inaccuracies there: its points lie up to 1 / (2 K m) from
    the centres, and its bins are closed below.
    """
    centers = jnp.asarray((edges[1:] + edges[:-1]) / 2)
    return jnp.where(jnp.isnan(confidence), confidence, centers[_bins(confidence, edges)])


def expected_calibration_error(s: ReliabilitySums) -> Numbers:
    """sum_m (n_m / n) |accuracy_m - mean confidence_m|, in [0, 1]; nan without examples.

    Source: Guo et al. (2017), arXiv:1706.04599, Eq. 3.
    """
    return _ratio(np.sum(_gaps(s), axis=-1), np.sum(s.weight, axis=-1))


def maximum_calibration_error(s: ReliabilitySums) -> Numbers:
    """max_m |accuracy_m - mean confidence_m| over the nonempty bins; nan without examples.

    Source: Guo et al. (2017), arXiv:1706.04599, Eq. 5.
    """
    occupied = np.asarray(s.weight) > 0
    largest = np.max(np.where(occupied, _ratio(_gaps(s), s.weight), -np.inf), axis=-1)
    return np.where(np.any(occupied, axis=-1), largest, np.nan)[()]


def mean_confidence(s: ReliabilitySums) -> Numbers:
    """Mean confidence of all predictions; nan without examples."""
    return _ratio(np.sum(s.confidence, axis=-1), np.sum(s.weight, axis=-1))


def overconfidence(s: ReliabilitySums) -> Numbers:
    """Mean confidence of the wrong predictions (reading L8); nan if there are none."""
    wrong = np.subtract(s.confidence, s.correct_confidence)
    return _ratio(np.sum(wrong, axis=-1), np.sum(np.subtract(s.weight, s.correct), axis=-1))


def underconfidence(s: ReliabilitySums) -> Numbers:
    """Mean of 1 - confidence over the correct predictions (reading L8); nan if there are none."""
    lacking = np.subtract(s.correct, s.correct_confidence)
    return _ratio(np.sum(lacking, axis=-1), np.sum(s.correct, axis=-1))


def _bins(confidence, edges):
    return jnp.searchsorted(jnp.asarray(edges[1:-1]), confidence, side="left")


def _gaps(s):
    return np.abs(np.subtract(s.correct, s.confidence))


def _ratio(total, weight):
    """total / weight; nan where the weight is 0."""
    return np.divide(
        total, weight, out=np.full(np.shape(total), np.nan), where=np.asarray(weight) > 0
    )[()]
