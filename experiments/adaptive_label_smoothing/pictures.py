"""Draws the reliability of the rows of a table (Figure 2 of the paper):

    python -m experiments.adaptive_label_smoothing.pictures --table=variants --out=DIR

Each panel has accuracy against confidence, over all seeds, above the fraction of predictions.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments import study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.uncertainty import confidence
from heteroscedastic.analysis.uncertainty.confidence import Diagram
from heteroscedastic.runs import predictions

_STUDY = "adaptive_label_smoothing"
_COLUMNS = 4
# Figure 2: beta 0, 0.25, 0.75 and 1 with one object per image, then hard targets of all images, and
# hard, uniform and adaptive targets of the images with boxes.
FIGURE_2 = (
    "hard_mask",
    "adaptive_beta_0.25_mask",
    "adaptive_beta_0.75_mask",
    "adaptive_beta_1_mask",
    "hard_full",
    "hard_boxes",
    "label_smoothing_boxes",
    "adaptive_beta_1_boxes",
)


def panels(diagrams: dict[str, Diagram]) -> Figure:
    """One panel per row of a table."""
    columns = min(len(diagrams), _COLUMNS)
    lines = -(-len(diagrams) // columns)
    with figures.style_context():
        figure = figures.figure(2.2 * columns + 0.5, 3.0 * lines + 0.3)
        grid = figure.subplots(
            2 * lines,
            columns,
            squeeze=False,
            sharex=True,
            sharey="row",
            height_ratios=(3, 1) * lines,
        )
        for i, (name, diagram) in enumerate(diagrams.items()):
            upper, lower = grid[2 * (i // columns) : 2 * (i // columns) + 2, i % columns]
            upper.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--")
            upper.fill_between(
                diagram.confidence,
                diagram.low,
                diagram.high,
                color=figures.COLORS[0],
                alpha=0.18,
                linewidth=0,
            )
            upper.plot(
                diagram.confidence,
                diagram.accuracy,
                color=figures.COLORS[0],
                marker="o",
                markersize=3,
            )
            title = f"{figures.legend_label(name)}\nECE {100 * diagram.error:.1f} %"
            upper.set_title(title, fontsize=9)
            upper.set(xlim=(0, 1), ylim=(0, 1))
            fraction = diagram.count / diagram.count.sum()
            lower.stairs(fraction, diagram.edges, color=figures.COLORS[0], fill=True, alpha=0.5)
        for i in range(len(diagrams), lines * columns):
            for axes in grid[2 * (i // columns) : 2 * (i // columns) + 2, i % columns]:
                axes.set_axis_off()
        figure.supxlabel("confidence")
        figure.supylabel("accuracy, above the fraction of predictions")
    return figure


def diagrams(results: Sequence[study.JobResult], report: str) -> dict[str, Diagram]:
    """The reliability diagram of each row with complete runs, over its seeds."""
    runs: dict[str, list[predictions.Predictions]] = {}
    for result in results:
        if (result.job.directory / "results.json").exists():
            runs.setdefault(result.job.row, []).append(
                predictions.read(result.job.directory, report)
            )
    return {row: confidence.reliability_diagram(of_row) for row, of_row in runs.items()}


@user_errors.one_line()
def main() -> None:
    """Draws the reliability of the rows of a table."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--table", required=True, help="table_5_v1, at --scale=paper, for Figure 2")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--runs", default="runs", help="the --out directory of experiments.run")
    parser.add_argument("--out", required=True, help="directory")
    flags = parser.parse_args()
    figures.check()
    chosen = study.table(_STUDY, flags.table)
    results = study.job_results(
        chosen, flags.scale, files.as_path(flags.runs) / _STUDY / flags.table
    )
    drawn = diagrams(results, next(iter(chosen.regimes.values())).report)
    if flags.table == "table_5_v1":
        drawn = {row: drawn[row] for row in FIGURE_2 if row in drawn}
    if not drawn:
        raise SystemExit("no run is complete; run python -m experiments.run first.")
    for path in figures.write(panels(drawn), files.as_path(flags.out) / flags.table):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
