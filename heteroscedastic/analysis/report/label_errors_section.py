"""The training images whose labels the runs find most likely wrong."""

from typing import Any

from heteroscedastic.analysis.errors import label_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.runs import loaded_run

_NUM_SHOWN = 16


def mislabelled(compared: Compared) -> Section:
    """Of the first run of each group: the most suspect labels as images, and how well known errors
    are found.
    """
    parts: list[Any] = [
        page.paragraph(
            "The training images whose label is least probable without the noise of the head,"
            " under softmax(loc), by"
            " the first run of each group, at its best checkpoint where it has one. Suggested is"
            " the likeliest other"
            " class."
        )
    ]
    numbers: dict[str, Any] = {}
    for i, group in enumerate(compared.groups):
        run = group.runs[0]
        checkpoint = "last" if run.results.get("best_step") is None else "best"
        try:
            found = loaded_run.load(run.directory, checkpoint, compared.data_dir)
            told = label_errors.labels(found)
        except loaded_run.NOT_HERE as error:
            parts.append(
                page.note(f"The most suspect labels of {group.name} are not told: {error}")
            )
            continue
        names, facts = figures.class_names(found.dataset), label_errors.summary(told)
        first = label_errors.most_suspect(told)[:_NUM_SHOWN]
        rows = label_errors.table(told, names)[:_NUM_SHOWN]
        numbers[page.file_name("mislabelled", i, group.name)] = {
            "checkpoint": checkpoint,
            **facts,
            "first": rows,
        }
        captions = label_errors.captions(told, names, first)
        alts = [f"Training example {row['id']}, labelled {row['label']}" for row in rows]
        title = f"{group.name}, seed {run.config['seed']}, {checkpoint} checkpoint"
        parts.append(f"<h3>{page.text(title)}</h3>")
        parts += _known(facts)
        parts.append(page.sheet(list(zip(told.images[first], alts, captions))))
    return Section("Training images most likely mislabelled", parts, numbers)


def _known(facts: dict[str, Any]) -> list[str]:
    number, errors = facts["num_examples"], facts["num_known_errors"]
    if not errors:
        return [
            page.note(
                f"No error of the {number:,} labels is known, so there is no precision to tell."
            )
        ]
    head = ["ranked by", f"precision at {errors:,}", "average precision", "AUROC"]
    rows = [
        [
            label_errors.STYLES[name][1],
            *(f"{told[x]:.3f}" for x in ("precision_at_errors", "average_precision", "auroc")),
        ]
        for name, told in facts["scores"].items()
    ]
    said = (
        f"{errors:,} of the {number:,} labels ({100 * errors / number:.1f} %) are known to be"
        " wrong; for"
        f" {100 * facts['suggestion_right']:.1f} % of them the suggested class is the clean one,"
        " and"
        f" {100 * facts['given_predicted']['wrong']:.1f} % are predicted as they stand."
    )
    return [
        page.paragraph(said),
        page.table("Finding the labels that are known to be wrong", head, rows),
    ]
