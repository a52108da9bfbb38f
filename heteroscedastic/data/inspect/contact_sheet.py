"""A sheet of images, one row per example with a caption above it. Requires Pillow."""

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped, UInt8

_MIN_SIDE, _MAX_SIDE = 96, 224  # of a view on the sheet, in pixels
_GAP, _LINE_HEIGHT = 6, 16  # in pixels
_CHARACTER_WIDTH = 6.2  # in pixels
_BACKGROUND, _TEXT_COLOR, _BOX_COLOR = (255, 255, 255), (0, 0, 0), (255, 0, 0)


class View(NamedTuple):
    """An example as a chain shows it."""

    image: UInt8[np.ndarray, "h w c"]  # grey, or red, green and blue
    boxes: Float[np.ndarray, "m 4"] | None = None  # see boxes.py
    note: str = ""  # written on the image


class Row(NamedTuple):
    """One example."""

    caption: str
    views: list[View]


def pixels(
    image: Shaped[np.ndarray, "h w c"], chain: Sequence[Callable]
) -> UInt8[np.ndarray, "h w c"]:
    """Converts the output of a chain to uint8, by inverting its last `value_range`."""
    if image.dtype == np.uint8:
        return image
    ranges = [link.keywords for link in chain if _name(link) == "value_range"]
    low, high = (
        (np.asarray(ranges[-1][name], np.float32) for name in ("low", "high"))
        if ranges
        else (image.min(), image.max())
    )
    unit = (image.astype(np.float32) - low) / np.where(high > low, high - low, 1)
    return np.round(255 * np.clip(unit, 0, 1)).astype(np.uint8)


def draw(title: str, columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    """Draws a PNG file with a title, a heading per column and a caption above every row."""
    from PIL import Image, ImageDraw

    sides = [
        max(view.image.shape[0] for row in rows for view in row.views),
        max(view.image.shape[1] for row in rows for view in row.views),
    ]
    scale = (
        _MAX_SIDE / max(sides) if max(sides) > _MAX_SIDE else max(1, -(-_MIN_SIDE // min(sides)))
    )
    height, width = (round(scale * side) for side in sides)
    bottom, sheet_width = position(len(rows), len(columns), height, width)
    sheet = Image.new("RGB", (sheet_width, bottom - _LINE_HEIGHT), _BACKGROUND)
    canvas = ImageDraw.Draw(sheet)

    def write(x, y, text, max_width):
        text = text.encode("latin-1", "replace").decode("latin-1")
        max_length = int(max_width / _CHARACTER_WIDTH)
        text = text if len(text) <= max_length else text[: max_length - 3] + "..."
        canvas.text((x, y), text, fill=_TEXT_COLOR)

    write(_GAP, 0, title, sheet_width)
    for number, column in enumerate(columns):
        write(position(0, number, height, width)[1], _LINE_HEIGHT, column, width)
    for number, row in enumerate(rows):
        top = position(number, 0, height, width)[0]
        write(_GAP, top - _LINE_HEIGHT, row.caption, sheet_width)
        for column, view in enumerate(row.views):
            top, left = position(number, column, height, width)
            image = view.image
            picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image[..., :3])
            size = [round(scale * side) for side in picture.size]
            filter_ = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BILINEAR
            sheet.paste(picture.resize(size, filter_), (left, top))
            for box in [] if view.boxes is None else view.boxes:
                if box[2] > box[0] and box[3] > box[1]:
                    corners = [
                        (left + x * (size[0] - 1), top + y * (size[1] - 1))
                        for y, x in (box[:2], box[2:])
                    ]
                    canvas.rectangle(corners, outline=_BOX_COLOR)
            if view.note:
                bottom = top + size[1]
                corner = (left + len(view.note) * _CHARACTER_WIDTH, bottom - 1)
                canvas.rectangle([(left, bottom - 12), corner], fill=_BACKGROUND)
                canvas.text((left, bottom - 12), view.note, fill=_TEXT_COLOR)
    file = io.BytesIO()
    sheet.save(file, format="png")
    return file.getvalue()


def position(row: int, column: int, height: int, width: int) -> tuple[int, int]:
    """Top and left of a view of this size on the sheet."""
    return 3 * _LINE_HEIGHT + _GAP + row * (_LINE_HEIGHT + height + _GAP), _GAP + column * (
        width + _GAP
    )


def _name(link: Any) -> str:
    return (link.func if isinstance(link, functools.partial) else link).__name__
