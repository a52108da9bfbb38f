"""Heat maps of the covariance between classes, from the numbers of analysis/covariance/."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import distance

from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.covariance.examples import ExampleCovariance
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.plots.figures import Figure

_TITLES = {
    "correlation": "correlation of the averaged covariance",
    "seen": "effect on the softmax: mean of $p_i p_j\\,\\mathrm{var}(u_i - u_j)$",
}


def group_map(
    names: Sequence[str],
    rows: Sequence[dict[str, Any]],
    title: str = "",
    measures: Sequence[str] = tuple(_TITLES),
) -> Figure:
    """Draws the correlation of the averaged covariance of a group, beside the measure `seen`.

    Args:
      names: of the classes, in the order of the rows.
      rows: of `pairs.table`, one for each pair of `pairs.group_pairs`. If they hold `labels_mixed`,
        those of these pairs that known_noise.most_confused finds get a frame.
      title: of the figure.
      measures: "correlation", "seen" or both; those that the rows lack are left out.
    """
    columns = {
        name: distance.squareform(np.array([row[name] for row in rows]))
        for name in list(rows[0])[2:]
    }
    panels = {name: _TITLES[name] for name in measures if name in columns}
    names = [figures.short_name(name) for name in names]
    cells, letters = max(3.4, 0.24 * len(names)), 0.075 * max(map(len, names))
    with figures.style_context():
        figure = figures.figure(len(panels) * (cells + letters + 1.2), cells + letters + 1.3)
        framed = (
            np.argwhere(known_noise.most_confused(columns["labels_mixed"]))
            if "labels_mixed" in columns
            else []
        )
        subplots = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (name, panel_title) in zip(subplots, panels.items()):
            axes.set_title(panel_title, fontsize=12, parse_math=True)
            if name == "correlation":
                _draw_matrix(figure, axes, columns[name] + np.eye(len(names)), names, 1.0, "")
            else:
                _draw_matrix(figure, axes, columns[name], names, None, "squared units of utility")
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
        note = "\nframed: those of these pairs with the most label confusion" if len(framed) else ""
        figure.suptitle(title + note, fontsize=13)
    return figure


def confusion_map(
    names: Sequence[str], percent: Float[np.ndarray, "c c"], title: str, top: float
) -> Figure:
    """Draws a confusion matrix; the diagonal has numbers without a colour.

    Args:
      names: of the classes.
      percent: of each true class (rows) that is predicted as each class (columns).
      title: of the figure.
      top: end of the colour scale, for several figures on one scale.
    """
    names = [figures.short_name(name) for name in names]
    size = max(3.4, 0.36 * len(names)) + 0.075 * max(map(len, names))
    with figures.style_context():
        figure = figures.figure(size + 1.2, size + 0.4)
        axes = figure.subplots()
        _draw_matrix(figure, axes, percent, names, None, "percent of the true class", top)
        for i in np.flatnonzero(np.isfinite(np.diagonal(percent))) if len(names) <= 12 else ():
            text = _number(percent[i, i])
            axes.text(i, i, text, ha="center", va="center", fontsize=8, weight="bold")
        axes.set(title=title, xlabel="predicted class", ylabel="true class")
    return figure


def example_map(example: ExampleCovariance, class_names: Sequence[str], title: str = "") -> Figure:
    """Draws an example beside the covariance of its utilities."""
    percentages = [f"{p:.0%}" if p >= 0.005 else "<1%" for p in example.probs]
    names = [
        f"{figures.short_name(class_names[i])}  {percentage}"
        for i, percentage in zip(example.classes, percentages)
    ]
    size = max(3.4, 0.36 * len(names)) + 0.09 * max(map(len, names))
    with figures.style_context():
        figure = figures.figure(size + 3.6, size + 0.4)
        image_axes, matrix_axes = figure.subplots(1, 2, width_ratios=(2.2, size))
        if figures.are_images(example.image[None]):
            image = example.image if example.image.shape[-1] == 3 else example.image[..., 0]
            image_axes.imshow(image, cmap="gray")
        image_axes.set_axis_off()
        labels, clean = (
            ", ".join(class_names[i] for i in x) or "none"
            for x in (example.labels, example.clean_labels)
        )
        caption = f"label: {labels}"
        if clean not in (labels, "none"):  # none: the clean label is unknown
            caption += f"\nclean label: {clean}"
        image_axes.set_title(
            "\n".join(
                textwrap.fill(line, 26, max_lines=4, placeholder=" …")
                for line in caption.split("\n")
            ),
            fontsize=10,
        )
        limit = np.abs(example.covariance).max()
        label = "covariance, squared units of utility"
        _draw_matrix(figure, matrix_axes, example.covariance, names, limit, label)
        figure.suptitle(title, fontsize=13)
    return figure


def _draw_matrix(
    figure: Figure,
    axes: Any,
    values: Float[np.ndarray, "c c"],
    names: Sequence[str],
    limit: float | None,
    label: str,
    top: float | None = None,
) -> None:
    """Draws a matrix with class names.

    Colours run from -limit to limit; if the limit is None from 0 to top, or to the largest value,
    without the diagonal.
    """
    few = len(names) <= 12
    if limit is None:
        values = np.where(np.eye(len(values), dtype=bool), np.nan, values)
        settings = dict(cmap=figures.SEQUENTIAL, vmin=0, vmax=top or None)
    else:
        settings = dict(cmap=figures.DIVERGING, vmin=-limit or -1, vmax=limit or 1)
    image = axes.imshow(values, **settings)
    axes.grid(False)
    axes.set_facecolor("0.85")  # for missing values
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=10 if few else 9)
    axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(len(names)), names)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02).set_label(label)
    if few:
        size = 8 if len(names) <= 10 else 7
        for i, j in zip(*np.nonzero(np.isfinite(values))):
            red, green, blue, _ = image.cmap(image.norm(values[i, j]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            axes.text(
                j,
                i,
                _number(values[i, j]),
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "black",
            )


def _number(value: float) -> str:
    """A number with two digits in at most four characters."""
    if abs(value) >= 1:
        return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
    text = f"{value:.2f}"
    return "0" if float(text) == 0 else text.replace("0.", ".", 1)
