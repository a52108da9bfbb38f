"""Draws accuracy and ECE of a table against the cost of its runs:

    python -m experiments.sample_prioritization.pictures --table=controls --out=DIR

Panels have steps and seconds of training, from results.json, on the horizontal axis. Points are
medians of the cost and means of the measure over runs, bars standard deviations. It prints the
medians, with seconds of steps and of scoring apart. Seconds compare only runs of the same machine
under the same load; --timed names the rows that have those, and others have none.
"""

import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures

_STUDY = "sample_prioritization"
_COSTS = {"step": "steps", "seconds": "seconds"}
_SECONDS = {"s of steps": ("steps", "input"), "s of scoring": ("scores",)}  # parts of goodput
_MEASURES = {"accuracy": "accuracy", "ece": "ECE"}


def panels(
    results: Mapping[str, list[dict[str, Any]]], evaluation: str, timed: Collection[str]
) -> Figure:
    """Measures against costs; rows METHOD_PERCENT have a colour for each method.

    Args:
      results: contents of results.json of the runs by row.
      evaluation: whose measures are drawn.
      timed: rows that are drawn against seconds.
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
                    if cost == "seconds" and row not in timed:
                        continue
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
    return sum(_seconds(run, parts) for parts in _SECONDS.values())


def _seconds(run: Mapping[str, Any], parts: Sequence[str]) -> float:
    return sum(run["goodput"].get(part, 0.0) for part in parts)


def costs(results: Mapping[str, list[dict[str, Any]]], timed: Collection[str]) -> Iterator[str]:
    """Lines of a table: the median steps of the runs of each row, and seconds where they count."""
    yield "| method | steps | " + " | ".join(_SECONDS) + " |"
    yield "|" + " --- |" * (len(_SECONDS) + 2)
    for row, runs in results.items():
        steps = np.median([run["step"] for run in runs])
        cells = [
            f"{np.median([_seconds(x, parts) for x in runs]):.1f}" if row in timed else ""
            for parts in _SECONDS.values()
        ]
        yield f"| {row} | {steps:.0f} | " + " | ".join(cells) + " |"


@user_errors.one_line()
def main() -> None:
    """Draws accuracy and ECE of a table against steps and seconds."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--table", default="controls")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--runs", default="runs", help="the --out directory of experiments.run")
    parser.add_argument("--out", required=True, help="directory of the picture")
    parser.add_argument(
        "--timed",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="rows whose seconds can be compared, such as all or 'fresh_*'; defaults to all rows",
    )
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
    timed = {row for row in by_row if any(fnmatch.fnmatchcase(row, x) for x in flags.timed)}
    print("\n".join(costs(by_row, timed)))
    (regime,) = chosen.regimes.values()
    figure = panels(by_row, regime.report, timed)
    for path in figures.write(figure, files.as_path(flags.out) / flags.table):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
