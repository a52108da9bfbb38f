"""Boxes as offsets from reference boxes, the form in which a detector predicts them."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

Boxes = Float[Array, "*b 4"]  # rows (y0, x0, y1, x1)

# Of the offsets of centres and of log sides, which are divided by them: the `box_stds` 0.1, 0.1,
# 0.2, 0.2 of the public code of Faster R-CNN.
STDS = (0.1, 0.1, 0.2, 0.2)
UNIT = (1.0, 1.0, 1.0, 1.0)
# A predicted side is at most 1000 / 16 times that of its reference, so that exp does not overflow.
_MAX_LOG_SIDE = math.log(1000 / 16)


def encoded(
    boxes: Boxes, references: Boxes, *, stds: tuple[float, float, float, float]
) -> Float[Array, "*b 4"]:
    """The offsets (y, x, log height, log width) of boxes from reference boxes.

    The centre is shifted in units of the reference's sides. Degenerate boxes, such as rows of
    zeros, have finite offsets that mean nothing.

    Args:
      boxes: to encode.
      references: one for each box.
      stds: each offset is divided by its own.

    Source: Ren et al. (2015), arXiv:1506.01497, Eq. 2.
    """
    centres, sides = _centres_and_sides(boxes)
    reference_centres, reference_sides = _centres_and_sides(references)
    shifts = (centres - reference_centres) / reference_sides
    offsets = jnp.concatenate([shifts, jnp.log(sides / reference_sides)], axis=-1)
    return offsets / jnp.asarray(stds, offsets.dtype)


def decoded(
    offsets: Float[Array, "*b 4"],
    references: Boxes,
    *,
    stds: tuple[float, float, float, float],
) -> Boxes:
    """The boxes of these offsets from reference boxes; the inverse of `encoded`."""
    centres, sides = _centres_and_sides(references)
    offsets = offsets * jnp.asarray(stds, offsets.dtype)
    centres = centres + offsets[..., :2] * sides
    sides = sides * jnp.exp(jnp.minimum(offsets[..., 2:], _MAX_LOG_SIDE))
    return jnp.concatenate([centres - sides / 2, centres + sides / 2], axis=-1)


def clipped(boxes: Boxes, size: Float[Array, "2"]) -> Boxes:
    """The parts of boxes inside of an image of this height and width, in pixels."""
    return jnp.clip(boxes, 0.0, jnp.concatenate([size, size]))


def _centres_and_sides(boxes: Boxes) -> tuple[Float[Array, "*b 2"], Float[Array, "*b 2"]]:
    """Centre and sides of each box; a side is at least 1e-3 pixels."""
    corner, opposite = boxes[..., :2], boxes[..., 2:]
    return (corner + opposite) / 2, jnp.maximum(opposite - corner, 1e-3)
