"""Where runs look, and which places make them doubt:
python -m heteroscedastic.analysis.saliency --runs DIR [DIR ...] --of class

Writes to analysis/saliency/ of the first run the numbers as JSON and, if matplotlib is installed, a
sheet of images with the maps of each group of runs over what the network saw. Where the data has
boxes, it prints whether the maps lie on the objects (evaluation.py). Runs that differ only by their
seed form a group.
"""

import argparse
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.covariance import pairs as pairs_lib
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.saliency import (
    deletion,
    evaluation,
    explain,
    localisation,
    sheet,
    tables,
)
from heteroscedastic.analysis.saliency import groups as groups_lib
from heteroscedastic.analysis.saliency.explain import Explained, Question
from heteroscedastic.analysis.saliency.groups import Member
from heteroscedastic.calibration import bootstrap
from heteroscedastic.runs import compilation_cache
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

_NUM_IMAGES = 6  # on the sheet


def chosen_rows(
    loaded_run: LoadedRun, split: str, question: Question, number: int = _NUM_IMAGES
) -> Int[np.ndarray, "m"]:
    """The examples of a sheet.

    Of noise, entropy and information those with the largest values; else examples that the run gets
    wrong and as many that it gets right, evenly spaced.
    """
    answers = explain.answers(loaded_run, split, question)
    if question.of in ("noise", *explain.OF_ALL_CLASSES):
        return np.argsort(-answers.value, kind="stable")[:number]
    is_right = explain.is_right(answers, loaded_run_lib.split_data(loaded_run, split).labels)
    parts = []
    for rows in (np.flatnonzero(~is_right), np.flatnonzero(is_right)):
        spaced = np.linspace(0, len(rows) - 1, min(len(rows), number // 2)).astype(int)
        parts.append(rows[spaced])
    return np.concatenate(parts)


def images(
    explained: Explained,
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """What a run says about each explained image, and the sums of its map."""
    is_right = explain.is_right(explained, labels)
    rows = []
    for i, example in enumerate(explained.ids.tolist()):
        probable = zip(explained.probable[i].tolist(), explained.probs[i].tolist())
        row = {
            "id": example,
            "labels": [names[c] for c in np.ravel(labels[i]) if c >= 0],
            "is_right": bool(is_right[i]),
            "probable": [{"class": names[c], "probability": p} for c, p in probable],
            "explained": [names[c] for c in explained.classes[i] if c >= 0],
            "value": float(explained.value[i]),
            "sum_of_map": float(explained.maps[i].sum()),
        }
        if explained.diagonal is not None and explained.factors is not None:
            row["sum_of_diagonal"] = float(explained.diagonal[i].sum())
            row["sum_of_factors"] = float(explained.factors[i].sum())
        rows.append(row)
    return rows


class Localised(NamedTuple):
    """Scores against boxes of the runs that have them."""

    # By name of the run: the rows of `evaluation.table`, how many images count, and `by_threshold`,
    # by map the share of images with an IoU of 0.5 at each of `localisation.THRESHOLDS`.
    runs: dict[str, dict[str, Any]]
    reference: str | None  # the first group that has scores
    differences: dict[str, dict[str, bootstrap.Interval]]  # of groups from it, by metric
    notes: list[str]  # what is missing, and why


def localised(
    members: Iterable[Member], question: Question, max_images: int | None = None
) -> Localised:
    """Whether the maps of runs lie on the objects, by run and between groups; see `numbers`."""
    asked = _of_right_class(question)
    found, notes = {}, []
    groups: dict[int, int] = {}
    values: dict[str, dict[int, evaluation.ByExample]] = {}
    for member in members:
        name, run, validation = member.name, member.run, member.validation
        try:
            located = evaluation.located(run, member.split, asked, max_images=max_images)
        except ValueError as error:
            notes.append(f"{name}: no localisation: {error}")
            continue
        held_out = None
        try:
            if validation is not None:
                held_out = evaluation.located(run, validation, asked, max_images=max_images)
        except ValueError as error:
            notes.append(f"{name}: no max_box: {error}")
        if validation is None:
            notes.append("no max_box: the runs have no other evaluation of a validation split.")
        found[name] = {
            "localisation": evaluation.table(located, held_out),
            "by_threshold": {
                kind: (scores.any_ious >= 0.5).mean(axis=0)
                for kind, scores in located.by_map.items()
            },
            "num_scored": len(located.ids),
            "num_without_boxes": located.num_without_boxes,
            "num_zero_maps": located.num_zero,
        }
        other = None if held_out is None else held_out.by_map["map"]
        own = evaluation.metrics(located.by_map["map"], other)
        values.setdefault(member.group, {})[member.seed] = located.ids, own
        if located.groups is not None:
            groups |= dict(zip(located.ids.tolist(), located.groups.tolist()))
    differences = evaluation.differences(values, groups)
    if len(values) > 1 and not differences:
        notes.append("no differences between groups: no image has scores of all runs.")
    return Localised(found, next(iter(values), None), differences, list(dict.fromkeys(notes)))


def numbers(members: Iterable[Member], question: Question) -> dict[str, Any]:
    """Localisation and deletion of each run, and the differences between groups.

    Maps are of the labels, if a class is explained and none is given.
    """
    asked, runs = _of_right_class(question), {}

    def after_deletion() -> Iterator[Member]:
        for member in members:
            curves = evaluation.deletion_curves(member.run, member.split, asked)
            runs[member.name] = {"deletion": curves}
            yield member

    found = localised(after_deletion(), question)
    return {
        "runs": {name: own | found.runs.get(name, {}) for name, own in runs.items()},
        "reference": found.reference,
        "differences": found.differences,
        "thresholds": localisation.THRESHOLDS,
        "fractions_deleted": deletion.FRACTIONS,
        "notes": found.notes,
    }


def _of_right_class(question: Question) -> Question:
    if question.of in ("class", "log_prob") and question.classes == "predicted":
        return question._replace(classes="label")
    return question


@user_errors.one_line()
def main() -> None:
    """Draws which places of an image a prediction or its noise depends on, and scores the maps."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--runs", nargs="+", required=True, metavar="DIR", help="finished runs")
    parser.add_argument(
        "--of",
        required=True,
        choices=tuple(explain.DEFAULT_METHODS),
        help="a utility (or the difference of two), its log-probability, the noise of a pair of"
        " classes (under a sigmoid: of a label), the entropy of the prediction, or the mutual"
        " information of label and noise",
    )
    parser.add_argument(
        "--classes",
        nargs="+",
        help="names or numbers of classes; default: the predicted class, or of noise the pair that"
        " changes the prediction most",
    )
    parser.add_argument("--id", type=int, help="id of an example: explain only this example")
    parser.add_argument("--method", choices=explain.PLACES + explain.PIXELS)
    parser.add_argument("--on", default="test", help="evaluation whose images are explained")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    compilation_cache.enable()
    saved = comparison.groups(flags.runs)
    question = _question(flags, figures.class_names(saved[0].runs[0].dataset))
    _report(flags, saved, question)


def _question(flags: argparse.Namespace, names: Sequence[str]) -> Question:
    method = flags.method or explain.DEFAULT_METHODS[flags.of]
    if flags.classes is None:
        return Question(flags.of, method)
    return Question(flags.of, method, tuple(pairs_lib.class_numbers(names, flags.classes).tolist()))


def _report(flags, saved, question) -> None:
    load = functools.partial(
        loaded_run_lib.load_evaluated, evaluation=flags.on, data_dir=flags.data_dir
    )
    arguments = flags.on, question, load
    if flags.id is not None:
        saved = groups_lib.first_runs(saved)
    by_group: dict[str, Member] = {}
    for member in groups_lib.members(saved, *arguments):  # checks every run before it explains one
        by_group.setdefault(member.group, member)
    shown = list(by_group.values())
    first, split = shown[0].run, shown[0].split
    names = figures.class_names(first.dataset)
    data = loaded_run_lib.split_data(first, split)
    if flags.id is None:
        rows = chosen_rows(first, split, question)
    else:
        rows = loaded_run_lib.positions_of_id(data, split, flags.id)
    explained = [explain.explain(m.run, m.split, question, rows) for m in shown]
    if flags.id is not None:
        sheet.check_not_zero(explained, list(by_group), question)
    facts: dict[str, Any] = {**question._asdict(), "on": flags.on}
    labels = data.labels[rows]
    facts["images"] = {name: images(x, labels, names) for name, x in zip(by_group, explained)}
    if flags.id is None:
        facts |= numbers(groups_lib.members(saved, *arguments), question)
    classes = [] if isinstance(question.classes, str) else ["classes", *question.classes]
    suffix = "".join(f"_{x}" for x in (*classes, *([] if flags.id is None else [flags.id])))
    out = files.as_path(flags.runs[0]) / "analysis" / "saliency"
    path = out / f"{flags.on}_{flags.of}_{question.method}{suffix}"
    files.write_json(path.with_name(f"{path.name}.json"), facts)
    written = [path.with_name(f"{path.name}.json")]
    if figures.can_draw():
        figure = sheet.draw(shown, question, rows, explained)
        written += figures.write(figure, path)
    if flags.id is None:
        for text in tables.texts(facts["runs"], facts["reference"], facts["differences"]):
            print(text)
    for note in facts.get("notes", []):
        print(f"note: {note}")
    print(f"wrote {', '.join([str(written[0]), *(p.name for p in written[1:])])}")
