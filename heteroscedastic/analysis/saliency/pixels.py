"""Maps of pixels, for every backbone: [b, H, W, c] -> [b, H, W], through the entire network.

They explain the same scalars (scalars.py) as the maps of places, and need no maps of the backbone.
One point or sample is in memory at a time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from heteroscedastic.analysis.saliency import attribution

# Inputs, as the network sees them -> one number per example, which depends on its own input alone.
Function = Callable[[Any], Float[Array, "b"]]
NUM_POINTS = 32  # of the quadrature
NUM_SAMPLES, NOISE_LEVEL = 32, 0.15  # of SmoothGrad


def as_float(inputs: Shaped[Array, "b H W c"]) -> Float[Array, "b H W c"]:
    """Images that a chain leaves as integers, as numbers that have gradients."""
    return inputs if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs.astype(jnp.float32)


def integrated_gradients(
    inputs: Float[Array, "b H W c"],
    function: Function,
    color: Float[Array, "c"],
    num_points: int = NUM_POINTS,
) -> Float[Array, "b H W"]:
    """Integrated gradients from an image of one colour, summed over the channels.

    The sum over the pixels is S(inputs) - S(colour), up to the error of the quadrature by
    Gauss-Legendre points. That error is larger than for `attribution.integrated`, as S has kinks
    along the path.

    Args:
      inputs: images.
      function: S.
      color: at which the path starts, such as the mean colour of the examples.
      num_points: 1 or more.

    Source: Sundararajan et al. (2017), arXiv:1703.01365, Eq. 1.
    """
    color = color.astype(inputs.dtype)

    def gradient(t):
        return attribution.example_gradient(function, color + t * (inputs - color))

    weights = attribution.mean_gradient(gradient, inputs, num_points)
    return jnp.sum((inputs - color) * weights, axis=-1)


def smooth_grad(
    keys: Key[Array, "b"],
    inputs: Float[Array, "b H W c"],
    function: Function,
    num_samples: int = NUM_SAMPLES,
    noise_level: float = NOISE_LEVEL,
) -> Float[Array, "b H W"]:
    """SmoothGrad: the mean gradient of noisy images, as its absolute value summed over channels.

    It is large where a pixel matters, in either direction, and has no unit of the scalar.

    Args:
      keys: a PRNG key per example; consumed.
      inputs: images.
      function: S.
      num_samples: noisy images, 1 or more.
      noise_level: standard deviation of the noise over the range of the pixels of the image; >= 0.

    Raises:
      ValueError: a setting is out of range.

    Source: Smilkov et al. (2017), arXiv:1706.03825, section 2.1.
    """
    if num_samples < 1 or noise_level < 0:
        raise ValueError(
            f"num_samples is {num_samples} and noise_level {noise_level}; they must be at least 1"
            " and 0."
        )
    axes = tuple(range(1, inputs.ndim))
    spread = jnp.max(inputs, axis=axes, keepdims=True) - jnp.min(inputs, axis=axes, keepdims=True)

    def add(total, index):
        own = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, index)
        noise = jax.vmap(lambda key: jax.random.normal(key, inputs.shape[1:], inputs.dtype))(own)
        noisy = inputs + noise_level * spread * noise
        return total + attribution.example_gradient(function, noisy), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(inputs), jnp.arange(num_samples))
    return jnp.sum(jnp.abs(total / num_samples), axis=-1)
