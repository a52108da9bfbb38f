"""Intervals of metrics and of their differences, over other examples and other runs.

All runs are resampled with the same examples, so differences between them are paired; tokens are
resampled by whole sentences, as those of one sentence are not independent. Several runs count by
Student's t (`bootstrap.errors_of_runs`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from heteroscedastic.analysis.uncertainty import confidence
from heteroscedastic.calibration import bootstrap, reliability, scores
from heteroscedastic.calibration.bootstrap import Interval
from heteroscedastic.data.packing import MAX_TOKENS
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.predictions import Predictions
from heteroscedastic.tasks import coco

NUM_RESAMPLES = 1000


class Resampled(NamedTuple):
    """A metric of each of s runs, on the examples and on r resamples of them."""

    values: Float[np.ndarray, "s"]
    draws: Float[np.ndarray, "r s"]


def resampled(
    runs: Sequence[Predictions],
    temperatures: Sequence[float] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> dict[str, Resampled]:
    """The metrics that follow from the saved predictions of each run, by the names of metrics.py.

    They are accuracy, NLL, ECE and mean confidence, with all logits also the Brier score; with
    lists of labels those of `metrics.multilabel`, without global average precision.

    Args:
      runs: predictions of the same examples.
      temperatures: by which the logits of each run are divided; they are not resampled.
      num_resamples: r, at least 1.
      seed: of the resamples, the same for all runs.
    """
    if temperatures is not None:
        runs = [
            # In float64, because scaling in float32 may make different logits equal.
            p._replace(logits=predictions_lib.all_logits(p, "temperature scaling") / np.float64(t))
            for p, t in zip(runs, temperatures, strict=True)
        ]
    metrics = [_resampled_run(p, num_resamples, seed) for p in runs]
    return {
        name: Resampled(*(np.stack(x, axis=-1) for x in zip(*(m[name] for m in metrics))))
        for name in metrics[0]
    }


def resampled_detections(
    runs: Sequence[Mapping[str, np.ndarray]], num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[str, Resampled]:
    """AP, AP50, AP75 and AR of each run of a detector, on resamples of whole images.

    AP is no mean over images, so it is computed anew for each resample.

    Args:
      runs: predictions of the same images by each; see `runs.predictions.read_detections`.
      num_resamples: r, at least 1.
      seed: of the resamples, the same for all runs.

    Raises:
      ValueError: the runs are of different images.
    """
    metrics = []
    if not all(np.array_equal(run["true_boxes"], runs[0]["true_boxes"]) for run in runs):
        raise ValueError("the runs detect objects of different images; compare them separately.")
    for run in runs:
        found, num_images = coco.matches(run), len(run["image_ids"])
        values = coco.average_precision(found, np.ones((1, num_images)))
        parts = [
            coco.average_precision(found, counts.astype(np.float64))
            for counts in bootstrap.resampled_counts(num_images, num_resamples, seed)
        ]
        metrics.append(
            {n: (values[n][0], np.concatenate([part[n] for part in parts])) for n in values}
        )
    return {
        name: Resampled(*(np.stack(x, axis=-1) for x in zip(*(m[name] for m in metrics))))
        for name in metrics[0]
    }


def units(run: Predictions, examples: str = "examples") -> str:
    """What a bootstrap draws, with its number: whole groups, such as the sentences of tokens."""
    if run.groups is not None:
        is_of_tokens = np.array_equal(run.groups, run.ids // MAX_TOKENS)
        kind = "sentences" if is_of_tokens else "groups"
        return f"{len(np.unique(run.groups)):,} {kind}"
    return f"{len(run.ids):,} {examples}"


def _resampled_run(run: Predictions, num_resamples: int, seed: int) -> dict[str, tuple]:
    columns = _means_by_example(run)
    values = np.stack([*columns.values(), np.ones(len(run.ids))], axis=1)
    sums = []
    if run.link == "softmax":
        sums = [np.asarray(x, np.float64) for x in confidence.sums_by_example([run])[:3]]
    all_columns = np.concatenate([values, *sums], axis=1)
    draws = bootstrap.resampled_sums(all_columns, num_resamples, seed, run.groups)
    counts = draws[:, len(columns)]
    result = {}
    for i, name in enumerate(columns):
        result[name] = np.asarray(values[:, i].mean()), draws[:, i] / counts
    if sums:
        observed, resamples = (
            _calibration_error(x[..., values.shape[1] :]) for x in (all_columns.sum(axis=0), draws)
        )
        result["ece"] = np.asarray(observed), resamples
    return result


def _calibration_error(sums: Float[np.ndarray, "*r c"]) -> Float[np.ndarray, "*r"] | float:
    weight, mean_confidence, correct = np.split(sums, 3, axis=-1)
    return reliability.expected_calibration_error(
        reliability.ReliabilitySums(weight, mean_confidence, correct, np.zeros_like(correct))
    )


def _means_by_example(run: Predictions) -> dict[str, Float[np.ndarray, "n"]]:
    """The metrics that are means over examples, with one value per example."""
    columns = {"nll": predictions_lib.losses(run)}
    if run.link == "softmax":
        columns["accuracy"] = predictions_lib.is_correct(run).astype(np.float64)
        columns["confidence"] = predictions_lib.confidence(run)
        if run.classes is None:
            probs = special.softmax(run.logits.astype(np.float64), axis=-1)
            columns["brier"] = scores.brier_by_example(probs, run.labels)
    elif run.classes is None:
        probs, targets = predictions_lib.binary_predictions(run)
        is_right = (probs > 0.5) == targets
        top = run.logits.argmax(axis=-1)
        columns |= {
            "brier": np.square(probs - targets).sum(axis=-1),
            "label_accuracy": is_right.mean(axis=-1),
            "exact": is_right.all(axis=-1).astype(np.float64),
            "top1_hit": targets[np.arange(len(top)), top].astype(np.float64),
        }
    return columns


def mean(metric: Resampled, seed: int = 0) -> Interval:
    """The mean over the runs, with its interval."""
    errors = bootstrap.errors_of_runs(metric.draws, seed)
    return bootstrap.corrected_interval(
        float(metric.values.mean()), metric.draws.mean(axis=1), errors
    )


def difference(
    ours: Resampled, theirs: Resampled, pairs: Sequence[tuple[int, int]], seed: int = 0
) -> Interval:
    """The difference of the means over runs, with its interval.

    Args:
      ours: the metric of the runs of a group.
      theirs: the metric of the runs of the reference.
      pairs: positions of runs that belong together, such as those of the same seed; only these
        runs count. If there are none, all runs count, and those of each are independent.
      seed: of the order in which quantiles of runs meet resamples.
    """
    if pairs:
        mine, other = (list(x) for x in zip(*pairs))
        return mean(
            Resampled(
                ours.values[mine] - theirs.values[other],
                ours.draws[:, mine] - theirs.draws[:, other],
            ),
            seed,
        )
    value = float(ours.values.mean() - theirs.values.mean())
    draws = ours.draws.mean(axis=1) - theirs.draws.mean(axis=1)
    errors = bootstrap.errors_of_runs(ours.draws, seed)
    errors = errors - bootstrap.errors_of_runs(theirs.draws, seed + 1)
    return bootstrap.corrected_interval(value, draws, errors)


def reported(
    metrics: Mapping[str, Resampled], results: Sequence[Mapping[str, float]]
) -> dict[str, Resampled]:
    """The metrics whose values agree with those that the runs report.

    Metrics of a task of another definition, such as the NLL of one label under a sigmoid, are left
    out.

    Args:
      metrics: of each run.
      results: the reported metrics of each run.
    """
    return {
        name: metric
        for name, metric in metrics.items()
        if all(name in r for r in results)
        and np.allclose(metric.values, [r[name] for r in results], rtol=1e-3, atol=1e-4)
    }
