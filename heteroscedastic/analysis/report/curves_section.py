"""The section about learning curves."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from heteroscedastic import files, metrics
from heteroscedastic.analysis.plots import panels
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.runs import run_record

_QUANTITIES = {
    "nll": "negative log-likelihood (nats)",
    "accuracy": "accuracy",
    "label_accuracy": "accuracy per class",
    "ece": "expected calibration error",
    "gap": "global average precision",
}


def curves(run_set: RunSet) -> Section:
    """Learning curves of the quantities that all runs log."""
    try:
        logged = [[read_metrics(run.directory) for run in group.runs] for group in run_set.groups]
    except (FileNotFoundError, ValueError) as error:
        return Section("Learning curves", [page.note(error)])
    parts: list[Any] = []
    for metric, quantity in _QUANTITIES.items():
        series = {}
        for group, runs in zip(run_set.groups, logged):
            splits = {"train": "train", "valid": _validation_split(group.runs[0].config)}
            by_part = {
                part: common_epochs(runs, f"{split}/{metric}") for part, split in splits.items()
            }
            series[group.name] = {
                part: values for part, values in by_part.items() if values is not None
            }
        if any(series.values()):
            parts.append(_curve(metric, quantity, series))
    rates = {
        group.name: common_epochs(runs, "learning_rate")
        for group, runs in zip(run_set.groups, logged)
    }
    if any(rate is not None for rate in rates.values()):
        series = {name: {"": rate} for name, rate in rates.items() if rate is not None}
        parts.append(_curve("learning_rate", "learning rate", series))
    if not parts:
        parts.append(page.note("The runs log no metric at the same epochs."))
    return Section("Learning curves", parts)


def _validation_split(config) -> str:
    return (config.get("validation") or {"split": "valid"})["split"]


def _curve(metric, quantity, series) -> Picture:
    final_values = [
        f"{name} {part}: {values[:, -1].mean():.3g}"
        for name, parts in series.items()
        for part, (_, values) in parts.items()
    ]
    caption = (
        "Learning rate during training."
        if metric == "learning_rate"
        else f"{quantity[0].upper()}{quantity[1:]} during training. Dotted lines: training data"
        " with augmentation, averaged over each logging interval. Solid lines: validation data."
    )
    return Picture(
        page.file_name("curve", metric),
        _finding(metric, series),
        caption,
        f"Learning curves of {quantity}; final values: {', '.join(final_values)}.",
        panels.curves(series, quantity.split(" (")[0].capitalize(), quantity),
        {
            name: {
                part or "value": {"epoch": epochs, "values": values}
                for part, (epochs, values) in parts.items()
            }
            for name, parts in series.items()
        },
    )


def _finding(metric, series) -> str:
    """The best value of each group, by validation where there is one, and its epoch."""
    if metric == "learning_rate":
        ends = {name: parts[""][1].mean(axis=0)[[0, -1]] for name, parts in series.items()}
        return "; ".join(f"{n}: from {a:.3g} to {b:.3g}" for n, (a, b) in ends.items()) + "."
    best = np.argmin if metric in metrics.LOWER_IS_BETTER else np.argmax
    texts = []
    for name, parts in series.items():
        for part in [p for p in ("valid", "train") if p in parts][:1]:
            epochs, values = parts[part]
            mean = values.mean(axis=0)
            row = best(mean)
            texts.append(
                f"{name} has its best {part} value, {mean[row]:.3f}, after epoch {epochs[row]:.3g}"
                f" and ends at {mean[-1]:.3f}"
            )
    return "; ".join(texts) + "."


def read_metrics(run: str | files.Path) -> dict[str, Float[np.ndarray, "n"]]:
    """Every quantity of metrics.jsonl by name, with one value per line.

    The value is nan for a line without the quantity.

    Raises:
      FileNotFoundError: the run has no such file.
      ValueError: a line is damaged, or the run did not write these lines.
    """
    lines = run_record.metrics(files.as_path(run))
    names = list(dict.fromkeys(name for line in lines for name in line))
    return {name: np.array([float(line.get(name, np.nan)) for line in lines]) for name in names}


def common_epochs(
    curves: Sequence[dict[str, Float[np.ndarray, "_"]]], name: str
) -> tuple[Float[np.ndarray, "t"], Float[np.ndarray, "r t"]] | None:
    """The values of a quantity in several runs at the epochs at which all of them log it.

    Returns:
      The epochs, and the values by run and epoch. None if there is no common epoch.
    """
    values_by_epoch = [
        {e: v for e, v in zip(c.get("epoch", ()), c.get(name, ())) if not np.isnan(v)}
        for c in curves
    ]
    epochs = sorted(set.intersection(*map(set, values_by_epoch))) if values_by_epoch else []
    if not epochs:
        return None
    return np.array(epochs), np.array([[run[e] for e in epochs] for run in values_by_epoch])
