"""The parts of the entropy of the runs, by itself and as members of an ensemble."""

from typing import Any

import numpy as np

from heteroscedastic import ensembles
from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.analysis.uncertainty import confidence, entropy
from heteroscedastic.calibration import scores
from heteroscedastic.runs import loaded_run, predictions
from heteroscedastic.runs.loaded_run import Told
from heteroscedastic.runs.predictions import Predictions

_ROUNDING = 1e-4  # nats


def entropies(compared: Compared) -> Section:
    """The entropy of predictions in two parts: over latent samples, and over the runs of a group as
    an ensemble.
    """
    return Section("Parts of the entropy", [*_samples(compared), *_members(compared)])


def _samples(compared: Compared) -> list[Any]:
    parts: list[Any] = []
    splits, finds = {}, {}
    for group, told in zip(compared.groups, compared.told):
        try:
            splits[group.name] = [_over_samples(compared, run) for run in group.runs]
        except loaded_run.NOT_HERE as error:
            parts.append(page.note(f"{group.name} is not told over latent samples: {error}"))
            continue
        finds[group.name] = [_finds_errors(split, p) for split, p in zip(splits[group.name], told)]
    if splits:
        parts.append(_picture("entropy_samples", splits, "latent sample", compared))
    if splits and compared.link == "softmax":
        head = ["", "entropy of the mean", "expected entropy", "mutual information"]
        rows = [[name, *map(_found, zip(*of_runs))] for name, of_runs in finds.items()]
        parts.append(
            page.table("How well each finds errors over latent samples: AUROC", head, rows)
        )
    return parts


def _members(compared: Compared) -> list[Any]:
    parts: list[Any] = []
    splits, rows, single = {}, [], []
    for group, told in zip(compared.groups, compared.told):
        if len(told) < 2:
            single.append(group.name)
            continue
        try:
            splits[group.name] = [entropy.over_members(told)]
        except ValueError as error:
            parts.append(page.note(f"{group.name} is not told as an ensemble: {error}"))
            continue
        rows.append([f"{group.name}, {len(told)} members", *_ensemble_row(told)])
    if single:
        parts.append(
            page.note(
                f"No ensemble of {', '.join(single)}: one run; members are several, of other seeds."
            )
        )
    if splits:
        parts.append(_picture("entropy_members", splits, "member", compared))
        head = ["", "NLL of the mean", "mean NLL of a member", "ECE of the mean"]
        parts.append(page.table(f"The runs of a group as an ensemble, {compared.on}", head, rows))
    return parts


def _found(areas) -> str:
    return "-" if np.isnan(areas).any() else comparison.spread(areas, 3)


def _over_samples(compared: Compared, run: Told) -> ensembles.EntropySplit:
    return entropy.over_samples(*loaded_run.evaluated(run, compared.on, compared.data_dir))


def _picture(name, splits, of, compared) -> Picture:
    means = {
        n: [{k: float(np.mean(v)) for k, v in s._asdict().items()} for s in runs]
        for n, runs in splits.items()
    }
    told = ", ".join(f"{n} {np.mean([m['mutual'] for m in ms]):.3f}" for n, ms in means.items())
    source = (
        "256 Sobol samples of the latent"
        if of == "latent sample"
        else "runs of one config with other seeds, which choose the validation examples and planted noise too"
    )
    per = (
        "summed over the yes/no answers of an example"
        if compared.link == "sigmoid"
        else "an example"
    )
    return Picture(
        name,
        f"Mean entropy of a prediction of {compared.on}, {per}: what remains within a {of}, and"
        " the mutual information"
        f" of label and {of} (the number beside). Over {source}; lines: standard deviation over"
        " runs.",
        f"Bars of mean entropy in two parts; mutual information in nats: {told}.",
        panels.entropy_parts(splits, f"Entropy over {of}s, {compared.on}", of),
        {"means": means, "by_example": splits},
    )


def _finds_errors(split: ensembles.EntropySplit, told: Predictions) -> list[float]:
    if told.link == "sigmoid":
        return []
    wrong = ~predictions.is_correct(told)
    # What is 0 but for rounding ranks nothing.
    return [scores.auroc(part, wrong) if part.max() > _ROUNDING else float("nan") for part in split]


def _ensemble_row(told: list[Predictions]) -> list[str]:
    together = entropy.mean_of_members(told)
    of_members = [float(predictions.losses(p).mean()) for p in told]
    error = confidence.reliability_diagram([together]).error
    return [
        f"{predictions.losses(together).mean():.4f}",
        comparison.spread(of_members),
        f"{100 * error:.2f} %",
    ]
