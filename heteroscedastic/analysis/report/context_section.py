"""The section about images without their objects, and about confidence and objectness."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.data import split_spec
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.predictions import Predictions

_TITLE = "Confidence without objects"
_COLUMNS = ("accuracy", "overconfidence", "underconfidence", "confidence")
_NUM_BINS = 10


def context(run_set: RunSet) -> Section:
    """Table 1 of "One Size Doesn't Fit All", and confidence against objectness by group.

    The table requires an evaluation whose chain has `context`; the picture requires boxes.
    """
    if run_set.link == "sigmoid":
        return Section(_TITLE, [page.note("This section requires one label per example.")])
    parts: list[Any] = []
    evaluations = without_objects(run_set)
    if evaluations:
        rows = [
            [f"{group.name}, {name}", *_cells([run.results["evals"][name] for run in group.runs])]
            for name in (run_set.evaluation, *evaluations)
            for group in run_set.groups
        ]
        caption = (
            f"With objects ({run_set.evaluation}) and without ({', '.join(evaluations)}); mean and"
            " standard deviation over runs"
        )
        parts.append(page.table(caption, ["", *_COLUMNS], rows))
    else:
        parts.append(
            page.note(
                "No evaluation of all runs removes the objects of images; add a split with"
                " context(1.0) in its chain to config.data.splits, and an evaluation of it."
            )
        )
    lines = {
        group.name: confidence_by_objectness(predictions)
        for group, predictions in zip(run_set.groups, run_set.predictions)
        if all(p.extras.get("objectness", np.zeros(1)).any() for p in predictions)
    }
    if not lines:
        parts.append(
            page.note(
                f"The predictions of {run_set.evaluation} have no objectness; name 'boxes' in"
                " config.data.extras."
            )
        )
        return Section(_TITLE, parts)
    distances = {name: float(np.mean(np.abs(y - x))) for name, (x, y) in lines.items()}
    stated = ", ".join(f"{name} {100 * d:.0f} points" for name, d in distances.items())
    picture = Picture(
        "confidence_objectness",
        f"The mean distance of the curves from the diagonal is {stated}.",
        f"Mean confidence of {run_set.evaluation} against the share of the image in boxes, over"
        f" {_NUM_BINS} bins of equally many images, pooled over runs. On the diagonal the"
        " confidence is the objectness.",
        f"Confidence against objectness; mean distances from the diagonal: {stated}.",
        panels.shares(
            lines,
            f"Confidence and objectness, {run_set.evaluation}",
            "objectness",
            "confidence",
            diagonal="confidence = objectness",
        ),
        {name: {"objectness": x, "confidence": y} for name, (x, y) in lines.items()},
    )
    return Section(_TITLE, [*parts, picture])


def without_objects(run_set: RunSet) -> list[str]:
    """The evaluations of all runs whose chain removes the objects."""
    runs = [run for group in run_set.groups for run in group.runs]
    return [
        name
        for name in runs[0].config["evals"]
        if all(_removes_objects(run.config, name) and name in run.results["evals"] for run in runs)
    ]


def confidence_by_objectness(
    runs: Sequence[Predictions],
) -> tuple[Float[np.ndarray, "m"], Float[np.ndarray, "m"]]:
    """The mean objectness and confidence of bins of equally many predictions, by objectness.

    Examples without a box do not count.
    """
    objectness = np.concatenate([p.extras["objectness"] for p in runs]).astype(np.float64)
    confidence = np.concatenate([predictions_lib.confidence(p) for p in runs])
    order = np.argsort(objectness, kind="stable")
    order = order[objectness[order] > 0]
    parts = [part for part in np.array_split(order, _NUM_BINS) if len(part)]
    means = [(objectness[part].mean(), confidence[part].mean()) for part in parts]
    return tuple(np.array(means, np.float64).reshape(-1, 2).T)


def _removes_objects(config: Mapping[str, Any], evaluation: str) -> bool:
    settings = config["evals"].get(evaluation)
    if settings is None:
        return False
    default = config["data"].get("eval", "")  # sentences have no chain
    chain = split_spec.own_chains(config["data"]).get(settings["split"], default)
    return any(link.strip().startswith("context(") for link in chain.split("|"))


def _cells(results: Sequence[Mapping[str, float]]) -> list[str]:
    return [
        comparison.spread([r[name] for r in results]) if all(name in r for r in results) else "-"
        for name in _COLUMNS
    ]
