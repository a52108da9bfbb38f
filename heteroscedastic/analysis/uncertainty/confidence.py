"""What confidence is worth: numbers of reliability diagrams, of right, wrong and noisy examples, of
answering less.

Several runs that were evaluated on the same examples are told together: a bin counts the
predictions of all, and a resampled example brings those of every run.
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
_FINE_EDGES = reliability.equal_edges(20)  # of histograms
_NUM_RESAMPLES = 1000
_LEVEL = 0.95
_BLOCK_VALUES = 2**24  # answers times bins that are counted at a time


class Diagram(NamedTuple):
    """A reliability diagram; bins are open below and closed above, and nan where nothing fell."""

    edges: Float[np.ndarray, "e"]
    count: Float[np.ndarray, "m"]  # predictions, of all runs
    examples: Int[np.ndarray, "m"]  # that those are of, each once
    confidence: Float[np.ndarray, "m"]  # mean stated probability
    accuracy: Float[np.ndarray, "m"]  # share that is right
    low: Float[np.ndarray, "m"]  # of the accuracy: 95 % percentile band over resampled examples
    high: Float[np.ndarray, "m"]
    error: float  # expected calibration error of all predictions together, a fraction


def reliability_diagram(
    told: Sequence[Predictions], temperatures: Sequence[float] | None = None, seed: int = 0
) -> Diagram:
    """Confidence against accuracy; of several labels, the probability of yes against how often it
    holds.

    Args:
      told: of runs evaluated on the same examples.
      temperatures: that the logits of each are divided by.
      seed: of the resampling.
    """
    temperatures = temperatures or [1.0] * len(told)
    pairs = [_stated_and_held(p, t) for p, t in zip(told, temperatures)]
    stated, held = (np.concatenate(x, axis=1) for x in zip(*pairs))
    sums = _sums_by_example(jnp.asarray(stated, jnp.float32), jnp.asarray(held, jnp.float32))
    sums = reliability.ReliabilitySums(*(np.asarray(x, np.float64) for x in sums))
    by_example = np.concatenate([sums.weight, sums.correct], axis=1)
    draws = bootstrap.resampled_sums(by_example, _NUM_RESAMPLES, seed)
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


def _sums_by_example(stated, held):
    size = max(1, _BLOCK_VALUES // (stated.shape[1] * _NUM_BINS))
    blocks = [slice(start, start + size) for start in range(0, max(1, len(stated)), size)]
    return jax.tree.map(
        lambda *x: np.concatenate(x), *(_sums_of_block(stated[b], held[b]) for b in blocks)
    )


@jax.jit
def _sums_of_block(stated, held):
    return jax.vmap(lambda s, h: reliability.sums(s, h, jnp.ones(len(s)), _EDGES))(stated, held)


def _stated_and_held(told: Predictions, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """[n, 1], or [n, k] of several labels: probabilities that are stated, and whether they came
    true.
    """
    if told.link == "sigmoid":
        return predictions.answers(told, temperature)
    return predictions.confidence(told, temperature)[:, None], predictions.is_correct(told)[:, None]


class Outcomes(NamedTuple):
    """The confidence of examples by what became of them, and the share of each kind in each bin."""

    edges: Float[np.ndarray, "e"]
    confidence: dict[str, Float[np.ndarray, "c"]]  # by "right", "wrong" and, where known, "noisy"
    share: dict[
        str, Float[np.ndarray, "m"]
    ]  # of the kind, adds up to 1; nan of a kind without examples


def outcomes(
    told: Sequence[Predictions], noisy: Sequence[Bool[np.ndarray, "n *k"]] | None = None
) -> Outcomes:
    """Confidence of right, wrong and noisy examples; of several labels, of the likelier answer to
    each question.

    Args:
      told: of each run.
      noisy: of each run and example (and class, of several), whether its label is known to be
        wrong; those are of a kind of their own, whatever was predicted. None is unknown.
    """
    found: dict[str, list[np.ndarray]] = {"right": [], "wrong": []} | (
        {} if noisy is None else {"noisy": []}
    )
    for i, p in enumerate(told):
        sure, correct = _likelier(p)
        known = np.zeros(correct.shape, bool) if noisy is None else noisy[i]
        kinds = {"right": correct & ~known, "wrong": ~correct & ~known, "noisy": known}
        for kind, values in found.items():
            values.append(sure[kinds[kind]])
    together = {kind: np.concatenate(values) for kind, values in found.items()}
    counts = {kind: np.histogram(values, _FINE_EDGES)[0] for kind, values in together.items()}
    return Outcomes(
        _FINE_EDGES,
        together,
        {kind: _ratio(c, np.full(c.shape, c.sum())) for kind, c in counts.items()},
    )


def risk_coverage(told: Predictions) -> selective.RiskCoverage:
    """The error among the most confident predictions; of several labels, among the surest answers."""
    return selective.risk_coverage(*(x.ravel() for x in _likelier(told)))


def _likelier(told: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """The probability of what the prediction says, and whether it is right."""
    if told.link == "softmax":
        return predictions.confidence(told), predictions.is_correct(told)
    probs, holds = predictions.answers(told)
    return np.maximum(probs, 1 - probs), (probs > 0.5) == holds


def _ratio(total, weight):
    total = np.asarray(total, np.float64)
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=np.asarray(weight) > 0)
