"""Maps over images, row by row. Requires the extra `analysis`."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, UInt8

from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.plots.figures import Figure

_WIDTH, _LINE_HEIGHT, _TITLE_HEIGHT = 1.7, 0.15, 0.45  # inches
_LINE_LENGTH, _MAX_LINES = 25, 6  # of a caption
_STRENGTH = 0.65  # of a map over its image


class Cell(NamedTuple):
    """An image, a map over it, and the text below both."""

    image: UInt8[np.ndarray, "H W c"]  # 1 or 3 channels
    map: Float[np.ndarray, "h w"] | None
    caption: str


def grid(rows: Sequence[Sequence[Cell | None]], title: str = "") -> Figure:
    """A figure with a row of cells per example; None leaves a cell empty.

    A column whose maps have no negative values is drawn from dark (0) to bright (the maximum).
    Maps of another column are drawn in blue where they are negative and in red where they are
    positive, with 0 in between. Each map has its own scale; its caption states the numbers.

    Args:
      rows: of equal length.
      title: of the figure.

    Raises:
      ValueError: there are no cells, or rows have different lengths.
    """
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"rows have {sorted(lengths)} cells; give rows of one length, at least 1.")
    (num_columns,) = lengths
    cells = [cell for row in rows for cell in row if cell is not None]
    num_lines = max(_caption(cell).count("\n") for cell in cells) + 1
    height, width = cells[0].image.shape[:2]
    image_height, caption_height = _WIDTH * height / width, _LINE_HEIGHT * num_lines
    title_height = _TITLE_HEIGHT if title else 0
    total = len(rows) * (image_height + caption_height) + title_height
    with figures.style_context():
        figure = figures.figure(max(_WIDTH * num_columns, 4.0), total)
        if title:
            figure.suptitle(textwrap.fill(title, max(40, 20 * num_columns)), fontsize=11)
        figure.set_layout_engine("none")  # captions lie outside of what a layout measures
        subplots = figure.subplots(
            len(rows),
            num_columns,
            squeeze=False,
            gridspec_kw=dict(
                left=0.01,
                right=0.99,
                wspace=0.05,
                hspace=caption_height / image_height,
                bottom=caption_height / total,
                top=1 - title_height / total,
            ),
        )
        for column, cells_of_column in zip(subplots.T, zip(*rows)):
            is_signed = any(_is_signed(cell) for cell in cells_of_column)
            for axes, cell in zip(column, cells_of_column):
                axes.set_axis_off()
                if cell is not None:
                    _draw(axes, cell, is_signed)
    return figure


def _is_signed(cell: Cell | None) -> bool:
    return cell is not None and cell.map is not None and bool(np.min(cell.map) < 0)


def _draw(axes, cell: Cell, is_signed: bool) -> None:
    grey = cell.image.mean(axis=-1)
    if cell.map is None:
        is_grey = cell.image.shape[-1] not in (3, 4)
        axes.imshow(grey if is_grey else cell.image, cmap="gray" if is_grey else None)
    else:
        axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
        values = np.asarray(jax.image.resize(cell.map, grey.shape, "linear"))
        largest = float(np.abs(values).max()) or 1.0
        axes.imshow(
            values,
            cmap=figures.DIVERGING if is_signed else figures.SEQUENTIAL,
            vmin=-largest if is_signed else 0.0,
            vmax=largest,
            alpha=_STRENGTH,
        )
    axes.text(
        0.5,
        -0.04,
        _caption(cell),
        transform=axes.transAxes,
        ha="center",
        va="top",
        fontsize=8,
        linespacing=1.15,
    )


def _caption(cell: Cell) -> str:
    lines = cell.caption.splitlines() or [""]
    return "\n".join(
        textwrap.fill(x, _LINE_LENGTH, max_lines=_MAX_LINES, placeholder=" …") for x in lines
    )
