"""Dense backbone."""

import jax
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic.bind import check_numbers


class MLP(nn.Module):
    """Dense layers with ReLU on the flattened input.

    Attributes:
      widths: of the layers, one or more; the last is the number of features.
    """

    widths: tuple[int, ...] = (128, 128)

    def __post_init__(self):
        check_numbers("widths", self.widths, whole=True, at_least=1, below=2**20)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "b *shape"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b d"]:
        hidden = inputs.reshape(inputs.shape[0], -1)
        for width in self.widths:
            hidden = jax.nn.relu(nn.Dense(width)(hidden))
        return hidden
