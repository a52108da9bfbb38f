"""Images in rows with a few words below each: for a slide, a page or a look. Needs the extra
`analysis`.
"""

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from heteroscedastic.analysis.plots import figures

_WIDTH, _LINE, _MARGIN = (
    1.55,
    0.145,
    0.5,
)  # of an image, of a line of its caption, of the title; inches
_CHARACTERS = 22  # of a line of a caption
_MOST_LINES = 6  # that one line of words becomes


def sheet(
    images: Shaped[np.ndarray, "..."],
    captions: Sequence[str],
    *,
    title: str = "",
    num_columns: int = 6,
) -> figures.Figure:
    """A figure of the images, row by row.

    Args:
      images: uint8 [n, height, width, channels], grey (one channel) or red, green and blue (three).
      captions: below each image; a line that is too long is broken.
      title: above all of them.
      num_columns: of images, >= 1.

    Raises:
      ValueError: there is nothing to draw, or it is no images, or captions are missing.
    """
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
        raise ValueError(
            f"images are {images.dtype} {images.shape}, but must be uint8 [n, height, width,"
            " channels] with 1 channel"
            " (grey) or 3 (red, green, blue)."
        )
    if not len(images) or len(images) != len(captions) or num_columns < 1:
        raise ValueError(
            f"there are {len(images)} images, {len(captions)} captions and {num_columns} columns;"
            " each image needs a"
            " caption, and there must be one image and one column or more."
        )
    captions = [
        "\n".join(_wrapped(line, _CHARACTERS) for line in text.splitlines()) for text in captions
    ]
    num_columns = min(num_columns, len(images))
    num_rows = -(-len(images) // num_columns)
    num_lines = 1 + max(text.count("\n") for text in captions)
    _, height, width, num_channels = images.shape
    with figures.styled():
        drawn = figures.figure(
            max(_WIDTH * num_columns, 4.0),
            num_rows * (_WIDTH * height / width + _LINE * num_lines) + (_MARGIN if title else 0.1),
        )
        if title:
            drawn.suptitle(_wrapped(title, max(40, 20 * num_columns)), fontsize=11)
        places = drawn.subplots(num_rows, num_columns, squeeze=False).ravel()
        for place in places:
            place.set_axis_off()
        for place, image, text in zip(places, images, captions):
            grey = num_channels == 1
            place.imshow(
                image[..., 0] if grey else image,
                cmap="gray" if grey else None,
                vmin=0,
                vmax=_white(images),
            )
            place.text(
                0.5,
                -0.04,
                text,
                transform=place.transAxes,
                ha="center",
                va="top",
                fontsize=8,
                linespacing=1.15,
            )
    return drawn


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, max_lines=_MOST_LINES, placeholder=" …")


def _white(images: np.ndarray) -> int:
    """The largest value there is, as not every grey image reaches to 255."""
    return max(1, int(images.max()))
