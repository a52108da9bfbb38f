"""The course of training."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from heteroscedastic import files
from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.runs import run_record


def curves(compared: Compared) -> Section:
    """Learning curves of what all runs tell."""
    try:
        read = [[read_metrics(run.directory) for run in group.runs] for group in compared.groups]
    except (FileNotFoundError, ValueError) as error:
        return Section("Learning curves", [page.note(error)])
    wanted = {
        "nll": "negative log-likelihood, nats",
        "accuracy": "accuracy",
        "label_accuracy": "accuracy of an answer",
    }
    wanted |= {"ece": "expected calibration error", "gap": "global average precision"}
    parts: list[Any] = []
    for metric, quantity in wanted.items():
        told = {}
        for group, runs in zip(compared.groups, read):
            found = {part: together(runs, f"{part}/{metric}") for part in ("train", "valid")}
            told[group.name] = {
                part: values for part, values in found.items() if values is not None
            }
        if any(told.values()):
            parts.append(_curve(metric, quantity, told))
    rates = {g.name: together(runs, "learning_rate") for g, runs in zip(compared.groups, read)}
    if any(r is not None for r in rates.values()):
        told = {name: {"": r} for name, r in rates.items() if r is not None}
        parts.append(_curve("learning_rate", "learning rate", told))
    if not parts:
        parts.append(page.note("The runs tell no metric at the same epochs."))
    return Section("Learning curves", parts)


def _curve(metric, quantity, told) -> Picture:
    last = [
        f"{n} {part}: {v[:, -1].mean():.3g}"
        for n, parts in told.items()
        for part, (_, v) in parts.items()
    ]
    return Picture(
        page.file_name("curve", metric),
        f"{quantity[0].upper()}{quantity[1:]} over training. Dotted: training, with augmentation"
        " and as the model was"
        " within each stretch; solid: validation."
        if metric != "learning_rate"
        else "Learning rate over training.",
        f"Learning curves of {quantity}; at the end: {', '.join(last)}.",
        panels.curves(told, quantity.split(",")[0].capitalize(), quantity),
        {
            n: {part or "value": {"epoch": e, "values": v} for part, (e, v) in ps.items()}
            for n, ps in told.items()
        },
    )


def read_metrics(run: str | files.Path) -> dict[str, np.ndarray]:
    """Every quantity of metrics.jsonl by its name, one value a line, nan where a line does not tell
    it.

    Raises:
      FileNotFoundError: the run has no such file.
      ValueError: a line is damaged, or the lines are not those that the run wrote.
    """
    lines = run_record.metrics(files.as_path(run))
    names = list(dict.fromkeys(name for line in lines for name in line))
    return {name: np.array([float(line.get(name, np.nan)) for line in lines]) for name in names}


def together(
    curves: Sequence[dict[str, np.ndarray]], name: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """A quantity of several runs at the epochs that all of them tell: epochs [t], values [runs, t].

    None where a run does not tell it, or they have no epoch in common.
    """
    told = [
        {e: v for e, v in zip(c.get("epoch", ()), c.get(name, ())) if not np.isnan(v)}
        for c in curves
    ]
    epochs = sorted(set.intersection(*(set(t) for t in told))) if told else []
    if not epochs:
        return None
    return np.array(epochs), np.array([[t[e] for e in epochs] for t in told])
