"""A backbone and a head."""

from typing import Any

from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian


class Classifier(nn.Module):
    """inputs --backbone--> features --head--> latent.

    Attributes:
      backbone: (inputs, present, train) -> features.
      head: features -> latent.
      num_classes: how many of the head's classes there are, the others only making room; None is
        all.
    """

    backbone: nn.Module
    head: nn.Module
    num_classes: int | None = None

    def __call__(
        self, inputs: Any, present: Bool[Array, "*b"], train: bool = False
    ) -> LatentGaussian:
        """The latent of each example.

        Args:
          inputs: what the backbone takes.
          present: False for an absent example, which no batch statistic sees.
          train: whether batch statistics are those of the batch, and updated.
        """
        latent = self.head(self.features(inputs, present, train))
        return (
            latent
            if self.num_classes is None
            else latent_lib.without_classes_from(self.num_classes, latent)
        )

    def features(
        self, inputs: Any, present: Bool[Array, "*b"], train: bool = False
    ) -> Float[Array, "*b d"]:
        """What the head is given of each example."""
        return self.backbone(inputs, present, train)
