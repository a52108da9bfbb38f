"""Sections about the objects of images: where runs look, and whether the objects are there."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from heteroscedastic.analysis.plots import figures, panels
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Group, RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.saliency import explain, groups, sheet, summary, tables
from heteroscedastic.analysis.saliency import localisation as localisation_lib
from heteroscedastic.analysis.saliency.explain import Explained, Question
from heteroscedastic.analysis.saliency.groups import Member
from heteroscedastic.runs import loaded_run as loaded_run_lib

_QUESTION = Question("class", explain.DEFAULT_METHODS["class"])
_MAX_IMAGES = 2000  # that are scored
_LOOKS, _LOCALISATION = "Where it looks", "Whether it looks at the object"


def looks(run_set: RunSet) -> Section:
    """A sheet of images with the class map of each group; requires a backbone with maps."""
    notes: list[str] = []
    shown: list[Member] = []
    maps: list[Explained] = []
    rows = np.zeros(0, int)
    for member in _members(run_set, groups.first_runs(run_set.groups), notes):
        try:
            if not shown:
                rows = summary.chosen_rows(member.run, member.split, _QUESTION)
            maps.append(explain.explain(member.run, member.split, _QUESTION, rows))
        except ValueError as error:
            notes.append(f"The maps of {member.name} are not available: {error}")
            continue
        shown.append(member)
    parts: list[Any] = [page.note(note) for note in notes]
    if not shown:
        return Section(_LOOKS, parts)
    try:
        figure = sheet.draw(shown, _QUESTION, rows, maps)
    except ValueError as error:  # a map of a right class
        return Section(_LOOKS, [*parts, page.note(f"The maps are not available: {error}")])
    names = figures.class_names(shown[0].run.dataset)
    labels = loaded_run_lib.split_data(shown[0].run, shown[0].split).labels[rows]
    facts = {m.group: summary.images(x, labels, names) for m, x in zip(shown, maps)}
    picture = Picture(
        "looks",
        f"Images that {shown[0].group} classifies wrongly come first, then correct ones.",
        "Maps (Grad-CAM++) of the predicted class for the first run of each group on"
        f" {run_set.evaluation}, over the images as the network sees them. A map of the right class"
        " follows where the prediction is wrong, of the sum of the labels of a list.",
        f"Maps of {len(rows)} images by {', '.join(facts)}.",
        figure,
        facts,
    )
    return Section(_LOOKS, [*parts, picture])


def localisation(run_set: RunSet) -> Section:
    """Scores of the maps of the labels against boxes; requires runs that read boxes."""
    left_out: list[str] = []
    members = _members(run_set, run_set.groups, left_out)
    found = summary.localised(members, _QUESTION, _MAX_IMAGES)
    notes = [page.note(note) for note in (*left_out, *found.notes)]
    if not found.runs:
        return Section(_LOCALISATION, notes)
    parts: list[Any] = [
        page.paragraph(
            f"Maps (Grad-CAM++) of the label of up to {_MAX_IMAGES:,} images of"
            f" {run_set.evaluation}, against the boxes of the objects, with 95 % intervals over"
            " images. Of a list of labels, the map is of the sum of their utilities, and every box"
            " counts. Objects are often in the middle and large, so a map that does not beat the"
            " controls localises nothing: a centred Gaussian, the entire image and the map of"
            " another image. A map can lie on the object although the prediction is wrong, so the"
            " second table also counts only images that are localised and predicted correctly. It"
            " has three equal parts of the images by the area of their boxes, because large objects"
            " are easy to hit. Differences compare the same images, and runs of the same seed: an"
            " interval that contains 0 is within noise."
        ),
        *notes,
        *(
            page.table(*table)
            for table in tables.localisation(found.runs, found.reference, found.differences)
        ),
    ]
    return Section(_LOCALISATION, [*parts, _picture(run_set, found)])


def _members(run_set: RunSet, chosen: Sequence[Group], notes: list[str]) -> Iterator[Member]:
    """The runs of these groups that have class maps, and notes about the others."""
    return groups.members(chosen, run_set.evaluation, _QUESTION, run_set.loaded, notes)


def _picture(run_set: RunSet, found: summary.Localised) -> Picture:
    thresholds = localisation_lib.THRESHOLDS
    lines = {run: result["by_threshold"]["map"] for run, result in found.runs.items()}
    controls = next(iter(found.runs.values()))["by_threshold"]
    lines |= {name: controls[name] for name in ("centred Gaussian", "entire image")}
    best = {
        name: f"{100 * y.max():.0f} % at {thresholds[y.argmax()]:.2f}" for name, y in lines.items()
    }
    return Picture(
        "localisation",
        "Most images are localised by "
        + ", ".join(f"{n}: {text}" for n, text in best.items())
        + ".",
        "Share of images in which the box of a component of the map has an IoU of 0.5 or more with"
        f" an object, against the threshold of the map, on {run_set.evaluation}.",
        "Share of localised images against the threshold.",
        panels.shares(
            {name: (thresholds, y) for name, y in lines.items()},
            f"Localisation, {run_set.evaluation}",
            "threshold, of the maximum of the map",
            "localised images",
        ),
        {"thresholds": thresholds, "share": lines, "runs": found.runs},
    )
