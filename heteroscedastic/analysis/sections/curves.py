"""The course of training."""

from typing import Any

from heteroscedastic.analysis import learning_curves, page, pictures
from heteroscedastic.analysis.comparison import Compared
from heteroscedastic.analysis.page import Picture, Section


def curves(compared: Compared) -> Section:
    """Learning curves of what all runs tell."""
    try:
        read = [[learning_curves.read(run.directory) for run in group.runs] for group in compared.groups]
    except (FileNotFoundError, ValueError) as error:
        return Section("Learning curves", [page.note(error)])
    wanted = {"nll": "negative log-likelihood, nats", "accuracy": "accuracy", "label_accuracy": "accuracy of an answer"}
    wanted |= {"ece": "expected calibration error", "gap": "global average precision"}
    parts: list[Any] = []
    for metric, quantity in wanted.items():
        told = {}
        for group, runs in zip(compared.groups, read):
            found = {part: learning_curves.together(runs, f"{part}/{metric}") for part in ("train", "valid")}
            told[group.name] = {part: values for part, values in found.items() if values is not None}
        if any(told.values()):
            parts.append(_curve(metric, quantity, told))
    rates = {g.name: learning_curves.together(runs, "learning_rate") for g, runs in zip(compared.groups, read)}
    if any(r is not None for r in rates.values()):
        told = {name: {"": r} for name, r in rates.items() if r is not None}
        parts.append(_curve("learning_rate", "learning rate", told))
    if not parts:
        parts.append(page.note("The runs tell no metric at the same epochs."))
    return Section("Learning curves", parts)


def _curve(metric, quantity, told) -> Picture:
    last = [f"{n} {part}: {v[:, -1].mean():.3g}" for n, parts in told.items() for part, (_, v) in parts.items()]
    return Picture(
        page.file_name("curve", metric),
        f"{quantity[0].upper()}{quantity[1:]} over training. Dotted: training, with augmentation and as the model was"
        " within each stretch; solid: validation."
        if metric != "learning_rate"
        else "Learning rate over training.",
        f"Learning curves of {quantity}; at the end: {', '.join(last)}.",
        pictures.curves(told, quantity.split(",")[0].capitalize(), quantity),
        {n: {part or "value": {"epoch": e, "values": v} for part, (e, v) in ps.items()} for n, ps in told.items()},
    )
