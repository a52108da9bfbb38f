"""Which true box each candidate box stands for, and which candidates a step of training takes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from heteroscedastic import boxes as boxes_lib


class Matches(NamedTuple):
    """Of each of n candidates; one that is neither positive nor negative is ignored."""

    rows: Int[Array, "n"]  # the true box that overlaps the candidate most; 0 if there is none
    positive: Bool[Array, "n"]
    negative: Bool[Array, "n"]


def matches(
    candidates: Float[Array, "n 4"],
    boxes: Float[Array, "m 4"],
    *,
    positive: float,
    negative: float,
    takes_best: bool = False,
) -> Matches:
    """Matches candidates with the true boxes of an image.

    Args:
      candidates: boxes; rows of zeros match nothing and are negative.
      boxes: true boxes, at least one row; rows of zeros are padding.
      positive: a candidate is positive from this IoU with a true box on.
      negative: a candidate is negative below this IoU with every true box.
      takes_best: whether the candidates with the largest IoU with a true box are positive, however
        small that IoU is, as long as they overlap.

    Source: Ren et al. (2015), arXiv:1506.01497, section 3.1.2.
    """
    overlaps = boxes_lib.iou(jnp, candidates, boxes)
    largest = jnp.max(overlaps, axis=1, initial=0.0)
    is_positive = largest >= positive
    if takes_best:
        best = jnp.max(overlaps, axis=0, initial=0.0)
        is_positive |= jnp.any((overlaps == best) & (best > 0), axis=1)
    rows = jnp.argmax(overlaps, axis=1).astype(jnp.int32)
    return Matches(rows, is_positive, (largest < negative) & ~is_positive)


def sample(
    key: PRNGKeyArray,
    positive: Bool[Array, "n"],
    negative: Bool[Array, "n"],
    *,
    size: int,
    max_positive: int,
) -> Int[Array, "s"]:
    """Random positions of `size` candidates: positive ones first, then negative ones.

    At most `max_positive` are positive, and negative ones fill the rest. Where there are too few,
    the last positions are -1.

    Args:
      key: PRNG key; consumed.
      positive: which candidates are positive.
      negative: which are negative; none is both.
      size: number of positions; at most the number of candidates.
      max_positive: largest number of positive ones.
    """
    key_positive, key_negative = jax.random.split(key)
    num_candidates = len(positive)
    first, is_first = _drawn(key_positive, positive, min(max_positive, num_candidates))
    second, is_second = _drawn(key_negative, negative, min(size, num_candidates))
    rows, chosen = jnp.concatenate([first, second]), jnp.concatenate([is_first, is_second])
    order = jnp.argsort(~chosen, stable=True)[:size]
    rows = jnp.where(chosen[order], rows[order], -1)
    return jnp.pad(rows, (0, size - len(rows)), constant_values=-1)


def _drawn(
    key: PRNGKeyArray, mask: Bool[Array, "n"], number: int
) -> tuple[Int[Array, "s"], Bool[Array, "s"]]:
    """Random positions where the mask holds, those first; and whether each is one."""
    priorities = jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0)
    values, rows = jax.lax.top_k(priorities, number)
    return rows.astype(jnp.int32), values >= 0
