"""The detections of an image: classified regions become at most a hundred boxes with scores."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from heteroscedastic.detection import coding
from heteroscedastic.detection.proposals import is_box
from heteroscedastic.detection.suppression import suppressed

_THRESHOLD = 0.3  # IoU within a class; `test.nms` of the public code
NUMBER = 100  # boxes of an image, as in the evaluation of COCO


class Detections(NamedTuple):
    """By descending score; where there are fewer, class -1 and score 0."""

    boxes: Float[Array, "*b n 4"]  # in pixels
    scores: Float[Array, "*b n"]  # probabilities
    classes: Int[Array, "*b n"]  # from 1


def detections(
    probs: Float[Array, "r k"],
    offsets: Float[Array, "r k 4"],
    regions: Float[Array, "r 4"],
    size: Float[Array, "2"],
    *,
    number: int = NUMBER,
) -> Detections:
    """The best boxes of an image, after suppression within each class.

    Args:
      probs: of the classes; class 0 is the background.
      offsets: for each class, in standard deviations.
      regions: in pixels; a row of zeros is no region and never becomes a detection.
      size: height and width of the image, in pixels.
      number: n.
    """
    references = jnp.broadcast_to(regions[:, None], offsets.shape)
    boxes = coding.clipped(coding.decoded(offsets, references, stds=coding.STDS), size)
    is_present = is_box(regions)[:, None] & is_box(boxes)
    scores = jnp.where(is_present, probs, -jnp.inf)
    boxes, scores = (jnp.swapaxes(x, 0, 1)[1:] for x in (boxes, scores))  # by class
    choose = functools.partial(suppressed, threshold=_THRESHOLD, number=len(regions))
    kept = jax.vmap(choose)(boxes, scores)
    boxes = jnp.take_along_axis(boxes, kept[..., None], axis=1)
    scores = jnp.where(kept >= 0, jnp.take_along_axis(scores, kept, axis=1), -jnp.inf)
    classes = jnp.broadcast_to(1 + jnp.arange(len(scores))[:, None], scores.shape)
    best, rows = jax.lax.top_k(scores.reshape(-1), min(number, scores.size))
    found = best > 0
    padding = (0, number - len(rows))
    return Detections(
        jnp.pad(jnp.where(found[:, None], boxes.reshape(-1, 4)[rows], 0.0), (padding, (0, 0))),
        jnp.pad(jnp.where(found, best, 0.0), padding),
        jnp.pad(jnp.where(found, classes.reshape(-1)[rows], -1), padding, constant_values=-1),
    )
