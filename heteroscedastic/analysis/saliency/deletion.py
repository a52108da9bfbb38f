"""Deletion: how a scalar falls as the pixels that a map ranks first lose their content."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic.analysis.saliency.pixels import Function

FRACTIONS = np.arange(0, 0.55, 0.05)  # of the pixels that are filled; the first is the image itself


def curve(
    order: Int[Array, "b H W"],
    inputs: Float[Array, "b H W c"],
    function: Function,
    color: Float[Array, "c"],
) -> Float[Array, "b f"]:
    """The scalar as the first pixels of an order take a colour, by FRACTIONS of the pixels.

    A map that shows what the scalar depends on lowers it faster than an order by chance, and than
    the centre first.

    Args:
      order: of the pixels, from 0; see `order_of`.
      inputs: images.
      function: S.
      color: that filled pixels take, such as the mean colour of the examples.

    Source: Petsiuk et al. (2018), arXiv:1806.07421, section 4.2, with a colour in place of grey.
    """
    num_pixels = order.shape[1] * order.shape[2]

    def value(fraction):
        is_filled = order < jnp.round(fraction * num_pixels)
        return function(jnp.where(is_filled[..., None], color.astype(inputs.dtype), inputs))

    return jax.lax.map(value, jnp.asarray(FRACTIONS, jnp.float32)).T


def order_of(key: PRNGKeyArray, maps: Float[Array, "b H W"]) -> Int[Array, "b H W"]:
    """The position of each pixel, the largest value of its map first, and ties at random.

    Args:
      key: PRNG key; consumed. The same ties break in the same way in every example.
      maps: of the size of the images; a constant map gives a random order.
    """
    flat = maps.reshape(len(maps), -1)
    shuffled = jax.random.permutation(key, flat.shape[1])
    ranked = shuffled[jnp.argsort(-flat[:, shuffled], axis=-1, stable=True)]
    return jnp.argsort(ranked, axis=-1).reshape(maps.shape)
