"""Reference boxes at every position of a feature map."""

import numpy as np
from jaxtyping import Float


def anchors(
    num_rows: int,
    num_columns: int,
    *,
    stride: int,
    sizes: tuple[float, ...],
    ratios: tuple[float, ...],
) -> Float[np.ndarray, "n 4"]:
    """Boxes of every size and ratio, centred at every position of a map, in pixels.

    They are ordered by row, column, size and ratio. The position (i, j) of a map is the pixels from
    (i, j) * stride, so its centre is at (i + 1/2, j + 1/2) * stride.

    Args:
      num_rows: of the map.
      num_columns: of the map.
      stride: pixels from one position to the next.
      sizes: square roots of the areas, in pixels.
      ratios: height / width.

    Source: Ren et al. (2015), arXiv:1506.01497, section 3.1.1.
    """
    roots = np.sqrt(np.asarray(ratios, np.float64))
    sides = np.stack([np.outer(sizes, roots), np.outer(sizes, 1 / roots)], axis=-1).reshape(-1, 2)
    rows, columns = ((np.arange(n) + 0.5) * stride for n in (num_rows, num_columns))
    centres = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], axis=-1)
    return boxes.reshape(-1, 4).astype(np.float32)
