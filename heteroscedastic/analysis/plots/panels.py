"""Figures of confidence, uncertainty and training, each small enough for a phone or a slide.

Every function draws numbers that another module computes.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.plots.figures import Figure
from heteroscedastic.analysis.uncertainty.confidence import Diagram, Outcomes
from heteroscedastic.calibration.selective import RiskCoverage
from heteroscedastic.ensembles import EntropySplit
from heteroscedastic.links import Link

_WIDTH, _HEIGHT = 4.6, 3.4  # inches
# A bin with fewer distinct examples than this is figure hollow, as its accuracy is unreliable.
FEW = 10
_KINDS = {"right": figures.COLORS[0], "wrong": figures.COLORS[1], "noisy": figures.COLORS[3]}
_LABELS = {"right": "correct", "wrong": "incorrect", "noisy": "label known to be wrong"}


def reliability(diagrams: dict[str, Diagram], title: str, link: Link = "softmax") -> Figure:
    """Draws accuracy against confidence with bands, above the fraction of predictions per bin.

    Args:
      diagrams: by name, such as those of several groups of runs.
      title: of the figure.
      link: "sigmoid" if the diagrams are of the probability of each class.
    """
    with figures.style_context():
        figure = figures.figure(_WIDTH, 4.7)
        upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--", label="perfect")
        styles = zip(_colors(len(diagrams)), itertools.cycle("os^D"))
        for (name, diagram), (color, marker) in zip(diagrams.items(), styles):
            many = diagram.examples >= FEW
            few = (diagram.examples > 0) & (diagram.examples < FEW)
            x = diagram.confidence[many]
            upper.fill_between(
                x, diagram.low[many], diagram.high[many], color=color, alpha=0.18, linewidth=0
            )
            label = f"{figures.legend_label(name)}: ECE {100 * diagram.error:.1f} %"
            upper.plot(
                x, diagram.accuracy[many], color=color, marker=marker, markersize=3.5, label=label
            )
            hollow = dict(
                color=color,
                marker=marker,
                markersize=3.5,
                linestyle="none",
                fillstyle="none",
                alpha=0.7,
            )
            if few.any():  # an empty line that is not clipped breaks the layout
                upper.plot(diagram.confidence[few], diagram.accuracy[few], clip_on=False, **hollow)
            fraction = diagram.count / diagram.count.sum()
            lower.stairs(fraction, diagram.edges, color=color, fill=True, alpha=0.15)
            lower.stairs(fraction, diagram.edges, color=color, linewidth=1.4)
        upper.set(
            title=title,
            ylabel="frequency of the class" if link == "sigmoid" else "accuracy",
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
        quantity = "predicted probability of the class" if link == "sigmoid" else "confidence"
        lower.set(xlabel=quantity, ylabel="fraction")
        for axis in (upper.xaxis, upper.yaxis):
            _in_percent(axis, decimals=0)
        _in_percent(lower.yaxis)
        lower.yaxis.set_major_locator(figures.matplotlib.ticker.MaxNLocator(3))
    return figure


def outcomes(histograms: Outcomes, title: str, top: float | None = None) -> Figure:
    """Draws histograms of the confidence of correct, incorrect and noisy examples.

    Each histogram sums to 100 %.

    Args:
      histograms: of one group of runs.
      title: of the figure.
      top: end of the vertical axis, for several figures on one scale.
    """
    with figures.style_context():
        figure = figures.figure(_WIDTH, _HEIGHT + 0.3)
        axes = figure.subplots()
        styles = {"right": "-", "wrong": "--", "noisy": ":"}
        for kind, fraction in histograms.share.items():
            values = histograms.confidence[kind]
            if len(values):
                label = f"{_LABELS[kind]} ({len(values):,}), mean {100 * values.mean():.0f} %"
                axes.stairs(fraction, histograms.edges, color=_KINDS[kind], fill=True, alpha=0.12)
                axes.stairs(
                    fraction,
                    histograms.edges,
                    color=_KINDS[kind],
                    linewidth=1.8,
                    linestyle=styles[kind],
                    label=label,
                )
        axes.set(title=title, xlabel="confidence", ylabel="fraction of the group", xlim=(0, 1))
        axes.set_ylim(0, top)
        _in_percent(axes.xaxis, decimals=0)
        _in_percent(axes.yaxis)
        figure.legend(loc="outside lower center", ncols=1, fontsize=8.5)
    return figure


def risk_coverage(curves: dict[str, Sequence[RiskCoverage]], title: str) -> Figure:
    """Draws the error rate of the most confident predictions against their fraction.

    Thick lines are means over the runs of a name, thin lines single runs.
    """
    with figures.style_context():
        figure = figures.figure(_WIDTH, _HEIGHT)
        axes = figure.subplots()
        top = 0.0
        for (name, runs), color in zip(curves.items(), _colors(len(curves))):
            coverage, risks = runs[0].coverage, np.array([run.risk for run in runs])
            if len(runs) > 1:
                axes.plot(coverage, risks.T, color=color, linewidth=0.6, alpha=0.4)
            area = np.mean([run.area for run in runs])
            axes.plot(
                coverage,
                risks.mean(axis=0),
                color=color,
                linewidth=2,
                label=f"{figures.legend_label(name)}: area {100 * area:.2f} %",
            )
            # Below a coverage of 0.1 the error rate is noisy, so it does not set the scale.
            top = max(top, risks[:, coverage >= 0.1].max())
        axes.set(
            title=title,
            xlabel="coverage: fraction of the most confident predictions",
            ylabel="error rate among them",
        )
        axes.set(xlim=(0, 1), ylim=(0, 1.15 * top or 1))
        _in_percent(axes.xaxis, decimals=0)
        _in_percent(axes.yaxis)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def entropy_parts(splits: dict[str, Sequence[EntropySplit]], title: str, unit: str) -> Figure:
    """Draws the two parts of the mean entropy of predictions, one bar per name.

    Error bars are standard deviations over the runs of a name.

    Args:
      splits: of each run, by name.
      title: of the figure.
      unit: "latent sample" or "member", over which the mean prediction is taken.
    """
    with figures.style_context():
        figure = figures.figure(_WIDTH, 1.3 + 0.55 * max(2, len(splits)))
        axes = figure.subplots()
        names = list(splits)
        means = {
            n: np.array([[np.mean(part) for part in run] for run in runs])
            for n, runs in splits.items()
        }
        total, expected, mutual = np.array([means[n].mean(axis=0) for n in names]).T
        deviations = [m[:, 0].std(ddof=1) if len(m) > 1 else np.nan for m in means.values()]
        positions = np.arange(len(names))
        label = f"mean entropy of a {unit}"
        axes.barh(positions, expected, 0.6, color=figures.COLORS[5], label=label)
        axes.barh(
            positions,
            mutual,
            0.6,
            expected,
            color=figures.COLORS[1],
            hatch="///",
            edgecolor="white",
            linewidth=0,
        )
        axes.barh(
            [0],
            [0],
            color=figures.COLORS[1],
            hatch="///",
            edgecolor="white",
            label="mutual information",
        )
        axes.errorbar(
            total, positions, xerr=deviations, fmt="none", color="black", capsize=3, linewidth=1
        )
        reach = np.nan_to_num(deviations) + total
        for position, x, m in zip(positions, reach, mutual):
            axes.text(
                x + 0.02 * reach.max(),
                position,
                f"{m:.3f}",
                va="center",
                fontsize=8.5,
                color="#8a3c00",
            )
        axes.set(
            title=title,
            xlabel="entropy, nats",
            yticks=positions,
            yticklabels=map(figures.legend_label, names),
        )
        axes.set(xlim=(0, 1.18 * reach.max() or 1), ylim=(len(names) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def curves(
    series: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]], title: str, quantity: str
) -> Figure:
    """Draws a quantity over the epochs.

    Thick lines are means over the runs of a name, thin lines single runs.

    Args:
      series: by name, then by part of the data ("train", "valid"): epochs [t], values [runs, t].
      title: of the figure.
      quantity: label of the vertical axis, with its unit.
    """
    styles = {"train": ":", "valid": "-"}
    with figures.style_context():
        figure = figures.figure(_WIDTH, _HEIGHT)
        axes = figure.subplots()
        for (name, parts), color in zip(series.items(), _colors(len(series))):
            for part, (epochs, values) in parts.items():
                if len(values) > 1:
                    axes.plot(
                        epochs,
                        values.T,
                        color=color,
                        linewidth=0.5,
                        alpha=0.3,
                        linestyle=styles.get(part, "-"),
                    )
                style = dict(color=color, linewidth=1.8, linestyle=styles.get(part, "-"))
                marker = dict(marker="o", markersize=4) if len(epochs) == 1 else {}
                axes.plot(
                    epochs,
                    values.mean(axis=0),
                    label=", ".join(filter(None, (figures.legend_label(name), part))),
                    **style,
                    **marker,
                )
        axes.set(title=title, xlabel="epoch", ylabel=quantity)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def shares(
    lines: dict[str, tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]],
    title: str,
    xlabel: str,
    ylabel: str,
    diagonal: str | None = None,
) -> Figure:
    """Draws shares against shares, both from 0 to 1, one line per name.

    Args:
      lines: x and y by name.
      title: of the figure.
      xlabel: of the x axis.
      ylabel: of the y axis.
      diagonal: name of the line on which both are equal, if it is drawn.
    """
    with figures.style_context():
        figure = figures.figure(_WIDTH, _HEIGHT)
        axes = figure.subplots()
        if diagonal:
            axes.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--", label=diagonal)
        styles = zip(_colors(len(lines)), itertools.cycle("os^D"))
        for (name, (x, y)), (color, marker) in zip(lines.items(), styles):
            settings = dict(color=color, marker=marker, markersize=3.5, markevery=len(x) // 10 or 1)
            axes.plot(x, y, label=figures.legend_label(name), **settings)
        axes.set(title=title, xlabel=xlabel, ylabel=ylabel, xlim=(0, 1), ylim=(0, 1))
        for axis in (axes.xaxis, axes.yaxis):
            _in_percent(axis, decimals=0)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def _in_percent(axis: Any, decimals: int | None = None) -> None:
    axis.set_major_formatter(figures.matplotlib.ticker.PercentFormatter(1, decimals, " %"))


def _colors(number: int) -> list:
    """Distinguishable colours, or a colour scale if there are more names than such colours."""
    if number <= len(figures.COLORS):
        return list(figures.COLORS[:number])
    return [
        figures.matplotlib.colormaps[figures.SEQUENTIAL](x) for x in np.linspace(0, 0.9, number)
    ]
