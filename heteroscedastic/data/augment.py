"""Augmentation of one example in JAX: (key, example) -> example.

A chain of operations is a string in a config, such as "pad_crop(4)|flip_lr". An example has an
`image` [h, w, c] and its extras by name. Its `boxes`, if it has any, follow the pixels; see
boxes.py. Other extras are unchanged, but for `context`, which the operation of that name adds. In
training, `occurrence` is the number of the occurrence of the example in the epoch, from 0.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from heteroscedastic import boxes as boxes_lib
from heteroscedastic.data import chains, colors

Example = dict[str, Shaped[Array, "..."]]
Image = Shaped[Array, "h w c"]
Fill = tuple[int, ...]


def pad_crop(key: PRNGKeyArray, example: Example, *, size: int) -> Example:
    """Pads with `size` zeros on every side and crops a random window of the original shape.

    `size` must be smaller than the shorter side of the image.
    """
    return _random_window(key, example, size, mode="constant")


def shift(key: PRNGKeyArray, example: Example, *, size: int) -> Example:
    """Shifts the image by up to `size` integer pixels in each direction.

    Pixels at the border are repeated; the repeated pixels belong to no box. `size` must be smaller
    than the shorter side of the image.
    """
    return _random_window(key, example, size, mode="edge")


def flip_lr(key: PRNGKeyArray, example: Example) -> Example:
    """Mirrors the image left to right with probability one half."""
    return _mirrored_where(jax.random.bernoulli(key), example)


def with_mirrored(key: PRNGKeyArray, example: Example) -> Example:
    """Mirrors every second occurrence of an example in an epoch left to right.

    For training: an epoch of a chain with this operation has each example twice, so as it is and
    mirrored; see `chains.occurrences`.
    """
    if "occurrence" not in example:
        raise ValueError(chains.NO_OCCURRENCE)
    return _mirrored_where(example["occurrence"] % 2 == 1, example)


def to_rgb(key: PRNGKeyArray, example: Example) -> Example:
    """Converts to three channels by repeating the channel of a grey image."""
    image = example["image"]
    if image.shape[-1] not in (1, 3):
        raise ValueError(
            f"to_rgb requires images of 1 or 3 channels, but these have {image.shape[-1]}."
        )
    return example | {"image": jnp.broadcast_to(image, (*image.shape[:2], 3))}


def resize(key: PRNGKeyArray, example: Example, *, size: int) -> Example:
    """Resizes to `size` by `size` pixels, bilinearly with antialiasing.

    The result has the data type of the image; integer pixels are rounded.
    """
    _check_size(size)
    image = example["image"]
    resized = jax.image.resize(
        image.astype(jnp.float32), (size, size, image.shape[-1]), "bilinear", antialias=True
    )
    if not jnp.issubdtype(image.dtype, jnp.floating):
        resized = jnp.clip(jnp.round(resized), 0, 255)
    return example | {"image": resized.astype(image.dtype)}


def random_crop(key: PRNGKeyArray, example: Example, *, size: int) -> Example:
    """Crops a random window of `size` by `size` pixels."""
    image = example["image"]
    _check_size(size, image)
    room = jnp.array([side - size + 1 for side in image.shape[:2]])
    top, left = jax.random.randint(key, (2,), 0, room)
    window = jax.lax.dynamic_slice(image, (top, left, 0), (size, size, image.shape[-1]))
    return _windowed(example, window, (top, left))


def central_crop(key: PRNGKeyArray, example: Example, *, size: int) -> Example:
    """Crops the central `size` by `size` pixels, rounded towards the upper left corner."""
    image = example["image"]
    _check_size(size, image)
    top, left = ((side - size) // 2 for side in image.shape[:2])
    return _windowed(example, image[top : top + size, left : left + size], (top, left))


def mask_others(
    key: PRNGKeyArray, example: Example, *, fill: Fill = boxes_lib.IMAGENET_MEAN
) -> Example:
    """Fills the pixels of all boxes but the first where they lie outside of the first.

    Only the first row of the boxes remains. Pixels are in 0 to 255; `fill` has a value for each
    channel.

    Source: "One Size Doesn't Fit All: Adaptive Label Smoothing", the data set "mask".
    """
    boxes = _boxes("mask_others", example)
    is_other = _covers(example, boxes[1:]) & ~_covers(example, boxes[:1])
    filled = _filled("mask_others", example, is_other, fill)
    return example | {"image": filled, "boxes": boxes[:1]}


def context(
    key: PRNGKeyArray,
    example: Example,
    *,
    rate: float,
    fill: Fill = boxes_lib.IMAGENET_MEAN,
) -> Example:
    """Removes all objects with probability `rate`: fills their pixels and leaves no box.

    The extra `context` says whether they were removed; `smoothing.adaptive` reads it. A crop that
    shows no object has the same probability, and its pixels stay. Pixels are in 0 to 255; `fill`
    has a value for each channel.

    Source: "One Size Doesn't Fit All: Adaptive Label Smoothing", the row "context".
    """
    boxes = _boxes("context", example)
    is_removed = jax.random.bernoulli(key, rate)
    filled = _filled("context", example, is_removed & _covers(example, boxes), fill)
    boxes = jnp.where(is_removed, 0, boxes)
    return example | {"image": filled, "boxes": boxes, "context": is_removed}


def sample_boxes(key: PRNGKeyArray, example: Example, *, num_boxes: int) -> Example:
    """Keeps at most `num_boxes` boxes of an image, at random; the others become rows of zeros.

    For training. Each set of so many boxes is equally likely, of whatever class or area they are.
    """
    boxes = _boxes("sample_boxes", example)
    ranks = jax.random.uniform(key, boxes.shape[:1]) + jnp.all(boxes == 0, axis=-1)
    is_kept = jnp.argsort(jnp.argsort(ranks)) < num_boxes
    return example | {"boxes": jnp.where(is_kept[:, None], boxes, 0)}


def blend_jitter(
    key: PRNGKeyArray,
    example: Example,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
) -> Example:
    """Blends with black, with the mean grey and with the grey image.

    Each change is x + a (g - x), where a is uniform in -amount to amount. The result is float32 in
    the units of the pixels. It is not clipped, so the order of the changes has no effect.

    Args:
      key: PRNG key; consumed.
      example: has an image of three channels, with pixels from 0 to 255.
      brightness: amount of the blend with black.
      contrast: amount of the blend with the mean of the grey image.
      saturation: amount of the blend with the grey image.

    Source: the public code of CutMix, Yun et al. (2019), arXiv:1905.04899, which draws the order.
    """
    image = _color("blend_jitter", example)
    limits = jnp.asarray((brightness, contrast, saturation), jnp.float32)
    amounts = limits * jax.random.uniform(key, (3,), minval=-1.0)
    return example | {"image": colors.blended(jnp, image, amounts)}


def lighting(key: PRNGKeyArray, example: Example, *, std: float = 0.1) -> Example:
    """Adds a random colour along the principal components of the colours of ImageNet.

    The result is float32 in the units of the pixels, and it is not clipped.

    Args:
      key: PRNG key; consumed.
      example: has an image of three channels, with pixels from 0 to 255.
      std: standard deviation of each component, as a fraction of its eigenvalue.

    Source: Krizhevsky et al. (2012), section 4.1; the numbers are those of the public code of
      CutMix.
    """
    amounts = std * jax.random.normal(key, (3,))
    return example | {"image": colors.lit(jnp, _color("lighting", example), amounts)}


def value_range(
    key: PRNGKeyArray,
    example: Example,
    *,
    low: float | tuple[float, ...],
    high: float | tuple[float, ...],
) -> Example:
    """Maps 0 to 255 onto low to high, as float32; a tuple has a number for each channel."""
    image = example["image"].astype(jnp.float32)
    return example | {"image": colors.in_range(image, low, high)}


def _mirrored_where(is_mirrored: Bool[Array, ""], example: Example) -> Example:
    image = example["image"]
    changed = {"image": jnp.where(is_mirrored, image[:, ::-1], image)}
    if "boxes" in example:
        boxes = example["boxes"]
        changed["boxes"] = jnp.where(is_mirrored, boxes_lib.mirrored(jnp, boxes), boxes)
    return example | changed


def _color(name: str, example: Example) -> Float[Array, "h w 3"]:
    image = example["image"]
    colors.check_channels(name, image.shape[-1])
    return image.astype(jnp.float32)


def _check_size(size: int, image: Image | None = None) -> None:
    largest = min(image.shape[:2]) if image is not None else size
    if not 1 <= size <= largest:
        raise ValueError(
            f"size is {size}, but must be >= 1"
            + (f" and <= {largest}." if image is not None else ".")
        )


def _boxes(name: str, example: Example) -> Float[Array, "m 4"]:
    if "boxes" not in example:
        raise ValueError(f"{name} requires boxes; set config.data.extras=('boxes',).")
    return example["boxes"]


def _covers(example: Example, boxes: Float[Array, "m 4"]) -> Bool[Array, "h w"]:
    centres = ((jnp.arange(side) + 0.5) / side for side in example["image"].shape[:2])
    return boxes_lib.covers(jnp, boxes, *centres)


def _filled(name: str, example: Example, is_filled: Bool[Array, "h w"], fill: Fill) -> Image:
    image = example["image"]
    boxes_lib.check_fill(name, fill, image.shape[-1], is_integer=image.dtype == jnp.uint8)
    return jnp.where(is_filled[..., None], jnp.asarray(fill, jnp.uint8), image)


def _random_window(key: PRNGKeyArray, example: Example, size: int, mode: str) -> Example:
    image = example["image"]
    side = min(image.shape[:2])
    if not 0 <= size < side:  # else a window could contain nothing but padding
        raise ValueError(
            f"size is {size}, but must be >= 0 and below the shorter side, {side} pixels."
        )
    padded = jnp.pad(image, ((size, size), (size, size), (0, 0)), mode=mode)
    top, left = jax.random.randint(key, (2,), 0, 2 * size + 1)
    window = jax.lax.dynamic_slice(padded, (top, left, 0), image.shape)
    return _windowed(example, window, (top - size, left - size))


def _windowed(example: Example, window: Image, corner: Sequence[int | Array]) -> Example:
    """The example with a window of its image, whose top and left are `corner`."""
    changed = {"image": window}
    if "boxes" in example:
        size, corner, extent = (
            jnp.asarray(x, jnp.float32)
            for x in (example["image"].shape[:2], corner, window.shape[:2])
        )
        changed["boxes"] = boxes_lib.cropped(jnp, example["boxes"], size, corner, extent)
    return example | changed
