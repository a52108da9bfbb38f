"""A classifier that classifies regions of an image: Faster R-CNN without a feature pyramid.

    images -> trunk -> maps -> proposals -> RoIAlign -> tail -> features [b, r, d] -> head

The trunk is the backbone without its last stage, and that stage is the tail, as in the detector
"C4" of He et al. (2016), arXiv:1512.03385, Appendix A; the tail of an EfficientNet-Lite is what
follows a stride of 16. The parameters of backbone and head have the names that they have in a
classifier, so a run can start from one.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic.detection import proposals as proposals_lib
from heteroscedastic.detection.align import align
from heteroscedastic.detection.anchors import anchors
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.proposals import Proposed

_POOLED = 7  # rows and columns of a region; `pool` of the public code


class Trunk(NamedTuple):
    """What the trunk says of a batch of images."""

    maps: Float[Array, "b h w d"]
    proposed: Proposed
    anchors: Float[Array, "n 4"]  # in pixels of the canvas


class Regions(NamedTuple):
    """What the tail says of the regions of a batch of images."""

    boxes: Float[Array, "b r 4"]  # in pixels; a row of zeros is no region
    latent: LatentGaussian  # [b, r]
    offsets: Float[Array, "b r k 4"]  # for each class, from the region to the object
    sizes: Float[Array, "b 2"]  # height and width of each image, in pixels


class RegionFeatures(NamedTuple):
    """The inputs of the head of a batch of images."""

    values: Float[Array, "b r d"]
    is_region: Bool[Array, "b r"]  # others are padding


class Detector(Classifier, kw_only=True):
    """Proposes regions of an image, classifies them, and corrects their boxes for each class.

    Normalisation has the statistics of the warm start and never updates them. Activations outside
    of an image are 0, as if the canvas ended there, so a larger canvas changes no detection.

    Attributes:
      proposals: maps -> objectness and offsets.
    """

    proposals: nn.Module

    def setup(self):
        if getattr(self.backbone, "first_of_tail", None) is None:
            raise ValueError(
                f"config.backbone {type(self.backbone).__name__} has no trunk for a detector; use a"
                " residual network of version 1, such as ResNet50 or ResNet8, or an"
                " EfficientNet-Lite."
            )
        self.box_offsets = nn.Dense(
            4 * self._num_classes, kernel_init=nn.initializers.normal(0.001)
        )

    def __call__(
        self,
        inputs: Float[Array, "b h w c"],
        present: Bool[Array, "b"],
        train: bool = False,
        sizes: Float[Array, "b 2"] | None = None,
    ) -> Regions:
        """The proposed regions of each image, as in evaluation.

        Args:
          inputs: images, each at the top left of its canvas.
          present: False for an absent image.
          train: ignored, as normalisation is always evaluated.
          sizes: height and width of each image in pixels; None if each fills its canvas.
        """
        sizes = canvas_sizes(inputs) if sizes is None else sizes
        trunk = self.trunk(inputs, present, sizes)
        return self.regions(trunk.maps, self.proposed(trunk, sizes, train=False), sizes)

    def features(
        self,
        inputs: Float[Array, "b h w c"],
        present: Bool[Array, "b"],
        train: bool = False,
        sizes: Float[Array, "b 2"] | None = None,
    ) -> RegionFeatures:
        """The features of the regions whose latents a call returns; see there."""
        sizes = canvas_sizes(inputs) if sizes is None else sizes
        trunk = self.trunk(inputs, present, sizes)
        boxes = self.proposed(trunk, sizes, train=False)
        is_region = proposals_lib.is_box(boxes) & present[:, None]
        return RegionFeatures(self._region_features(trunk.maps, boxes, sizes), is_region)

    def trunk(
        self,
        inputs: Float[Array, "b H W c"],
        present: Bool[Array, "b"],
        sizes: Float[Array, "b 2"],
        maps: Float[Array, "b h w d"] | None = None,
    ) -> Trunk:
        """The features of each position, and what they propose.

        Args:
          inputs: images, each at the top left of its canvas.
          present: False for an absent image.
          sizes: height and width of each image in pixels.
          maps: what `trunk_maps` returns for the same images; None computes it.
        """
        maps = self.trunk_maps(inputs, present, sizes) if maps is None else maps
        references = anchors(
            *maps.shape[1:3],
            stride=self.stride,
            sizes=self.proposals.sizes,
            ratios=self.proposals.ratios,
        )
        canvas = inputs.shape[1:3]
        if not np.any((references[:, :2] >= 0).all(1) & (references[:, 2:] <= canvas).all(1)):
            raise ValueError(
                f"no anchor lies inside an image of {canvas[0]} x {canvas[1]} pixels, so proposals"
                f" would not be trained; give proposals smaller sizes than {self.proposals.sizes}."
            )
        return Trunk(maps, self.proposals(maps), jnp.asarray(references))

    def trunk_maps(
        self,
        inputs: Float[Array, "b H W c"],
        present: Bool[Array, "b"],
        sizes: Float[Array, "b 2"],
    ) -> Float[Array, "b h w d"]:
        """The features of each position; see `trunk`.

        Raises:
          ValueError: the sides of the canvas are no multiples of the stride.
        """
        canvas = inputs.shape[1:3]
        if any(n % self.stride for n in canvas):
            raise ValueError(
                f"images have {canvas[0]}x{canvas[1]} pixels, but the trunk has a stride of"
                f" {self.stride}; use multiples of it."
            )
        inside = [jnp.arange(n) < sizes[:, i, None] for i, n in enumerate(canvas)]
        pixels = present[:, None, None] & inside[0][:, :, None] & inside[1][:, None, :]
        inputs = jnp.where(pixels[..., None], inputs, 0.0)
        return self.backbone.stages(inputs, pixels, last=self.backbone.first_of_tail - 1)[-1]

    def proposed(
        self, trunk: Trunk, sizes: Float[Array, "b 2"], train: bool
    ) -> Float[Array, "b r 4"]:
        """The best proposals of each image, in pixels; rows of zeros where there are fewer."""
        index = 0 if train else 1
        choose = functools.partial(
            proposals_lib.proposals,
            num_candidates=self.proposals.num_candidates[index],
            number=self.proposals.num_proposals[index],
        )
        over_images = jax.vmap(choose, in_axes=(0, 0, None, 0))
        return over_images(*trunk.proposed, trunk.anchors, sizes)

    def regions(
        self,
        maps: Float[Array, "b h w d"],
        boxes: Float[Array, "b r 4"],
        sizes: Float[Array, "b 2"],
    ) -> Regions:
        """The latent and the offsets of each region.

        Args:
          maps: of the trunk.
          boxes: in pixels; a row of zeros is no region, and its values mean nothing.
          sizes: height and width of each image in pixels.
        """
        features = self._region_features(maps, boxes, sizes)
        offsets = self.box_offsets(features).reshape(*boxes.shape[:2], self._num_classes, 4)
        return Regions(boxes, self.latent(features), offsets, sizes)

    def _region_features(
        self, maps: Float[Array, "b h w d"], boxes: Float[Array, "b r 4"], sizes: Array
    ) -> Float[Array, "b r e"]:
        extents = jnp.ceil(sizes / self.stride).astype(jnp.int32)
        over_images = jax.vmap(functools.partial(align, size=_POOLED))
        pooled = over_images(maps, boxes / self.stride, extents)
        is_region = proposals_lib.is_box(boxes)
        last = self.backbone.stages(pooled, is_region, first=self.backbone.first_of_tail)[-1]
        return jnp.mean(last, axis=(-3, -2))

    @property
    def stride(self) -> int:
        """Pixels from one position of the maps to the next."""
        return self.backbone.trunk_stride

    @property
    def _num_classes(self) -> int:
        return self.head.num_classes if self.num_classes is None else self.num_classes


def canvas_sizes(inputs: Any) -> Float[Array, "b 2"]:
    """Height and width of images that fill their canvas."""
    return jnp.broadcast_to(jnp.asarray(inputs.shape[1:3], jnp.float32), (len(inputs), 2))
