"""Calibration by class as a table: layouts of the figures whose x axis is a class.

The classes are shuffled by the seed of a run. A line of the table is a position in the order of the
figure, such as "the class with the third most training examples", and its values are means over
runs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from experiments import metric_values, study
from heteroscedastic.analysis.report.comparison import spread
from heteroscedastic.curation import label_noise

_NUM_PERMUTATIONS = 10_000
_NUM_LINES = 20  # of a table; more classes are averaged in groups of consecutive positions


class Order(NamedTuple):
    """An order of the classes of a run, which is the x axis of a figure."""

    name: str  # of a position
    direction: str
    classes: Callable[[study.Job, dict[str, Any]], Int[np.ndarray, "k"]]
    measure: str | None  # by class, that stands for a position; None is the position itself


def _order_of_counts(job: study.Job, classes: dict[str, Any]) -> Int[np.ndarray, "k"]:
    return np.argsort(-np.array(classes["train_count"]), kind="stable")


def _order_of_noise(job: study.Job, classes: dict[str, Any]) -> Int[np.ndarray, "k"]:
    return label_noise.rising_order(job.seed, len(classes["ece"]))


# From the class with the most training examples to the one with the fewest.
COUNT = Order(
    "training examples", "from most to fewest training examples", _order_of_counts, "train_count"
)
# From the class without label noise to the one with the most.
NOISE = Order("position", "from least to most label noise", _order_of_noise, None)


def layout(order: Order) -> study.Layout:
    """The layout of a table with one line per position, and the test of the order."""

    def lines(
        chosen: study.Table, tuned: study.ResultsByRowAndSeed, numbers: dict[str, Any]
    ) -> list[str]:
        return _lines(by_position(chosen, tuned, order), order)

    return lines


def by_position(
    chosen: study.Table, tuned: study.ResultsByRowAndSeed, order: Order
) -> dict[str, dict[str, Float[np.ndarray, "runs k"]]]:
    """The measures by class in the order of positions, by row and name of the measure."""
    regime = next(iter(chosen.regimes.values()))
    rows = {}
    for row in chosen.rows:
        runs = []
        for (name, _), result in sorted(tuned.items(), key=lambda item: item[0]):
            if name == row.name:
                classes = metric_values.value(result, regime, "classes")
                positions = order.classes(result.job, classes)
                runs.append({k: np.array(v, float)[positions] for k, v in classes.items()})
        if runs:
            rows[row.name] = {k: np.stack([run[k] for run in runs]) for k in runs[0]}
    return rows


def permutation_test(
    x: Float[np.ndarray, "runs k"], y: Float[np.ndarray, "runs k"]
) -> tuple[float, float]:
    """Spearman's correlation within runs, averaged over runs.

    Returns:
      The correlation, and the p-value of the two-sided test that permutes y within each run.
    """
    ranks = [stats.rankdata(values, axis=1) for values in (x, y)]
    a, b = (r - r.mean(axis=1, keepdims=True) for r in ranks)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))

    def correlation(permuted):
        return np.mean((a * permuted).sum(axis=1) / scale)

    rng, observed = np.random.default_rng(0), correlation(b)
    drawn = [correlation(rng.permuted(b, axis=1)) for _ in range(_NUM_PERMUTATIONS)]
    # 1e-12: permutations with the observed correlation count in spite of rounding.
    num_extreme = np.sum(np.abs(drawn) >= abs(observed) - 1e-12)
    return float(observed), float((1 + num_extreme) / (1 + _NUM_PERMUTATIONS))


def _lines(rows, order):
    if not rows:
        return ["No run is complete."]
    first = next(iter(rows.values()))
    num_classes = first["ece"].shape[1]
    groups = np.array_split(np.arange(num_classes), min(num_classes, _NUM_LINES))
    columns = [order.name, *(f"{name} {what}" for name in rows for what in ("ECE", "gap"))]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for group in groups:
        cells = [_label(first, order, group)]
        for values in rows.values():
            cells.append(spread(values["ece"][:, group].mean(axis=1).tolist()))
            cells.append(f"{values['gap'][:, group].mean():+.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| method | runs | rank correlation with ECE | p |", "|" + " --- |" * 4]
    for name, values in rows.items():
        x = np.log(values[order.measure]) if order.measure else np.arange(float(num_classes))
        x = np.broadcast_to(x, values["ece"].shape)
        correlation, p = permutation_test(x, values["ece"])
        lines.append(f"| {name} | {len(values['ece'])} | {correlation:+.2f} | {p:.2g} |")
    return lines


def _label(values, order, group):
    if order.measure is None:
        return f"{group[0] + 1}"
    low, high = values[order.measure][:, group].min(), values[order.measure][:, group].max()
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
