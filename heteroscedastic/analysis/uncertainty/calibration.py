"""Calibration before and after temperature scaling:
python -m heteroscedastic.analysis.uncertainty.calibration --run=DIR

Fits a temperature to the saved predictions of one evaluation and applies it to those of another.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy import special

from heteroscedastic import curation, files, metrics, user_errors
from heteroscedastic.calibration import recalibration, reliability, scores
from heteroscedastic.links import Link
from heteroscedastic.runs import loaded_run, predictions
from heteroscedastic.training import evaluate

_EDGES = reliability.equal_edges(15)
_BATCH_SIZE = 1024
# Compiled once, because a table reads many runs.
_METRICS = {
    "softmax": jax.jit(metrics.multiclass),
    "sigmoid": jax.jit(metrics.ranked_multilabel),
}
_sums_one_against_all = jax.jit(functools.partial(reliability.sums_one_against_all, edges=_EDGES))


def measures(
    logits: Float[np.ndarray, "n k"],
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"],
    link: Link,
) -> dict[str, float]:
    """The metrics of metrics.py, and metrics that require all predictions at once.

    Args:
      logits: log-probabilities under a softmax, log-odds under a sigmoid.
      labels: one per example under a softmax; lists padded with -1 under a sigmoid.
      link: of the logits.

    Returns:
      Under a softmax, in addition and with 15 bins: the parts of the Brier score;
      `adaptive_ece`; `one_against_all_ece`, a mean over classes; `class_ece_*`, the mean, the
      minimum and the maximum over classes of the error among the examples of one true class; and
      `auroc`, how well the confidence separates correct from wrong predictions. Under a sigmoid,
      in addition `one_against_all_ece`, and `gap` is exact.
    """
    return (
        _softmax_measures(logits, labels)
        if link == "softmax"
        else _sigmoid_measures(logits, labels)
    )


def temperature_scaling(run: str | files.Path, fit: str, evaluation: str) -> dict[str, Any]:
    """Fits a temperature on one evaluation and measures another without and with it.

    Args:
      run: directory of the run.
      fit: evaluation on which the temperature is fitted.
      evaluation: the evaluation that is measured.

    Returns:
      `temperature`, and the measures `before` and `after` scaling.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the predictions do not hold all logits.
    """
    fit_arrays = _logits_and_labels(files.as_path(run), fit)
    logits, labels, link = _logits_and_labels(files.as_path(run), evaluation)
    temperature = fit_temperature(*fit_arrays)
    # In float64, because scaling in float32 may make different logits equal.
    scaled_logits = logits.astype(np.float64) / temperature
    return {
        "temperature": temperature,
        "before": measures(logits, labels, link),
        "after": measures(scaled_logits, labels, link),
    }


def fit_temperature(
    logits: Float[np.ndarray, "n k"],
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"],
    link: Link,
) -> float:
    """The temperature with the smallest loss; for the arguments see `measures`."""
    if link == "softmax":
        return recalibration.temperature(logits, labels)
    return recalibration.sigmoid_temperature(logits, curation.multi_hot(labels, logits.shape[-1]))


def _softmax_measures(logits, labels):
    probs = special.softmax(logits.astype(np.float64), axis=-1)
    own = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    confidence, correct = probs.max(axis=-1), predictions.is_top(logits, own)
    single = jnp.asarray(probs, jnp.float32)
    by_class = reliability.sums_by_class(confidence, correct, labels, _EDGES, probs.shape[-1])
    class_errors = reliability.expected_calibration_error(by_class)
    parts = scores.brier_parts(probs, labels, _EDGES)
    return {
        **_metrics(logits, labels, "softmax"),
        "nll": -scores.log_likelihood(logits, labels),
        "brier": scores.brier(probs, labels),
        **{f"brier_{name}": value for name, value in parts._asdict().items()},
        "adaptive_ece": scores.adaptive_calibration_error(confidence, correct),
        "one_against_all_ece": _one_against_all(single, jax.nn.one_hot(labels, probs.shape[-1])),
        "class_ece_mean": float(np.nanmean(class_errors)),
        "class_ece_min": float(np.nanmin(class_errors)),
        "class_ece_max": float(np.nanmax(class_errors)),
        "auroc": scores.auroc(confidence, correct),
    }


def _sigmoid_measures(logits, labels):
    targets = curation.multi_hot(labels, logits.shape[-1])
    values = _metrics(logits, labels, "sigmoid")
    del values["gap_error"]  # `gap` is exact here
    probs = jax.nn.sigmoid(jnp.asarray(logits))
    return {
        **values,
        "nll": -scores.sigmoid_log_likelihood(logits, targets),
        "gap": scores.average_precision(logits.ravel(), targets.ravel()),
        "one_against_all_ece": _one_against_all(probs, jnp.asarray(targets, probs.dtype)),
    }


def _one_against_all(probs, targets):
    binned = _sums_one_against_all(probs, targets, jnp.ones(len(probs)))
    return float(np.mean(reliability.expected_calibration_error(binned)))


def _metrics(logits, labels, link):
    parts = (slice(start, start + _BATCH_SIZE) for start in range(0, len(labels), _BATCH_SIZE))
    metric = _METRICS[link]
    sums = (
        metric(jnp.asarray(logits[s]), jnp.asarray(labels[s]), jnp.ones(len(labels[s])))
        for s in parts
    )
    return metrics.means(functools.reduce(evaluate.merged, sums, None))


def _logits_and_labels(run: files.Path, name: str) -> tuple[np.ndarray, np.ndarray, Link]:
    saved = predictions.read(run, name)
    return predictions.all_logits(saved, "calibration"), saved.labels, saved.link


@user_errors.one_line()
def main() -> None:
    """Prints and writes the calibration of a finished run before and after temperature scaling."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument(
        "--fit",
        help="evaluation on which the temperature is fitted; default: that of the validation split"
        " with the same checkpoint",
    )
    parser.add_argument("--on", default="test", help="evaluation to report")
    flags = parser.parse_args()
    fit = flags.fit or loaded_run.held_out_evaluation(loaded_run.read(flags.run), flags.on)
    if fit is None:
        raise ValueError(
            f"{flags.run} has no evaluation of held-out examples with the checkpoint of"
            f" {flags.on!r}; name another evaluation with --fit."
        )
    result = temperature_scaling(flags.run, fit, flags.on)
    print(f"temperature {result['temperature']:.3f}, fitted on {fit}")
    print(f"{flags.on:<24}{'before':>10}{'after':>10}")
    for name, value in result["before"].items():
        print(f"{name:<24}{value:>10.4f}{result['after'][name]:>10.4f}")
    path = files.as_path(flags.run) / "analysis" / "calibration" / f"{fit}_{flags.on}.json"
    files.write_json(path, result)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
