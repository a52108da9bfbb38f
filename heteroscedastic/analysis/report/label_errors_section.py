"""The section about training images whose labels are likely wrong."""

from typing import Any

import numpy as np

from heteroscedastic.analysis.errors import label_errors as label_errors_lib
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.data.storage import originals
from heteroscedastic.outputs import label_quality
from heteroscedastic.runs import loaded_run as loaded_run_lib

_NUM_IMAGES = 16
_NUM_ROWS = 20  # classes of a table
_NUM_SUSPECTS = 2000  # rows of the file, which is part of the page


def label_errors(run_set: RunSet) -> Section:
    """The most suspicious labels by the first run of each group, and how well known errors rank."""
    parts: list[Any] = [
        page.paragraph(
            "The training images whose label has the smallest probability under softmax(loc), the"
            " prediction of a head without its noise. The ranking uses the first run of each group,"
            " at its best checkpoint if it has one. The suggested class is the most probable class"
            " other than the label."
        )
    ]
    numbers: dict[str, Any] = {}
    for i, group in enumerate(run_set.groups):
        run = group.runs[0]
        checkpoint = "last" if run.results.get("best_step") is None else "best"
        try:
            loaded_run = loaded_run_lib.load(run.directory, checkpoint, run_set.data_dir)
            labels = label_errors_lib.label_scores(loaded_run)
        except loaded_run_lib.UNAVAILABLE as error:
            text = f"The most suspicious labels of {group.name} are not available: {error}"
            parts.append(page.note(text))
            continue
        names = figures.class_names(loaded_run.dataset)
        facts = label_errors_lib.summary(labels)
        top = label_errors_lib.suspicion_order(labels)[:_NUM_IMAGES]
        ranking = label_errors_lib.table(labels, names)
        rows = ranking[:_NUM_IMAGES]
        numbers[page.file_name("mislabelled", i, group.name)] = {
            "checkpoint": checkpoint,
            **facts,
            "first": rows,
            "quality_by_class": _quality(labels, names),
        }
        captions = [
            f"id {row['id']}\n{caption}"
            for row, caption in zip(rows, label_errors_lib.captions(labels, names, top))
        ]
        alts = [f"Training example {row['id']}, labelled {row['label']}" for row in rows]
        title = f"{group.name}, seed {run.config['seed']}, {checkpoint} checkpoint"
        parts.append(f"<h3>{page.text(title)}</h3>")
        parts += _known_errors(facts)
        images = originals.pictures(
            run.config["data"], run_set.data_dir, "train", labels.ids[top], labels.images[top]
        )
        parts.append(page.sheet(list(zip(images, alts, captions))))
        suspects = ranking[:_NUM_SUSPECTS]
        which = "All" if len(suspects) == len(ranking) else f"The first {len(suspects):,} of the"
        text = f"{which} {len(ranking):,} labels with ids and scores (CSV), most suspicious first"
        name = f"{page.file_name('suspects', i, group.name)}.csv"
        parts.append(page.download(name, text, suspects))
        parts.append(_quality_table(labels, names))
    return Section("Training images whose labels are likely wrong", parts, numbers)


def _known_errors(facts: dict[str, Any]) -> list[str]:
    number, errors = facts["num_examples"], facts["num_known_errors"]
    if not errors:
        return [
            page.note(
                f"None of the {number:,} labels is known to be wrong, so the precision of the"
                " ranking cannot be measured."
            )
        ]
    head = ["ranked by", f"precision of the first {errors:,}", "average precision", "AUROC"]
    rows = [
        [
            label_errors_lib.STYLES[name][1],
            *(f"{values[x]:.3f}" for x in ("precision_at_errors", "average_precision", "auroc")),
        ]
        for name, values in facts["scores"].items()
    ]
    text = (
        f"Of the {number:,} labels, {errors:,} ({100 * errors / number:.1f} %) are known to be"
        " wrong. The suggested class is the clean label for"
        f" {100 * facts['suggestion_right']:.1f} % of these, and the run predicts the wrong label"
        f" itself for {100 * facts['given_predicted']['wrong']:.1f} %."
    )
    return [page.paragraph(text), page.table("Finding the wrong labels", head, rows)]


def _quality(labels: label_errors_lib.LabelScores, names: list[str]) -> list[dict[str, Any]]:
    """The label quality of each class that has labels, the lowest first."""
    quality = label_quality.class_quality(labels.labels, labels.scores.noise_free, len(names))
    counts = np.bincount(labels.labels, minlength=len(names))
    wrong = np.bincount(labels.labels[labels.is_wrong], minlength=len(names))
    return [
        {
            "class": names[c],
            "labels": int(counts[c]),
            "quality": float(quality[c]),
            "known_wrong": int(wrong[c]),
        }
        for c in np.argsort(quality, kind="stable")
        if counts[c]
    ]


def _quality_table(labels: label_errors_lib.LabelScores, names: list[str]) -> str:
    """The label quality of the classes with the lowest values."""
    quality, errors_known = _quality(labels, names), labels.is_wrong.any()
    head = ["class", "labels", "mean probability of the label"]
    rows = [[row["class"], f"{row['labels']:,}", f"{row['quality']:.3f}"] for row in quality]
    if errors_known:
        head.append("known to be wrong")
        for cells, row in zip(rows, quality):
            cells.append(f"{100 * row['known_wrong'] / row['labels']:.1f} %")
    caption = "Label quality by class: the lowest mean probability of the given labels first"
    if len(rows) > _NUM_ROWS:
        caption += f", {_NUM_ROWS} of {len(rows):,} classes"
    return page.table(caption, head, rows[:_NUM_ROWS])
