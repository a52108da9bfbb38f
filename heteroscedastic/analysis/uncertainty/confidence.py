"""Reliability diagrams, confidence of correct and wrong predictions, and risk against coverage.

Runs that were evaluated on the same examples are pooled: a bin counts the predictions of all runs,
and the bootstrap resamples examples together with the predictions of every run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from heteroscedastic.calibration import bootstrap, reliability, selective
from heteroscedastic.runs import predictions
from heteroscedastic.runs.predictions import Predictions

_NUM_BINS = 15
_EDGES = reliability.equal_edges(_NUM_BINS)
_HISTOGRAM_EDGES = reliability.equal_edges(20)
_NUM_RESAMPLES = 1000
_LEVEL = 0.95
_BLOCK_VALUES = 2**24  # predictions times bins that are counted at once


class Diagram(NamedTuple):
    """A reliability diagram; bins are open below and closed above, empty bins are nan."""

    edges: Float[np.ndarray, "e"]
    count: Float[np.ndarray, "m"]  # predictions of all runs
    examples: Int[np.ndarray, "m"]  # distinct examples
    confidence: Float[np.ndarray, "m"]  # mean predicted probability
    accuracy: Float[np.ndarray, "m"]  # fraction of correct predictions
    low: Float[np.ndarray, "m"]  # of the 95 % percentile band of the accuracy, by bootstrap
    high: Float[np.ndarray, "m"]
    error: float  # expected calibration error of all predictions, a fraction


def reliability_diagram(
    runs: Sequence[Predictions], temperatures: Sequence[float] | None = None, seed: int = 0
) -> Diagram:
    """Confidence against accuracy; under a sigmoid, class probability against class frequency.

    Args:
      runs: predictions of runs that were evaluated on the same examples.
      temperatures: by which the logits of each run are divided.
      seed: of the bootstrap.
    """
    sums = sums_by_example(runs, temperatures)
    by_example = np.concatenate([sums.weight, sums.correct], axis=1)
    draws = bootstrap.resampled_sums(by_example, _NUM_RESAMPLES, seed, runs[0].groups)
    low, high = bootstrap.percentile_band(
        _ratio(draws[:, _NUM_BINS:], draws[:, :_NUM_BINS]), _LEVEL
    )
    total = reliability.ReliabilitySums(*(np.sum(x, axis=0) for x in sums))
    return Diagram(
        edges=_EDGES,
        count=total.weight,
        examples=np.count_nonzero(sums.weight, axis=0),
        confidence=_ratio(total.confidence, total.weight),
        accuracy=_ratio(total.correct, total.weight),
        low=low,
        high=high,
        error=float(reliability.expected_calibration_error(total)),
    )


def sums_by_example(
    runs: Sequence[Predictions], temperatures: Sequence[float] | None = None
) -> reliability.ReliabilitySums:
    """The sums of the predictions of all runs for each example, by bin: [n, m], in float64."""
    temperatures = temperatures or [1.0] * len(runs)
    pairs = [_probs_and_outcomes(p, t) for p, t in zip(runs, temperatures)]
    probs, occurred = (jnp.asarray(np.concatenate(x, axis=1), jnp.float32) for x in zip(*pairs))
    size = max(1, _BLOCK_VALUES // (probs.shape[1] * _NUM_BINS))
    blocks = [slice(start, start + size) for start in range(0, max(1, len(probs)), size)]
    return jax.tree.map(
        lambda *x: np.concatenate(x, dtype=np.float64),
        *(_block_sums(probs[b], occurred[b]) for b in blocks),
    )


@jax.jit
def _block_sums(probs, occurred):
    return jax.vmap(lambda p, o: reliability.sums(p, o, jnp.ones(len(p)), _EDGES))(probs, occurred)


def _probs_and_outcomes(
    run: Predictions, temperature: float
) -> tuple[Float[np.ndarray, "n m"], Bool[np.ndarray, "n m"]]:
    """Predicted probabilities, and whether the predicted event occurred.

    There is one column under a softmax, and one per class under a sigmoid.
    """
    if run.link == "sigmoid":
        return predictions.binary_predictions(run, temperature)
    return predictions.confidence(run, temperature)[:, None], predictions.is_correct(run)[:, None]


class Outcomes(NamedTuple):
    """Histograms of the confidence of correct, incorrect and noisy examples."""

    edges: Float[np.ndarray, "e"]
    confidence: dict[str, Float[np.ndarray, "c"]]  # by "right", "wrong" and, if known, "noisy"
    share: dict[str, Float[np.ndarray, "m"]]  # of each bin; sums to 1, nan without examples


def outcomes(
    runs: Sequence[Predictions], noisy: Sequence[Bool[np.ndarray, "n *k"]] | None = None
) -> Outcomes:
    """The confidence of correct, incorrect and noisy examples.

    Under a sigmoid, the confidence is max(p, 1 - p) for each example and class.

    Args:
      runs: predictions of each run.
      noisy: for each run, whether the label of each example (and class, under a sigmoid) is known
        to be wrong. These examples form a group of their own, whether predicted correctly or not.
        None if it is unknown.
    """
    groups: dict[str, list[np.ndarray]] = {"right": [], "wrong": []} | (
        {} if noisy is None else {"noisy": []}
    )
    for i, run in enumerate(runs):
        confidence, correct = _confidence_and_correctness(run)
        is_noisy = np.zeros(correct.shape, bool) if noisy is None else noisy[i]
        masks = {"right": correct & ~is_noisy, "wrong": ~correct & ~is_noisy, "noisy": is_noisy}
        for kind, values in groups.items():
            values.append(confidence[masks[kind]])
    pooled = {kind: np.concatenate(values) for kind, values in groups.items()}
    counts = {kind: np.histogram(values, _HISTOGRAM_EDGES)[0] for kind, values in pooled.items()}
    fractions = {kind: _ratio(c, np.full(c.shape, c.sum())) for kind, c in counts.items()}
    return Outcomes(_HISTOGRAM_EDGES, pooled, fractions)


def risk_coverage(run: Predictions) -> selective.RiskCoverage:
    """The error rate of the most confident predictions; under a sigmoid, over all classes."""
    return selective.risk_coverage(*(x.ravel() for x in _confidence_and_correctness(run)))


def _confidence_and_correctness(
    run: Predictions,
) -> tuple[Float[np.ndarray, "n *k"], Bool[np.ndarray, "n *k"]]:
    """The probability of the predicted outcome, and whether the prediction is correct."""
    if run.link == "softmax":
        return predictions.confidence(run), predictions.is_correct(run)
    probs, targets = predictions.binary_predictions(run)
    return np.maximum(probs, 1 - probs), (probs > 0.5) == targets


def _ratio(total, weight):
    total = np.asarray(total, np.float64)
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=np.asarray(weight) > 0)
