"""Augmentation of one image in jax: (key, image) -> image. A chain of them is a string in a config."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

Image = Shaped[Array, "h w c"]


def pad_crop(key: PRNGKeyArray, image: Image, *, size: int) -> Image:
    """Pads with zeros by `size` pixels on every side and crops a random window of the old shape."""
    return _random_window(key, image, size, mode="constant")


def shift(key: PRNGKeyArray, image: Image, *, size: int) -> Image:
    """Moves the image by up to `size` whole pixels each way; the border repeats its last pixel."""
    return _random_window(key, image, size, mode="edge")


def flip_lr(key: PRNGKeyArray, image: Image) -> Image:
    """Mirrors the image left to right with probability one half."""
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def value_range(key: PRNGKeyArray, image: Image, *, low: float, high: float) -> Float[Array, "h w c"]:
    """Maps 0 to 255 onto low to high, as float32."""
    return low + (high - low) / 255.0 * image.astype(jnp.float32)


def _random_window(key: PRNGKeyArray, image: Image, size: int, mode: str) -> Image:
    if size < 0:
        raise ValueError(f"size is {size}, but must be >= 0 pixels.")
    padded = jnp.pad(image, ((size, size), (size, size), (0, 0)), mode=mode)
    top, left = jax.random.randint(key, (2,), 0, 2 * size + 1)
    return jax.lax.dynamic_slice(padded, (top, left, 0), image.shape)
