"""The regions of an image that may hold an object, chosen among decoded anchors."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from heteroscedastic.detection import coding
from heteroscedastic.detection.suppression import suppressed

_THRESHOLD = 0.7  # IoU, of Ren et al. (2015), section 3.3, and the public code


def proposals(
    scores: Float[Array, "n"],
    offsets: Float[Array, "n 4"],
    anchors: Float[Array, "n 4"],
    size: Float[Array, "2"],
    *,
    num_candidates: int,
    number: int,
) -> Float[Array, "p 4"]:
    """The best boxes that do not overlap much, by descending score; then rows of zeros.

    The `num_candidates` anchors with the largest scores are moved by their offsets and clipped to
    the image, boxes without an area are dropped, and suppression leaves at most `number` of them.
    An anchor whose centre is outside of the image is no candidate. No gradient passes.

    Args:
      scores: of the anchors, in any unit.
      offsets: predicted, without standard deviations.
      anchors: in pixels.
      size: height and width of the image, in pixels; the canvas may be larger.
      num_candidates: number of anchors before suppression.
      number: p.
    """
    scores, offsets = jax.lax.stop_gradient((scores, offsets))
    is_inside = jnp.all((anchors[:, :2] + anchors[:, 2:]) / 2 < size, axis=-1)
    scores = jnp.where(is_inside, scores, -jnp.inf)
    scores, rows = jax.lax.top_k(scores, min(num_candidates, len(scores)))
    boxes = coding.clipped(coding.decoded(offsets[rows], anchors[rows], stds=coding.UNIT), size)
    scores = jnp.where(is_box(boxes), scores, -jnp.inf)
    kept = suppressed(boxes, scores, threshold=_THRESHOLD, number=number)
    return jnp.where(kept[:, None] >= 0, boxes[kept], 0.0)


def is_box(boxes: Float[Array, "*b 4"]) -> Array:
    """Whether each row is a box with an area, rather than padding or a degenerate box."""
    return jnp.all(boxes[..., 2:] > boxes[..., :2], axis=-1)
