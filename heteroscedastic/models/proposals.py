"""The networks that propose regions: (maps) -> objectness and offsets of every anchor."""

from typing import NamedTuple

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from heteroscedastic.bind import check_number, check_numbers

__all__ = ["RegionProposals"]  # choices of config.proposals


class Proposed(NamedTuple):
    """Of each of the n anchors of an image, in the order of `detection.anchors`."""

    objectness: Float[Array, "b n"]  # logits
    offsets: Float[Array, "b n 4"]


class RegionProposals(nn.Module):
    """A 3x3 convolution, and from each position one logit and four offsets for each anchor.

    The paper has two logits for each anchor, of which only the difference matters.

    Attributes:
      sizes: of the anchors: the root of the area, in pixels.
      ratios: height / width of the anchors.
      channels: of the convolution.
      num_candidates: anchors before suppression, in training and in evaluation.
      num_proposals: regions after it, in training and in evaluation.
      num_anchors: anchors of an image in the loss of a step, at most half of them positive.
      num_regions: regions of an image in the loss of a step, at most a quarter of them objects.

    Source: Ren et al. (2015), arXiv:1506.01497, section 3.1.
    """

    sizes: tuple[float, ...] = (64.0, 128.0, 256.0, 512.0)
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    channels: int = 512
    num_candidates: tuple[int, int] = (12000, 6000)
    num_proposals: tuple[int, int] = (2000, 300)
    num_anchors: int = 256
    num_regions: int = 256

    def __post_init__(self):
        for name in ("sizes", "ratios"):
            check_numbers(name, getattr(self, name), above=0, at_most=2**16)
        for name in ("num_candidates", "num_proposals"):
            check_numbers(name, getattr(self, name), integer=True, at_least=1, at_most=2**20)
        # Fewer anchors, of which half may be positive, or regions would train on no object.
        for name, least in (("channels", 1), ("num_anchors", 2), ("num_regions", 4)):
            check_number(name, getattr(self, name), integer=True, at_least=least, at_most=2**20)
        super().__post_init__()

    @nn.compact
    def __call__(self, maps: Float[Array, "b h w d"]) -> Proposed:
        start = nn.initializers.normal(0.01)
        num_shapes = len(self.sizes) * len(self.ratios)
        hidden = nn.Conv(self.channels, (3, 3), kernel_init=start, name="conv")(maps)
        hidden = jax.nn.relu(hidden)
        logits = nn.Conv(num_shapes, (1, 1), kernel_init=start, name="objectness")(hidden)
        offsets = nn.Conv(4 * num_shapes, (1, 1), kernel_init=start, name="offsets")(hidden)
        batch = len(maps)
        return Proposed(logits.reshape(batch, -1), offsets.reshape(batch, -1, 4))
