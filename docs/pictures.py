"""Draws the figures of the documentation from a complete run on planted noise.

python docs/pictures.py --run=runs/digits_het_full --only overview
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.analysis.covariance import known_noise, summary
from heteroscedastic.analysis.errors import label_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.runs import loaded_run

_NAMES = ("lynx", "wildcat", "tabby")
# Two similar classes with opposite noise: evidence for one is evidence against the other.
_LATENT = LatentGaussian(
    loc=jnp.array([1.6, 0.6, -0.8]),
    scale_diag=jnp.array([0.4, 0.4, 0.4]),
    factor_loadings=jnp.array([[1.5], [-1.5], [0.2]]),
)
_TEMPERATURE = 0.5
_ROWS, _COLUMNS = 3, 5  # of suspicious labels


def method() -> Figure:
    """Samples of the utilities of one image, and the resulting probabilities."""
    tempered = latent_lib.temper(_LATENT, _TEMPERATURE)
    samples = np.asarray(latent_lib.sample(jax.random.key(0), _LATENT, 512, "sobol"))
    averaged = np.exp(
        predictive.softmax(jax.random.key(0), tempered, num_samples=4096, points="sobol")
    )
    plain = np.asarray(jax.nn.softmax(tempered.loc))
    with figures.style_context():
        figure = figures.figure(8.4, 3.4)
        cloud, bars = figure.subplots(1, 2, width_ratios=(1.15, 1))
        winner = samples.argmax(axis=1)
        for i, name in enumerate(_NAMES):
            subset = samples[winner == i]
            cloud.scatter(
                subset[:, 0], subset[:, 1], s=7, color=figures.COLORS[i], label=f"{name} is largest"
            )
        angles = np.linspace(0, 2 * np.pi, 200)
        root = np.linalg.cholesky(np.asarray(latent_lib.covariance(_LATENT))[:2, :2])
        for radius in (1, 2):
            ring = np.asarray(_LATENT.loc)[:2, None] + radius * root @ np.stack(
                [np.cos(angles), np.sin(angles)]
            )
            cloud.plot(*ring, color="black", linewidth=1, alpha=0.7)
        cloud.plot(*np.asarray(_LATENT.loc)[:2], "k+", markersize=10)
        cloud.annotate(
            "loc",
            np.asarray(_LATENT.loc)[:2],
            (28, 28),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-"},
        )
        cloud.set(
            xlabel=f"utility of {_NAMES[0]}",
            ylabel=f"utility of {_NAMES[1]}",
            title="u ~ N(loc, Σ), one image",
        )
        cloud.legend(loc="lower left", fontsize=8, markerscale=1.5)
        positions = np.arange(len(_NAMES))
        bars.bar(positions - 0.2, plain, 0.38, color="0.7", label="softmax(loc / T)")
        bars.bar(
            positions + 0.2,
            averaged,
            0.38,
            color=figures.COLORS[: len(_NAMES)],
            label="E softmax(u / T)",
        )
        for position, value in zip(
            np.concatenate([positions - 0.2, positions + 0.2]), np.concatenate([plain, averaged])
        ):
            bars.annotate(
                f"{value:.2f}",
                (position, value),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        bars.set(
            xticks=positions,
            xticklabels=_NAMES,
            ylim=(0, 1.05),
            title="probabilities: plain (grey), averaged",
        )
        bars.grid(axis="x", visible=False)
    return figure


def overview(directory: str, data_dir: str | None) -> Figure:
    """The covariance that a run has learned, beside its most suspicious training labels.

    As the commands do by default, the covariance is that of the last checkpoint, and the labels
    are ranked by the best one.
    """
    last = loaded_run.load(directory, "last", data_dir)
    centred, known = summary.measures(last).centred, known_noise.confusion_matrix(last.dataset)
    labels = label_errors.label_scores(loaded_run.load(directory, "best", data_dir), "train")
    top = label_errors.suspicion_order(labels)[: _ROWS * _COLUMNS]
    names = figures.class_names(last.dataset)
    with figures.style_context():
        drawn = figures.figure(10.0, 4.4)
        left, right = drawn.subfigures(1, 2, width_ratios=(1, 1.15))
        axes = left.subplots()
        values = np.where(np.eye(len(centred), dtype=bool), np.nan, centred)
        most = np.nanmax(np.abs(values))
        image = axes.imshow(values, cmap=figures.DIVERGING, vmin=-most, vmax=most)
        for i, j in np.argwhere(known > 0):
            axes.add_patch(_frame(i, j))
        axes.set(xticks=range(len(names)), yticks=range(len(names)))
        axes.set_title(
            "Learned covariance of the classes\n(centred; confused pairs framed)", fontsize=10
        )
        axes.set_xticklabels(names, fontsize=8, rotation=90)
        axes.set_yticklabels(names, fontsize=8)
        axes.grid(visible=False)
        left.colorbar(image, ax=axes, shrink=0.8)
        wrong = int(labels.is_wrong[top].sum())
        right.suptitle(
            f"Most suspicious training labels\n({wrong} of these {len(top)} are wrong;"
            f" {100 * labels.is_wrong.mean():.0f} % of all are)",
            fontsize=10,
        )
        for cell, row in zip(right.subplots(_ROWS, _COLUMNS).ravel(), top):
            cell.set_axis_off()
            cell.imshow(labels.images[row, ..., 0], cmap="gray_r")
            given, clean = names[labels.labels[row]], names[labels.clean_labels[row]]
            color = figures.COLORS[1] if labels.is_wrong[row] else "black"
            cell.set_title(f"label: {given}\ntrue: {clean}", fontsize=7, color=color, pad=2)
    return drawn


def identifiability(directory: str, data_dir: str | None) -> Figure:
    """Measures of the pairs of classes of a run, with frames around the confused pairs."""
    run = loaded_run.load(directory, "best", data_dir)
    measured, known = summary.measures(run), known_noise.confusion_matrix(run.dataset)
    names = figures.class_names(run.dataset)
    panels = {
        "covariance": (measured.covariance, figures.DIVERGING),
        "var(uᵢ \u2212 uⱼ)": (measured.difference, figures.SEQUENTIAL),
        "seen: pᵢpⱼ var(uᵢ \u2212 uⱼ)": (measured.seen, figures.SEQUENTIAL),
    }
    with figures.style_context():
        figure = figures.figure(10.5, 3.1)
        for axes, (title, (values, colors)) in zip(figure.subplots(1, 3), panels.items()):
            off = values[~np.eye(len(values), dtype=bool)]
            low = -np.abs(off).max() if colors == figures.DIVERGING else 0.0
            values = np.where(np.eye(len(values), dtype=bool), np.nan, values)
            image = axes.imshow(values, cmap=colors, vmin=low, vmax=np.abs(off).max())
            for i, j in np.argwhere(known > 0):
                axes.add_patch(_frame(i, j))
            axes.set(xticks=range(len(names)), yticks=range(len(names)), title=title)
            axes.set_xticklabels(names, fontsize=8, rotation=90)
            axes.set_yticklabels(names, fontsize=8)
            axes.grid(visible=False)
            figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _frame(row: int, column: int) -> Rectangle:
    return Rectangle(
        (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=figures.COLORS[1], linewidth=2
    )


def main() -> None:
    """Writes the figures to the directory of the documentation."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", required=True, help="directory of the run")
    parser.add_argument("--data_dir")
    parser.add_argument("--out", default=Path(__file__).parent, type=Path)
    parser.add_argument("--only", nargs="+", default=list(_PICTURES), choices=_PICTURES)
    flags = parser.parse_args()
    for name in flags.only:
        figures.write(_PICTURES[name](flags.run, flags.data_dir), flags.out / name)


_PICTURES = {
    "overview": overview,
    "method": lambda directory, data_dir: method(),
    "identifiability": identifiability,
}

if __name__ == "__main__":
    main()
