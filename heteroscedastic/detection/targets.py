"""What a step of training asks of the anchors and regions of one image, and their losses."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import losses
from heteroscedastic.detection import coding, matching
from heteroscedastic.detection.proposals import is_box

_POSITIVE, _NEGATIVE = 0.7, 0.3  # IoU of an anchor with a true box
_OBJECT = 0.5  # IoU of a region with a true box
_OBJECT_FRACTION = 0.25  # of the regions of an image, at most
_PROPOSAL_SIGMA = 3.0


class ProposalLosses(NamedTuple):
    """Means over the sampled anchors of an image, in nats and in squared units of the offsets."""

    objectness: Float[Array, ""]
    boxes: Float[Array, ""]


class RegionTargets(NamedTuple):
    """The sampled regions of an image, and what they should be."""

    boxes: Float[Array, "r 4"]  # in pixels; a row of zeros is no region
    labels: Int[Array, "r"]  # 0 is the background
    offsets: Float[Array, "r 4"]  # to the true box; they mean nothing for the background


def smooth_l1(errors: Float[Array, "*b"], sigma: float) -> Float[Array, "*b"]:
    """(sigma x)^2 / 2 where |x| < 1 / sigma^2, else |x| - 1 / (2 sigma^2).

    Source: the public code of Faster R-CNN; with sigma 1, Girshick (2015), arXiv:1504.08083, Eq. 3.
    """
    size = jnp.abs(errors)
    limit = 1 / sigma**2
    return jnp.where(size < limit, 0.5 * jnp.square(sigma * errors), size - 0.5 * limit)


def proposal_losses(
    key: PRNGKeyArray,
    objectness: Float[Array, "n"],
    offsets: Float[Array, "n 4"],
    anchors: Float[Array, "n 4"],
    boxes: Float[Array, "m 4"],
    size: Float[Array, "2"],
    *,
    number: int,
) -> ProposalLosses:
    """The losses of the proposals of an image.

    An anchor that crosses the border of the image is ignored. At most half of the sampled anchors
    are positive.

    Args:
      key: PRNG key; consumed.
      objectness: logits.
      offsets: predicted, without standard deviations.
      anchors: in pixels.
      boxes: true boxes, in pixels; rows without an area are padding.
      size: height and width of the image, in pixels.
      number: of sampled anchors.

    Source: Ren et al. (2015), arXiv:1506.01497, Eq. 1 and section 3.1.3, with the sums of both
      losses divided by the number of sampled anchors.
    """
    inside = jnp.all((anchors[:, :2] >= 0) & (anchors[:, 2:] <= size), axis=-1)
    boxes = jnp.where(is_box(boxes)[:, None], boxes, 0.0)
    found = matching.matches(
        jnp.where(inside[:, None], anchors, 0.0),
        boxes,
        positive=_POSITIVE,
        negative=_NEGATIVE,
        takes_best=True,
    )
    rows = matching.sample(
        key,
        found.positive,
        found.negative & inside,
        size=number,
        max_positive=number // 2,
    )
    weights = jnp.where(rows >= 0, 1.0, 0.0)
    positive = jnp.where(found.positive[rows], weights, 0.0)
    logits = objectness[rows]
    log_losses = jax.nn.softplus(jnp.where(positive > 0, -logits, logits))
    expected = coding.encoded(boxes[found.rows[rows]], anchors[rows], stds=coding.UNIT)
    errors = smooth_l1(offsets[rows] - expected, _PROPOSAL_SIGMA)
    number_present = jnp.maximum(jnp.sum(weights), 1.0)
    return ProposalLosses(
        losses.weighted_mean(log_losses, weights),
        losses.weighted_sum(jnp.sum(errors, axis=-1), positive) / number_present,
    )


def region_targets(
    key: PRNGKeyArray,
    proposals: Float[Array, "p 4"],
    boxes: Float[Array, "m 4"],
    labels: Int[Array, "m"],
    *,
    number: int,
) -> RegionTargets:
    """Samples regions of an image among its proposals and its true boxes.

    A region is an object from an IoU of 0.5 with a true box on, whose label it has; at most a
    quarter of the sampled regions are.

    Args:
      key: PRNG key; consumed.
      proposals: in pixels; rows of zeros are padding.
      boxes: true boxes, in pixels; rows without an area are padding.
      labels: of the true boxes, from 1.
      number: of regions.

    Source: Girshick (2015), arXiv:1504.08083, section 2.3, with the background from IoU 0 as in the
      public code of Faster R-CNN.
    """
    boxes = jnp.where(is_box(boxes)[:, None], boxes, 0.0)
    # Boxes are last, so that more rows of padding change no draw of another candidate.
    candidates = jax.lax.stop_gradient(jnp.concatenate([proposals, boxes]))
    found = matching.matches(candidates, boxes, positive=_OBJECT, negative=_OBJECT)
    rows = matching.sample(
        key,
        found.positive,
        found.negative & is_box(candidates),
        size=number,
        max_positive=int(_OBJECT_FRACTION * number),
    )
    is_region = rows >= 0
    regions = jnp.where(is_region[:, None], candidates[rows], 0.0)
    matched = found.rows[rows]
    return RegionTargets(
        boxes=regions,
        labels=jnp.where(is_region & found.positive[rows], labels[matched], 0),
        offsets=coding.encoded(boxes[matched], regions, stds=coding.STDS),
    )


def box_loss(
    offsets: Float[Array, "r k 4"],
    targets: RegionTargets,
) -> Float[Array, ""]:
    """The loss of the boxes of an image: of the offsets of its objects for their own class.

    The sum over the objects is divided by the number of all regions.

    Args:
      offsets: predicted for each class, in standard deviations.
      targets: of the regions.
    """
    own = jnp.take_along_axis(offsets, targets.labels[:, None, None], axis=1)[:, 0]
    errors = jnp.sum(smooth_l1(own - targets.offsets, sigma=1.0), axis=-1)
    is_object = jnp.where(targets.labels > 0, 1.0, 0.0)
    number = jnp.maximum(jnp.sum(is_box(targets.boxes)), 1)
    return losses.weighted_sum(errors, is_object) / number
