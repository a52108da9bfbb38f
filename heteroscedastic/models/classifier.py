"""A backbone and a head."""

from typing import Any

from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic.latent import LatentGaussian


class Classifier(nn.Module):
    """inputs --backbone--> features --head--> latent."""

    backbone: nn.Module
    head: nn.Module

    def __call__(self, inputs: Any, present: Bool[Array, "*b"], train: bool = False) -> LatentGaussian:
        """The latent of each example.

        Args:
          inputs: what the backbone takes.
          present: False for an absent example, which no batch statistic sees.
          train: whether batch statistics are those of the batch, and updated.
        """
        return self.head(self.features(inputs, present, train))

    def features(self, inputs: Any, present: Bool[Array, "*b"], train: bool = False) -> Float[Array, "*b d"]:
        """What the head is given of each example."""
        return self.backbone(inputs, present, train)
