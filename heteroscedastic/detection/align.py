"""RoIAlign: the features of a map inside of boxes, on a grid of fixed size."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def align(
    maps: Float[Array, "h w d"],
    boxes: Float[Array, "r 4"],
    extent: Int[Array, "2"],
    *,
    size: int,
    num_samples: int = 2,
) -> Float[Array, "r size size d"]:
    """The mean of bilinear samples in each cell of a grid over each box.

    The grid has `size` by `size` cells, and a cell `num_samples` by `num_samples` points, evenly
    spaced. The value of position (i, j) of a map is at its centre, (i + 1/2, j + 1/2). Beyond the
    outermost centres the map is continued by its border.

    Args:
      maps: features of an image.
      boxes: in units of the map: pixels divided by its stride.
      extent: rows and columns of the map that are inside of the image; the others are ignored.
      size: cells of the grid along each axis.
      num_samples: points of a cell along each axis.

    Source: He et al. (2017), arXiv:1703.06870, section 3; two points along each axis, as there, and
      no rounding.
    """
    rows, row_weights = _taps(boxes[:, 0], boxes[:, 2], extent[0], size, num_samples)
    columns, column_weights = _taps(boxes[:, 1], boxes[:, 3], extent[1], size, num_samples)
    num_taps = rows.shape[-1]
    total = 0.0
    # A sum over gathers, so that no more than one [r, size, size, d] is needed at a time.
    for i in range(num_taps):
        for j in range(num_taps):
            values = maps[rows[:, :, None, i], columns[:, None, :, j]]
            weights = row_weights[:, :, None, i] * column_weights[:, None, :, j]
            total += weights[..., None] * values
    return total


def _taps(
    low: Float[Array, "r"],
    high: Float[Array, "r"],
    extent: Int[Array, ""],
    size: int,
    num_samples: int,
) -> tuple[Int[Array, "r size taps"], Float[Array, "r size taps"]]:
    """Positions along one axis whose weighted sum is the mean of a cell, and their weights."""
    fractions = (jnp.arange(size * num_samples) + 0.5) / (size * num_samples)
    points = low[:, None] + fractions * (high - low)[:, None] - 0.5
    last = extent - 1
    points = jnp.clip(points, 0.0, last.astype(points.dtype))
    lower = jnp.floor(points)
    weights = jnp.stack([1 - (points - lower), points - lower], axis=-1) / num_samples
    positions = lower.astype(jnp.int32)
    positions = jnp.stack([positions, jnp.minimum(positions + 1, last)], axis=-1)
    shape = (len(low), size, 2 * num_samples)
    return positions.reshape(shape), weights.reshape(shape)
