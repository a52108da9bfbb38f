"""What the confidence of the runs is worth: reliability, right, wrong and noisy examples, answering
when sure.
"""

from typing import Any

from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.uncertainty import calibration, confidence
from heteroscedastic.runs import loaded_run, predictions
from heteroscedastic.runs.predictions import Predictions


def reliability(compared: Compared) -> Section:
    """Reliability diagrams of every group, before and after temperature scaling."""
    parts: list[Any] = []
    for i, (group, told) in enumerate(zip(compared.groups, compared.told)):
        diagrams, temperatures = {}, None
        try:
            diagrams["as trained"] = confidence.reliability_diagram(told)
            temperatures = _temperatures(compared, i)
            diagrams["after scaling"] = confidence.reliability_diagram(told, temperatures)
        except ValueError as error:
            parts.append(page.note(f"{group.name}: {error}"))
        if not diagrams:
            continue
        errors = ", ".join(f"{name} {100 * d.error:.1f} %" for name, d in diagrams.items())
        what = "yes/no answers" if compared.link == "sigmoid" else "predictions"
        scaled = (
            f" Temperature {comparison.spread(temperatures, 2)}, fitted on {compared.fit}."
            if temperatures
            else ""
        )
        parts.append(
            Picture(
                page.file_name("reliability", i, group.name),
                f"{group.name} on {compared.on}: {what} of {_runs(told)} together; bands hold 95 %"
                " of 1,000 draws of"
                f" the examples with replacement; hollow: fewer than {panels.FEW} examples, no"
                f" band.{scaled}",
                f"Reliability diagram of {group.name} with a histogram of its stated"
                " probabilities; expected"
                f" calibration error {errors}.",
                panels.reliability(
                    diagrams, f"Reliability of {group.name}, {compared.on}", compared.link
                ),
                {"diagrams": diagrams, "temperatures": temperatures, "evaluation": compared.on},
            )
        )
    return Section("Reliability", parts)


def _temperatures(compared: Compared, group: int) -> list[float]:
    if compared.fitted_on is None:
        raise ValueError(
            "not scaled, as a run has no predictions to fit a temperature on; name some with --fit."
        )
    fit = compared.fitted_on[group]
    predictions.every_logit(compared.told[group][0], "temperature scaling")
    return [
        calibration.fitted(predictions.every_logit(p, "temperature scaling"), p.labels, p.link)
        for p in fit
    ]


def outcomes(compared: Compared) -> Section:
    """Confidence of right, wrong and noisy examples, in what is told and in what was held out of
    training.
    """
    parts: list[Any] = []
    evaluations = {compared.on: compared.told}
    if compared.fitted_on is not None and compared.fit != compared.on:
        evaluations[compared.fit] = compared.fitted_on
    for name, told_by_group in evaluations.items():
        for i, (group, told) in enumerate(zip(compared.groups, told_by_group)):
            try:
                found = confidence.outcomes(told)
            except ValueError as error:  # before clean labels are read
                parts.append(page.note(f"{group.name} on {name}: {error}"))
                continue
            try:
                clean = [
                    loaded_run.clean_labels(run, name, compared.data_dir) for run in group.runs
                ]
                noisy = [predictions.is_noisy(p, labels) for p, labels in zip(told, clean)]
                some = any(x.any() for x in noisy)
                said = "" if some else f" No label of {name} is known to be wrong."
                found = confidence.outcomes(told, noisy) if some else found
            except loaded_run.NOT_HERE as error:
                some, said = False, f" Which labels are wrong is not known: {error}"
            means = {kind: float(v.mean()) for kind, v in found.confidence.items() if len(v)}
            what = (
                "the likelier answer to each yes/no question"
                if compared.link == "sigmoid"
                else "the likeliest class"
            )
            parts.append(
                Picture(
                    page.file_name("confidence", name, i, group.name),
                    f"{group.name} on {name}: probability of {what}, {_runs(told)}.{said}",
                    f"Histograms of the confidence of {group.name} on {name}; means: "
                    + ", ".join(f"{kind} {100 * m:.0f} %" for kind, m in means.items())
                    + ".",
                    panels.outcomes(found, f"Confidence of {group.name}, {name}"),
                    {
                        "edges": found.edges,
                        "share": found.share,
                        "number": {kind: len(v) for kind, v in found.confidence.items()},
                        "mean_confidence": means,
                        "noise_known": some,
                    },
                )
            )
    return Section("Confidence of right, wrong and noisy examples", parts)


def selective(compared: Compared) -> Section:
    """The error among the most confident predictions, of all groups in one picture."""
    try:
        curves = {
            group.name: [confidence.risk_coverage(p) for p in told]
            for group, told in zip(compared.groups, compared.told)
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
    what = "yes/no answers" if compared.link == "sigmoid" else "predictions"
    picture = Picture(
        "risk_coverage",
        f"Error among the surest {what} of {compared.on}, over the share of them that is answered;"
        " the area under a"
        " curve is its mean error. Of several runs thick: their mean; thin: each.",
        "Error against coverage; areas: " + ", ".join(f"{row[0]} {row[1]}" for row in rows) + ".",
        panels.risk_coverage(curves, f"Answering only when sure, {compared.on}"),
        {name: [r._asdict() | {"excess": r.excess} for r in runs] for name, runs in curves.items()},
    )
    caption = "Area under the curve; of the best order of the same predictions; and what lies between them"
    return Section(
        "Risk against coverage",
        [picture, page.table(caption, ["", "area", "optimum", "excess"], rows)],
    )


def _runs(told: list[Predictions]) -> str:
    return "one run" if len(told) == 1 else f"{len(told)} runs"
