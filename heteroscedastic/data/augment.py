"""Augmentation of one image in JAX: (key, image) -> image.

A chain of operations is a string in a config, such as "pad_crop(4)|flip_lr".
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

Image = Shaped[Array, "h w c"]
Resized = Shaped[Array, "size size c"]


def pad_crop(key: PRNGKeyArray, image: Image, *, size: int) -> Image:
    """Pads with `size` zeros on every side and crops a random window of the original shape.

    `size` must be smaller than the shorter side of the image.
    """
    return _random_window(key, image, size, mode="constant")


def shift(key: PRNGKeyArray, image: Image, *, size: int) -> Image:
    """Shifts the image by up to `size` integer pixels in each direction.

    Pixels at the border are repeated. `size` must be smaller than the shorter side of the image.
    """
    return _random_window(key, image, size, mode="edge")


def flip_lr(key: PRNGKeyArray, image: Image) -> Image:
    """Mirrors the image left to right with probability one half."""
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def to_rgb(key: PRNGKeyArray, image: Image) -> Shaped[Array, "h w 3"]:
    """Converts to three channels by repeating the channel of a grey image."""
    if image.shape[-1] not in (1, 3):
        raise ValueError(
            f"to_rgb requires images of 1 or 3 channels, but these have {image.shape[-1]}."
        )
    return jnp.broadcast_to(image, (*image.shape[:2], 3))


def resize(key: PRNGKeyArray, image: Image, *, size: int) -> Resized:
    """Resizes to `size` by `size` pixels, bilinearly with antialiasing.

    The result has the data type of the image; integer pixels are rounded.
    """
    _check_size(size)
    resized = jax.image.resize(
        image.astype(jnp.float32), (size, size, image.shape[-1]), "bilinear", antialias=True
    )
    is_float = jnp.issubdtype(image.dtype, jnp.floating)
    return (
        resized.astype(image.dtype)
        if is_float
        else jnp.clip(jnp.round(resized), 0, 255).astype(image.dtype)
    )


def random_crop(key: PRNGKeyArray, image: Image, *, size: int) -> Resized:
    """Crops a random window of `size` by `size` pixels."""
    _check_size(size, image)
    room = jnp.array([side - size + 1 for side in image.shape[:2]])
    top, left = jax.random.randint(key, (2,), 0, room)
    return jax.lax.dynamic_slice(image, (top, left, 0), (size, size, image.shape[-1]))


def central_crop(key: PRNGKeyArray, image: Image, *, size: int) -> Resized:
    """Crops the central `size` by `size` pixels, rounded towards the upper left corner."""
    _check_size(size, image)
    top, left = ((side - size) // 2 for side in image.shape[:2])
    return image[top : top + size, left : left + size]


def value_range(
    key: PRNGKeyArray, image: Image, *, low: float, high: float
) -> Float[Array, "h w c"]:
    """Maps 0 to 255 onto low to high, as float32."""
    return low + (high - low) / 255.0 * image.astype(jnp.float32)


def _check_size(size: int, image: Image | None = None) -> None:
    largest = min(image.shape[:2]) if image is not None else size
    if not 1 <= size <= largest:
        raise ValueError(
            f"size is {size}, but must be >= 1"
            + (f" and <= {largest}." if image is not None else ".")
        )


def _random_window(key: PRNGKeyArray, image: Image, size: int, mode: str) -> Image:
    side = min(image.shape[:2])
    if not 0 <= size < side:  # else a window could contain nothing but padding
        raise ValueError(
            f"size is {size}, but must be >= 0 and below the shorter side, {side} pixels."
        )
    padded = jnp.pad(image, ((size, size), (size, size), (0, 0)), mode=mode)
    top, left = jax.random.randint(key, (2,), 0, 2 * size + 1)
    return jax.lax.dynamic_slice(padded, (top, left, 0), image.shape)
