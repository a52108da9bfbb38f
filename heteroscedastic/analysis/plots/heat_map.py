"""Heat maps of what ties classes together.

Numbers come from covariance.py, pairs.py and example_covariance.py.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.spatial import distance

from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.covariance.examples import Example
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.plots.figures import Figure

_TITLES = {
    "correlation": "correlation of the averaged covariance",
    "seen": "what labels show: mean of $p_i p_j\\,\\mathrm{var}(u_i - u_j)$",
}


def of_group(
    names: Sequence[str],
    rows: Sequence[dict[str, Any]],
    title: str = "",
    shown: Sequence[str] = tuple(_TITLES),
) -> Figure:
    """The correlation of the averaged covariance of a group of classes and, beside it, what labels
    show of it.

    Args:
      names: of the classes, in the order that is drawn.
      rows: what `pairs.table` tells of each pair of `pairs.within`; of those with
        `labels_mixed` > 0 the ones of known_noise.most_mixed get a frame.
      title: over all.
      shown: which of "correlation" and "seen", where the rows have them.
    """
    columns = {
        name: distance.squareform(np.array([row[name] for row in rows]))
        for name in list(rows[0])[2:]
    }
    panels = {name: _TITLES[name] for name in shown if name in columns}
    names = [figures.short(name) for name in names]
    cells, letters = max(3.4, 0.24 * len(names)), 0.075 * max(map(len, names))
    with figures.styled():
        drawn = figures.figure(len(panels) * (cells + letters + 1.2), cells + letters + 1.3)
        framed = (
            np.argwhere(known_noise.most_mixed(columns["labels_mixed"]))
            if "labels_mixed" in columns
            else []
        )
        for axes, (name, words) in zip(
            drawn.subplots(1, len(panels), squeeze=False)[0], panels.items()
        ):
            axes.set_title(words, fontsize=12, parse_math=True)
            if name == "correlation":
                _matrix(drawn, axes, columns[name] + np.eye(len(names)), names, 1.0, "")
            else:
                _matrix(drawn, axes, columns[name], names, None, "squared units of utility")
            color = "black" if name == "correlation" else "white"
            for i, j in framed:
                frame = figures.matplotlib.patches.Rectangle(
                    (j - 0.5, i - 0.5),
                    1,
                    1,
                    fill=False,
                    linewidth=2,
                    edgecolor=color,
                    clip_on=False,
                )
                axes.add_patch(frame)
        drawn.suptitle(
            title + ("\nframed: labels known to be mixed most" if len(framed) else ""), fontsize=13
        )
    return drawn


def of_example(example: Example, class_names: Sequence[str], title: str = "") -> Figure:
    """An example, and the covariance of its utilities."""
    shares = [f"{p:.0%}" if p >= 0.005 else "<1%" for p in example.probs]
    names = [
        f"{figures.short(class_names[i])}  {share}" for i, share in zip(example.classes, shares)
    ]
    size = max(3.4, 0.36 * len(names)) + 0.09 * max(map(len, names))
    with figures.styled():
        drawn = figures.figure(size + 3.6, size + 0.4)
        picture, matrix = drawn.subplots(1, 2, width_ratios=(2.2, size))
        image = example.image if example.image.shape[-1] == 3 else example.image[..., 0]
        picture.imshow(image, cmap="gray")
        picture.set_axis_off()
        labels, clean = (
            ", ".join(class_names[i] for i in x) or "none"
            for x in (example.labels, example.clean_labels)
        )
        told = f"label: {labels}"
        if clean not in (labels, "none"):  # none is not known
            told += f"\nclean label: {clean}"
        picture.set_title(
            "\n".join(
                textwrap.fill(line, 26, max_lines=4, placeholder=" …") for line in told.split("\n")
            ),
            fontsize=10,
        )
        limit = np.abs(example.covariance).max()
        _matrix(
            drawn, matrix, example.covariance, names, limit, "covariance, squared units of utility"
        )
        drawn.suptitle(title, fontsize=13)
    return drawn


def _matrix(
    drawn: Figure, axes: Any, values, names: Sequence[str], limit: float | None, label: str
) -> None:
    """A matrix with its classes; of both signs up to the limit, or from 0 off the diagonal where
    there is none.
    """
    few = len(names) <= 12
    if limit is None:
        values = np.where(np.eye(len(values), dtype=bool), np.nan, values)
        settings = dict(cmap=figures.SEQUENTIAL, vmin=0)
    else:
        settings = dict(cmap=figures.DIVERGING, vmin=-limit or -1, vmax=limit or 1)
    shown = axes.imshow(values, **settings)
    axes.grid(False)
    axes.set_facecolor("0.85")  # where there is no value
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=10 if few else 9)
    axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(len(names)), names)
    drawn.colorbar(shown, ax=axes, fraction=0.046, pad=0.02).set_label(label)
    if few:
        size = 8 if len(names) <= 10 else 7
        for i, j in zip(*np.nonzero(np.isfinite(values))):
            red, green, blue, _ = shown.cmap(shown.norm(values[i, j]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            told = _number(values[i, j])
            axes.text(
                j,
                i,
                told,
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "black",
            )


def _number(value: float) -> str:
    """Two digits, in four letters."""
    if abs(value) >= 1:
        return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
    told = f"{value:.2f}"
    return "0" if float(told) == 0 else told.replace("0.", ".", 1)
