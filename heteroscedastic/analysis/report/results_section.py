"""The section about metrics: the main ones with intervals, the others and other evaluations."""

from collections.abc import Sequence
from typing import Any

from heteroscedastic import metrics
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.measured import Measured
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.analysis.uncertainty import intervals
from heteroscedastic.calibration.bootstrap import Interval

_MAIN = {  # the others are folded
    "softmax": ("accuracy", "nll", "brier", "ece", "nll, scaled"),
    "sigmoid": ("label_accuracy", "exact", "nll", "brier", "gap"),
}


def results(run_set: RunSet, measured: Measured, paper: dict[str, Any] | None = None) -> Section:
    """Metrics of every group, with differences from the first group and a paper's numbers.

    Args:
      run_set: groups of runs.
      measured: their metrics.
      paper: {"note": text, "numbers": {name of a group: {metric: value or text}}}.

    Raises:
      ValueError: the paper has numbers for a group that does not exist.
    """
    numbers = (paper or {}).get("numbers", {})
    unknown = sorted(set(numbers) - {group.name for group in run_set.groups})
    if unknown:
        names = ", ".join(group.name for group in run_set.groups)
        raise ValueError(
            f"the paper has numbers for {', '.join(unknown)}, which is no group; the groups are"
            f" {names}."
        )
    main = [name for name in _MAIN[run_set.link] if name in measured.values]
    parts = [_main_table(run_set, measured, main)]
    if run_set.fit is None:
        parts.append(
            page.note(
                "There are no metrics after temperature scaling, because the runs have no common"
                " predictions to fit a temperature on; name an evaluation with --fit."
            )
        )
    if numbers:
        parts.append(_paper_table(run_set, measured, paper))
        if left_out := sorted(set().union(*numbers.values()) - set(measured.values)):
            parts.append(
                page.note(
                    f"The paper's numbers of {', '.join(left_out)} are left out, as these runs have"
                    f" no such metric; they have {', '.join(measured.values)}."
                )
            )
    others = [name for name in measured.values if name not in main]
    folded = [_spread_table(run_set, measured, others)] if others else []
    if measured.incomplete:
        folded.append(
            page.note(
                f"Left out, because not every run reports them: {', '.join(measured.incomplete)}."
            )
        )
    if folded:
        parts.append(page.details("Other metrics", "".join(folded)))
    parts.append(page.details("Other evaluations", _other_evaluations(run_set)))
    by_group_name = {
        group.name: {metric: by_group[i] for metric, by_group in measured.values.items()}
        for i, group in enumerate(run_set.groups)
    }
    by_metric = {
        "groups": [group.name for group in run_set.groups],
        "means": measured.means,
        "differences": measured.differences,
    }
    return Section("Results", parts, {"results": by_group_name, "intervals": by_metric})


def _main_table(run_set: RunSet, measured: Measured, names: Sequence[str]) -> str:
    repeated = any(len(group.runs) > 1 for group in run_set.groups)
    caption = (
        f"Evaluation {run_set.evaluation}: mean"
        + (" ± standard deviation over seeds" if repeated else "")
        + f", with 95 % intervals by bootstrap over {intervals.units(run_set.predictions[0][0])}"
        + (" and t interval over seeds" if repeated else "")
        + ", corrected for bias (approximate for ECE)"
    )
    if len(run_set.groups) > 1:
        caption += f"; differences from {run_set.groups[0].name} are paired"
    caption += ". Higher is better for ↑, lower is better for ↓"
    rows = []
    for name in names:
        values = [list(group.values()) for group in measured.values[name]]
        ends = measured.means.get(name, [None] * len(values))
        row = [_arrow(name), *(_cell(comparison.spread(v), i) for v, i in zip(values, ends))]
        for i, group in enumerate(measured.values[name][1:]):
            if name in measured.differences:
                interval = measured.differences[name][i]
                row.append(_cell(f"{interval.value:+.4f}", interval, "+"))
            else:
                row.append(_paired(group, measured.values[name][0]))
        rows.append(row)
    return page.table(caption, _head(run_set), rows)


def _cell(value: str, interval: Interval | None, sign: str = "") -> str:
    if interval is None:
        return value
    return f"{value}\n{interval.low:{sign}.4f} to {interval.high:{sign}.4f}"


def _spread_table(run_set: RunSet, measured: Measured, names: Sequence[str]) -> str:
    repeated = any(len(group.runs) > 1 for group in run_set.groups)
    caption = "Mean" + (" ± standard deviation over seeds" if repeated else "")
    if len(run_set.groups) > 1:
        caption += f", and difference from {run_set.groups[0].name}, paired by seed"
        if repeated:
            caption += " (± half the width of its 95 % confidence interval)"
    rows = []
    for name in names:
        by_group = measured.values[name]
        row = [_arrow(name), *(comparison.spread(list(group.values())) for group in by_group)]
        rows.append(row + [_paired(group, by_group[0]) for group in by_group[1:]])
    return page.table(caption, _head(run_set), rows)


def _paired(ours: dict[int, float], theirs: dict[int, float]) -> str:
    return comparison.difference(ours, theirs) or "no seed in common"


def _head(run_set: RunSet) -> list[str]:
    counts = [len(group.runs) for group in run_set.groups]
    return [
        "metric",
        *(
            f"{group.name} ({count} {'run' if count == 1 else 'runs'})"
            for group, count in zip(run_set.groups, counts)
        ),
        *(f"{group.name}, difference" for group in run_set.groups[1:]),
    ]


def _paper_table(run_set: RunSet, measured: Measured, paper: dict[str, Any]) -> str:
    numbers = paper["numbers"]
    rows = [
        [
            f"{_arrow(metric)}, {group.name}",
            comparison.spread(list(by_group[i].values())),
            numbers[group.name][metric],
        ]
        for metric, by_group in measured.values.items()
        for i, group in enumerate(run_set.groups)
        if metric in numbers.get(group.name, {})
    ]
    caption = f"Comparison with the paper, in the paper's units: {paper['note']}"
    return page.table(caption, ["metric", "here", "paper"], rows)


def _arrow(metric: str) -> str:
    """The name of a metric with an arrow in the better direction, if there is one."""
    name = metric.removesuffix(", scaled")
    if name in ("fitted temperature", "confidence", "beam_confidence", "objectness"):
        return metric
    return f"{metric}\u00a0{'↓' if name in metrics.LOWER_IS_BETTER else '↑'}"


def _other_evaluations(run_set: RunSet) -> str:
    tables = []
    names = {
        name for group in run_set.groups for run in group.runs for name in run.results["evals"]
    }
    for name in sorted(names - {run_set.evaluation}):
        rows = []
        for group in run_set.groups:
            evals = [
                run.results["evals"][name] for run in group.runs if name in run.results["evals"]
            ]
            shared = [m for m in (evals[0] if evals else {}) if all(m in e for e in evals)]
            rows += [
                [f"{group.name}: {_arrow(m)}", comparison.spread([e[m] for e in evals])]
                for m in shared
            ]
        head = ["metric", "mean ± standard deviation"]
        tables.append(page.table(f"Evaluation {name}", head, rows))
    return "".join(tables) or page.paragraph("There is no other evaluation.")
