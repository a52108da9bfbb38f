"""Scores of saved probabilities, in NumPy and float64."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy import special, stats

from heteroscedastic.calibration import reliability


class BrierParts(NamedTuple):
    """The parts of the Brier score, which add up exactly:

        brier = reliability - resolution + uncertainty + within_variance - within_covariance.

    The first three are Murphy's, computed from the means of each bin. The last two account for
    probabilities that differ within a bin: their variance, and twice their covariance with the
    outcome.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_variance: float
    within_covariance: float


def brier(probs: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"]) -> float:
    """Mean over the examples of sum_k (p_k - y_k)^2, in [0, 2].

    Source: Brier (1950).
    """
    return float(np.mean(brier_by_example(probs, labels)))


def brier_by_example(
    probs: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """sum_k (p_k - y_k)^2 of each example."""
    own = np.take_along_axis(probs, labels[:, None], axis=-1)[:, 0]
    return np.sum(np.square(probs), axis=-1) - 2 * own + 1


def brier_parts(
    probs: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"], edges: Float[np.ndarray, "e"]
) -> BrierParts:
    """The parts of the Brier score, each a sum over the classes, with bins of p_k for each class k.

    Args:
      probs: probability of each class.
      labels: the true class.
      edges: of bins that are open below and closed above; probabilities outside the edges are in
        the outermost bins.

    Source: Murphy (1973); Stephenson, Coelho and Jolliffe (2008) for the last two.
    """
    num_classes, num_bins = probs.shape[-1], len(edges) - 1
    hot = np.zeros(probs.shape)
    np.put_along_axis(hot, labels[:, None], 1.0, axis=-1)
    bins = reliability.bin_numbers(probs, edges)
    cells = num_bins * np.arange(num_classes) + bins

    def mean_of_cell(x):
        counts = np.bincount(cells.ravel(), minlength=num_bins * num_classes)
        return (np.bincount(cells.ravel(), x.ravel(), counts.size) / np.maximum(counts, 1))[cells]

    def mean(x):
        return float(np.mean(np.sum(x, axis=-1)))

    predicted, observed, base = mean_of_cell(probs), mean_of_cell(hot), np.mean(hot, axis=0)
    return BrierParts(
        reliability=mean(np.square(predicted - observed)),
        resolution=mean(np.square(observed - base)),
        uncertainty=float(np.sum(base * (1 - base))),
        within_variance=mean(np.square(probs - predicted)),
        within_covariance=mean(2 * (probs - predicted) * (hot - observed)),
    )


def adaptive_calibration_error(
    confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"], num_bins: int = 15
) -> float:
    """Expected calibration error over bins of equally many examples.

    The sizes of the bins differ by at most one. Examples of equal confidence may fall into two
    bins; each of them then counts as correct by the fraction of them that is, so their order does
    not matter.

    Raises:
      ValueError: num_bins < 1, or there are no examples.

    Source: Nguyen and O'Connor (2015), arXiv:1508.05154, section 4.
    """
    if num_bins < 1 or not len(confidence):
        raise ValueError(
            f"num_bins is {num_bins} and confidence has {len(confidence)} examples; both must be"
            " >= 1."
        )
    values, inverse, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    accuracy = np.repeat(np.bincount(inverse, correct) / counts, counts)
    gaps = accuracy - np.repeat(values.astype(np.float64), counts)
    bins = np.array_split(gaps, min(num_bins, len(gaps)))
    return float(sum(abs(x.sum()) for x in bins) / len(gaps))


def auroc(values: Float[np.ndarray, "n"], positive: Shaped[np.ndarray, "n"]) -> float:
    """Probability that a positive has a larger value than a negative; ties count one half.

    `positive` are booleans, or 0 and 1. nan without positives or without negatives.
    """
    positive = np.asarray(positive, bool)
    num_positive = int(np.sum(positive))
    num_negative = len(values) - num_positive
    if not num_positive or not num_negative:
        return float("nan")
    ranks = stats.rankdata(values)
    return float(
        (ranks[positive].sum() - num_positive * (num_positive + 1) / 2)
        / (num_positive * num_negative)
    )


def average_precision(values: Float[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> float:
    """Mean over the positives of the precision at their value.

    The precision at v is the fraction of positives among all values >= v. nan without positives,
    or if a value is nan.
    """
    if not np.any(positive) or np.isnan(values).any():
        return float("nan")
    _, group, counts = np.unique(-values, return_inverse=True, return_counts=True)
    hits = np.bincount(group, positive)
    return float(np.sum(hits * np.cumsum(hits) / np.cumsum(counts)) / np.sum(hits))


def precision_recall(
    values: Float[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "m"], Float[np.ndarray, "m"]]:
    """Precision and recall at each distinct value as a threshold, from the highest."""
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    hits = np.cumsum(positive[order])[ends]
    return hits / (ends + 1), hits / np.sum(positive)


def precision_at(
    values: Float[np.ndarray, "n"], positive: Bool[np.ndarray, "n"], count: int
) -> float:
    """Fraction of positives among the `count` highest values; the mean over the orders of ties.

    With exactly `count` positives it equals the recall. nan if a value is nan.

    Raises:
      ValueError: count is not from 1 to the number of values.
    """
    if not 1 <= count <= len(values):
        raise ValueError(
            f"count is {count}, but must be from 1 to the number of values, {len(values)}."
        )
    if np.isnan(values).any():
        return float("nan")
    threshold = np.sort(values)[-count]
    above, tied = values > threshold, values == threshold
    fraction = (count - above.sum()) / tied.sum()
    return float((positive[above].sum() + fraction * positive[tied].sum()) / count)


def log_likelihood(
    logits: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"] | Float[np.ndarray, "n k"]
) -> float:
    """Mean log-probability of the labels under a softmax, in nats.

    Args:
      logits: of each class.
      labels: the true class, or a distribution over the classes, which weights each class by its
        probability.
    """
    log_probs = special.log_softmax(logits.astype(np.float64), axis=-1)
    if labels.ndim == 1:
        return float(np.mean(np.take_along_axis(log_probs, labels[:, None], axis=-1)))
    # A class of probability 0 adds nothing, even if its logit is -inf.
    return float(np.mean(np.sum(labels * np.where(labels == 0, 0.0, log_probs), axis=-1)))


def sigmoid_log_likelihood(
    logits: Float[np.ndarray, "n k"], labels: Bool[np.ndarray, "n k"]
) -> float:
    """Log-probability of K binary labels with the logits as log-odds, in nats per example."""
    log_odds = np.where(labels, logits, -logits).astype(np.float64)
    return float(np.mean(np.sum(special.log_expit(log_odds), axis=-1)))
