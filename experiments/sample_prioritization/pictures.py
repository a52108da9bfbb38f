"""Draws accuracy and ECE of a table against the cost of its runs:

    python -m experiments.sample_prioritization.pictures --table=controls --out=DIR

Panels have steps and seconds of training, from results.json, on the horizontal axis. Points are
medians of the cost and means of the measure over runs, bars standard deviations. Seconds compare
only runs of the same machine at rest.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures

_STUDY = "sample_prioritization"
_COSTS = {"step": "steps", "seconds": "seconds"}
_MEASURES = {"accuracy": "accuracy", "ece": "ECE"}


def panels(results: Mapping[str, list[dict[str, Any]]], evaluation: str) -> Figure:
    """Measures against costs; `results` has the contents of results.json of the runs by row.

    Rows METHOD_PERCENT have a colour for each method and a marker for each percentage.
    """
    methods, percents = (list(dict.fromkeys(x)) for x in zip(*map(_parts, results), strict=True))
    with figures.style_context():
        figure = figures.figure(6.6, 4.6)
        grid = figure.subplots(
            len(_MEASURES), len(_COSTS), squeeze=False, sharex="col", sharey="row"
        )
        for line, (measure, title) in zip(grid, _MEASURES.items(), strict=True):
            for axes, (cost, unit) in zip(line, _COSTS.items(), strict=True):
                for row, runs in results.items():
                    method, percent = _parts(row)
                    x = np.array([_cost(run, cost) for run in runs])
                    y = np.array([run["evals"][evaluation][measure] for run in runs])
                    axes.errorbar(
                        np.median(x),
                        y.mean(),
                        y.std(ddof=1) if len(y) > 1 else None,
                        color=figures.COLORS[methods.index(method) % len(figures.COLORS)],
                        marker="osD^v<>"[percents.index(percent)],
                        markersize=4,
                        linestyle="none",
                        label=figures.legend_label(row),
                    )
                axes.set_xlabel(unit)
                axes.label_outer()
            line[0].set_ylabel(title)
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize="small"
        )
    return figure


def _parts(row: str) -> tuple[str, str]:
    method, _, percent = row.rpartition("_")
    return (method, percent) if percent.isdigit() else (row, "100")


def _cost(run: Mapping[str, Any], name: str) -> float:
    """Steps, or seconds of training steps and of scoring."""
    if name == "step":
        return run["step"]
    return sum(run["goodput"].get(part, 0.0) for part in ("steps", "input", "scores"))


@user_errors.one_line()
def main() -> None:
    """Draws accuracy and ECE of a table against steps and seconds."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--table", default="controls")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--runs", default="runs", help="the --out directory of experiments.run")
    parser.add_argument("--out", required=True, help="directory")
    flags = parser.parse_args()
    figures.check()
    chosen = study.table(_STUDY, flags.table)
    directory = files.as_path(flags.runs) / _STUDY / flags.table
    saved = study.saved_results(_STUDY, flags.table, flags.scale)
    by_row: dict[str, list[dict[str, Any]]] = {}
    for result in study.job_results(chosen, flags.scale, directory, saved):
        if result.results:
            by_row.setdefault(result.job.row, []).append(result.results)
    if not by_row:
        raise SystemExit("no run is complete; run python -m experiments.run first.")
    (regime,) = chosen.regimes.values()
    for path in figures.write(
        panels(by_row, regime.report), files.as_path(flags.out) / flags.table
    ):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
