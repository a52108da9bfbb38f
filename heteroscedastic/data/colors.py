"""Random changes of the colours of an image, for operations in JAX and in TensorFlow.

`xp` is jax.numpy or tensorflow.experimental.numpy. Pixels are float32 in 0 to 255 before a change
and are not clipped after it.
"""

from types import ModuleType
from typing import Any

import numpy as np

_RED, _GREEN, _BLUE = 0.299, 0.587, 0.114  # of a grey image
# Eigenvalues and eigenvectors, in columns, of the covariance of red, green and blue in ImageNet,
# where pixels are 0 to 1.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)


def blended(xp: ModuleType, image: Any, amounts: Any) -> Any:
    """Moves an image towards its grey pixels, its mean grey and black.

    An amount a turns x into x + a (g - x), where g is what the change moves to; a < 0 moves away
    from it. As nothing is clipped, the three changes give the same result in any order.

    Args:
      xp: namespace of arrays.
      image: red, green and blue [h, w, 3].
      amounts: of brightness, contrast and saturation.
    """
    brightness, contrast, saturation = (amounts[i] for i in range(3))
    grey = _RED * image[..., :1] + _GREEN * image[..., 1:2] + _BLUE * image[..., 2:]
    image = image + saturation * (grey - image)
    image = image + contrast * (xp.mean(grey) - image)
    return image - brightness * image


def lit(xp: ModuleType, image: Any, amounts: Any) -> Any:
    """Adds the same colour to every pixel.

    Args:
      xp: namespace of arrays.
      image: red, green and blue [h, w, 3].
      amounts: of the three eigenvectors of the covariance of colours, as multiples of the
        eigenvalues.
    """
    scaled = amounts * xp.asarray(_EIGENVALUES, dtype=image.dtype)
    return image + 255 * xp.sum(xp.asarray(_EIGENVECTORS, dtype=image.dtype) * scaled, axis=-1)


def in_range(image: Any, low: float | tuple[float, ...], high: float | tuple[float, ...]) -> Any:
    """Pixels from 0 to 255, mapped onto low to high; a tuple has a number for each channel."""
    low, high = (np.asarray(bound, np.float64) for bound in (low, high))
    num_channels = image.shape[-1]
    for bound in (low, high):
        if bound.shape not in ((), (num_channels,)):
            raise ValueError(
                f"value_range has {bound.size} numbers, but these images have {num_channels}"
                " channels."
            )
    return low.astype(np.float32) + ((high - low) / 255.0).astype(np.float32) * image


def check_channels(name: str, num_channels: int | None) -> None:
    """Raises a ValueError if images are known not to have three channels."""
    if num_channels not in (3, None):
        raise ValueError(f"{name} requires 3 channels, but these images have {num_channels}.")
