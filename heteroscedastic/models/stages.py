"""Convolutional backbones in stages, which a detector cuts in two."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float


class Staged(nn.Module):
    """A backbone that applies one stage after another; the stem is stage 0.

    A subclass has the attribute `dtype` and defines the properties and `_stage`.
    """

    @property
    def num_stages(self) -> int:
        """Number of stages after the stem."""
        raise NotImplementedError

    @property
    def first_of_tail(self) -> int | None:
        """The first stage that a detector applies to regions; None if it cannot."""
        raise NotImplementedError

    @property
    def trunk_stride(self) -> int:
        """Pixels from one position to the next of the maps that the tail reads."""
        raise NotImplementedError

    def _stage(self, stage: int, x: Array, present: Array, train: bool) -> Array:
        raise NotImplementedError

    def __call__(
        self, inputs: Float[Array, "b h w c"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b d"]:
        return jnp.mean(self.maps(inputs, present, train), axis=(1, 2))

    def maps(
        self, inputs: Float[Array, "b H W c"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b h w d"]:
        """The features before their mean over the image."""
        return self.stages(inputs, present, train)[-1]

    @nn.compact
    def stages(
        self,
        inputs: Float[Array, "*b _ _ _"],
        present: Bool[Array, "*b"] | Bool[Array, "*b _ _"],
        train: bool = False,
        *,
        first: int = 0,
        last: int | None = None,
    ) -> list[Float[Array, "*b _ _ _"]]:
        """The outputs of the stem, which is stage 0, and of stages 1, 2 and so on.

        Two calls cut the network in two: `stages(images, present, last=3)[-1]` is a trunk and
        `stages(maps, present, first=4)[-1]` its tail. Each creates and reads only the parameters of
        its own stages, under the names that they have in the complete network.

        Args:
          inputs: images, or outputs of stage `first - 1`, such as regions cropped from them.
          present: False for an absent example or region, which is excluded from batch statistics.
            In evaluation also by pixel; see BatchNorm.
          train: whether to use the statistics of the batch and to update the running statistics.
          first: the first stage to apply.
          last: the last stage to apply; None for the last of the network, which includes what the
            network has after it.

        Returns:
          The output of each applied stage, in float32.

        Raises:
          ValueError: the network has no such stages.
        """
        last = self.num_stages if last is None else last
        if not 0 <= first <= last <= self.num_stages:
            raise ValueError(
                f"first is {first} and last is {last}; they must satisfy"
                f" 0 <= first <= last <= {self.num_stages}."
            )
        batch = inputs.shape[:-3]
        present = present.reshape(-1, *present.shape[len(batch) :])
        x = inputs.reshape(-1, *inputs.shape[-3:]).astype(self.dtype)
        outputs = []
        for stage in range(first, last + 1):
            x = self._stage(stage, x, present, train)
            outputs.append(x.astype(jnp.float32).reshape(*batch, *x.shape[1:]))
        return outputs
