"""A backbone and a head."""

from typing import Any

from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian


class Classifier(nn.Module):
    """A backbone and a head: inputs -> features -> latent.

    Attributes:
      backbone: (inputs, present, train) -> features.
      head: features -> latent.
      num_classes: number of classes of the data; further classes of the head are padding, with
        probability 0. None if there is no padding.
    """

    backbone: nn.Module
    head: nn.Module
    num_classes: int | None = None

    def __call__(
        self, inputs: Any, present: Bool[Array, "*b"], train: bool = False
    ) -> LatentGaussian:
        """The latent of each example.

        Args:
          inputs: as the backbone expects them.
          present: False for an absent example, which is excluded from batch statistics.
          train: whether to use the statistics of the batch and to update the running statistics.
        """
        return self.latent(self.features(inputs, present, train))

    def features(
        self, inputs: Any, present: Bool[Array, "*b"], train: bool = False
    ) -> Float[Array, "*b d"]:
        """The features of each example, the input of the head."""
        return self.backbone(inputs, present, train)

    def maps(
        self, inputs: Any, present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b h w d"]:
        """The features of each place of the image; their mean over the image is `features`.

        Raises:
          ValueError: the backbone is not convolutional.
        """
        if not hasattr(self.backbone, "maps"):
            raise ValueError(
                f"{type(self.backbone).__name__} has no maps; use a convolutional backbone such as"
                " ConvNet or ResNet18, or the features of this one."
            )
        return self.backbone.maps(inputs, present, train)

    def latent(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        """The latent of each example, given the input of the head."""
        latent = self.head(features)
        return (
            latent
            if self.num_classes is None
            else latent_lib.mask_padding_classes(latent, self.num_classes)
        )
