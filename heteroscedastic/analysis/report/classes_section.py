"""The section about single classes: accuracy, calibration error and confusions."""

from typing import Any

import numpy as np

from heteroscedastic.analysis.errors import confusions
from heteroscedastic.analysis.plots import heat_map
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.uncertainty import by_class
from heteroscedastic.runs import predictions as predictions_lib

_NUM_ROWS = 20  # classes of the table
_NUM_CLASSES = 12  # of a confusion matrix, so that its numbers are readable on a phone
_NUM_CONFUSIONS = 10
_TITLE = "Results by class"


def classes(run_set: RunSet) -> Section:
    """Accuracy and calibration error of each true class, and the confusion matrix of each group."""
    if len(run_set.class_names) > confusions.MAX_CLASSES and run_set.link == "softmax":
        parts, numbers = _by_class(run_set)
        limit = (
            f"There are no confusions of more than {confusions.MAX_CLASSES:,} classes, as their"
            " matrix is too large."
        )
        return Section(_TITLE, [*parts, page.note(limit)], numbers)
    try:
        matrices = [
            confusions.confusion_matrix(predictions, len(run_set.class_names))
            for predictions in run_set.predictions
        ]
    except ValueError as error:
        return Section(_TITLE, [page.note(error)])
    parts, numbers = _by_class(run_set)
    picked = confusions.group_of_classes(sum(matrices), _NUM_CLASSES)
    blocks = [100 * confusions.rates(matrix)[np.ix_(picked, picked)] for matrix in matrices]
    off_diagonal = ~np.eye(len(picked), dtype=bool)
    top = max((np.nanmax(block[off_diagonal], initial=0.0) for block in blocks), default=0.0)
    for i, (matrix, block) in enumerate(zip(matrices, blocks)):
        parts.append(_confusion_map(run_set, i, matrix, picked, block, top))
    rows = []
    for group, matrix in zip(run_set.groups, matrices):
        for c in confusions.largest(matrix, _NUM_CONFUSIONS):
            true, predicted = (run_set.class_names[k] for k in (c.true, c.predicted))
            rate = f"{100 * c.rate:.1f} %"
            rows.append([f"{true} taken for {predicted}", group.name, c.count, rate])
    head = ["classes", "run", "predictions", "of the true class"]
    table = page.table(f"The {_NUM_CONFUSIONS} largest confusions of each run", head, rows)
    return Section(_TITLE, [*parts, page.details("Largest confusions", table)], numbers)


def _by_class(run_set: RunSet) -> tuple[list[Any], dict[str, Any]]:
    """The table of classes and its numbers; a note if the predictions lack logits."""
    try:
        measures = [
            [
                by_class.by_class(predictions_lib.all_logits(p, "the table of classes"), p.labels)
                for p in predictions
            ]
            for predictions in run_set.predictions
        ]
    except ValueError as error:
        return [page.note(error)], {}
    names, count = run_set.class_names, measures[0][0].count
    accuracy, error = (
        np.array([np.mean([getattr(m, x) for m in group], axis=0) for group in measures])
        for x in ("accuracy", "ece")
    )
    groups = [group.name for group in run_set.groups]
    head = ["class", "examples", *(f"{x}, {g}" for x in ("accuracy", "ECE") for g in groups)]
    present = np.flatnonzero(count)
    rows = [
        [names[c], int(count[c]), *(f"{x:.3f}" for x in (*accuracy[:, c], *error[:, c]))]
        for c in present
    ]
    shown, caption = rows, ""
    if len(rows) > _NUM_ROWS:
        order = np.argsort(accuracy[0, present], kind="stable")[:_NUM_ROWS]
        shown = [rows[i] for i in order]
        caption = f"; the {_NUM_ROWS} classes with the lowest accuracy of {groups[0]}"
    caption = (
        f"Accuracy and ECE of the examples of each true class on {run_set.evaluation}{caption}."
        " The ECE of a few examples is larger than that of many"
    )
    link = page.download(
        "classes.csv",
        f"All {len(rows):,} classes as a CSV file",
        [dict(zip(head, row)) for row in rows],
    )
    numbers = {"classes": names, "count": count, "groups": groups, "accuracy": accuracy}
    return [page.table(caption, head, shown), link], {"by_class": numbers | {"ece": error}}


def _confusion_map(
    run_set: RunSet, group: int, matrix: np.ndarray, picked: np.ndarray, block: Any, top: float
) -> Picture:
    name, class_names = run_set.groups[group].name, run_set.class_names
    names = [class_names[c] for c in picked]
    finding = f"{name} confuses no classes."
    for c in confusions.largest(matrix, 1):
        true, predicted = class_names[c.true], class_names[c.predicted]
        finding = (
            f"{name} most often takes {true} for {predicted}: {100 * c.rate:.0f} % of its examples."
        )
    number = "all classes" if len(names) == len(matrix) else "the classes of the first confusions"
    return Picture(
        page.file_name("confusion", group, name),
        finding,
        f"Percent of each true class on {run_set.evaluation}, for {number}. All confusion matrices"
        " have the same scale.",
        f"Confusion matrix of {name} between {', '.join(names)}. {finding}",
        heat_map.confusion_map(names, block, f"Predictions of {name}", top),
        {"classes": names, "percent": block},
    )
