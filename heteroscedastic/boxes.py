"""Bounding boxes of an example, which follow its pixels.

`boxes` have rows (y0, x0, y1, x1), as fractions of the image; rows of zeros are padding. Both
pipelines share the functions that move boxes: `xp` is `jax.numpy`, `numpy` or `tensorflow`, and
only functions that all of them have are used.
"""

from types import ModuleType
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Boxes = Float[Any, "*m 4"]

IMAGENET_MEAN = (124, 116, 104)  # the mean colour of ImageNet, of 0 to 255

# Rounding leaves less than this of a box without area, as a fraction of the image.
_MIN_SIDE = 1e-6


def without_empty(xp: ModuleType, boxes: Boxes) -> Boxes:
    """The boxes, with a row of zeros in place of each box that has no area."""
    sides = boxes[..., 2:] - boxes[..., :2]
    is_box = (sides[..., :1] > _MIN_SIDE) & (sides[..., 1:] > _MIN_SIDE)
    return xp.where(is_box, boxes, xp.zeros_like(boxes))


def cropped(
    xp: ModuleType,
    boxes: Boxes,
    size: Float[Any, "2"],
    corner: Float[Any, "2"],
    extent: Float[Any, "2"],
) -> Boxes:
    """The boxes in a window of the image, as fractions of the window and clipped to it.

    A box outside of the window becomes a row of zeros.

    Args:
      xp: module of the arrays.
      boxes: boxes in the image.
      size: height and width of the image, in pixels.
      corner: top and left of the window, in pixels; it may exceed the image on all sides.
      extent: height and width of the window, in pixels.
    """
    corners = xp.reshape(boxes, (*boxes.shape[:-1], 2, 2))  # of each box: two points (y, x)
    corners = (corners * size - corner) / extent
    corners = xp.minimum(xp.maximum(corners, 0.0), 1.0)
    return without_empty(xp, xp.reshape(corners, boxes.shape))


def mirrored(xp: ModuleType, boxes: Boxes) -> Boxes:
    """The boxes of the image that is mirrored left to right."""
    y0, x0, y1, x1 = (boxes[..., i] for i in range(4))
    return without_empty(xp, xp.stack((y0, 1 - x1, y1, 1 - x0), axis=-1))


def covers(
    xp: ModuleType, boxes: Boxes, rows: Float[Any, "h"], columns: Float[Any, "w"]
) -> Bool[Any, "h w"]:
    """Whether each pixel lies in one or more boxes: its centre does.

    Args:
      xp: module of the arrays.
      boxes: [m, 4].
      rows: the centre of each row of pixels, as a fraction of the height.
      columns: the centre of each column of pixels, as a fraction of the width.
    """
    spans = [
        xp.where((boxes[:, i, None] <= x) & (x < boxes[:, i + 2, None]), 1.0, 0.0)
        for i, x in enumerate((rows, columns))
    ]
    return xp.einsum("mh,mw->hw", *spans) > 0


def check_fill(
    name: str, fill: tuple[int, ...], num_channels: int | None, *, is_integer: bool
) -> None:
    """Raises a ValueError if `fill` does not suit the pixels that `name` fills."""
    if not is_integer:
        raise ValueError(
            f"{name} requires integer pixels, so it must precede value_range and changes of colour."
        )
    if num_channels != len(fill):
        raise ValueError(
            f"{name}: fill is {fill}, but the images have {num_channels} channels; set a value for"
            " each channel, such as fill=(128,) for grey images."
        )


def objectness(boxes: Float[Array, "*b m 4"]) -> Float[Array, "*b"]:
    """The fraction of the image that lies in one or more boxes: the area of their union.

    The sorted edges of the boxes cut the image into a grid of at most (2m + 1)^2 cells. Each cell
    lies inside or outside of each box, so the area is exact, up to rounding. The boxes over each
    cell are counted by a product of matrices, which is fast for many boxes.
    """
    edges = jnp.sort(jnp.reshape(boxes, (*boxes.shape[:-2], -1, 2)), axis=-2)  # (y, x) of corners
    low, high = edges[..., None, :-1, :], edges[..., None, 1:, :]
    spans = (boxes[..., None, :2] <= low) & (high <= boxes[..., None, 2:])  # by box, cell and axis
    spans = spans.astype(jnp.float32)
    num_boxes = jnp.einsum("...iy,...ix->...yx", spans[..., 0], spans[..., 1])
    sides = jnp.diff(edges, axis=-2)
    areas = sides[..., :, None, 0] * sides[..., None, :, 1]
    # Rounding can leave a sum of areas above 1.
    return jnp.minimum(jnp.sum((num_boxes > 0) * areas, axis=(-2, -1)), 1.0)


def iou(
    xp: ModuleType, boxes: Float[Any, "*b n 4"], others: Float[Any, "*b m 4"]
) -> Float[Any, "*b n m"]:
    """The intersection over the union of each box with each other box; 0 for rows of zeros.

    Args:
      xp: module of the arrays.
      boxes: boxes.
      others: boxes in the same units.
    """
    first, second = boxes[..., :, None, :], others[..., None, :, :]
    top_left = xp.maximum(first[..., :2], second[..., :2])
    sides = xp.maximum(xp.minimum(first[..., 2:], second[..., 2:]) - top_left, 0.0)
    both = sides[..., 0] * sides[..., 1]
    areas = [(x[..., 2] - x[..., 0]) * (x[..., 3] - x[..., 1]) for x in (first, second)]
    union = areas[0] + areas[1] - both
    return xp.where(union > 0, both / xp.where(union > 0, union, 1.0), 0.0)
