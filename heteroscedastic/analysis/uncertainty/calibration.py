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

from heteroscedastic import files, label_lists, metrics, user_errors
from heteroscedastic.analysis.uncertainty import by_class
from heteroscedastic.calibration import bias, recalibration, reliability, scores
from heteroscedastic.links import Link
from heteroscedastic.runs import loaded_run, predictions
from heteroscedastic.tasks.multiclass import objectness_deviation
from heteroscedastic.training import evaluate

HALVES = "halves"  # in place of an evaluation on which a temperature is fitted
_EDGES = reliability.equal_edges(15)
_BATCH_SIZE = 1024
# Compiled once, because a table reads many runs.
_METRICS = {
    "softmax": jax.jit(metrics.multiclass),
    "sigmoid": jax.jit(metrics.ranked_multilabel),
}


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
      Under a softmax, in addition and with 15 bins: `ece_floor`, the ECE of a perfect model of the
      same confidences, and `ece_debiased`; the parts of the Brier score;
      `adaptive_ece`; `one_against_all_ece`, a mean over classes; `class_ece_*`, the mean, minimum
      and maximum over classes of the error among the examples of one true class, and the ratio of
      maximum to minimum; `balanced_accuracy`, the mean over classes of their accuracy; and `auroc`,
      how well the confidence separates correct from wrong predictions. Under a sigmoid,
      in addition `one_against_all_ece`, and `gap` is exact.
    """
    return (
        _softmax_measures(logits, labels)
        if link == "softmax"
        else _sigmoid_measures(logits, labels)
    )


def unscaled(run: str | files.Path, evaluation: str) -> dict[str, float]:
    """The measures of an evaluation as predicted.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the predictions do not hold all logits.
    """
    return measures(*_logits_and_labels(predictions.read(run, evaluation)))


def temperature_scaling(run: str | files.Path, fit: str, evaluation: str) -> dict[str, Any]:
    """Fits a temperature on one evaluation and measures another without and with it.

    Args:
      run: directory of the run.
      fit: evaluation on which the temperature is fitted; `HALVES` splits the examples of
        `evaluation` at random into two halves and scales each with the temperature of the other.
        Tokens of one sentence are in one half.
      evaluation: the evaluation that is measured.

    Returns:
      `temperature`, with `HALVES` the mean over examples; and the measures `before` and `after`
      scaling, of a run with boxes also `objectness_deviation`.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the predictions do not hold all logits.
    """
    saved = predictions.read(run, evaluation)
    logits, labels, link = _logits_and_labels(saved)
    if fit == HALVES:
        temperatures = temperatures_of_halves(logits, labels, link, saved.groups)
    else:
        temperatures = np.full(
            len(labels), fit_temperature(*_logits_and_labels(predictions.read(run, fit)))
        )
    # In float64, because scaling in float32 may make different logits equal.
    scaled_logits = logits.astype(np.float64) / temperatures[:, None]
    return {
        "temperature": float(temperatures.mean()),
        "before": measures(logits, labels, link) | _of_objects(logits, saved),
        "after": measures(scaled_logits, labels, link) | _of_objects(scaled_logits, saved),
    }


def temperatures_of_halves(
    logits: Float[np.ndarray, "n k"],
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"] | Float[np.ndarray, "n k"],
    link: Link,
    groups: Int[np.ndarray, "n"] | None = None,
) -> Float[np.ndarray, "n"]:
    """The temperature of each example, fitted on the random half of the examples without it.

    The halves depend on the number of examples, or on the groups, alone, so runs share them.

    Args:
      logits: as in `fit_temperature`.
      labels: as in `fit_temperature`.
      link: as in `fit_temperature`.
      groups: group of each example, such as the sentence of a token; each group is in one half.
        None if the examples are independent.

    Raises:
      ValueError: there is one example, or one group.
    """
    units = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    number = units.max() + 1
    if number < 2:
        unit = "example" if groups is None else "group of examples, such as a sentence"
        raise ValueError(
            f"All predictions are of one {unit}, which cannot be divided into halves: fit the"
            " temperature on another evaluation."
        )
    is_first = (np.random.default_rng(0).permutation(number) < number // 2)[units]
    of_halves = [fit_temperature(logits[h], labels[h], link) for h in (is_first, ~is_first)]
    return np.where(is_first, of_halves[1], of_halves[0])


def fit_temperature(
    logits: Float[np.ndarray, "n k"],
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"] | Float[np.ndarray, "n k"],
    link: Link,
) -> float:
    """The temperature with the smallest loss.

    For the arguments see `measures`; under a softmax labels may be distributions over the classes.
    """
    if link == "softmax":
        return recalibration.temperature(logits, labels)
    return recalibration.sigmoid_temperature(
        logits, label_lists.multi_hot(labels, logits.shape[-1])
    )


def _softmax_measures(logits, labels):
    probs = special.softmax(logits.astype(np.float64), axis=-1)
    own = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    confidence, correct = probs.max(axis=-1), predictions.is_top(logits, own)
    parts = scores.brier_parts(probs, labels, _EDGES)
    return {
        **_metrics(logits, labels, "softmax"),
        "nll": -scores.log_likelihood(logits, labels),
        "brier": scores.brier(probs, labels),
        **{f"brier_{name}": value for name, value in parts._asdict().items()},
        "ece_floor": bias.error_floor(confidence, _EDGES),
        "ece_debiased": bias.debiased_error(confidence, correct, _EDGES),
        "adaptive_ece": scores.adaptive_calibration_error(confidence, correct),
        "one_against_all_ece": _one_against_all(
            probs, labels[:, None] == np.arange(probs.shape[-1])
        ),
        **by_class.summary([by_class.by_class(logits, labels)]),
        "auroc": scores.auroc(confidence, correct),
    }


def _sigmoid_measures(logits, labels):
    targets = label_lists.multi_hot(labels, logits.shape[-1])
    values = _metrics(logits, labels, "sigmoid")
    del values["gap_error"]  # `gap` is exact here
    probs = jax.nn.sigmoid(jnp.asarray(logits))
    return {
        **values,
        "nll": -scores.sigmoid_log_likelihood(logits, targets),
        "gap": scores.average_precision(logits.ravel(), targets.ravel()),
        "one_against_all_ece": _one_against_all(np.asarray(probs), targets),
    }


def _one_against_all(probs, targets):
    binned = reliability.sums_one_against_all(probs, targets, _EDGES)
    return float(np.mean(reliability.expected_calibration_error(binned)))


def _metrics(logits, labels, link):
    parts = (slice(start, start + _BATCH_SIZE) for start in range(0, len(labels), _BATCH_SIZE))
    metric = _METRICS[link]
    sums = (
        metric(jnp.asarray(logits[s]), jnp.asarray(labels[s]), jnp.ones(len(labels[s])))
        for s in parts
    )
    return metrics.means(functools.reduce(evaluate.merged, sums, None))


def _of_objects(logits, saved):
    """What requires the objectness of the examples, which runs with boxes save."""
    if saved.link == "sigmoid" or "objectness" not in saved.extras:
        return {}
    confidence = special.softmax(logits.astype(np.float64), axis=-1).max(axis=-1)
    deviation = objectness_deviation(confidence, saved.extras["objectness"])
    return {"objectness_deviation": deviation}


def _logits_and_labels(saved: predictions.Predictions) -> tuple[np.ndarray, np.ndarray, Link]:
    return predictions.all_logits(saved, "calibration"), saved.labels, saved.link


@user_errors.one_line()
def main() -> None:
    """Prints and writes the calibration of a finished run before and after temperature scaling."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument(
        "--fit",
        help="evaluation on which the temperature is fitted; default: that of the validation split"
        f" with the same checkpoint. {HALVES!r} fits it on each half of the reported examples and"
        " applies it to the other half",
    )
    parser.add_argument("--on", default="test", help="evaluation to report")
    flags = parser.parse_args()
    fit = flags.fit or loaded_run.held_out_evaluation(loaded_run.read(flags.run), flags.on)
    if fit is None:
        raise ValueError(
            f"{flags.run} has no evaluation of held-out examples with the checkpoint of"
            f" {flags.on!r}; name another evaluation with --fit, or use --fit={HALVES}."
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
