"""All backbones by name: (inputs, present, train) -> features.

The convolutional ones also have `maps`, the features before their mean over the image.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic.bind import check_numbers
from heteroscedastic.models.efficientnet import (
    EfficientNetLite0,
    EfficientNetLite1,
    EfficientNetLite2,
)
from heteroscedastic.models.inception_resnet import InceptionResNetV2, InceptionResNetV2Small
from heteroscedastic.models.normalization import BatchNorm
from heteroscedastic.models.resnet import (
    ResNet,
    ResNet8,
    ResNet10,
    ResNet10V2,
    ResNet18,
    ResNet18V2,
    ResNet20,
    ResNet32,
    ResNet34,
    ResNet34V2,
    ResNet44,
    ResNet50,
    ResNet50V2,
    ResNet56,
    ResNet101,
    ResNet101V2,
    ResNet152,
    ResNet152V2,
    WideResNet28x10,
)
from heteroscedastic.models.transformer import TransformerIwslt, TransformerSmall


class MLP(nn.Module):
    """Dense layers with ReLU, applied to the flattened input.

    Attributes:
      widths: units of each layer; the last is the number of features. () is the identity.
    """

    widths: tuple[int, ...] = (128, 128)

    def __post_init__(self):
        if self.widths != ():
            check_numbers("widths", self.widths, integer=True, at_least=1, below=2**20)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "b *shape"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b d"]:
        hidden = inputs.reshape(inputs.shape[0], -1)
        for width in self.widths:
            hidden = jax.nn.relu(nn.Dense(width)(hidden))
        return hidden


class ConvNet(nn.Module):
    """Layers of convolution, BatchNorm and ReLU, then the mean over the image.

    Each layer after the first halves the image.

    Attributes:
      widths: channels of each layer, one or more layers; the last is the number of features.
    """

    widths: tuple[int, ...] = (16, 32, 64)

    def __post_init__(self):
        check_numbers("widths", self.widths, integer=True, at_least=1, below=2**20)
        super().__post_init__()

    def __call__(
        self, inputs: Float[Array, "b h w c"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b d"]:
        return jnp.mean(self.maps(inputs, present, train), axis=(1, 2))

    @nn.compact
    def maps(
        self, inputs: Float[Array, "b H W c"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b h w d"]:
        """The features before their mean over the image."""
        hidden = inputs
        for i, width in enumerate(self.widths):
            strides = (1, 1) if i == 0 else (2, 2)
            hidden = nn.Conv(width, (3, 3), strides, use_bias=False)(hidden)
            hidden = BatchNorm()(hidden, present, train)
            hidden = jax.nn.relu(hidden)
        return hidden


_FAMILIES = (  # smallest member first
    (ResNet10, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152),
    (ResNet10V2, ResNet18V2, ResNet34V2, ResNet50V2, ResNet101V2, ResNet152V2),
    (ResNet8, ResNet20, ResNet32, ResNet44, ResNet56),
    (WideResNet28x10,),
    (InceptionResNetV2Small, InceptionResNetV2),
    (EfficientNetLite0, EfficientNetLite1, EfficientNetLite2),
    (MLP,),
    (ConvNet,),
    (TransformerSmall, TransformerIwslt),
)
# Choices of config.backbone.
__all__ = ["ResNet", *(member.__name__ for family in _FAMILIES for member in family)]


def smallest(name: str) -> str:
    """The name of the smallest backbone of the same family; the name itself without a family."""
    families = ([member.__name__ for member in family] for family in _FAMILIES)
    return next((family[0] for family in families if name in family), name)
