"""Non-maximum suppression in fixed shapes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from heteroscedastic import boxes as boxes_lib

_BLOCK = 256  # boxes that are compared with all others at once: 12 MB for each float of 12,000


def suppressed(
    boxes: Float[Array, "n 4"],
    scores: Float[Array, "n"],
    *,
    threshold: float,
    number: int,
    block: int = _BLOCK,
) -> Int[Array, "k"]:
    """Positions of the boxes that no better one suppresses, by descending score.

    A box is kept unless a kept box with a higher score, or with the same score and a smaller
    position, overlaps it by an IoU above the threshold.

    With the boxes in order, the kept ones are the only fixed point of
    kept = ~any(kept & overlapping earlier ones). As the matrix of overlaps is triangular, iterating
    reaches it exactly, in as many steps as the longest chain of boxes that decide about each other.
    The boxes are taken in blocks, and the loop ends after `number` of them are kept, so memory is
    n * block instead of n^2.

    Args:
      boxes: boxes.
      scores: of the boxes; a box of score -inf is absent.
      threshold: IoU above which one box suppresses another.
      number: of positions that are returned, k; the last are -1 where fewer boxes are kept.
      block: boxes of a block; changes memory and time, not the result.
    """
    size = min(block, len(boxes))
    if not size:
        return jnp.full(number, -1, jnp.int32)
    order = jnp.argsort(-scores, stable=True)
    padding = -len(boxes) % size
    ranked = jnp.pad(boxes[order], ((0, padding), (0, 0)))
    alive = jnp.pad(scores[order] > -jnp.inf, (0, padding))
    positions = jnp.arange(len(ranked))

    def is_unfinished(carry):
        start, alive = carry
        num_kept = jnp.sum(alive & (positions < start))
        return (start < len(ranked)) & (num_kept < number)

    def body(carry):
        start, alive = carry
        own = jax.lax.dynamic_slice_in_dim(ranked, start, size)
        overlaps = boxes_lib.iou(jnp, own, ranked) > threshold
        inside = jax.lax.dynamic_slice_in_dim(overlaps, start, size, axis=1)
        kept = _fixed_point(inside, jax.lax.dynamic_slice_in_dim(alive, start, size))
        alive = jax.lax.dynamic_update_slice_in_dim(alive, kept, start, axis=0)
        is_later = positions >= start + size
        return start + size, alive & ~(is_later & jnp.any(kept[:, None] & overlaps, axis=0))

    _, alive = jax.lax.while_loop(is_unfinished, body, (jnp.zeros((), jnp.int32), alive))
    # Undecided boxes of later blocks follow the `number` kept ones.
    ranks = jnp.nonzero(alive, size=number, fill_value=len(boxes))[0]
    return jnp.pad(order, (0, 1), constant_values=-1)[ranks].astype(jnp.int32)


def _fixed_point(overlaps: Bool[Array, "n n"], alive: Bool[Array, "n"]) -> Bool[Array, "n"]:
    """Which boxes of a block are kept, given those that earlier blocks leave alive."""
    earlier = jnp.triu(overlaps, k=1)  # [i, j]: box i comes before box j and overlaps it

    def update(kept):
        return alive & ~jnp.any(kept[:, None] & earlier, axis=0)

    def is_unfinished(carry):
        former, kept = carry
        return jnp.any(former != kept)

    return jax.lax.while_loop(
        is_unfinished, lambda carry: (carry[1], update(carry[1])), (alive, update(alive))
    )[1]
