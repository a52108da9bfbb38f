"""Calibration of the predictions of any model, in one call."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import special

from heteroscedastic.calibration import bootstrap, recalibration, reliability, scores
from heteroscedastic.calibration.bootstrap import Interval

_NUM_RESAMPLES = 1000


class CalibrationReport(NamedTuple):
    """Calibration of probabilities under a softmax; rates are fractions, NLL is in nats.

    The intervals are percentile intervals over resamples of the examples.
    """

    num_examples: int
    accuracy: Interval  # a tie for the largest probability is an error
    confidence: Interval  # mean largest probability
    # Mean confidence minus accuracy; its sign is that of the error. The metric of this name in
    # results.json is another one: the mean confidence of wrong predictions.
    overconfidence: Interval
    nll: Interval
    brier: Interval  # summed over classes
    ece: float  # `num_bins` bins of equal width
    adaptive_ece: float  # `num_bins` bins of equally many examples
    # The temperature of maximum likelihood on these examples, and the scores after dividing the
    # logits by it. Both are optimistic, as they are measured on the examples of the fit.
    temperature: float
    scaled_nll: float
    scaled_ece: float
    bins: reliability.ReliabilitySums  # of the bins of equal width


def calibration_report(
    labels: ArrayLike, log_probs: ArrayLike, *, num_bins: int = 15
) -> CalibrationReport:
    """Accuracy, proper scores and calibration errors, with intervals over the examples.

    The expected calibration error has no interval, because its estimate is biased upwards and its
    bootstrap distribution more so; `overconfidence` has neither problem. If a label has the
    probability 0, the NLL is inf, and what needs a temperature is nan.

    Args:
      labels: class of each example, integers [n] from 0 to k - 1.
      log_probs: log-probability of each class, [n, k], in nats; logits of a softmax also work.
      num_bins: of the two expected calibration errors.

    Raises:
      ValueError: the shapes do not match, a label is not a class, or an output is not a
        log-probability.
    """
    classes, logits = checked_outputs(labels, log_probs)
    if num_bins < 1:
        raise ValueError(f"num_bins is {num_bins}, but must be >= 1.")
    edges = reliability.equal_edges(num_bins)
    confidence, correct, bins = _bins(classes, logits, edges)
    normalised = special.log_softmax(logits, axis=-1)
    nll = -np.take_along_axis(normalised, classes[:, None], axis=-1)[:, 0]
    is_finite = bool(np.isfinite(nll).all())
    by_example = {
        "accuracy": correct,
        "confidence": confidence,
        "overconfidence": confidence - correct,
        "brier": scores.brier_by_example(np.exp(normalised), classes),
    }
    if is_finite:
        by_example["nll"] = nll
    values = np.stack(list(by_example.values()), axis=-1)
    sums = bootstrap.resampled_sums(values, _NUM_RESAMPLES, seed=0)
    low, high = bootstrap.percentile_band(sums / len(classes))
    intervals = {
        name: Interval(float(values[:, i].mean()), float(low[i]), float(high[i]))
        for i, name in enumerate(by_example)
    }
    temperature = scaled_nll = scaled_ece = float("nan")
    if is_finite:
        temperature = recalibration.temperature(logits, classes)
        _, _, scaled_bins = _bins(classes, logits / temperature, edges)
        scaled_nll = -scores.log_likelihood(logits / temperature, classes)
        scaled_ece = float(reliability.expected_calibration_error(scaled_bins))
    return CalibrationReport(
        num_examples=len(classes),
        **({"nll": Interval(np.inf, np.inf, np.inf)} | intervals),
        ece=float(reliability.expected_calibration_error(bins)),
        adaptive_ece=scores.adaptive_calibration_error(confidence, correct > 0, num_bins),
        temperature=temperature,
        scaled_nll=scaled_nll,
        scaled_ece=scaled_ece,
        bins=bins,
    )


def checked_outputs(
    labels: ArrayLike, log_probs: ArrayLike
) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n k"]]:
    """Labels and log-probabilities in NumPy, the latter in float64.

    Raises:
      ValueError: the shapes do not match, a label is not a class, or an output is not a
        log-probability.
    """
    labels, log_probs = np.asarray(labels), np.asarray(log_probs)
    is_float = jnp.issubdtype(log_probs.dtype, jnp.floating)
    if log_probs.ndim != 2 or not is_float or log_probs.shape[1] < 2:
        raise ValueError(
            f"log_probs are {log_probs.dtype} {log_probs.shape}, but must be floats [n, k] with two"
            " or more classes."
        )
    if labels.shape != log_probs.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels are {labels.dtype} {labels.shape}, but must be integers"
            f" [{len(log_probs)}], one for each row of log_probs."
        )
    if not len(labels):
        raise ValueError("labels and log_probs are empty; give at least one example.")
    wrong = np.flatnonzero((labels < 0) | (labels >= log_probs.shape[1]))
    if wrong.size:
        raise ValueError(
            f"the label of row {wrong[0]} is {labels[wrong[0]]}, but the classes of log_probs are 0"
            f" to {log_probs.shape[1] - 1}."
        )
    values = log_probs.astype(np.float64)
    bad = np.flatnonzero(np.isnan(values).any(axis=1) | ~(values.max(axis=1) < np.inf))
    bad = bad if bad.size else np.flatnonzero(values.max(axis=1) == -np.inf)
    if bad.size:
        raise ValueError(
            f"row {bad[0]} of log_probs is {log_probs[bad[0]]}, but log-probabilities must not be"
            " nan or +inf, and one of them must be finite."
        )
    rounding = float(jnp.finfo(log_probs.dtype).eps)  # of a sum of rounded probabilities
    if (values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=max(1e-3, rounding)):
        raise ValueError(
            "log_probs are probabilities, as each row sums to 1; pass their logarithm."
        )
    return labels, values


def _bins(labels, logits, edges):
    """Confidence and correctness of each example, and their sums in the bins."""
    own = np.take_along_axis(logits, labels[:, None], axis=-1)
    correct = (np.sum(logits >= own, axis=-1) == 1).astype(np.float64)
    confidence = special.softmax(logits, axis=-1).max(axis=-1)
    weights = jnp.ones(len(labels))
    bins = reliability.sums(
        jnp.asarray(confidence, jnp.float32), jnp.asarray(correct, jnp.float32), weights, edges
    )
    return confidence, correct, reliability.ReliabilitySums(*map(np.asarray, bins))
