"""Sums that add up to the usual metrics, whatever the batches.

A function of a batch returns a NamedTuple of sums; parts of a data set merge by
`jax.tree.map(jnp.add, a, b)`; `means` reads the metrics off the merged sums.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from heteroscedastic import losses, smoothing
from heteroscedastic.calibration import ranking, reliability

_RELIABILITY = {  # of one binning, by its bins
    "ece": reliability.expected_calibration_error,
    "mce": reliability.maximum_calibration_error,
    "confidence": reliability.mean_confidence,
    "overconfidence": reliability.overconfidence,
    "underconfidence": reliability.underconfidence,
}
_CENTERED = {  # by bin centre on [1/K, 1] (reading L5): name, which binning, error
    "ece_center": ("centered", reliability.expected_calibration_error),
    "ece_center_100": ("centered_100", reliability.expected_calibration_error),
    "mce_center_100": ("centered_100", reliability.maximum_calibration_error),
}
MULTICLASS = ("accuracy", "top5_accuracy", "nll", "brier", *_RELIABILITY, *_CENTERED)
_ANSWERS = ("nll", "brier", "label_accuracy", "exact", "top1_hit")
MULTILABEL = (*_ANSWERS, "gap", "gap_error")
LOWER_IS_BETTER = (
    "nll",
    "brier",
    "ece",
    "mce",
    "overconfidence",
    "underconfidence",
    *_CENTERED,
    "gap_error",
)
_EDGES = reliability.equal_edges(15)
_SCORE_EDGES = ranking.log_odds_edges()


class MulticlassSums(NamedTuple):
    """Sums over examples that have one label."""

    weight: Float[Array, ""]
    correct: Float[Array, ""]
    correct_top5: Float[Array, ""]
    nll: Float[Array, ""]  # nats
    brier: Float[Array, ""]
    reliability: reliability.ReliabilitySums  # 15 bins on [0, 1] (reading X2)
    centered: reliability.ReliabilitySums  # 15 bins on [1/K, 1], confidences at their centres
    centered_100: reliability.ReliabilitySums  # and 100 bins


class ListedSums(NamedTuple):
    """Sums over examples of which a list of labels are right, under a model of one label."""

    weight: Float[Array, ""]
    correct: Float[Array, ""]


class MultilabelSums(NamedTuple):
    """Sums over examples that have a list of labels."""

    weight: Float[Array, ""]
    nll: Float[Array, ""]  # nats, summed over classes (reading C6)
    brier: Float[Array, ""]  # summed over classes
    label_accuracy: Float[Array, ""]  # share of the K yes/no answers that are right at odds 1:1
    exact: Float[Array, ""]  # all K answers right
    top1_hit: Float[Array, ""]  # the likeliest class is among the labels


class RankedSums(NamedTuple):
    """The same, and what global average precision needs; with many classes that takes longest."""

    answers: MultilabelSums
    ranking: ranking.RankingSums  # of the log-odds of all answers


def multiclass(
    logits: Float[Array, "b k"], labels: Int[Array, "b"], weights: Float[Array, "b"]
) -> MulticlassSums:
    """Sums of top-1, top-5, NLL, Brier score and calibration under the softmax of the logits.

    Ties count against the label: it is among the first n when fewer than n other classes
    score as high. Where the logits hold a nan, every class does.
    """
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    nll = -jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]
    return _multiclass(log_probs, jnp.exp(log_probs), nll, labels, weights)


def multiclass_sigmoid(
    logits: Float[Array, "b k"], labels: Int[Array, "b"], weights: Float[Array, "b"]
) -> MulticlassSums:
    """The same where the logits are log-odds of K yes/no answers, of which one is yes.

    The class of the highest is predicted, and its probability of holding is the confidence. NLL
    and Brier score are summed over the answers.
    """
    nll = losses.sigmoid_cross_entropy(
        logits, jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    )
    return _multiclass(logits, jax.nn.sigmoid(logits), nll, labels, weights)


def _multiclass(scores, probs, nll, labels, weights):
    own = jnp.take_along_axis(scores, labels[:, None], axis=-1)
    others_above = jnp.sum(~(scores < own), axis=-1) - 1
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


def listed(
    logits: Float[Array, "b k"], labels: Int[Array, "b m"], weights: Float[Array, "b"]
) -> ListedSums:
    """Sums of whether the likeliest class is among those that are right; ties count against them.

    Args:
      logits: of one label an example.
      labels: the right classes, padded with -1.
      weights: 0 means absent, as examples of an empty list are to be.

    Source: Beyer et al. (2020), arXiv:2006.07159, ReaL accuracy.
    """
    right = jnp.max(jax.nn.one_hot(labels, logits.shape[-1]), axis=-2) > 0
    best, best_other = (jnp.max(jnp.where(of, logits, -jnp.inf), axis=-1) for of in (right, ~right))
    hit = best > best_other
    return ListedSums(jnp.sum(weights), losses.weighted_sum(hit.astype(logits.dtype), weights))


def multilabel(
    logits: Float[Array, "b k"], labels: Int[Array, "b m"], weights: Float[Array, "b"]
) -> MultilabelSums:
    """Sums over yes/no answers whose log-odds are the logits.

    Args:
      logits: log-odds.
      labels: the classes that hold, padded with -1.
      weights: 0 means absent.
    """
    targets = smoothing.multi_hot(labels, logits.shape[-1])
    right = ((logits > 0) == (targets > 0)).astype(logits.dtype)
    top1 = jnp.take_along_axis(targets, jnp.argmax(logits, axis=-1)[:, None], axis=-1)[:, 0]
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
    """`multilabel`, and the sums of global average precision."""
    targets = smoothing.multi_hot(labels, logits.shape[-1])
    return RankedSums(
        multilabel(logits, labels, weights), ranking.sums(logits, targets, weights, _SCORE_EDGES)
    )


def means(sums: MulticlassSums | ListedSums | MultilabelSums | RankedSums) -> dict[str, float]:
    """Metrics by name; shares are fractions, NLL is in nats an example.

    `gap`, global average precision (reading C6), is from counts in bins of the score, and the
    exact value is no further from it than `gap_error`.
    """
    if isinstance(sums, RankedSums):
        gap, (low, high) = (
            f(sums.ranking) for f in (ranking.average_precision, ranking.average_precision_bounds)
        )
        return {**means(sums.answers), "gap": gap, "gap_error": max(gap - low, high - gap)}
    weight = float(sums.weight)

    def mean(total: Any) -> float:
        return float(total) / weight if weight else float("nan")

    if isinstance(sums, ListedSums):
        return {"accuracy": mean(sums.correct)}
    if isinstance(sums, MultilabelSums):
        return {name: mean(getattr(sums, name)) for name in _ANSWERS}
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
