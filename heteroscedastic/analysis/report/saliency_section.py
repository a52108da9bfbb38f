"""The section about the places of images that make a run doubt between two classes, or a label."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from heteroscedastic.analysis.covariance import summary
from heteroscedastic.analysis.plots import figures, overlays
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Group, RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.saliency import explain, noise, sheet
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.runs import by_example
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

_NUM_EXPLAINED, _NUM_IMAGES = 2, 3  # pairs or labels, and images of each
_TITLE = "Where the noise is large"
_OF = {  # what is explained by link, and its variance
    "softmax": (
        "the class pairs that the section about correlated noise ranks first",
        "u₁\u00a0\u2212\u00a0u₂",
    ),
    "sigmoid": (
        "the labels whose noise changes the predictions most, by the mean of"
        " p\u00a0(1\u00a0\u2212\u00a0p)\u00a0var(u)",
        "the utility u of the label",
    ),
}


def doubts(run_set: RunSet) -> Section:
    """The images with the largest noise of the first class pairs, and the places that raise it.

    Under a sigmoid it is that of the first labels. Requires images, a backbone with maps, and a
    head with noise.
    """
    explained, utility = _OF[run_set.link]
    parts: list[Any] = [
        page.paragraph(
            f"For {explained}, these are the images of {run_set.evaluation} with the largest"
            f" variance of {utility}, for the first run of each group. The class maps (Grad-CAM++)"
            " show which places raise the utility of a class. The noise map shows what each place"
            " adds to the variance: it adds up to the variance less its value without features, in"
            " squared units of the utilities. A red place raises the variance and a blue one lowers"
            " it; where no map of a column has negative values, dark is 0. Maps are as coarse as"
            " the last layer of the backbone."
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


def first_labels(loaded_run: LoadedRun, split: str, number: int) -> Int[np.ndarray, "m"]:
    """The labels with the largest mean of p (1 - p) var(u) over a split, for a sigmoid."""

    def of_batch(key, latent, batch):
        probs = jax.nn.sigmoid(loaded_run.run.parts.predictive(None, latent))
        return noise.visible_variance(latent, probs)

    sums = by_example.map_latents(
        loaded_run,
        split,
        of_batch,
        postprocess=lambda values: values.sum(axis=0, keepdims=True, dtype=np.float64),
    )
    return np.argsort(-sums.sum(axis=0), kind="stable")[:number]


def _picture(run_set: RunSet, group: Group, index: int) -> Picture:
    run = group.runs[0]
    loaded_run, split = run_set.loaded(run)
    explain.check(loaded_run, Question("noise", "integrated"), split)
    if run_set.link == "sigmoid":
        labels = first_labels(loaded_run, split, _NUM_EXPLAINED)
        explained = [(label,) for label in labels.tolist()]
    else:
        pairs = summary.class_pairs(loaded_run, split, num_pairs=_NUM_EXPLAINED, num_classes=2)
        found = pairs.numbers
        explained = list(zip(found.rows.tolist(), found.cols.tolist()))
    lines, numbers = [], []
    for classes in explained:
        facts, cells = _images(loaded_run, split, classes)
        lines += cells
        numbers += facts
    first = numbers[0]
    title = f"{group.name}, seed {run.config['seed']}"
    is_pair = "other" in first
    between = (
        f"between {first['class']} and {first['other']}" if is_pair else f"of {first['class']}"
    )
    columns = "class maps of both classes" if is_pair else "class map"
    return Picture(
        page.file_name("doubts", index, group.name),
        f"The variance {between} is largest for image {first['id']}: {first['variance']:.3g}.",
        f"{title}: image, {columns}, noise map.",
        f"{title}: maps of {len(lines)} images with the largest variance of {len(explained)}"
        f" {'pairs' if is_pair else 'labels'}.",
        overlays.grid(lines),
        numbers,
    )


def _images(loaded_run, split, classes):
    """Numbers and cells of the images with the largest variance of a pair, or of a label."""
    question = Question("noise", "integrated", classes)
    every = explain.answers(loaded_run, split, question).value
    rows = np.argsort(-every, kind="stable")[:_NUM_IMAGES]
    doubt = explain.explain(loaded_run, split, question, rows)
    labels = loaded_run_lib.split_data(loaded_run, split).labels[rows].reshape(len(rows), -1)
    by_class = [
        explain.explain(loaded_run, split, Question("class", "grad_cam_pp", (c,)), rows)
        for c in classes
    ]
    names = figures.class_names(loaded_run.dataset)
    chosen = [names[c] for c in classes]
    facts, cells = [], []
    for i, picture in enumerate(sheet.seen(loaded_run, split, rows)):
        example, variance = int(doubt.ids[i]), float(doubt.value[i])
        label = sheet.label_names(labels[i], names)
        facts.append(
            {
                "id": example,
                "label": label,
                **dict(zip(("class", "other"), chosen)),
                "variance": variance,
                "sum_of_diagonal": float(doubt.diagonal[i].sum()),
                "sum_of_factors": float(doubt.factors[i].sum()),
            }
        )
        says = sheet.verdict(doubt, labels, names, i)
        line = [overlays.Cell(picture, None, f"id {example}\nlabel: {label}\n{says}")]
        for name, found in zip(chosen, by_class):
            text = f"{name}\nutility {found.value[i]:.3g}"
            line.append(overlays.Cell(picture, found.maps[i], text))
        text = "noise of " + " \u2212 ".join(chosen) + f"\nvariance {variance:.3g}"
        cells.append([*line, overlays.Cell(picture, doubt.maps[i], text)])
    return facts, cells
