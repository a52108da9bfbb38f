"""Sections about the confidence of runs: reliability, confidence histograms, risk-coverage."""

from typing import Any, NamedTuple

import numpy as np

from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.uncertainty import calibration, confidence, intervals
from heteroscedastic.analysis.uncertainty.confidence import Diagram, Outcomes
from heteroscedastic.links import Link
from heteroscedastic.runs import loaded_run
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.predictions import Predictions


def reliability(run_set: RunSet) -> Section:
    """Reliability diagrams of all groups in one figure, before and after temperature scaling."""
    parts: list[Any] = []
    trained, scaled, temperatures = {}, {}, {}
    for i, (group, predictions) in enumerate(zip(run_set.groups, run_set.predictions)):
        try:
            trained[group.name] = confidence.reliability_diagram(predictions)
            temperatures[group.name] = _temperatures(run_set, i)
            scaled[group.name] = confidence.reliability_diagram(
                predictions, temperatures[group.name]
            )
        except ValueError as error:
            parts.append(page.note(f"{group.name}: {error}"))
    if trained:
        title = f"Reliability as trained, {run_set.evaluation}"
        parts.append(_diagram("reliability", title, "", trained, {}, run_set))
    if scaled:
        title = f"Reliability after temperature scaling, {run_set.evaluation}"
        fitted = ", ".join(f"{n} {comparison.spread(t, 2)}" for n, t in temperatures.items())
        text = f" The temperatures, fitted on {run_set.fit}, are {fitted}."
        parts.append(_diagram("reliability_scaled", title, text, scaled, temperatures, run_set))
    return Section("Reliability", parts)


def _diagram(
    name: str,
    title: str,
    text: str,
    diagrams: dict[str, Diagram],
    temperatures: dict[str, list[float]],
    run_set: RunSet,
) -> Picture:
    kind = "probabilities of all classes" if run_set.link == "sigmoid" else "predictions"
    errors = ", ".join(f"{group} {100 * d.error:.1f} %" for group, d in diagrams.items())
    units = intervals.units(run_set.predictions[0][0]).partition(" ")[2]
    return Picture(
        name,
        "; ".join(_gap(group, d, run_set.link) for group, d in diagrams.items())
        + ". A curve above the diagonal means too little confidence.",
        f"Pooled {kind} of {_run_count(run_set)} on {run_set.evaluation}. Bands are 95 % bootstrap"
        f" intervals over 1,000 resamples of the {units}. Hollow markers are bins with fewer than"
        f" {panels.FEW} examples and have no band.{text}",
        "Reliability diagram above a histogram of the predicted probabilities; expected"
        f" calibration error: {errors}.",
        panels.reliability(diagrams, title, run_set.link),
        {
            "diagrams": diagrams,
            "temperatures": temperatures or None,
            "evaluation": run_set.evaluation,
        },
    )


def _gap(name: str, diagram: Diagram, link: Link) -> str:
    """How far the mean probability of a diagram is from the accuracy, in words."""
    gap = np.nansum(diagram.count * (diagram.confidence - diagram.accuracy)) / diagram.count.sum()
    direction = "above" if gap > 0 else "below"
    means = ("probability", "frequency") if link == "sigmoid" else ("confidence", "accuracy")
    return f"{name}: mean {means[0]} {100 * abs(gap):.1f} points {direction} {means[1]}"


def _temperatures(run_set: RunSet, group: int) -> list[float]:
    if run_set.fit_predictions is None:
        raise ValueError(
            "there is no temperature scaling, because the runs have no common predictions to fit a"
            " temperature on; name an evaluation with --fit."
        )
    purpose = "temperature scaling"
    predictions_lib.all_logits(run_set.predictions[group][0], purpose)
    return [
        calibration.fit_temperature(predictions_lib.all_logits(p, purpose), p.labels, p.link)
        for p in run_set.fit_predictions[group]
    ]


class _Confidences(NamedTuple):
    """The histograms of a group on an evaluation, and what is known of its labels."""

    evaluation: str
    group: int
    histograms: Outcomes
    noise_known: bool
    note: str


def outcomes(run_set: RunSet) -> Section:
    """The confidence of correct, incorrect and noisy examples, on test and held-out data."""
    evaluations = {run_set.evaluation: run_set.predictions}
    if run_set.fit_predictions is not None and run_set.fit != run_set.evaluation:
        evaluations[run_set.fit] = run_set.fit_predictions
    notes, found = [], []
    for name, by_group in evaluations.items():
        for i, predictions in enumerate(by_group):
            try:
                found.append(_confidences(run_set, name, i, predictions))
            except ValueError as error:
                notes.append(page.note(f"{run_set.groups[i].name} on {name}: {error}"))
    # One scale for all pictures, so that they can be compared.
    shares = [np.nan_to_num(share) for x in found for share in x.histograms.share.values()]
    top = 1.05 * np.max(shares, initial=0.1)
    return Section(
        "Confidence of correct, incorrect and noisy examples",
        [*notes, *(_histogram(run_set, x, min(top, 1.0)) for x in found)],
    )


def _confidences(
    run_set: RunSet, evaluation: str, group: int, predictions: list[Predictions]
) -> _Confidences:
    """Raises a ValueError if the predictions do not hold what the histograms need."""
    histograms = confidence.outcomes(predictions)  # first, as reading clean labels is slow
    try:
        runs = run_set.groups[group].runs
        clean = [loaded_run.clean_labels_by_id(run, evaluation, run_set.data_dir) for run in runs]
        noisy = [predictions_lib.is_noisy(p, labels) for p, labels in zip(predictions, clean)]
    except loaded_run.UNAVAILABLE as error:
        note = f" The wrong labels are not known: {error}"
        return _Confidences(evaluation, group, histograms, False, note)
    if not any(x.any() for x in noisy):
        note = f" No label of {evaluation} is known to be wrong."
        return _Confidences(evaluation, group, histograms, False, note)
    return _Confidences(evaluation, group, confidence.outcomes(predictions, noisy), True, "")


def _histogram(run_set: RunSet, found: _Confidences, top: float) -> Picture:
    name, histograms = run_set.groups[found.group].name, found.histograms
    means = {kind: float(v.mean()) for kind, v in histograms.confidence.items() if len(v)}
    texts = {"right": "correct", "wrong": "incorrect", "noisy": "label known to be wrong"}
    stated = ", ".join(f"{texts[kind]} {100 * mean:.0f} %" for kind, mean in means.items())
    quantity = (
        "probability of the more likely outcome, class or no class, for every class"
        if run_set.link == "sigmoid"
        else "probability of the predicted class"
    )
    return Picture(
        page.file_name("confidence", found.evaluation, found.group, name),
        f"Mean confidence of {name} on {found.evaluation}: {stated}.",
        f"Confidence: {quantity}, {_run_count(run_set, found.group)}. All pictures of this section"
        f" have the same scale.{found.note}",
        f"Histograms of the confidence of {name} on {found.evaluation}; means: {stated}.",
        panels.outcomes(histograms, f"Confidence of {name}, {found.evaluation}", top),
        {
            "edges": histograms.edges,
            "share": histograms.share,
            "number": {kind: len(v) for kind, v in histograms.confidence.items()},
            "mean_confidence": means,
            "noise_known": found.noise_known,
        },
    )


def selective(run_set: RunSet) -> Section:
    """The error rate of the most confident predictions, for all groups in one figure."""
    try:
        curves = {
            group.name: [confidence.risk_coverage(p) for p in predictions]
            for group, predictions in zip(run_set.groups, run_set.predictions)
        }
    except ValueError as error:
        return Section("Risk against coverage", [page.note(error)])
    rows = [
        [
            name,
            *(
                comparison.spread(values, 4)
                for values in zip(*((r.area, r.optimum, r.excess) for r in runs))
            ),
        ]
        for name, runs in curves.items()
    ]
    kind = "class predictions" if run_set.link == "sigmoid" else "predictions"
    of_half = {
        name: np.mean([np.interp(0.5, r.coverage, r.risk) for r in runs])
        for name, runs in curves.items()
    }
    stated = ", ".join(f"{100 * risk:.1f} % for {name}" for name, risk in of_half.items())
    picture = Picture(
        "risk_coverage",
        f"In the more confident half of the {kind}, the error rate is {stated}.",
        f"Error rate among the most confident {kind} of {run_set.evaluation}, against their"
        " fraction of all predictions. The area under a curve is its mean error rate. Thick lines"
        " are means over runs; thin lines are single runs.",
        "Error rate against coverage; areas: "
        + ", ".join(f"{row[0]} {row[1]}" for row in rows)
        + ".",
        panels.risk_coverage(curves, f"Selective prediction, {run_set.evaluation}"),
        {name: [r._asdict() | {"excess": r.excess} for r in runs] for name, runs in curves.items()},
    )
    caption = (
        "Area under the risk-coverage curve; the optimum is the area if all correct predictions"
        " came first, and the excess is the area minus the optimum"
    )
    return Section(
        "Risk against coverage",
        [picture, page.table(caption, ["", "area", "optimum", "excess"], rows)],
    )


def _run_count(run_set: RunSet, group: int | None = None) -> str:
    groups = run_set.groups if group is None else [run_set.groups[group]]
    number = sum(len(group.runs) for group in groups)
    return "one run" if number == 1 else f"{number} runs"
