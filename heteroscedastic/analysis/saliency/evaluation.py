"""Numbers of the maps of a run: whether they lie on objects, and what deletion does."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from heteroscedastic import boxes as boxes_lib
from heteroscedastic.analysis.saliency import deletion, explain, localisation, pixels
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.analysis.uncertainty import intervals
from heteroscedastic.analysis.uncertainty.intervals import Resampled
from heteroscedastic.calibration import bootstrap
from heteroscedastic.runs import assembly, by_example, predictions
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

MAX_DELETED = 256  # examples of the deletion curves
_BOX_COLUMN = int(np.argmin(np.abs(localisation.THRESHOLDS - localisation.BOX_LEVEL)))
METRICS = {
    "pointing": "share of images whose maximum lies in a box",
    "box": "share of images whose box at 0.2 of the maximum has an IoU of 0.5 with a box",
    "max_box": "mean of MaxBoxAcc at IoU 0.3, 0.5 and 0.7, with thresholds of the validation split",
    "mass": "share of the positive mass in boxes, over their share of the pixels",
}


# The ids of the examples of a run, and their metrics.
ByExample = tuple[Int[np.ndarray, "n"], dict[str, Float[np.ndarray, "n"]]]


class Located(NamedTuple):
    """Scores of the maps of a run against the boxes of a split, of n examples that have them."""

    ids: Int[np.ndarray, "n"]
    objectness: Float[np.ndarray, "n"]
    is_right: Bool[np.ndarray, "n"]  # whether the likeliest class is a label
    by_map: dict[str, localisation.Scores]  # "map", and the controls
    num_without_boxes: int  # examples without a box, or whose boxes are outside of the crop
    num_zero: int  # examples whose map has no positive value, as of an example without a label
    groups: Int[np.ndarray, "n"] | None = None  # of examples that are not independent


def boxes_of(
    loaded_run: LoadedRun, split: str, rows: Int[np.ndarray, "n"] | None = None
) -> Float[np.ndarray, "n m 4"] | None:
    """The boxes of examples as they follow the crop of the chain; None if the run reads none."""
    data = loaded_run_lib.split_data(loaded_run, split)
    if "boxes" not in data.extras:
        return None
    return by_example.map_batches(
        loaded_run, split, lambda state, batch: batch.extras["boxes"], rows
    )


def spaced_rows(loaded_run: LoadedRun, split: str, number: int) -> Int[np.ndarray, "m"]:
    """Up to `number` positions, evenly spaced in a split."""
    size = len(loaded_run_lib.split_data(loaded_run, split).ids)
    return np.unique(np.linspace(0, size - 1, min(number, size)).astype(int))


def located(
    loaded_run: LoadedRun,
    split: str,
    question: Question,
    with_controls: bool = True,
    max_images: int | None = None,
) -> Located:
    """Scores of the maps of a split.

    Args:
      loaded_run: a run whose data has boxes.
      split: of its data.
      question: what to explain; for classes, "label" explains what the boxes are of. Boxes do not
        say which label of a list they are of: the map explains all labels, and all boxes count.
      with_controls: whether to score `localisation.controls` too.
      max_images: explains so many examples, evenly spaced; None is all.

    Raises:
      ValueError: the run reads no boxes, or no example has both a box and a map.
    """
    data = loaded_run_lib.split_data(loaded_run, split)
    read = spaced_rows(loaded_run, split, max_images or len(data.ids))
    boxes = boxes_of(loaded_run, split, read)
    if boxes is None:
        raise ValueError(
            "the run reads no boxes; choose a run whose config.data.extras names 'boxes'."
        )
    has_box = boxes.any(axis=(1, 2))
    explained = explain.explain(loaded_run, split, question, read)
    shape = explain.inputs(loaded_run, split, np.zeros(1, int)).shape[1:3]
    scorable = localisation.is_scorable(explained.maps, shape)
    rows = np.flatnonzero(has_box & scorable)
    if not len(rows):
        raise ValueError(
            f"of {len(boxes)} examples of {split!r}, {int(has_box.sum())} have boxes and"
            f" {int(scorable.sum())} maps with a positive value, and none has both; choose another"
            " split or --method."
        )
    is_grouped = "groups" in loaded_run.run.config["data"]["extras"]
    groups = predictions.group_numbers(data.extras.get("groups") if is_grouped else None)
    return Located(
        ids=explained.ids[rows],
        objectness=np.asarray(boxes_lib.objectness(jnp.asarray(boxes[rows]))),
        is_right=explain.is_right(explained, data.labels[read])[rows],
        by_map=_scores(explained.maps[rows], boxes[rows], shape, with_controls),
        num_without_boxes=int((~has_box).sum()),
        num_zero=int((has_box & ~scorable).sum()),
        groups=None if groups is None else groups[read][rows],
    )


def _scores(maps, boxes, shape, with_controls) -> dict[str, localisation.Scores]:
    is_alone = len(maps) == 1
    others = np.roll(maps, 1, axis=0)  # of the example before
    parts: dict[str, list[localisation.Scores]] = {}
    for start in range(0, len(maps), localisation.CHUNK):
        chosen = slice(start, start + localisation.CHUNK)
        resized = localisation.resized(maps[chosen], shape)
        by_name = {"map": resized}
        if with_controls:
            other = None if is_alone else localisation.resized(others[chosen], shape)
            by_name |= localisation.controls(resized, other)
        for name, values in by_name.items():
            parts.setdefault(name, []).append(localisation.scores(values, boxes[chosen]))
    return {name: localisation.Scores(*map(np.concatenate, zip(*x))) for name, x in parts.items()}


def metrics(
    scores: localisation.Scores, validation: localisation.Scores | None
) -> dict[str, Float[np.ndarray, "n"]]:
    """METRICS of each example; `max_box` only with the scores of a validation split."""
    values = {
        "pointing": scores.pointing,
        "box": (scores.ious[:, _BOX_COLUMN] >= 0.5).astype(np.float64),
        "mass": scores.mass,
    }
    if validation is None:
        return values
    columns = [localisation.best_threshold(validation.any_ious, at) for at in localisation.IOUS]
    return values | {"max_box": localisation.max_box_accuracy(scores.any_ious, columns)}


def table(found: Located, validation: Located | None) -> list[dict[str, Any]]:
    """A row per map (that of the run, and the controls) and metric.

    Each has its mean with a 95 % interval, the mean in which only right predictions count, the
    means by third of objectness, and the difference of the run's map from a control, paired by
    image. Examples whose metric is not defined do not count: a third without others is nan, and a
    metric without others has no row.
    """
    rows, by_map = [], {}
    for name, scores in found.by_map.items():
        other = None if validation is None else validation.by_map.get(name)
        by_map[name] = metrics(scores, other)
    thirds = localisation.thirds(found.objectness)
    for name, values in by_map.items():
        for metric, own in values.items():
            known = np.isfinite(own) & np.isfinite(by_map["map"][metric])
            if not known.any():
                continue
            groups = None if found.groups is None else found.groups[known]
            row = {"map": name, "metric": metric, "mean": interval(own[known], groups)}
            row["if_right"] = float(np.mean((own * found.is_right)[known]))
            by_third = (own[known & (thirds == i)] for i in range(3))
            row["by_third"] = [float(np.mean(x)) if len(x) else np.nan for x in by_third]
            if name != "map":
                row["difference"] = interval((by_map["map"][metric] - own)[known], groups)
            rows.append(row)
    return rows


def interval(
    values: Float[np.ndarray, "n"], groups: Int[np.ndarray, "n"] | None = None
) -> bootstrap.Interval:
    """The mean over examples with its bootstrap interval; groups are resampled as one."""
    return intervals.mean(_resampled(values[:, None], groups))


def differences(
    values: Mapping[str, Mapping[int, ByExample]],
    groups: Mapping[int, int] | None = None,
) -> dict[str, dict[str, bootstrap.Interval]]:
    """Of each metric the difference of groups from the first, paired by image and by seed.

    Args:
      values: by group and seed. Only examples that all runs have, and whose metrics are defined,
        count; a metric without any is left out.
      groups: by the id of each example; None if the examples are independent.
    """
    if len(values) < 2:
        return {}
    names, seeds = list(values), [list(group) for group in values.values()]
    common = functools.reduce(
        np.intersect1d, [ids for group in values.values() for ids, _ in group.values()]
    )
    aligned = [
        [{m: x[np.searchsorted(ids, common)] for m, x in own.items()} for ids, own in sorted_runs]
        for sorted_runs in ([_by_id(run) for run in group.values()] for group in values.values())
    ]
    result: dict[str, dict[str, bootstrap.Interval]] = {}
    for metric in [m for m in aligned[0][0] if all(m in run for g in aligned for run in g)]:
        columns = [np.stack([run[metric] for run in group], axis=-1) for group in aligned]
        known = np.all([np.isfinite(x).all(axis=-1) for x in columns], axis=0)
        if not known.any():
            continue
        chosen = np.array([groups[i] for i in common[known].tolist()]) if groups else None
        resampled = [_resampled(x[known], chosen) for x in columns]
        for i, name in enumerate(names[1:], 1):
            pairs = [(j, seeds[0].index(s)) for j, s in enumerate(seeds[i]) if s in seeds[0]]
            difference = intervals.difference(resampled[i], resampled[0], pairs)
            result.setdefault(name, {})[metric] = difference
    return result


def _by_id(run):
    """A run's scores in the order of the ids."""
    ids, own = run
    order = np.argsort(ids)
    return ids[order], {metric: x[order] for metric, x in own.items()}


def _resampled(
    values: Float[np.ndarray, "n s"], groups: Int[np.ndarray, "n"] | None = None
) -> Resampled:
    columns = np.concatenate([values, np.ones((len(values), 1))], axis=1)
    sums = bootstrap.resampled_sums(columns, intervals.NUM_RESAMPLES, groups=groups)
    return Resampled(values.mean(axis=0), sums[..., :-1] / sums[..., -1:])


def deletion_curves(
    loaded_run: LoadedRun, split: str, question: Question
) -> dict[str, Float[np.ndarray, "f"]]:
    """Mean deletion curves of up to MAX_DELETED examples, evenly spaced in the split.

    Filled pixels take the mean colour of the split. Each example keeps the classes that are
    explained for the entire image.

    Returns:
      The curves in the order of the map, at random, and centre first, by `deletion.FRACTIONS`.
    """
    rows = spaced_rows(loaded_run, split, MAX_DELETED)
    color = explain.mean_color(loaded_run, split)
    explained = explain.explain(loaded_run, split, question, rows, color)
    inputs = explain.inputs(loaded_run, split, rows)
    key = assembly.key_for(loaded_run.run.config["seed"], "deletion")

    @jax.jit
    def curves(state, inputs, maps, classes):
        inputs = pixels.as_float(inputs)
        shape = inputs.shape[:3]
        centre = localisation.centred_gaussian(shape[1:]).astype(np.float32)
        by_name = {
            "map": jax.image.resize(maps, shape, "linear"),
            "random": jnp.zeros(shape),
            "centre": jnp.broadcast_to(centre, shape),
        }
        function = explain.scalar_of_inputs(loaded_run, question, classes, state, inputs)
        return {
            name: deletion.curve(
                deletion.order_of(key, m), inputs, function, jnp.asarray(color, jnp.float32)
            )
            for name, m in by_name.items()
        }

    size, parts = loaded_run.run.steps.batch_size, []
    for start in range(0, len(rows), size):
        arguments = (x[start : start + size] for x in (inputs, explained.maps, explained.classes))
        parts.append(jax.tree.map(np.asarray, curves(loaded_run.state, *arguments)))
    return {
        name: np.concatenate([part[name] for part in parts]).mean(axis=0, dtype=np.float64)
        for name in parts[0]
    }
