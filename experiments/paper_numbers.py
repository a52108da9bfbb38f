"""The numbers of a paper, from the paper.json of its study, beside our rows and metrics.

Percentages of a paper are shown as fractions, as our metrics are.
"""

import decimal
from typing import Any

from experiments import study


def has_metric(chosen: study.Table, regime: study.Regime, metric: str) -> bool:
    """Whether the paper has a number for a metric; regimes that report validation have none."""
    return (
        bool(chosen.paper)
        and metric in chosen.paper["columns"]
        and regime in study.tested_regimes(chosen).values()
    )


def column(chosen: study.Table, regime: study.Regime, metric: str) -> str:
    """The paper's column for a metric of the evaluation that a regime reports."""
    return regime.prefix + chosen.paper["columns"][metric]


def matching_row(
    chosen: study.Table, row: study.Row, numbers: dict[str, Any]
) -> dict[str, Any] | None:
    """The row of the paper's table that corresponds to our row; None if there is none."""
    values = {"id": row.paper, **chosen.paper["where"], **row.where}
    rows = numbers["tables"][chosen.paper["table"]]["rows"]
    return next(
        (candidate for candidate in rows if all(candidate.get(k) == v for k, v in values.items())),
        None,
    )


def number(
    chosen: study.Table, regime: study.Regime, row: study.Row, metric: str, numbers: dict[str, Any]
) -> str:
    """The paper's number with its standard deviation; "-" if there is none."""
    name = column(chosen, regime, metric)
    return cell(chosen, matching_row(chosen, row, numbers), name, numbers)


def cell(
    chosen: study.Table, theirs: dict[str, Any] | None, name: str, numbers: dict[str, Any]
) -> str:
    """A number in a row of the paper's table, as `number` gives it."""
    columns = numbers["tables"][chosen.paper["table"]]["columns"]
    (unit,) = (column["unit"] for column in columns if column["key"] == name)
    return _text(theirs, name, -2 if unit == "%" else 0)


def as_printed(theirs: dict[str, Any] | None, name: str) -> str:
    """As `cell`, in the paper's own unit: for tables that print percentages."""
    return _text(theirs, name, 0)


def _text(theirs: dict[str, Any] | None, name: str, exponent: int) -> str:
    if theirs is None or theirs.get(name) is None:
        return "-"
    values = (theirs[name], theirs.get("std", {}).get(name))
    scaled = (decimal.Decimal(str(x)).scaleb(exponent) for x in values if x is not None)
    return " ± ".join(map(str, scaled))
