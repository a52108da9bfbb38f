"""Metrics as sums over examples, so that they do not depend on the batches.

A function of a batch returns a NamedTuple of sums. `jax.tree.map(jnp.add, a, b)` merges the sums of
two batches, and `means` computes the metrics from the merged sums.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from heteroscedastic import losses, smoothing
from heteroscedastic.calibration import ranking, reliability

_RELIABILITY = {  # from 15 bins on [0, 1]
    "ece": reliability.expected_calibration_error,
    "mce": reliability.maximum_calibration_error,
    "confidence": reliability.mean_confidence,
    "overconfidence": reliability.overconfidence,
    "underconfidence": reliability.underconfidence,
}
_CENTERED = {  # from bin centres on [1/K, 1] (reading L5): name -> (binning, error)
    "ece_center": ("centered", reliability.expected_calibration_error),
    "ece_center_100": ("centered_100", reliability.expected_calibration_error),
    "mce_center_100": ("centered_100", reliability.maximum_calibration_error),
}
MULTICLASS = ("accuracy", "top5_accuracy", "nll", "brier", *_RELIABILITY, *_CENTERED)
_MULTILABEL_MEANS = ("nll", "brier", "label_accuracy", "exact", "top1_hit")
MULTILABEL = (*_MULTILABEL_MEANS, "gap", "gap_error")
LOWER_IS_BETTER = (
    "nll",
    "brier",
    "ece",
    "mce",
    "overconfidence",
    "underconfidence",
    *_CENTERED,
    "gap_error",
    "beam_ece",
    "detection_ece",
    "objectness_deviation",
)
_EDGES = reliability.equal_edges(15)
_SCORE_EDGES = ranking.log_odds_edges()


class MulticlassSums(NamedTuple):
    """Sums over examples with one label each."""

    weight: Float[Array, ""]
    correct: Float[Array, ""]
    correct_top5: Float[Array, ""]
    nll: Float[Array, ""]  # nats
    brier: Float[Array, ""]
    reliability: reliability.ReliabilitySums  # 15 bins on [0, 1] (reading X2)
    centered: reliability.ReliabilitySums  # 15 bins on [1/K, 1], confidences at bin centres
    centered_100: reliability.ReliabilitySums  # the same with 100 bins


class AnyLabelSums(NamedTuple):
    """Sums over examples with a list of correct labels, under a model that predicts one label."""

    weight: Float[Array, ""]
    correct: Float[Array, ""]


class MultilabelSums(NamedTuple):
    """Sums over examples with a list of labels each."""

    weight: Float[Array, ""]
    nll: Float[Array, ""]  # nats, summed over classes (reading C6)
    brier: Float[Array, ""]  # summed over classes
    label_accuracy: Float[Array, ""]  # fraction of the K classes predicted correctly at p = 1/2
    exact: Float[Array, ""]  # all K classes predicted correctly
    top1_hit: Float[Array, ""]  # the class of the (first) largest logit is a label


class RankedSums(NamedTuple):
    """MultilabelSums and the sums of global average precision, the slow part with many classes."""

    multilabel: MultilabelSums
    ranking: ranking.RankingSums  # of the log-odds of all examples and classes


def multiclass(
    logits: Float[Array, "*b k"], labels: Int[Array, "*b"], weights: Float[Array, "*b"]
) -> MulticlassSums:
    """Sums of top-1 and top-5 accuracy, NLL, Brier score and calibration under a softmax.

    Ties count against the label: it is in the top n if fewer than n other classes have a logit at
    least as large. If one logit of an example is nan, the prediction counts as wrong.
    """
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    nll = -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    # Log-probabilities are rounded, so logits that differ may have equal ones.
    scores = jnp.where(jnp.isnan(log_probs), log_probs, logits)
    return _multiclass(scores, jnp.exp(log_probs), nll, labels, weights)


def multiclass_sigmoid(
    logits: Float[Array, "*b k"], labels: Int[Array, "*b"], weights: Float[Array, "*b"]
) -> MulticlassSums:
    """`multiclass` for log-odds of K independent classes, one of which is the label.

    The class of the largest logit is predicted, with its sigmoid as the confidence. NLL and Brier
    score are summed over classes.
    """
    nll = losses.sigmoid_cross_entropy(
        logits, jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    )
    return _multiclass(logits, jax.nn.sigmoid(logits), nll, labels, weights)


def _multiclass(
    scores: Float[Array, "*b k"],
    probs: Float[Array, "*b k"],
    nll: Float[Array, "*b"],
    labels: Int[Array, "*b"],
    weights: Float[Array, "*b"],
) -> MulticlassSums:
    own = jnp.take_along_axis(scores, labels[..., None], axis=-1)
    others_above = jnp.sum(~(scores < own), axis=-1) - 1
    is_known = ~jnp.any(jnp.isnan(scores), axis=-1)
    others_above = jnp.where(is_known, others_above, scores.shape[-1] + 5)
    correct = (others_above < 1).astype(scores.dtype)
    hot = jax.nn.one_hot(labels, scores.shape[-1], dtype=scores.dtype)
    confidence = jnp.max(probs, axis=-1)

    def by_center(num_bins):
        edges = reliability.equal_edges(num_bins, 1 / scores.shape[-1])
        return reliability.sums(reliability.centered(confidence, edges), correct, weights, edges)

    return MulticlassSums(
        weight=jnp.sum(weights),
        correct=losses.weighted_sum(correct, weights),
        correct_top5=losses.weighted_sum((others_above < 5).astype(scores.dtype), weights),
        nll=losses.weighted_sum(nll, weights),
        brier=losses.weighted_sum(jnp.sum(jnp.square(probs - hot), axis=-1), weights),
        reliability=reliability.sums(confidence, correct, weights, _EDGES),
        centered=by_center(15),
        centered_100=by_center(100),
    )


def any_label(
    logits: Float[Array, "b k"], labels: Int[Array, "b m"], weights: Float[Array, "b"]
) -> AnyLabelSums:
    """Sums of whether the predicted class is one of the correct labels; ties count as wrong.

    Args:
      logits: of a model that predicts one label per example.
      labels: the correct classes, padded with -1.
      weights: 0 means absent; examples with an empty list require weight 0.

    Source: Beyer et al. (2020), arXiv:2006.07159, ReaL accuracy.
    """
    right = jnp.max(jax.nn.one_hot(labels, logits.shape[-1]), axis=-2) > 0
    best, best_other = (
        jnp.max(jnp.where(classes, logits, -jnp.inf), axis=-1) for classes in (right, ~right)
    )
    hit = (best > best_other).astype(logits.dtype)
    return AnyLabelSums(jnp.sum(weights), losses.weighted_sum(hit, weights))


def multilabel(
    logits: Float[Array, "b k"], labels: Int[Array, "b m"], weights: Float[Array, "b"]
) -> MultilabelSums:
    """Sums of multilabel metrics, with an independent sigmoid for each class.

    A logit that is nan counts as a wrong answer, and no class of its example as the largest.

    Args:
      logits: log-odds of each class.
      labels: the classes of each example, padded with -1.
      weights: 0 means absent.
    """
    targets = smoothing.multi_hot(labels, logits.shape[-1])
    is_nan = jnp.isnan(logits)
    right = (~is_nan & ((logits > 0) == (targets > 0))).astype(logits.dtype)
    top1 = jnp.take_along_axis(targets, jnp.argmax(logits, axis=-1)[:, None], axis=-1)[:, 0]
    top1 = jnp.where(jnp.any(is_nan, axis=-1), 0, top1)
    return MultilabelSums(
        weight=jnp.sum(weights),
        nll=losses.weighted_sum(losses.sigmoid_cross_entropy(logits, targets), weights),
        brier=losses.weighted_sum(
            jnp.sum(jnp.square(jax.nn.sigmoid(logits) - targets), axis=-1), weights
        ),
        label_accuracy=losses.weighted_sum(jnp.mean(right, axis=-1), weights),
        exact=losses.weighted_sum(jnp.min(right, axis=-1), weights),
        top1_hit=losses.weighted_sum(top1, weights),
    )


def ranked_multilabel(
    logits: Float[Array, "b k"], labels: Int[Array, "b m"], weights: Float[Array, "b"]
) -> RankedSums:
    """`multilabel` and the sums of global average precision."""
    targets = smoothing.multi_hot(labels, logits.shape[-1])
    return RankedSums(
        multilabel(logits, labels, weights), ranking.sums(logits, targets, weights, _SCORE_EDGES)
    )


def means(sums: MulticlassSums | AnyLabelSums | MultilabelSums | RankedSums) -> dict[str, float]:
    """Metrics by name; rates are fractions, NLL is in nats per example.

    `gap` is global average precision (reading C6), computed from counts in bins of the log-odds.
    The exact value differs from it by at most `gap_error`.
    """
    if isinstance(sums, RankedSums):
        gap = ranking.average_precision(sums.ranking)
        low, high = ranking.average_precision_bounds(sums.ranking)
        return {**means(sums.multilabel), "gap": gap, "gap_error": max(gap - low, high - gap)}
    weight = float(sums.weight)

    def mean(total: Any) -> float:
        return float(total) / weight if weight else float("nan")

    if isinstance(sums, AnyLabelSums):
        return {"accuracy": mean(sums.correct)}
    if isinstance(sums, MultilabelSums):
        return {name: mean(getattr(sums, name)) for name in _MULTILABEL_MEANS}
    return {
        "accuracy": mean(sums.correct),
        "top5_accuracy": mean(sums.correct_top5),
        "nll": mean(sums.nll),
        "brier": mean(sums.brier),
        **{name: float(error(sums.reliability)) for name, error in _RELIABILITY.items()},
        **{
            name: float(error(getattr(sums, binning)))
            for name, (binning, error) in _CENTERED.items()
        },
    }
