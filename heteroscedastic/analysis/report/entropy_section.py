"""The section about the entropy of predictions, over latent samples and over ensembles of runs."""

from typing import Any

import numpy as np

from heteroscedastic import ensembles
from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.uncertainty import confidence, entropy
from heteroscedastic.calibration import scores
from heteroscedastic.runs import loaded_run
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.predictions import Predictions

_TOLERANCE = 1e-4  # nats; a smaller entropy may be rounding error alone


def entropies(run_set: RunSet) -> Section:
    """The parts of the entropy, over latent samples and over the runs of a group as an ensemble."""
    introduction = page.paragraph(
        "The entropy of a mean prediction has two parts. The first part is the mean entropy of the"
        " single predictions that are averaged. The second part, the mutual information, measures"
        " how much these predictions disagree."
    )
    return Section("Parts of the entropy", [introduction, *_samples(run_set), *_members(run_set)])


def _samples(run_set: RunSet) -> list[Any]:
    parts: list[Any] = []
    splits, aurocs = {}, {}
    for group, predictions in zip(run_set.groups, run_set.predictions):
        try:
            splits[group.name] = [entropy.sample_split(*run_set.loaded(x)) for x in group.runs]
        except loaded_run.UNAVAILABLE as error:
            text = f"The entropy over latent samples of {group.name} is not available: {error}"
            parts.append(page.note(text))
            continue
        aurocs[group.name] = [
            _error_aurocs(split, p) for split, p in zip(splits[group.name], predictions)
        ]
    if splits:
        parts.append(_picture("entropy_samples", splits, "latent sample", run_set))
    if splits and run_set.link == "softmax":
        header = ["", "entropy of the mean", "mean entropy of a sample", "mutual information"]
        rows = [[name, *map(_auroc_text, zip(*values))] for name, values in aurocs.items()]
        caption = "Detecting wrong predictions by the entropy over latent samples: AUROC"
        parts.append(page.table(caption, header, rows))
    return parts


def _members(run_set: RunSet) -> list[Any]:
    parts: list[Any] = []
    splits, rows, single = {}, [], []
    for group, predictions in zip(run_set.groups, run_set.predictions):
        if len(predictions) < 2:
            single.append(group.name)
            continue
        try:
            splits[group.name] = [entropy.member_split(predictions)]
        except ValueError as error:
            parts.append(page.note(f"There is no ensemble of {group.name}: {error}"))
            continue
        rows.append([f"{group.name}, {len(predictions)} members", *_ensemble_row(predictions)])
    if single:
        parts.append(
            page.note(
                f"There is no ensemble of {', '.join(single)}, because an ensemble requires at"
                " least two runs with different seeds."
            )
        )
    if splits:
        parts.append(_picture("entropy_members", splits, "member", run_set))
        header = ["", "NLL of the mean", "mean NLL of a member", "ECE of the mean"]
        caption = f"The runs of a group as an ensemble, {run_set.evaluation}"
        parts.append(page.table(caption, header, rows))
    return parts


def _auroc_text(aurocs) -> str:
    return "-" if np.isnan(aurocs).any() else comparison.spread(aurocs, 3)


def _picture(name, splits, unit, run_set) -> Picture:
    means = {
        n: [{k: float(np.mean(v)) for k, v in s._asdict().items()} for s in runs]
        for n, runs in splits.items()
    }
    mutual = ", ".join(f"{n} {np.mean([m['mutual'] for m in ms]):.3f}" for n, ms in means.items())
    source = (
        "The mean is over 256 Sobol samples of the latent."
        if unit == "latent sample"
        else "The mean is over the runs of one config with different seeds. The seed also"
        " determines the validation examples and planted label noise."
    )
    per = "per example, summed over classes" if run_set.link == "sigmoid" else "per example"
    shares = {
        n: np.mean([m["mutual"] for m in ms]) / max(np.mean([m["total"] for m in ms]), _TOLERANCE)
        for n, ms in means.items()
    }
    cause = (
        "The noise of the utilities" if unit == "latent sample" else "Disagreement of the members"
    )
    stated = ", ".join(f"{100 * share:.0f} % of the entropy of {n}" for n, share in shares.items())
    return Picture(
        name,
        f"{cause} makes up {stated}.",
        f"Mean entropy of a prediction of {run_set.evaluation}, {per}: the mean entropy of a"
        f" {unit}, and the mutual information between the label and the {unit} (the number beside"
        f" the bar). {source} Error bars are standard deviations over runs.",
        f"Bars of the two parts of the mean entropy; mutual information in nats: {mutual}.",
        panels.entropy_parts(splits, f"Entropy over {unit}s, {run_set.evaluation}", unit),
        {"means": means, "by_example": splits},
    )


def _error_aurocs(split: ensembles.EntropySplit, predictions: Predictions) -> list[float]:
    if predictions.link == "sigmoid":
        return []
    wrong = ~predictions_lib.is_correct(predictions)
    return [
        scores.auroc(part, wrong) if part.max() > _TOLERANCE else float("nan") for part in split
    ]


def _ensemble_row(predictions: list[Predictions]) -> list[str]:
    mean = entropy.ensemble_mean(predictions)
    member_losses = [float(predictions_lib.losses(p).mean()) for p in predictions]
    error = confidence.reliability_diagram([mean]).error
    return [
        f"{predictions_lib.losses(mean).mean():.4f}",
        comparison.spread(member_losses),
        f"{100 * error:.2f} %",
    ]
