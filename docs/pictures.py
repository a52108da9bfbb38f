"""Draws the pictures of these pages: python docs/pictures.py --run=DIR, of a finished run on
planted noise.
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
from heteroscedastic.analysis.plots import figures
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.runs import loaded_run

_NAMES = ("lynx", "wildcat", "tabby")
# Two look-alikes whose noise is opposite, as what speaks for one speaks against the other.
_LATENT = LatentGaussian(
    loc=jnp.array([1.6, 0.6, -0.8]),
    scale_diag=jnp.array([0.4, 0.4, 0.4]),
    factor_loadings=jnp.array([[1.5], [-1.5], [0.2]]),
)
_TEMPERATURE = 0.5


def method() -> Figure:
    """Utilities of one image as a cloud, and the probabilities that follow."""
    tempered = latent_lib.temper(_LATENT, _TEMPERATURE)
    samples = np.asarray(latent_lib.sample(jax.random.key(0), _LATENT, 512, "sobol"))
    averaged = np.exp(
        predictive.softmax(jax.random.key(0), tempered, num_samples=4096, points="sobol")
    )
    plain = np.asarray(jax.nn.softmax(tempered.loc))
    with figures.style_context():
        drawn = figures.figure(8.4, 3.4)
        cloud, bars = drawn.subplots(1, 2, width_ratios=(1.15, 1))
        winner = samples.argmax(axis=1)
        for i, name in enumerate(_NAMES):
            chosen = samples[winner == i]
            cloud.scatter(
                chosen[:, 0], chosen[:, 1], s=7, color=figures.COLORS[i], label=f"{name} is largest"
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
            title="u ~ N(loc, S), one image",
        )
        cloud.legend(loc="lower left", fontsize=8, markerscale=1.5)
        places = np.arange(len(_NAMES))
        bars.bar(places - 0.2, plain, 0.38, color="0.7", label="softmax(loc / T)")
        bars.bar(
            places + 0.2,
            averaged,
            0.38,
            color=figures.COLORS[: len(_NAMES)],
            label="E softmax(u / T)",
        )
        for place, value in zip(
            np.concatenate([places - 0.2, places + 0.2]), np.concatenate([plain, averaged])
        ):
            bars.annotate(
                f"{value:.2f}",
                (place, value),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        bars.set(
            xticks=places,
            xticklabels=_NAMES,
            ylim=(0, 1.05),
            title="probabilities: plain (grey), averaged",
        )
        bars.grid(axis="x", visible=False)
    return drawn


def identifiability(directory: str, data_dir: str | None) -> Figure:
    """What is measured of the pairs of classes of a run, with the confused ones framed."""
    run = loaded_run.load(directory, "best", data_dir)
    measured, known = summary.measures(run), known_noise.confusion_matrix(run.dataset)
    names = figures.class_names(run.dataset)
    shown = {
        "covariance": (measured.covariance, figures.DIVERGING),
        "var(u_i - u_j)": (measured.difference, figures.SEQUENTIAL),
        "seen: p_i p_j var(u_i - u_j)": (measured.seen, figures.SEQUENTIAL),
    }
    with figures.style_context():
        drawn = figures.figure(10.5, 3.6)
        for axes, (title, (values, colors)) in zip(drawn.subplots(1, 3), shown.items()):
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
            drawn.colorbar(image, ax=axes, shrink=0.8)
    return drawn


def _frame(row: int, column: int) -> Rectangle:
    return Rectangle(
        (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=figures.COLORS[1], linewidth=2
    )


def main() -> None:
    """Writes the pictures beside the pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--data_dir")
    parser.add_argument("--out", default=Path(__file__).parent, type=Path)
    flags = parser.parse_args()
    for name, drawn in {
        "method": method(),
        "identifiability": identifiability(flags.run, flags.data_dir),
    }.items():
        figures.write(drawn, flags.out / name)


if __name__ == "__main__":
    main()
