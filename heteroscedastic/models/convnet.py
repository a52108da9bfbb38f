"""Small convolutional backbone."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic.bind import check_numbers
from heteroscedastic.models.normalization import BatchNorm


class ConvNet(nn.Module):
    """Convolution, BatchNorm and ReLU, halving the image at each layer after the first; then the mean.

    Attributes:
      widths: channels of the layers, one or more; the last is the number of features.
    """

    widths: tuple[int, ...] = (16, 32, 64)

    def __post_init__(self):
        check_numbers("widths", self.widths, whole=True, at_least=1, below=2**20)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "b h w c"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b d"]:
        hidden = inputs
        for i, width in enumerate(self.widths):
            strides = (1, 1) if i == 0 else (2, 2)
            hidden = nn.Conv(width, (3, 3), strides, use_bias=False)(hidden)
            hidden = BatchNorm()(hidden, present, train)
            hidden = jax.nn.relu(hidden)
        return jnp.mean(hidden, axis=(1, 2))
