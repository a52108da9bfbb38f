"""The sheet of a command: each image as the network saw it, beside the maps of each group."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.saliency import evaluation, explain
from heteroscedastic.analysis.saliency.explain import Explained, Question
from heteroscedastic.analysis.saliency.groups import Member
from heteroscedastic.boxes import covers
from heteroscedastic.data.inspect import contact_sheet
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

_FILL = 128  # of objects that are removed
_TITLES = {
    "class": "utility",
    "log_prob": "log-probability",
    "noise": "variance of the noise",
    "entropy": "entropy",
    "information": "mutual information of label and noise",
}


def check_not_zero(
    explained: Sequence[Explained], names: Sequence[str], question: Question
) -> None:
    """Raises a ValueError if a map of a single example is 0 at every place."""
    choices = ["another --id"] if question.of in explain.OF_ALL_CLASSES else ["other --classes"]
    cause = "as the number does not depend on the image"
    if question.method in explain.POSITIVE:
        cause = "as nothing raises the number"
        choices.append("--method=integrated, which has a sign")
    for one, name in zip(explained, names):
        if not one.maps.any():
            raise ValueError(
                f"the map of example {one.ids[0]} by {name} is 0 at every place, {cause}; choose"
                f" {' or '.join(choices)}."
            )


def draw(
    members: Sequence[Member],
    question: Question,
    rows: Int[np.ndarray, "m"],
    by_member: Sequence[Explained],
) -> figures.Figure:
    """The figure of these images.

    Columns are the image, the image without its objects where it shows boxes, and the map of
    each run. Noise maps are followed by their parts. Where a predicted class is explained and it is
    wrong, the map of the label follows, or of all labels of a list.

    Args:
      members: a run of each group.
      question: what the maps explain.
      rows: positions of the images in the split.
      by_member: the maps of each run.
    """
    from heteroscedastic.analysis.plots import overlays

    first, split = members[0].run, members[0].split
    names = figures.class_names(first.dataset)
    data = loaded_run_lib.split_data(first, split).take(rows)
    pictures = seen(first, split, rows)
    boxes = evaluation.boxes_of(first, split, rows)
    labels = data.labels.reshape(len(rows), -1)
    shows_label = question.of in ("class", "log_prob") and question.classes == "predicted"
    of_labels = question._replace(classes="label")
    right = [
        explain.explain(m.run, m.split, of_labels, rows) if shows_label else None for m in members
    ]
    lines = []
    for i, picture in enumerate(pictures):
        cells: list[overlays.Cell | None]
        caption = f"id {data.ids[i]}\nlabel: {label_names(labels[i], names)}"
        cells = [overlays.Cell(picture, None, caption)]
        if boxes is not None and boxes.any():
            context = overlays.Cell(without_objects(picture, boxes[i]), None, "without objects")
            cells.append(context if boxes[i].any() else None)  # the crop may lose all boxes
        for member, found, of_label in zip(members, by_member, right):
            caption = (
                f"{member.group}\n{verdict(found, labels, names, i)}\n"
                f"{_explains(found, question, names, i)}"
            )
            cells.append(overlays.Cell(picture, found.maps[i], caption))
            if found.diagonal is not None and found.factors is not None:
                for name, part in (("diagonal", found.diagonal), ("factors", found.factors)):
                    text = f"{member.group}\npart of the {name}: {part[i].sum():.3g}"
                    cells.append(overlays.Cell(picture, part[i], text))
            if of_label is not None:
                is_right = found.classes[i, 0] in labels[i]
                shows = not is_right and (labels[i] >= 0).any()
                text = f"{member.group}\nright class\n{_explains(of_label, of_labels, names, i)}"
                cells.append(overlays.Cell(picture, of_label.maps[i], text) if shows else None)
        lines.append(cells)
    data_name = first.run.config["data"]["name"]
    title = f"{_TITLES[question.of]} ({question.method}): {data_name}, split {split!r}"
    return overlays.grid(lines, title)


def seen(loaded_run: LoadedRun, split: str, rows: Int[np.ndarray, "m"]) -> list[np.ndarray]:
    """The images of these rows as the network sees them, as pixels of 0 to 255."""
    run = loaded_run.run
    own = run.chain_of(split)
    chain = run.pipeline.chain if own is None else run.pipeline.own_chains[own]
    images = explain.inputs(loaded_run, split, rows)
    return [contact_sheet.pixels(image, chain) for image in images]


def without_objects(image: np.ndarray, boxes: Float[np.ndarray, "m 4"]) -> np.ndarray:
    """The image with grey in place of the pixels in boxes."""
    rows, columns = ((np.arange(n) + 0.5) / n for n in image.shape[:2])
    inside = covers(np, boxes, rows, columns)
    return np.where(inside[..., None], np.uint8(_FILL), image)


def verdict(found: Explained, labels: Int[np.ndarray, "n m"], names: Sequence[str], i: int) -> str:
    """The likeliest classes of an explained image, and in words whether the first is right."""
    word = "right" if explain.is_right(found, labels)[i] else "wrong"
    probable = ", ".join(
        f"{names[c]} {100 * p:.0f}\u00a0%" for c, p in zip(found.probable[i], found.probs[i])
    )
    return f"{word}: {probable}"


def label_names(labels: Int[np.ndarray, "..."], names: Sequence[str]) -> str:
    """The label of an image, or those of a list that is padded with -1."""
    return ", ".join(names[c] for c in np.ravel(labels) if c >= 0) or "none"


def _explains(found: Explained, question: Question, names: Sequence[str], i: int) -> str:
    """The classes of a map, and the number that it explains."""
    sign = " + " if question.classes == "label" else " \u2212 "
    classes = sign.join(names[c] for c in found.classes[i] if c >= 0) or "all classes"
    return f"map of {classes}: {found.value[i]:.3g}"
