"""The metrics of groups of runs on the reported evaluation, with intervals."""

from typing import NamedTuple

import numpy as np

from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.uncertainty import calibration, intervals
from heteroscedastic.calibration.bootstrap import Interval
from heteroscedastic.runs.predictions import Predictions

_SCALED = ("nll", "brier", "ece")  # reported after temperature scaling as well


class Measured(NamedTuple):
    """The metrics of groups of runs."""

    values: dict[str, list[dict[int, float]]]  # by metric, then of each group by seed
    incomplete: list[str]  # metrics that only some runs report
    # By metric, of each group. A metric that does not follow from saved predictions is missing.
    means: dict[str, list[Interval]]
    differences: dict[str, list[Interval]]  # of the groups after the first one, from the first


def measured(run_set: RunSet) -> Measured:
    """The metrics that all runs report, those after temperature scaling, and their intervals."""
    reported = [
        [run.results["evals"][run_set.evaluation] for run in group.runs] for group in run_set.groups
    ]
    resampled = [
        intervals.reported(intervals.resampled(predictions), results)
        for predictions, results in zip(run_set.predictions, reported)
    ]
    if run_set.fit_predictions is not None and _have_all_logits(run_set):
        for i, (fits, predictions) in enumerate(zip(run_set.fit_predictions, run_set.predictions)):
            scaled = [_scaled(fit, p) for fit, p in zip(fits, predictions)]
            after = intervals.resampled(predictions, [x["fitted temperature"] for x in scaled])
            by_name = {f"{name}, scaled": metric for name, metric in after.items()}
            resampled[i] |= intervals.reported(by_name, scaled)
            reported[i] = [old | new for old, new in zip(reported[i], scaled)]
    runs = [results for group in reported for results in group]
    names = list(dict.fromkeys(name for results in runs for name in results))
    common = [name for name in names if all(name in results for results in runs)]
    known = [name for name in common if all(name in group for group in resampled)]
    values = {
        name: [
            {run.config["seed"]: x[name] for run, x in zip(group.runs, results)}
            for group, results in zip(run_set.groups, reported)
        ]
        for name in common
    }
    differences = {
        name: [
            intervals.difference(x[name], resampled[0][name], same_seeds(run_set, i))
            for i, x in enumerate(resampled[1:], 1)
        ]
        for name in known
    }
    return Measured(
        values,
        [name for name in names if name not in common],
        {name: [intervals.mean(x[name]) for x in resampled] for name in known},
        differences,
    )


def _have_all_logits(run_set: RunSet) -> bool:
    both = (*run_set.predictions, *(run_set.fit_predictions or ()))
    return all(p.classes is None for group in both for p in group)


def _scaled(fit: Predictions, predictions: Predictions) -> dict[str, float]:
    """The temperature that is fitted on `fit`, and the metrics of `predictions` with it."""
    temperature = calibration.fit_temperature(fit.logits, fit.labels, fit.link)
    scaled = predictions.logits.astype(np.float64) / temperature
    values = calibration.measures(scaled, predictions.labels, predictions.link)
    return {"fitted temperature": temperature} | {
        f"{name}, scaled": values[name] for name in _SCALED if name in values
    }


def same_seeds(run_set: RunSet, group: int) -> list[tuple[int, int]]:
    """Positions of the runs of a group and of the reference that have the same seed."""
    ours, theirs = ([run.config["seed"] for run in run_set.groups[i].runs] for i in (group, 0))
    return [(i, theirs.index(seed)) for i, seed in enumerate(ours) if seed in theirs]
