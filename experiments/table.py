"""Prints a table from finished runs: python -m experiments.table --study=S --table=T --scale=cpu.

For each regime: the mean and standard deviation over seeds of every row, each seed at the
setting its own validation chose; the difference from the reference row, paired by seed, with
its 95 % interval; the paper's own test where it has one, and its number; what is missing. A table
with a layout of its own, as that of transfer by head and task, is told so. Of runs that are not in
OUT it tells what experiments.keep has put into the repository. Intervals and tests are of each
comparison on its own, not corrected for their number.
"""

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments import study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report.comparison import difference, spread
from heteroscedastic.analysis.uncertainty import calibration


def unpaired_p(ours: list[float], theirs: list[float]) -> float:
    """p of the two-tailed unpaired t-test with equal variances, nan below two values a side."""
    return (
        float(stats.ttest_ind(ours, theirs).pvalue)
        if min(len(ours), len(theirs)) > 1
        else float("nan")
    )


def text(chosen: study.Table, runs: list[study.Made], numbers: dict[str, Any]) -> str:
    """The table in Markdown.

    Args:
      chosen: what the table is.
      runs: all that it consists of.
      numbers: the study's paper.json.
    """
    lines = [chosen.claim]
    for name, regime in chosen.regimes.items():
        tuned = study.tuned(runs, regime, chosen.select_metric)
        laid_out = (
            chosen.layout(chosen, tuned, numbers)
            if chosen.layout
            else _regime(chosen, regime, tuned, numbers)
        )
        lines += ["", f"**{name}**", "", *laid_out]
    missing = [run.job for run in runs if run.results is None]
    complete = [run.results for run in runs if run.results]
    if chosen.paper:
        lines += [
            "",
            f"Paper: {numbers['tables'][chosen.paper['table']]['title']} ({chosen.paper['note']}).",
        ]
    if missing:
        lines += [
            "",
            f"Missing: {len(missing)} of {len(runs)} runs, the first {missing[0].directory}.",
        ]
    if complete:
        seconds = [results["seconds"] for results in complete]
        devices = sorted({results["device"] for results in complete})
        commits = sorted({_short(results.get("commit") or "unknown") for results in complete})
        versions = sorted(
            {f"jax {results['versions']['jax']}" for results in complete if "versions" in results}
        )
        lines += [
            "",
            f"{len(seconds)} runs, {sum(seconds) / 3600:.1f} hours of them in all"
            f" ({np.median(seconds):.0f} s"
            f" at the median), on {', '.join(devices)}, {', '.join(versions)}, commit"
            f" {', '.join(commits)}.",
        ]
        if not chosen.layout:
            lines.append(f"Seconds of a run at the median: {', '.join(_seconds(chosen, runs))}.")
    return "\n".join(lines)


def _seconds(chosen: study.Table, runs: list[study.Made]) -> list[str]:
    """Of each row, over its grid and seeds."""
    found = {
        row.name: [r.results["seconds"] for r in runs if r.results and r.job.row == row.name]
        for row in chosen.rows
    }
    return [f"{name} {np.median(seconds):.0f}" for name, seconds in found.items() if seconds]


def _short(commits: str) -> str:
    return re.sub(r"\b([0-9a-f]{7})[0-9a-f]{33}\b", r"\1", commits)


def _regime(chosen, regime, tuned, numbers):
    """Head and rows of one regime."""
    columns = ["method", "seeds", "chosen"]
    for metric in chosen.metrics:
        columns += [metric, f"{metric} - {chosen.reference}"] if chosen.reference else [metric]
        columns += ["p"] if chosen.test and chosen.reference else []
        columns += (
            [f"paper {paper_column(chosen, regime, metric)}"]
            if has_paper(chosen, regime, metric)
            else []
        )
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    seeds = {row.name: {s: tuned[r, s] for r, s in tuned if r == row.name} for row in chosen.rows}
    for row in chosen.rows:
        mine = seeds[row.name]
        points = Counter(
            ", ".join(str(v) for _, v in run.job.point) or "-" for run in mine.values()
        )
        cells = [
            row.name,
            str(len(mine)),
            ", ".join(f"{p} ({n}x)" if n > 1 else p for p, n in points.most_common()),
        ]
        for metric in chosen.metrics:
            values = {s: value(run, regime, metric) for s, run in mine.items()}
            cells.append(spread(list(values.values())))
            if chosen.reference:
                others = seeds[chosen.reference]
                theirs = {s: value(run, regime, metric) for s, run in others.items()}
                same = row.name == chosen.reference
                cells.append("" if same else difference(values, theirs))
                if chosen.test:
                    p = unpaired_p(list(values.values()), list(theirs.values()))
                    cells.append("" if same or np.isnan(p) else f"{p:.2g}")
            if has_paper(chosen, regime, metric):
                cells.append(paper_number(chosen, regime, row, metric, numbers))
        lines.append("| " + " | ".join(cells) + " |")
    return lines + _of_the_paper_alone(chosen, regime, columns, numbers)


def _of_the_paper_alone(chosen, regime, columns, numbers):
    """Rows that the paper quotes from others, and those that are of several runs of another."""
    rows = numbers["tables"][chosen.paper["table"]]["rows"] if chosen.paper else []
    lines = []
    for row in rows:
        if row.get("quoted") or row["id"] in chosen.paper.get("beside", ()):
            told = {
                f"paper {column}": row[column] for column in row if column.startswith(regime.prefix)
            }
            cells = [told.get(column) for column in columns[1:]]
            lines.append(
                "| "
                + " | ".join([row["method"], *("" if c is None else str(c) for c in cells)])
                + " |"
            )
    return lines


def value(run: study.Made, regime: study.Regime, metric: str) -> float:
    """A metric of a run as a regime reports it.

    Args:
      run: that is complete.
      regime: whose `fitted_on` is the evaluation that a temperature is fitted on.
      metric: of results.json, or of the predictions (analysis/calibration.py); "scaled_" and its
        name is the metric after temperature scaling.
    """
    told = run.results["evals"][regime.report]
    if metric in told:
        return told[metric]
    found = _calibration(run.job.directory, regime.fitted_on, regime.report)
    scaled = metric.startswith("scaled_")
    return found["after" if scaled else "before"][metric.removeprefix("scaled_")]


@functools.cache
def _calibration(directory: files.Path, fit: str, on: str) -> dict[str, Any]:
    return calibration.temperature_scaling(directory, fit, on)


def has_paper(chosen, regime, metric):
    """Whether the paper has a number for it; what is chosen and told on validation has none."""
    return (
        bool(chosen.paper)
        and metric in chosen.paper["columns"]
        and regime in study.tested(chosen).values()
    )


def paper_column(chosen: study.Table, regime: study.Regime, metric: str) -> str:
    """What the paper calls a metric of what a regime reports."""
    return regime.prefix + chosen.paper["columns"][metric]


def paper_row(
    chosen: study.Table, row: study.Row, numbers: dict[str, Any]
) -> dict[str, Any] | None:
    """The row of the paper's table, None where it has none."""
    wanted = {"id": row.paper, **chosen.paper["where"], **row.where}
    rows = numbers["tables"][chosen.paper["table"]]["rows"]
    return next(
        (found for found in rows if all(found.get(k) == v for k, v in wanted.items())), None
    )


def paper_number(
    chosen: study.Table, regime: study.Regime, row: study.Row, metric: str, numbers: dict[str, Any]
) -> str:
    """The paper's number and spread, "-" where it has none."""
    found, column = paper_row(chosen, row, numbers), paper_column(chosen, regime, metric)
    if found is None or found.get(column) is None:
        return "-"
    spread = found.get("std", {}).get(column)
    return f"{found[column]}" + (f" ± {spread}" if spread is not None else "")


@user_errors.one_line()
def main() -> None:
    """Prints a table of a study."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs")
    parser.add_argument(
        "--reference", help="the row that others are compared with, in place of the table's own"
    )
    parser.add_argument(
        "--at", help="one point of the grid, such as 1.0, for all rows in place of tuning"
    )
    flags = parser.parse_args()
    chosen = study.table(flags.study, flags.table)
    if flags.reference:
        if chosen.layout:
            raise SystemExit(
                "the rows of this table are told together, and no other can be --reference."
            )
        if flags.reference not in {row.name for row in chosen.rows}:
            raise SystemExit(
                f"there is no row {flags.reference!r}; the rows are"
                f" {[row.name for row in chosen.rows]}."
            )
        chosen = chosen._replace(reference=flags.reference)
    kept = study.kept(flags.study, flags.table, flags.scale)
    runs = study.made(
        chosen, flags.scale, files.as_path(flags.out) / flags.study / flags.table, kept
    )
    if flags.at:
        runs = study.at(chosen, runs, flags.at)
    numbers = (
        files.read_json(Path(study.__file__).parent / flags.study / "paper.json")
        if chosen.paper
        else {}
    )
    print(text(chosen, runs, numbers))
    if num_kept := sum(
        run.results is not None and run.results is kept.get(run.job.fingerprint) for run in runs
    ):
        path = study.kept_at(flags.study, flags.table, flags.scale)
        print(f"{num_kept} of the runs are not in {flags.out}; {path} has what they found.")


if __name__ == "__main__":
    main()
