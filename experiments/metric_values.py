"""The metrics of complete runs, as results.json has them or from the predictions."""

import functools
from typing import Any

from experiments import study
from heteroscedastic import files
from heteroscedastic.analysis.uncertainty import by_class, calibration

# Prefix of a metric -> the control of analysis/uncertainty/by_class.py that it is measured under.
_CONTROLS = {
    "shifted_": "after_prior_shift",
    "hit_floor_": "floor_of_hits",
    "label_floor_": "floor_of_labels",
}


def value(result: study.JobResult, regime: study.Regime, metric: str) -> Any:
    """A metric of a complete run, in the evaluation that a regime reports.

    Args:
      result: of a complete run.
      regime: its `fitted_on` is the evaluation on which temperatures are fitted.
      metric: a key of results.json, or a metric of the predictions
        (analysis/uncertainty/calibration.py); after "scaled_", the metric after temperature
        scaling; after "shifted_", a measure by class after a correction of the class prior; after
        "hit_floor_" and "label_floor_", that measure of a perfect model, for drawn hits and for
        drawn labels (analysis/uncertainty/by_class.py); "classes", the measures of each class;
        "signed_gap", the mean confidence less the accuracy, also after "scaled_".

    Raises:
      ValueError: a scaled metric, but the regime has no data for the temperature.
    """
    recorded = result.results["evals"][regime.report]
    if metric in recorded:
        return recorded[metric]
    if metric.endswith("signed_gap"):
        scaled = metric.removesuffix("signed_gap")
        confidence, accuracy = (
            value(result, regime, name) for name in (f"{scaled}confidence", "accuracy")
        )
        return confidence - accuracy
    directory = result.job.directory
    if metric == "classes":
        # The draws are for the controls alone.
        return by_class.run_report(directory, regime.report, num_draws=1)["classes"]
    for prefix, control in _CONTROLS.items():
        if metric.startswith(prefix):
            measures = _by_class(directory, regime.report)[control]
            return measures[metric.removeprefix(prefix)] if measures else float("nan")
    if regime.fitted_on is None:
        if metric.startswith("scaled_"):
            raise ValueError(
                f"{metric} requires an evaluation on which the temperature is fitted, and the"
                f" regime that reports {regime.report!r} has none."
            )
        return _unscaled(directory, regime.report)[metric]
    metrics = _calibration(directory, regime.fitted_on, regime.report)
    scaled = metric.startswith("scaled_")
    return metrics["after" if scaled else "before"][metric.removeprefix("scaled_")]


@functools.cache
def _calibration(directory: files.Path, fit: str, on: str) -> dict[str, Any]:
    return calibration.temperature_scaling(directory, fit, on)


@functools.cache
def _unscaled(directory: files.Path, on: str) -> dict[str, float]:
    return calibration.unscaled(directory, on)


@functools.cache
def _by_class(directory: files.Path, on: str) -> dict[str, Any]:
    return by_class.run_report(directory, on)
