"""The bias of the expected calibration error, as bins differ from their confidence by chance."""

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from heteroscedastic.calibration import reliability


def error_floor(confidence: Float[np.ndarray, "n"], edges: Float[np.ndarray, "e"]) -> float:
    """The mean expected calibration error of a perfect model of these confidences.

    Each prediction is correct with its confidence, and the gap of a bin is taken as normal, which
    holds for bins with more than a few examples.

    Args:
      confidence: probability of the predicted class; at least one.
      edges: the edges of the bins, as in `reliability.sums`.
    """
    bins, num_bins = reliability.bin_numbers(confidence, edges), len(edges) - 1
    variance = np.bincount(bins, confidence * (1 - confidence), minlength=num_bins)
    return float(_folded_mean(np.zeros(num_bins), np.sqrt(variance)).sum() / len(confidence))


def debiased_error(
    confidence: Float[np.ndarray, "n"],
    correct: Bool[np.ndarray, "n"],
    edges: Float[np.ndarray, "e"],
) -> float:
    """The expected calibration error less an estimate of its bias; it may be negative.

    The bias is how much the error grows on average when the accuracy of each bin is drawn again,
    from the normal distribution of a mean of so many outcomes of the observed accuracy. It is the
    expectation, in closed form, of the resampling in the public code of the source.

    Args:
      confidence: probability of the predicted class; at least one.
      correct: whether the prediction is correct.
      edges: the edges of the bins, as in `reliability.sums`.

    Source: Kumar et al. (2019), arXiv:1909.10155.
    """
    bins, num_bins = reliability.bin_numbers(confidence, edges), len(edges) - 1
    count = np.bincount(bins, minlength=num_bins)
    hits = np.bincount(bins, correct, minlength=num_bins)
    gaps = hits - np.bincount(bins, confidence, minlength=num_bins)
    deviation = np.sqrt(hits * (1 - hits / np.maximum(count, 1)))
    return float(np.sum(2 * np.abs(gaps) - _folded_mean(gaps, deviation)) / len(confidence))


def _folded_mean(mean, deviation):
    """E|x| of x ~ N(mean, deviation^2)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(deviation > 0, mean / deviation, np.inf)
    density = np.sqrt(2 / np.pi) * deviation * np.exp(-(ratio**2) / 2)
    return density + np.abs(mean) * special.erf(np.abs(ratio) / np.sqrt(2))
