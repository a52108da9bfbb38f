"""Images in rows, one row an example, with words above each. Needs Pillow."""

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped, UInt8

_SMALLEST, _LARGEST = 96, 224  # sides of a view on the sheet, in pixels
_GAP, _LINE = 6, 16
_CHARACTER = 6.2  # its width
_PAPER, _INK = (255, 255, 255), (0, 0, 0)


class Row(NamedTuple):
    """One example."""

    caption: str
    views: list[UInt8[np.ndarray, "h w c"]]  # grey, or red, green and blue


def pixels(
    image: Shaped[np.ndarray, "h w c"], chain: Sequence[Callable]
) -> UInt8[np.ndarray, "h w c"]:
    """What a chain makes of an image, as a screen shows it: its last `value_range` is taken back."""
    if image.dtype == np.uint8:
        return image
    ranges = [link.keywords for link in chain if _name(link) == "value_range"]
    low, high = (ranges[-1]["low"], ranges[-1]["high"]) if ranges else (image.min(), image.max())
    share = (image.astype(np.float32) - low) / ((high - low) or 1.0)
    return np.round(255 * np.clip(share, 0, 1)).astype(np.uint8)


def draw(title: str, columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    """A PNG file: a line of text above every row, a heading above every column."""
    from PIL import Image, ImageDraw

    sides = [
        max(view.shape[0] for row in rows for view in row.views),
        max(v.shape[1] for r in rows for v in r.views),
    ]
    scale = _LARGEST / max(sides) if max(sides) > _LARGEST else max(1, -(-_SMALLEST // min(sides)))
    height, width = (round(scale * side) for side in sides)
    bottom, across = place(len(rows), len(columns), height, width)
    paper = Image.new("RGB", (across, bottom - _LINE), _PAPER)
    pen = ImageDraw.Draw(paper)

    def text(x, y, words, room):
        words = words.encode("latin-1", "replace").decode("latin-1")
        most = int(room / _CHARACTER)
        pen.text((x, y), words if len(words) <= most else words[: most - 3] + "...", fill=_INK)

    text(_GAP, 0, title, across)
    for number, column in enumerate(columns):
        text(place(0, number, height, width)[1], _LINE, column, width)
    for number, row in enumerate(rows):
        text(_GAP, place(number, 0, height, width)[0] - _LINE, row.caption, across)
        for column, view in enumerate(row.views):
            top, left = place(number, column, height, width)
            picture = Image.fromarray(view[..., 0] if view.shape[-1] == 1 else view[..., :3])
            size = [round(scale * side) for side in picture.size]
            how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BILINEAR
            paper.paste(picture.resize(size, how), (left, top))
    file = io.BytesIO()
    paper.save(file, format="png")
    return file.getvalue()


def place(row: int, column: int, height: int, width: int) -> tuple[int, int]:
    """Top and left of a view on the sheet, where views are of this size."""
    return 3 * _LINE + _GAP + row * (_LINE + height + _GAP), _GAP + column * (width + _GAP)


def _name(link: Any) -> str:
    return (link.func if isinstance(link, functools.partial) else link).__name__
