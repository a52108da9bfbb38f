"""Sheets of images with a caption below each. Requires the extra `analysis`."""

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from heteroscedastic.analysis.plots import figures

_IMAGE_WIDTH, _LINE_HEIGHT, _TITLE_HEIGHT = 1.55, 0.145, 0.5  # inches
_LINE_LENGTH = 22  # characters in a line of a caption
_MAX_LINES = 6  # into which one line of a caption is wrapped


def sheet(
    images: Shaped[np.ndarray, "..."],
    captions: Sequence[str],
    *,
    title: str = "",
    num_columns: int = 6,
) -> figures.Figure:
    """A figure of images, row by row.

    Args:
      images: uint8 [n, height, width, channels] with 1 channel (grey) or 3 (red, green, blue); a
        fourth one (opacity) is not drawn.
      captions: text below each image; long lines are wrapped.
      title: of the figure.
      num_columns: images per row, at least 1.

    Raises:
      ValueError: there are no images, they have another shape or type, or captions are missing.
    """
    if images.ndim == 4 and images.shape[-1] == 4:
        images = images[..., :3]
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
        raise ValueError(
            f"images are {images.dtype} {images.shape}, but must be uint8 [n, height, width,"
            " channels] with 1 channel (grey) or 3 (red, green, blue)."
        )
    if not len(images) or len(images) != len(captions) or num_columns < 1:
        raise ValueError(
            f"there are {len(images)} images, {len(captions)} captions and {num_columns} columns;"
            " a sheet requires a caption for each image, and at least one image and one column."
        )
    captions = [
        "\n".join(_wrapped(line, _LINE_LENGTH) for line in text.splitlines()) for text in captions
    ]
    num_columns = min(num_columns, len(images))
    num_rows = -(-len(images) // num_columns)
    num_lines = 1 + max(text.count("\n") for text in captions)
    _, height, width, num_channels = images.shape
    row_height = _IMAGE_WIDTH * height / width + _LINE_HEIGHT * num_lines
    with figures.style_context():
        figure = figures.figure(
            max(_IMAGE_WIDTH * num_columns, 4.0),
            num_rows * row_height + (_TITLE_HEIGHT if title else 0.1),
        )
        if title:
            figure.suptitle(_wrapped(title, max(40, 20 * num_columns)), fontsize=11)
        subplots = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
        for axes in subplots:
            axes.set_axis_off()
        for axes, image, text in zip(subplots, images, captions):
            grey = num_channels == 1
            axes.imshow(
                image[..., 0] if grey else image,
                cmap="gray" if grey else None,
                vmin=0,
                vmax=_white(images),
            )
            axes.text(
                0.5,
                -0.04,
                text,
                transform=axes.transAxes,
                ha="center",
                va="top",
                fontsize=8,
                linespacing=1.15,
            )
    return figure


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, max_lines=_MAX_LINES, placeholder=" …")


def _white(images: np.ndarray) -> int:
    """The largest pixel value, because not every greyscale data set uses values up to 255."""
    return max(1, int(images.max()))
