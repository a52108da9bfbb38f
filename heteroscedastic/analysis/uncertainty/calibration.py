"""Calibration before and after temperature scaling: python -m
heteroscedastic.analysis.uncertainty.calibration --run=DIR.

Reads the predictions that a run wrote down: the temperature is fitted on one evaluation and
applied to another.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from heteroscedastic import curation, files, metrics, user_errors
from heteroscedastic.calibration import recalibration, reliability, scores
from heteroscedastic.links import Link
from heteroscedastic.runs import loaded_run, predictions
from heteroscedastic.training import evaluate

_EDGES = reliability.equal_edges(15)
_BATCH = 1024  # examples of which sums are made at once
# Compiled once, as a table reads many runs.
_METRICS = {
    "softmax": jax.jit(metrics.multiclass),
    "sigmoid": jax.jit(metrics.ranked_multilabel),
}
_sums_by_class = jax.jit(
    functools.partial(reliability.sums_by_class, edges=_EDGES), static_argnames="num_classes"
)
_sums_one_against_all = jax.jit(functools.partial(reliability.sums_one_against_all, edges=_EDGES))


def measures(logits: np.ndarray, labels: np.ndarray, link: Link) -> dict[str, float]:
    """What metrics.py tells of a run, and what needs all predictions at once.

    Args:
      logits: [n, k]; log-probabilities under a softmax, log-odds under a sigmoid.
      labels: [n] under a softmax; [n, m], padded with -1, under a sigmoid.
      link: of the logits.

    Returns:
      Of one label an example, besides, with 15 bins: the parts of the Brier score,
      `adaptive_ece`, `one_against_all_ece` (mean over classes), `class_ece_*` (of the examples
      of one true class: mean, smallest and largest over the classes there are) and `auroc` of
      the confidence for being right, which is that of 1 - confidence for errors. Of several,
      `one_against_all_ece`, and `gap` is exact.
    """
    return (
        _softmax_measures(logits, labels)
        if link == "softmax"
        else _sigmoid_measures(logits, labels)
    )


def before_and_after(run: str | files.Path, fit: str, on: str) -> dict[str, Any]:
    """The temperature fitted on the evaluation `fit`, and the measures of `on` without and with it.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the predictions do not hold every logit.
    """
    (fit_logits, fit_labels, fit_link), (logits, labels, link) = (
        _every(files.as_path(run), name) for name in (fit, on)
    )
    temperature = fitted(fit_logits, fit_labels, fit_link)
    return {
        "temperature": temperature,
        "before": measures(logits, labels, link),
        "after": measures(
            logits.astype(np.float64) / temperature, labels, link
        ),  # in float32 neighbours may become equal
    }


def fitted(logits: np.ndarray, labels: np.ndarray, link: Link) -> float:
    """The temperature of the least loss; arguments as of `measures`."""
    if link == "softmax":
        return recalibration.temperature(logits, labels)
    return recalibration.sigmoid_temperature(logits, curation.multi_hot(labels, logits.shape[-1]))


def _softmax_measures(logits, labels):
    probs = special.softmax(logits.astype(np.float64), axis=-1)
    own = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    confidence, correct = probs.max(axis=-1), predictions.is_first(logits, own)
    single, weights = jnp.asarray(probs, jnp.float32), jnp.ones(len(labels))
    apart = _sums_by_class(
        single.max(axis=-1),
        jnp.asarray(correct, jnp.float32),
        jnp.asarray(labels),
        weights,
        num_classes=probs.shape[-1],
    )
    class_errors = reliability.expected_calibration_error(apart)
    parts = scores.brier_parts(probs, labels, _EDGES)
    return {
        **_told(logits, labels, "softmax"),
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
    holds = curation.multi_hot(labels, logits.shape[-1])
    told = _told(logits, labels, "sigmoid")
    del told["gap_error"]  # here it is exact
    probs = jax.nn.sigmoid(jnp.asarray(logits))
    return {
        **told,
        "nll": -scores.sigmoid_log_likelihood(logits, holds),
        "gap": scores.average_precision(logits.ravel(), holds.ravel()),
        "one_against_all_ece": _one_against_all(probs, jnp.asarray(holds, probs.dtype)),
    }


def _one_against_all(probs, targets):
    binned = _sums_one_against_all(probs, targets, jnp.ones(len(probs)))
    return float(np.mean(reliability.expected_calibration_error(binned)))


def _told(logits, labels, link):
    parts = (slice(start, start + _BATCH) for start in range(0, len(labels), _BATCH))
    metric = _METRICS[link]
    sums = (
        metric(jnp.asarray(logits[s]), jnp.asarray(labels[s]), jnp.ones(len(labels[s])))
        for s in parts
    )
    return metrics.means(functools.reduce(evaluate.merged, sums, None))


def _every(run: files.Path, name: str) -> tuple[np.ndarray, np.ndarray, Link]:
    found = predictions.read(run, name)
    return predictions.every_logit(found, "calibration"), found.labels, found.link


@user_errors.one_line()
def main() -> None:
    """Prints the calibration of a finished run before and after temperature scaling, and writes it
    beside.
    """
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument(
        "--fit",
        help="evaluation to fit a temperature on; the held-out one of the same weights if not given",
    )
    parser.add_argument("--on", default="test", help="evaluation that is told")
    flags = parser.parse_args()
    fit = flags.fit or loaded_run.held_out(loaded_run.read(flags.run), flags.on)
    if fit is None:
        raise ValueError(
            f"{flags.run} evaluated no held-out examples by the weights of {flags.on!r}; name"
            " others by --fit."
        )
    found = before_and_after(flags.run, fit, flags.on)
    print(f"temperature {found['temperature']:.3f}, fitted on {fit}")
    print(f"{flags.on:<24}{'before':>10}{'after':>10}")
    for name, value in found["before"].items():
        print(f"{name:<24}{value:>10.4f}{found['after'][name]:>10.4f}")
    path = files.as_path(flags.run) / "analysis" / "calibration" / f"{fit}_{flags.on}.json"
    files.write_json(path, found)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
