"""Draws the calibration error of a table:

    python -m experiments.dataset_curation.pictures --table=figure_8_exponential_cifar10 --out=DIR

Of figures 2, 4 and 5 it draws the ECE of each row, before and after temperature scaling. Of tables
by class, each panel has a row of the table beside the first row: ECE of the classes, from the class
with the most training examples (figures 1 and 8) or the least label noise (figure 3). Of figure 6
it draws the ECE during training. Points are means over runs, bars and bands standard deviations.
"""

import argparse

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from experiments import metric_values, study
from experiments.dataset_curation import by_position, over_training
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures

_STUDY = "dataset_curation"
_COLUMNS = 4


def panels(ece: dict[str, Float[np.ndarray, "runs k"]], order: by_position.Order) -> Figure:
    """One panel per row of a table; `ece` is by row, in the order of positions."""
    first, *others = ece
    shown = others or [first]
    num_lines = -(-len(shown) // _COLUMNS)
    with figures.style_context():
        figure = figures.figure(2.3 * min(len(shown), _COLUMNS) + 0.6, 2.1 * num_lines + 0.4)
        grid = figure.subplots(
            num_lines, min(len(shown), _COLUMNS), squeeze=False, sharex=True, sharey=True
        )
        for axes, name in zip(grid.flat, shown):
            for row, color in ((first, "0.6"), (name, figures.COLORS[0])):
                values = ece[row]
                axes.errorbar(
                    np.arange(1, values.shape[1] + 1),
                    values.mean(axis=0),
                    values.std(axis=0, ddof=1) if len(values) > 1 else None,
                    color=color,
                    marker="o",
                    markersize=3,
                    linewidth=1.2,
                )
            axes.set(title=figures.legend_label(name), ylim=(0, None))
        for axes in grid.flat[len(shown) :]:
            axes.set_axis_off()
        figure.supxlabel(f"class, {order.direction}")
        figure.supylabel(f"ECE (grey: {figures.legend_label(first)})")
    return figure


def rows_figure(ece: dict[str, dict[str, list[float]]]) -> Figure:
    """The ECE of each row over seeds; `ece` is by metric and row."""
    with figures.style_context():
        figure = figures.figure(5.5, 3.2)
        axes = figure.subplots()
        for (metric, values), color in zip(ece.items(), figures.COLORS):
            axes.errorbar(
                np.arange(len(values)),
                [np.mean(x) for x in values.values()],
                [np.std(x, ddof=1) if len(x) > 1 else 0.0 for x in values.values()],
                color=color,
                marker="o",
                linestyle="none",
                label=figures.legend_label(metric),
            )
        names = [figures.legend_label(name) for name in next(iter(ece.values()))]
        axes.set_xticks(np.arange(len(names)), names, rotation=30, ha="right")
        axes.set(ylabel="ECE", ylim=(0, None))
        axes.legend()
    return figure


def training_figure(rows: dict[str, list[over_training.Curve]]) -> Figure:
    """The ECE of each row during training."""
    shares = np.linspace(0, 1, 101)
    with figures.style_context():
        figure = figures.figure(5.5, 3.2)
        axes = figure.subplots()
        for (name, curves), color in zip(rows.items(), figures.COLORS):
            start = max(curve["share"][0] for curve in curves)
            x = shares[shares >= start]
            values = np.array([[over_training.at(c, "ece", s) for s in x] for c in curves])
            mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
            axes.plot(x, mean, color=color, label=figures.legend_label(name))
            axes.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.2)
        axes.set(xlabel="share of the updates", ylabel="ECE", xlim=(0, 1), ylim=(0, None))
        axes.legend()
    return figure


def _by_row(chosen: study.Table, tuned: study.ResultsByRowAndSeed) -> Figure | None:
    regime = chosen.regimes["test"]
    with_runs = [row.name for row in chosen.rows if any(name == row.name for name, _ in tuned)]
    ece = {
        metric: {
            row: [
                metric_values.value(x, regime, metric)
                for (name, _), x in tuned.items()
                if name == row
            ]
            for row in with_runs
        }
        for metric in ("ece", "scaled_ece")
    }
    return rows_figure(ece) if with_runs else None


def _by_class(chosen: study.Table, tuned: study.ResultsByRowAndSeed, name: str) -> Figure | None:
    order = by_position.NOISE if name.startswith("figure_3") else by_position.COUNT
    rows = by_position.by_position(chosen, tuned, order)
    return panels({row: x["ece"] for row, x in rows.items()}, order) if rows else None


@user_errors.one_line()
def main() -> None:
    """Draws the calibration error of a table."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--table", required=True, help="such as figure_8_exponential_cifar10")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--runs", default="runs", help="the --out directory of experiments.run")
    parser.add_argument("--out", required=True, help="directory")
    flags = parser.parse_args()
    figures.check()
    figure = _over_training(flags) if flags.table.startswith("figure_6") else _of_results(flags)
    for path in figures.write(figure, files.as_path(flags.out) / flags.table):
        print(f"wrote {path}")


def _over_training(flags: argparse.Namespace) -> Figure:
    of_runs = argparse.Namespace(**vars(flags) | {"out": flags.runs})
    return training_figure(over_training.by_row(of_runs)[0])


def _of_results(flags: argparse.Namespace) -> Figure:
    chosen = study.table(_STUDY, flags.table)
    results = study.job_results(
        chosen,
        flags.scale,
        files.as_path(flags.runs) / _STUDY / flags.table,
        study.shared_results(_STUDY, chosen, flags.scale)
        | study.saved_results(_STUDY, flags.table, flags.scale),
    )
    tuned = study.tuned_results(results, chosen.regimes["test"], chosen.select_metric)
    is_by_class = "classes" in chosen.metrics
    figure = _by_class(chosen, tuned, flags.table) if is_by_class else _by_row(chosen, tuned)
    if figure is None:
        raise SystemExit("no run is complete; run python -m experiments.run first.")
    return figure


if __name__ == "__main__":
    main()
