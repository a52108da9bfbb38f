"""The section about the places of images that make a run doubt between two classes."""

from typing import Any

import numpy as np

from heteroscedastic.analysis.covariance import summary
from heteroscedastic.analysis.plots import figures, overlays
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Group, RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.saliency import explain, sheet
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.runs import loaded_run as loaded_run_lib

_NUM_PAIRS, _NUM_IMAGES = 2, 3
_TITLE = "Where it doubts"


def doubts(run_set: RunSet) -> Section:
    """The images with the largest noise of the first class pairs, and the places that raise it.

    Requires a softmax, images, a backbone with maps, and a head with noise.
    """
    if run_set.link == "sigmoid":
        text = "This section requires a softmax, as it explains what confuses pairs of classes."
        return Section(_TITLE, [page.note(text)])
    parts: list[Any] = [
        page.paragraph(
            "For the class pairs that the section about correlated noise ranks first, these are the"
            f" images of {run_set.evaluation} with the largest variance of u₁\u00a0\u2212\u00a0u₂,"
            " for the first run of each group. The class maps (Grad-CAM++) show which places raise"
            " the utility of each class. The noise map shows what each place adds to the variance:"
            " it adds up to the variance less its value without features, in squared units of the"
            " utilities. A red place raises the variance and a blue one lowers it; a map without"
            " negative values is dark where it is 0. Maps are as coarse as the last layer of the"
            " backbone."
        )
    ]
    for i, group in enumerate(run_set.groups):
        if not loaded_run_lib.has_noise(group.runs[0].config):
            parts.append(page.note(f"{group.name} is not included, because its head has no noise."))
            continue
        try:
            picture = _picture(run_set, group, i)
        except loaded_run_lib.UNAVAILABLE as error:
            parts.append(page.note(f"The maps of {group.name} are not available: {error}"))
            continue
        parts.append(picture)
    return Section(_TITLE, parts)


def _picture(run_set: RunSet, group: Group, index: int) -> Picture:
    run = group.runs[0]
    loaded_run, split = loaded_run_lib.load_evaluated(run, run_set.evaluation, run_set.data_dir)
    explain.check(loaded_run, Question("noise", "integrated"), split)
    names = figures.class_names(loaded_run.dataset)
    found = summary.class_pairs(loaded_run, split, num_pairs=_NUM_PAIRS, num_classes=2).numbers
    pairs = list(zip(found.rows.tolist(), found.cols.tolist()))
    lines, numbers = [], []
    for classes in pairs:
        facts, cells = _images(loaded_run, split, classes, names)
        lines += cells
        numbers += facts
    first = numbers[0]
    title = f"{group.name}, seed {run.config['seed']}"
    return Picture(
        page.file_name("doubts", index, group.name),
        f"The variance between {first['class']} and {first['other']} is largest for image"
        f" {first['id']}: {first['variance']:.3g}.",
        f"{title}: image, class maps of both classes, noise map.",
        f"{title}: maps of {len(lines)} images with the largest variance of {len(pairs)} pairs.",
        overlays.grid(lines),
        numbers,
    )


def _images(loaded_run, split, classes, names):
    """Numbers and cells of the images with the largest variance of a pair."""
    question = Question("noise", "integrated", classes)
    every = explain.answers(loaded_run, split, question).value
    rows = np.argsort(-every, kind="stable")[:_NUM_IMAGES]
    doubt = explain.explain(loaded_run, split, question, rows)
    labels = loaded_run_lib.split_data(loaded_run, split).labels[rows]
    by_class = [
        explain.explain(loaded_run, split, Question("class", "grad_cam_pp", (c,)), rows)
        for c in classes
    ]
    first, second = (names[c] for c in classes)
    facts, cells = [], []
    for i, picture in enumerate(sheet.seen(loaded_run, split, rows)):
        example, variance, label = int(doubt.ids[i]), float(doubt.value[i]), names[labels[i]]
        facts.append(
            {
                "id": example,
                "label": label,
                "class": first,
                "other": second,
                "variance": variance,
                "sum_of_diagonal": float(doubt.diagonal[i].sum()),
                "sum_of_factors": float(doubt.factors[i].sum()),
            }
        )
        says = sheet.verdict(doubt, labels[:, None], names, i)
        line = [overlays.Cell(picture, None, f"id {example}\nlabel: {label}\n{says}")]
        for name, found in zip((first, second), by_class):
            text = f"{name}\nutility {found.value[i]:.3g}"
            line.append(overlays.Cell(picture, found.maps[i], text))
        text = f"noise of {first} \u2212 {second}\nvariance {variance:.3g}"
        cells.append([*line, overlays.Cell(picture, doubt.maps[i], text)])
    return facts, cells
