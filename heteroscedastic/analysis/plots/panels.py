"""Pictures of confidence, uncertainty and training, one panel each: small enough for a phone, and
for a slide.

Each takes numbers that another module made, and draws them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.plots.figures import Figure
from heteroscedastic.analysis.uncertainty.confidence import Diagram, Outcomes
from heteroscedastic.calibration.selective import RiskCoverage
from heteroscedastic.ensembles import EntropySplit
from heteroscedastic.links import Link

_WIDTH, _HEIGHT = 4.6, 3.4  # inches
# examples in a bin, each once however many runs there are, below which its share says little
FEW = 10
_KINDS = {"right": figures.COLORS[0], "wrong": figures.COLORS[1], "noisy": figures.COLORS[3]}
_LABELS = {"right": "right", "wrong": "wrong", "noisy": "label known to be wrong"}


def reliability(diagrams: dict[str, Diagram], title: str, link: Link = "softmax") -> Figure:
    """Accuracy against confidence with bands, and how many predictions each bin holds below it.

    Args:
      diagrams: by what they are called, such as before and after scaling.
      title: of the picture.
      link: "sigmoid" where they are of yes/no answers.
    """
    with figures.styled():
        drawn = figures.figure(_WIDTH, 4.7)
        upper, lower = drawn.subplots(2, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--", label="perfect")
        for (name, told), color, marker in zip(diagrams.items(), figures.COLORS, "os^D"):
            many, few = told.examples >= FEW, (told.examples > 0) & (told.examples < FEW)
            x = told.confidence[many]
            upper.fill_between(
                x, told.low[many], told.high[many], color=color, alpha=0.18, linewidth=0
            )
            label = f"{figures.label(name)}: ECE {100 * told.error:.1f} %"
            upper.plot(
                x, told.accuracy[many], color=color, marker=marker, markersize=3.5, label=label
            )
            hollow = dict(
                color=color,
                marker=marker,
                markersize=3.5,
                linestyle="none",
                fillstyle="none",
                alpha=0.7,
            )
            if few.any():  # an empty line that is not clipped would upset the layout
                upper.plot(told.confidence[few], told.accuracy[few], clip_on=False, **hollow)
            share = told.count / told.count.sum()
            lower.stairs(share, told.edges, color=color, fill=True, alpha=0.15)
            lower.stairs(share, told.edges, color=color, linewidth=1.4)
        upper.set(
            title=title,
            ylabel="how often yes holds" if link == "sigmoid" else "accuracy",
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
        drawn.legend(loc="outside lower center", ncols=2, fontsize=8.5)
        stated = "stated probability of yes" if link == "sigmoid" else "confidence"
        lower.set(xlabel=stated, ylabel="share")
        for axis in (upper.xaxis, upper.yaxis):
            _in_percent(axis, decimals=0)
        _in_percent(lower.yaxis)
        lower.yaxis.set_major_locator(figures.matplotlib.ticker.MaxNLocator(3))
    return drawn


def outcomes(told: Outcomes, title: str) -> Figure:
    """Histograms of the confidence of right, wrong and noisy examples; each kind adds up to 100 %."""
    with figures.styled():
        drawn = figures.figure(_WIDTH, _HEIGHT + 0.3)
        axes = drawn.subplots()
        styles = {"right": "-", "wrong": "--", "noisy": ":"}
        for kind, share in told.share.items():
            values = told.confidence[kind]
            if len(values):
                label = f"{_LABELS[kind]} ({len(values):,}), mean {100 * values.mean():.0f} %"
                axes.stairs(share, told.edges, color=_KINDS[kind], fill=True, alpha=0.12)
                axes.stairs(
                    share,
                    told.edges,
                    color=_KINDS[kind],
                    linewidth=1.8,
                    linestyle=styles[kind],
                    label=label,
                )
        axes.set(title=title, xlabel="confidence", ylabel="share of the kind", xlim=(0, 1))
        _in_percent(axes.xaxis, decimals=0)
        _in_percent(axes.yaxis)
        drawn.legend(loc="outside lower center", ncols=1, fontsize=8.5)
    return drawn


def risk_coverage(curves: dict[str, Sequence[RiskCoverage]], title: str) -> Figure:
    """Error among the most confident: of each name the mean of its runs, and thin every run of
    several.
    """
    with figures.styled():
        drawn = figures.figure(_WIDTH, _HEIGHT)
        axes = drawn.subplots()
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
                label=f"{figures.label(name)}: area {100 * area:.2f} %",
            )
            # The few most confident alone jump about; they shall not set the scale.
            top = max(top, risks[:, coverage >= 0.1].max())
        axes.set(
            title=title, xlabel="share answered, most confident first", ylabel="error among them"
        )
        axes.set(xlim=(0, 1), ylim=(0, 1.15 * top or 1))
        _in_percent(axes.xaxis, decimals=0)
        _in_percent(axes.yaxis)
        drawn.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return drawn


def entropy_parts(splits: dict[str, Sequence[EntropySplit]], title: str, of: str) -> Figure:
    """Mean entropy of the prediction, cut in two, a bar a name; over several runs with their
    spread.

    Args:
      splits: of each run, by name.
      title: of the picture.
      of: what the mutual information is of: "latent sample" or "member".
    """
    with figures.styled():
        drawn = figures.figure(_WIDTH, 1.3 + 0.55 * max(2, len(splits)))
        axes = drawn.subplots()
        names = list(splits)
        means = {
            n: np.array([[np.mean(part) for part in run] for run in runs])
            for n, runs in splits.items()
        }
        total, expected, mutual = np.array([means[n].mean(axis=0) for n in names]).T
        deviations = [m[:, 0].std(ddof=1) if len(m) > 1 else np.nan for m in means.values()]
        places = np.arange(len(names))
        axes.barh(places, expected, 0.6, color=figures.COLORS[5], label=f"within a {of}")
        axes.barh(
            places,
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
            total, places, xerr=deviations, fmt="none", color="black", capsize=3, linewidth=1
        )
        reach = np.nan_to_num(deviations) + total
        for place, x, m in zip(places, reach, mutual):
            axes.text(
                x + 0.02 * reach.max(),
                place,
                f"{m:.3f}",
                va="center",
                fontsize=8.5,
                color="#8a3c00",
            )
        axes.set(
            title=title,
            xlabel="entropy, nats",
            yticks=places,
            yticklabels=map(figures.label, names),
        )
        axes.set(xlim=(0, 1.18 * reach.max() or 1), ylim=(len(names) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        drawn.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return drawn


def curves(
    told: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]], title: str, quantity: str
) -> Figure:
    """A quantity over the epochs: of each name its mean over runs, thin every run of several.

    Args:
      told: by name, then by part of the data ("train", "valid"): epochs [t], values [runs, t].
      title: of the picture.
      quantity: with its unit, along the vertical axis.
    """
    styles = {"train": ":", "valid": "-"}
    with figures.styled():
        drawn = figures.figure(_WIDTH, _HEIGHT)
        axes = drawn.subplots()
        for (name, parts), color in zip(told.items(), _colors(len(told))):
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
                    label=", ".join(filter(None, (figures.label(name), part))),
                    **style,
                    **marker,
                )
        axes.set(title=title, xlabel="epoch", ylabel=quantity)
        drawn.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return drawn


def _in_percent(axis: Any, decimals: int | None = None) -> None:
    axis.set_major_formatter(figures.matplotlib.ticker.PercentFormatter(1, decimals, " %"))


def _colors(number: int) -> list:
    """As many colours: the told-apart ones, or where there are more a scale."""
    if number <= len(figures.COLORS):
        return list(figures.COLORS[:number])
    return [
        figures.matplotlib.colormaps[figures.SEQUENTIAL](x) for x in np.linspace(0, 0.9, number)
    ]
