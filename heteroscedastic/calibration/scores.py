"""Scores of probabilities that have been written down, in numpy and float64."""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special, stats


def brier(probs: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"]) -> float:
    """Mean over examples of sum_k (p_k - y_k)^2, in [0, 2]. Source: Brier (1950)."""
    hot = np.eye(probs.shape[-1])[labels]
    return float(np.mean(np.sum(np.square(probs - hot), axis=-1)))


def adaptive_calibration_error(
    confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"], num_bins: int = 15
) -> float:
    """Expected calibration error over bins that hold equally many examples.

    Sizes differ by one at most. Examples of one confidence may fall into two bins; they are
    taken in the order of confidence and then of the input.

    Source: Nguyen and O'Connor (2015), arXiv:1508.05154, section 4.
    """
    if num_bins < 1 or not len(confidence):
        raise ValueError(f"num_bins is {num_bins} and there are {len(confidence)} examples; both must be >= 1.")
    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, min(num_bins, len(order)))
    gaps = [len(p) * abs(np.mean(correct[p]) - np.mean(confidence[p], dtype=np.float64)) for p in parts]
    return float(sum(gaps) / len(order))


def auroc(values: Float[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> float:
    """The chance that a positive has a larger value than a negative, ties one half; nan without both kinds."""
    num_positive = int(np.sum(positive))
    num_negative = len(values) - num_positive
    if not num_positive or not num_negative:
        return float("nan")
    ranks = stats.rankdata(values)
    return float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def log_likelihood(logits: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"]) -> float:
    """Mean log-probability of the labels under the softmax, in nats."""
    log_probs = special.log_softmax(logits.astype(np.float64), axis=-1)
    return float(np.mean(np.take_along_axis(log_probs, labels[:, None], axis=-1)))
