"""Scores of probabilities that have been written down, in numpy and float64."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special, stats


class BrierParts(NamedTuple):
    """brier = reliability - resolution + uncertainty + within_variance - within_covariance,
    exactly.

    The first three are Murphy's, of the means of each bin; the last two are what probabilities
    that differ within a bin add: their variance there, and twice their covariance with the outcome.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_variance: float
    within_covariance: float


def brier(probs: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"]) -> float:
    """Mean over examples of sum_k (p_k - y_k)^2, in [0, 2]. Source: Brier (1950)."""
    hot = np.eye(probs.shape[-1])[labels]
    return float(np.mean(np.sum(np.square(probs - hot), axis=-1)))


def brier_parts(
    probs: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"], edges: Float[np.ndarray, "e"]
) -> BrierParts:
    """The Brier score in parts, each a sum over classes, with bins of p_k for every class k.

    Args:
      probs: of each class.
      labels: the true class.
      edges: of bins open below and closed above; what lies outside is in the outermost.

    Source: Murphy (1973); Stephenson, Coelho and Jolliffe (2008) for the last two.
    """
    num_classes, num_bins = probs.shape[-1], len(edges) - 1
    hot = np.eye(num_classes)[labels]
    cells = num_bins * np.arange(num_classes) + np.searchsorted(edges[1:-1], probs, side="left")

    def mean_of_cell(x):
        counts = np.bincount(cells.ravel(), minlength=num_bins * num_classes)
        return (np.bincount(cells.ravel(), x.ravel(), counts.size) / np.maximum(counts, 1))[cells]

    def mean(x):
        return float(np.mean(np.sum(x, axis=-1)))

    stated, observed, base = mean_of_cell(probs), mean_of_cell(hot), np.mean(hot, axis=0)
    return BrierParts(
        reliability=mean(np.square(stated - observed)),
        resolution=mean(np.square(observed - base)),
        uncertainty=float(np.sum(base * (1 - base))),
        within_variance=mean(np.square(probs - stated)),
        within_covariance=mean(2 * (probs - stated) * (hot - observed)),
    )


def adaptive_calibration_error(
    confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"], num_bins: int = 15
) -> float:
    """Expected calibration error over bins that hold equally many examples.

    Sizes differ by one at most. Examples of one confidence may fall into two bins; each then counts
    as right by the share of them that are, so that their order is of no matter.

    Source: Nguyen and O'Connor (2015), arXiv:1508.05154, section 4.
    """
    if num_bins < 1 or not len(confidence):
        raise ValueError(
            f"num_bins is {num_bins} and there are {len(confidence)} examples; both must be >= 1."
        )
    values, which, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    share = np.bincount(which, correct) / counts
    stated, right = np.repeat(values.astype(np.float64), counts), np.repeat(share, counts)
    parts = np.array_split(right - stated, min(num_bins, len(stated)))
    return float(sum(abs(part.sum()) for part in parts) / len(stated))


def auroc(values: Float[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> float:
    """The chance that a positive has a larger value than a negative, ties one half; nan without
    both kinds.
    """
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
    """Mean over positives of the share of positives among all values as large; nan without
    positives, or of a nan.
    """
    if not np.any(positive) or np.isnan(values).any():
        return float("nan")
    _, place, counts = np.unique(-values, return_inverse=True, return_counts=True)
    hits = np.bincount(place, positive)
    return float(np.sum(hits * np.cumsum(hits) / np.cumsum(counts)) / np.sum(hits))


def precision_recall(
    values: Float[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "m"], Float[np.ndarray, "m"]]:
    """Precision and recall of all that are at or above each value that occurs, from the highest."""
    order = np.argsort(-values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))
    hits = np.cumsum(positive[order])[ends]
    return hits / (ends + 1), hits / np.sum(positive)


def precision_at(
    values: Float[np.ndarray, "n"], positive: Bool[np.ndarray, "n"], count: int
) -> float:
    """Share of positives among the `count` highest, ties at the end shared evenly.

    Where there are `count` positives it is their recall too. A nan among the values makes it nan.

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
    share = (count - above.sum()) / tied.sum()
    return float((positive[above].sum() + share * positive[tied].sum()) / count)


def log_likelihood(
    logits: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"] | Float[np.ndarray, "n k"]
) -> float:
    """Mean log-probability of the labels under the softmax, in nats.

    Args:
      logits: of each class.
      labels: the true class; or a distribution over classes, which counts each class by its share.
    """
    log_probs = special.log_softmax(logits.astype(np.float64), axis=-1)
    if labels.ndim == 1:
        return float(np.mean(np.take_along_axis(log_probs, labels[:, None], axis=-1)))
    # A class without a share counts nothing, whatever its logit, -inf included.
    return float(np.mean(np.sum(labels * np.where(labels == 0, 0.0, log_probs), axis=-1)))


def sigmoid_log_likelihood(
    logits: Float[np.ndarray, "n k"], holds: Bool[np.ndarray, "n k"]
) -> float:
    """Log-probability of the K yes/no answers whose log-odds are the logits, in nats an example."""
    own = np.where(holds, logits, -logits).astype(np.float64)
    return float(np.mean(np.sum(special.log_expit(own), axis=-1)))
