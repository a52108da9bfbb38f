"""Sections about the confidence of runs: reliability, confidence histograms, risk-coverage."""

from typing import Any

from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.uncertainty import calibration, confidence
from heteroscedastic.runs import loaded_run
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.predictions import Predictions


def reliability(run_set: RunSet) -> Section:
    """Reliability diagrams of every group, before and after temperature scaling."""
    parts: list[Any] = []
    for i, (group, predictions) in enumerate(zip(run_set.groups, run_set.predictions)):
        diagrams, temperatures = {}, None
        try:
            diagrams["as trained"] = confidence.reliability_diagram(predictions)
            temperatures = _temperatures(run_set, i)
            diagrams["after scaling"] = confidence.reliability_diagram(predictions, temperatures)
        except ValueError as error:
            parts.append(page.note(f"{group.name}: {error}"))
        if not diagrams:
            continue
        errors = ", ".join(f"{name} {100 * d.error:.1f} %" for name, d in diagrams.items())
        kind = "probabilities of all classes" if run_set.link == "sigmoid" else "predictions"
        scaled = (
            f" The temperature is {comparison.spread(temperatures, 2)}, fitted on {run_set.fit}."
            if temperatures
            else ""
        )
        parts.append(
            Picture(
                page.file_name("reliability", i, group.name),
                f"{group.name} on {run_set.evaluation}: pooled {kind} of {_run_count(predictions)}."
                " Bands are 95 % bootstrap intervals over 1,000 resamples of the examples. Hollow"
                f" markers are bins with fewer than {panels.FEW} examples and have no band."
                f"{scaled}",
                f"Reliability diagram of {group.name} above a histogram of its predicted"
                f" probabilities; expected calibration error {errors}.",
                panels.reliability(
                    diagrams, f"Reliability of {group.name}, {run_set.evaluation}", run_set.link
                ),
                {
                    "diagrams": diagrams,
                    "temperatures": temperatures,
                    "evaluation": run_set.evaluation,
                },
            )
        )
    return Section("Reliability", parts)


def _temperatures(run_set: RunSet, group: int) -> list[float]:
    if run_set.fit_predictions is None:
        raise ValueError(
            "there is no temperature scaling, because a run has no predictions to fit a"
            " temperature on; name an evaluation with --fit."
        )
    purpose = "temperature scaling"
    predictions_lib.all_logits(run_set.predictions[group][0], purpose)
    return [
        calibration.fit_temperature(predictions_lib.all_logits(p, purpose), p.labels, p.link)
        for p in run_set.fit_predictions[group]
    ]


def outcomes(run_set: RunSet) -> Section:
    """The confidence of correct, incorrect and noisy examples, on test and held-out data."""
    parts: list[Any] = []
    evaluations = {run_set.evaluation: run_set.predictions}
    if run_set.fit_predictions is not None and run_set.fit != run_set.evaluation:
        evaluations[run_set.fit] = run_set.fit_predictions
    for name, by_group in evaluations.items():
        for i, (group, predictions) in enumerate(zip(run_set.groups, by_group)):
            try:
                histograms = confidence.outcomes(predictions)
            except ValueError as error:  # checked first, as reading clean labels is slow
                parts.append(page.note(f"{group.name} on {name}: {error}"))
                continue
            try:
                clean = [
                    loaded_run.clean_labels_by_id(run, name, run_set.data_dir) for run in group.runs
                ]
                noisy = [
                    predictions_lib.is_noisy(p, labels) for p, labels in zip(predictions, clean)
                ]
                noise_known = any(x.any() for x in noisy)
                note = "" if noise_known else f" No label of {name} is known to be wrong."
                if noise_known:
                    histograms = confidence.outcomes(predictions, noisy)
            except loaded_run.UNAVAILABLE as error:
                noise_known, note = False, f" The wrong labels are not known: {error}"
            means = {kind: float(v.mean()) for kind, v in histograms.confidence.items() if len(v)}
            quantity = (
                "probability of the more likely outcome, class or no class, for every class"
                if run_set.link == "sigmoid"
                else "probability of the predicted class"
            )
            texts = {"right": "correct", "wrong": "incorrect", "noisy": "label known to be wrong"}
            parts.append(
                Picture(
                    page.file_name("confidence", name, i, group.name),
                    f"{group.name} on {name}: {quantity}, {_run_count(predictions)}.{note}",
                    f"Histograms of the confidence of {group.name} on {name}; means: "
                    + ", ".join(f"{texts[kind]} {100 * m:.0f} %" for kind, m in means.items())
                    + ".",
                    panels.outcomes(histograms, f"Confidence of {group.name}, {name}"),
                    {
                        "edges": histograms.edges,
                        "share": histograms.share,
                        "number": {kind: len(v) for kind, v in histograms.confidence.items()},
                        "mean_confidence": means,
                        "noise_known": noise_known,
                    },
                )
            )
    return Section("Confidence of correct, incorrect and noisy examples", parts)


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
    picture = Picture(
        "risk_coverage",
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


def _run_count(predictions: list[Predictions]) -> str:
    return "one run" if len(predictions) == 1 else f"{len(predictions)} runs"
