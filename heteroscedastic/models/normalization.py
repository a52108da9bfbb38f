"""Batch normalisation that excludes absent examples, optionally within groups of the batch."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from heteroscedastic.bind import check_number


def check_group_size(value: int | None) -> None:
    """Checks a `group_size` of BatchNorm.

    Raises:
      ValueError: it is neither None nor a whole number >= 1.
    """
    if value is not None:
        check_number("group_size", value, integer=True, at_least=1)


def zero_outside(
    x: Float[Array, "b *spatial c"],
    present: Bool[Array, "b"] | Bool[Array, "b height width"],
) -> Float[Array, "b *spatial c"]:
    """0 at positions that start at an absent pixel; unchanged where `present` has no pixels."""
    if present.ndim == 1:
        return x
    strides = [whole // part for whole, part in zip(present.shape[1:], x.shape[1:3])]
    return jnp.where(present[:, :: strides[0], :: strides[1], None], x, 0.0)


class BatchNorm(nn.Module):
    """Batch normalisation over the present examples, in float32.

    Not flax's nn.BatchNorm(mask=, use_fast_variance=False), although outputs and parameter tree
    agree: without an example its statistics are nan, here they stay (a law of the tests), and it
    has no groups within a batch.

    Attributes:
      group_size: number of examples that share statistics. None uses the entire (global) batch; a
        number splits the batch into consecutive groups of that size, like devices that do not
        synchronise their statistics (reading C13). A smaller batch is one group. The running
        statistics average the statistics of the groups.
      momentum: of the running statistics.
      epsilon: added to the variance.
      dtype: of the result; statistics and parameters are float32.
      zero_scale: whether the scale is initialised with 0, so that a residual block starts as the
        identity.
      use_scale: whether there is a scale; there is always a bias.

    Source: Ioffe and Szegedy (2015), arXiv:1502.03167.
    """

    group_size: int | None = None
    momentum: float = 0.9
    epsilon: float = 1e-5
    dtype: DTypeLike = jnp.float32
    zero_scale: bool = False
    use_scale: bool = True

    def __post_init__(self):
        check_group_size(self.group_size)
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        inputs: Float[Array, "b *spatial c"],
        present: Bool[Array, "b"] | Bool[Array, "b height width"],
        train: bool,
    ) -> Float[Array, "b *spatial c"]:
        """Normalises each channel to mean 0 and variance 1, then scales and shifts it.

        Args:
          inputs: any number of spatial axes.
          present: False for an absent example, which is excluded from the statistics. In evaluation
            also by pixel of the original image, whose sides are multiples of those of the inputs:
            the result is 0 at positions that start at an absent pixel, like the padding of a
            convolution.
          train: whether to use the statistics of the batch and to update the running statistics.

        Raises:
          ValueError: group_size does not divide the batch, or pixels are absent in training.
        """
        if train and present.ndim > 1:
            raise ValueError("statistics of a batch are over complete images; set train to False.")
        channels = inputs.shape[-1]
        first = nn.initializers.zeros if self.zero_scale else nn.initializers.ones
        scale = self.param("scale", first, (channels,), jnp.float32) if self.use_scale else 1.0
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        running = {
            name: self.variable("batch_stats", name, start, (channels,), jnp.float32)
            for name, start in (("mean", jnp.zeros), ("var", jnp.ones))
        }
        x = inputs.astype(jnp.float32)
        if not train:
            mean, var = running["mean"].value, running["var"].value
        else:
            mean, var = self._statistics(x, present, running)
        inverse = scale / jnp.sqrt(var + self.epsilon)
        normalised = (x - mean) * inverse + bias
        return zero_outside(normalised, present).astype(self.dtype)

    def _statistics(self, x, present, running):
        """Mean and variance for each example; updates the running statistics."""
        batch = x.shape[0]
        size = batch if self.group_size is None else min(self.group_size, batch)
        if batch % size:
            raise ValueError(
                f"group_size is {self.group_size}, but the batch of {batch} examples must be a"
                " multiple of it."
            )
        axes = tuple(range(1, x.ndim - 1))
        weights = present.astype(jnp.float32).reshape(-1, size)
        counts = jnp.sum(weights, axis=1)
        safe = jnp.maximum(counts, 1.0)[:, None]

        def mean_of_group(values):
            means = jnp.where(present[:, None], jnp.mean(values, axis=axes), 0.0)
            return jnp.sum(means.reshape(-1, size, means.shape[-1]), axis=1) / safe

        def to_examples(groups):
            return jnp.repeat(groups, size, axis=0).reshape(batch, *(1,) * len(axes), -1)

        mean = mean_of_group(x)
        var = mean_of_group(jnp.square(x - to_examples(mean)))
        if not self.is_initializing():
            # The mean over the groups that have examples; without any, the statistics stay.
            share = (counts > 0) / jnp.maximum(jnp.sum(counts > 0), 1)
            for name, groups in (("mean", mean), ("var", var)):
                # A product of matrices would be rounded more on accelerators.
                new = jnp.sum(share[:, None] * groups, axis=0)
                average = self.momentum * running[name].value + (1 - self.momentum) * new
                running[name].value = jnp.where(jnp.any(present), average, running[name].value)
        # In a group without present examples the variance is 0. Dividing by sqrt(epsilon) at each
        # layer would make the values overflow, and the gradients nan.
        return to_examples(mean), to_examples(jnp.where(counts[:, None] > 0, var, 1.0))
