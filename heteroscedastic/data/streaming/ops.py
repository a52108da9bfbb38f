"""Operations on an example of a stream, in TensorFlow: (seed, example) -> example.

A chain of operations is a string in a config, as in augment.py. An example's `image` holds the
encoded bytes until an operation decodes it. Its `shape` is (height, width, channels); height and
width may be None. Its `orientation` is "wide" or "tall" where a batch has images of one; see `fit`.
A decoded image is uint8 [h, w, c], and interpolated pixels are rounded; `value_range`,
`blend_jitter` and `lighting` convert it to float32. An example also has its extras by name. Its
`boxes`, if it has any, follow the pixels; see boxes.py. Other extras are unchanged.
Where an epoch has an example several times, `occurrence` is the number of its occurrence, from 0.
The seed is a pair of integers that follows from the seed of the run, the epoch, the example's id
and the index of the operation in the chain.
"""

from typing import Any

import tensorflow as tf
import tensorflow.experimental.numpy as tnp
from jaxtyping import Int

from heteroscedastic import boxes as boxes_lib
from heteroscedastic.data import chains, colors

# The operations that config.data.train and config.data.eval may name.
__all__ = [
    "blend_jitter",
    "central_crop",
    "color_jitter",
    "context",
    "decode",
    "efficientnet_center_crop",
    "efficientnet_random_crop",
    "fit",
    "flip_lr",
    "inception_crop",
    "lighting",
    "mask_others",
    "pad_crop",
    "random_crop",
    "resize",
    "resize_small",
    "sample_boxes",
    "value_range",
    "with_mirrored",
]

Example = dict[str, Any]
Seed = Int[tf.Tensor, "2"]
Fill = tuple[int, ...]
_BLOCK = 16  # pixels; libjpeg decodes from multiples of it


def decode(seed: Seed | None, example: Example, *, dct_method: str = "") -> Example:
    """Decodes the full image; operations that need all pixels call it themselves.

    Args:
      seed: ignored.
      example: has an image, encoded or decoded.
      dct_method: DCT of JPEG, "INTEGER_FAST" or "INTEGER_ACCURATE"; "" is TensorFlow's default.
    """
    image = example["image"]
    if image.dtype != tf.string:
        return example
    channels = example["shape"][-1]
    image = tf.cond(
        tf.io.is_jpeg(image),
        lambda: tf.io.decode_jpeg(image, channels=channels, dct_method=dct_method),
        lambda: tf.io.decode_image(image, channels=channels, expand_animations=False),
    )
    image.set_shape(example["shape"])
    return example | {"image": image}


def inception_crop(
    seed: Seed,
    example: Example,
    *,
    size: int,
    min_area: float = 0.08,
    max_area: float = 1.0,
    min_aspect: float = 3 / 4,
    max_aspect: float = 4 / 3,
    method: str = "bilinear",
    dct_method: str = "",
) -> Example:
    """Crops a window of random area and aspect ratio, resized to `size` by `size` pixels.

    Only the window of a JPEG is decoded. Interpolation has no antialiasing, as in the code of the
    source. If 100 attempts find no window, the full image is used.

    Args:
      seed: seed of the window.
      example: has an image.
      size: height and width of the result, in pixels.
      min_area: minimum area of the window, as a fraction of the image.
      max_area: maximum area of the window, as a fraction of the image.
      min_aspect: minimum aspect ratio, width over height.
      max_aspect: maximum aspect ratio.
      method: "bilinear" or "bicubic".
      dct_method: see `decode`.

    Source: Szegedy et al. (2015), arXiv:1409.4842, section 6.
    """
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        _shape(example),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=(min_aspect, max_aspect),
        area_range=(min_area, max_area),
        max_attempts=100,
    )
    return _resized_window(example, begin, extent, size, method, dct_method)


def efficientnet_center_crop(
    seed: Seed,
    example: Example,
    *,
    size: int,
    padding: int = 32,
    method: str = "bicubic",
    dct_method: str = "",
) -> Example:
    """Crops the central square whose side is size / (size + padding) of the shorter side.

    The square is resized to `size` by `size` pixels.

    Source: Tan and Le (2019), arXiv:1905.11946, its public code.
    """
    begin, extent = _efficientnet_center(_shape(example), size, padding)
    return _resized_window(example, begin, extent, size, method, dct_method)


def efficientnet_random_crop(
    seed: Seed,
    example: Example,
    *,
    size: int,
    padding: int = 32,
    method: str = "bicubic",
    dct_method: str = "",
) -> Example:
    """Crops a random window of at least a tenth of the image and of aspect ratio 3/4 to 4/3.

    If 10 attempts find no window, or find the full image, the window of `efficientnet_center_crop`
    is used.

    Source: Tan and Le (2019), arXiv:1905.11946, its public code, which draws areas of at least 0.08
    and rejects those below 0.1.
    """
    shape = _shape(example)
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
    )
    is_full = tf.reduce_all(extent[:2] == shape[:2])
    middle, side = _efficientnet_center(shape, size, padding)
    begin, extent = tf.where(is_full, middle, begin[:2]), tf.where(is_full, side, extent[:2])
    return _resized_window(example, begin, extent, size, method, dct_method)


def _efficientnet_center(shape: tf.Tensor, size: int, padding: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Corner and extent of the central square, at least one pixel wide."""
    side = tf.cast(
        size / (size + padding) * tf.cast(tf.reduce_min(shape[:2]), tf.float32), tf.int32
    )
    side = tf.maximum(side, 1)
    return (shape[:2] - side + 1) // 2, tf.stack((side, side))


def resize_small(seed: Seed, example: Example, *, size: int, method: str = "bilinear") -> Example:
    """Resizes the shorter side to `size` pixels with antialiasing, the other in proportion."""
    example = decode(seed, example)
    sides = tf.cast(tf.shape(example["image"])[:2], tf.float32)
    shape = tf.cast(tf.round(sides * (size / tf.reduce_min(sides))), tf.int32)
    return example | {"image": _resized(example["image"], shape, method, antialias=True)}


def resize(seed: Seed, example: Example, *, size: int, method: str = "bilinear") -> Example:
    """Resizes to `size` by `size` pixels with antialiasing."""
    example = decode(seed, example)
    return example | {"image": _resized(example["image"], (size, size), method, antialias=True)}


def fit(
    seed: Seed,
    example: Example,
    *,
    size: int,
    shorter: int,
    longer: int,
    narrow: int | None = None,
    method: str = "bilinear",
) -> Example:
    """Resizes an image to a limit of its sides and puts it on a canvas, for a detector.

    The shorter side becomes `shorter` pixels, or less where the other one would exceed `longer`.
    The image is at the top left, and the rest of the canvas is zeros. Boxes become fractions of the
    canvas. The extra `image_size` is the height and width of the image on the canvas, and
    `stored_size` the same of the stored image, in pixels.

    Args:
      seed: ignored.
      example: has an image.
      size: the longer side of the canvas, in pixels; at least `longer`.
      shorter: limit of the shorter side.
      longer: limit of the longer side.
      narrow: the shorter side of the canvas, which then has the orientation of the image; at least
        `shorter`. None is a square canvas.
      method: see `inception_crop`; with antialiasing.
    """
    example = decode(seed, example)
    if not shorter <= longer <= size:
        raise ValueError(
            f"shorter is {shorter}, longer {longer} and size {size}, but they must not decrease."
        )
    if narrow is not None and not shorter <= narrow <= size:
        raise ValueError(
            f"narrow is {narrow}, but must be between shorter, {shorter}, and size, {size}."
        )
    height, width = size, size
    if narrow is not None:
        height, width = {"wide": (narrow, size), "tall": (size, narrow)}[example["orientation"]]
    stored = tf.cast(tf.shape(example["image"])[:2], tf.float32)
    scale = tf.minimum(shorter / tf.reduce_min(stored), longer / tf.reduce_max(stored))
    sides = tf.maximum(tf.cast(tf.round(stored * scale), tf.int32), 1)
    image = _resized(example["image"], sides, method, antialias=True)
    image = tf.pad(image, ((0, height - sides[0]), (0, width - sides[1]), (0, 0)))
    fitted = tf.cast(sides, tf.float32)
    changed = {
        "image": tf.ensure_shape(image, (height, width, example["image"].shape[-1])),
        "image_size": fitted,
        "stored_size": stored,
    }
    if "boxes" in example:
        changed["boxes"] = example["boxes"] * tf.tile(fitted / (height, width), (2,))
    return example | changed


def is_tall(image: bytes) -> bool:
    """Whether an encoded image is higher than wide; False where that cannot be read.

    Only the header of a JPEG is read.
    """
    try:
        height, width, _ = _shape({"image": tf.constant(image)}).numpy()
    except tf.errors.InvalidArgumentError:  # a stream leaves the image out when it decodes it
        return False
    return bool(height > width)


def central_crop(seed: Seed, example: Example, *, size: int) -> Example:
    """Crops the central `size` by `size` pixels, rounded towards the upper left corner."""
    _check_sides(example, size)
    height, width = (_shape(example)[i] for i in (0, 1))
    window = ((height - size) // 2, (width - size) // 2, size, size)
    image = tf.ensure_shape(_window(example, *window), (size, size, None))
    return _windowed(example, image, *window)


def random_crop(seed: Seed, example: Example, *, size: int) -> Example:
    """Crops a random window of `size` by `size` pixels."""
    _check_sides(example, size)
    room = tf.maximum(_shape(example)[:2] - size, 0) + 1
    corner = tf.random.stateless_uniform((2,), seed, 0, 2**31 - 1, tf.int32) % room
    window = (corner[0], corner[1], size, size)
    image = tf.ensure_shape(_window(example, *window), (size, size, None))
    return _windowed(example, image, *window)


def pad_crop(seed: Seed, example: Example, *, size: int) -> Example:
    """Pads with `size` zeros on every side and crops a random window of the original shape."""
    image = decode(seed, example)["image"]
    if size:  # else a window could contain nothing but padding
        _check_sides(example, size + 1)
        tf.debugging.assert_less(
            size,
            tf.reduce_min(tf.shape(image)[:2]),
            "pad_crop requires an image larger than its padding",
        )
    corner = tf.random.stateless_uniform((2,), seed, 0, 2 * size + 1, tf.int32)
    padded = tf.pad(image, ((size, size), (size, size), (0, 0)))
    height, width, _ = tf.unstack(tf.shape(image))
    cropped = tf.slice(padded, (corner[0], corner[1], 0), tf.shape(image))
    cropped = tf.ensure_shape(cropped, image.shape)
    return _windowed(example, cropped, corner[0] - size, corner[1] - size, height, width)


def flip_lr(seed: Seed, example: Example) -> Example:
    """Mirrors the image left to right with probability one half."""
    # The draw of tf.image.stateless_random_flip_left_right, as boxes require it too.
    return _mirrored_where(tf.random.stateless_uniform((), seed) < 0.5, decode(seed, example))


def with_mirrored(seed: Seed, example: Example) -> Example:
    """Mirrors every second occurrence of an example in an epoch left to right.

    See augment.py.
    """
    if "occurrence" not in example:
        raise ValueError(chains.NO_OCCURRENCE)
    return _mirrored_where(example["occurrence"] % 2 == 1, decode(seed, example))


def color_jitter(
    seed: Seed,
    example: Example,
    *,
    brightness: float = 32 / 255,
    saturation: float = 0.5,
    hue: float = 0.2,
    contrast: float = 0.5,
) -> Example:
    """Changes brightness, saturation, hue and contrast, in this order, by uniform amounts.

    The defaults are those of the public code of Inception.

    Args:
      seed: seed of the four draws.
      example: has an image of three channels.
      brightness: maximum that is added or subtracted; pixels are 0 to 1.
      saturation: the factor is uniform in 1 - saturation to 1 + saturation.
      hue: maximum rotation, as a fraction of a full turn.
      contrast: the factor is uniform in 1 - contrast to 1 + contrast.
    """
    pixels = decode(seed, example)["image"]
    _check_pixels(pixels)
    colors.check_channels("color_jitter", pixels.shape[-1])
    image = tf.image.convert_image_dtype(pixels, tf.float32)
    draws = tf.random.stateless_uniform((4,), seed, -1.0, 1.0)
    image = tf.image.adjust_brightness(image, brightness * draws[0])
    image = tf.image.adjust_saturation(image, 1 + saturation * draws[1])
    image = tf.image.adjust_hue(image, hue * draws[2])
    image = tf.image.adjust_contrast(image, 1 + contrast * draws[3])
    return example | {"image": tf.image.convert_image_dtype(image, tf.uint8, saturate=True)}


def mask_others(seed: Seed, example: Example, *, fill: Fill = boxes_lib.IMAGENET_MEAN) -> Example:
    """Fills the pixels of all boxes but the first where they lie outside of the first.

    See augment.py.
    """
    example, boxes = decode(seed, example), _boxes("mask_others", example)
    is_other = _covers(example, boxes[1:]) & ~_covers(example, boxes[:1])
    filled = _filled("mask_others", example, is_other, fill)
    return example | {"image": filled, "boxes": boxes[:1]}


def context(
    seed: Seed, example: Example, *, rate: float, fill: Fill = boxes_lib.IMAGENET_MEAN
) -> Example:
    """Removes all objects with probability `rate`: fills their pixels and leaves no box.

    See augment.py.
    """
    example, boxes = decode(seed, example), _boxes("context", example)
    is_removed = tf.random.stateless_uniform((), seed) < rate

    def without_objects():
        filled = _filled("context", example, _covers(example, boxes), fill)
        return {"image": filled, "boxes": tf.zeros_like(boxes)}

    kept = {"image": example["image"], "boxes": boxes}
    return example | tf.cond(is_removed, without_objects, lambda: kept) | {"context": is_removed}


def sample_boxes(seed: Seed, example: Example, *, num_boxes: int) -> Example:
    """Keeps at most `num_boxes` boxes of an image, at random; the others become rows of zeros.

    See augment.py.
    """
    boxes = _boxes("sample_boxes", example)
    is_padding = tf.reduce_all(boxes == 0, axis=-1)
    ranks = tf.random.stateless_uniform(tf.shape(boxes)[:1], seed) + tf.cast(is_padding, tf.float32)
    is_kept = tf.argsort(tf.argsort(ranks)) < num_boxes
    return example | {"boxes": tf.where(is_kept[:, None], boxes, tf.zeros_like(boxes))}


def blend_jitter(
    seed: Seed,
    example: Example,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
) -> Example:
    """Blends with black, with the mean grey and with the grey image.

    See augment.py.
    """
    image = _color("blend_jitter", seed, example)
    limits = tf.constant((brightness, contrast, saturation), tf.float32)
    amounts = limits * tf.random.stateless_uniform((3,), seed, -1.0, 1.0)
    return example | {"image": colors.blended(tnp, image, amounts)}


def lighting(seed: Seed, example: Example, *, std: float = 0.1) -> Example:
    """Adds a random colour along the principal components of the colours of ImageNet.

    See augment.py.
    """
    amounts = std * tf.random.stateless_normal((3,), seed)
    return example | {"image": colors.lit(tnp, _color("lighting", seed, example), amounts)}


def value_range(
    seed: Seed,
    example: Example,
    *,
    low: float | tuple[float, ...],
    high: float | tuple[float, ...],
) -> Example:
    """Maps 0 to 255 onto low to high, as float32; at the end of a chain it runs on the device.

    See augment.py.
    """
    image = tf.cast(decode(seed, example)["image"], tf.float32)
    return example | {"image": colors.in_range(image, low, high)}


def _mirrored_where(is_mirrored: tf.Tensor, example: Example) -> Example:
    before = {name: example[name] for name in ("image", "boxes") if name in example}
    # A slice x[:, ::-1] takes much longer.
    mirrored = {
        "image": lambda x: tf.reverse(x, (1,)),
        "boxes": lambda x: boxes_lib.mirrored(tf, x),
    }
    return example | tf.cond(
        is_mirrored, lambda: {name: mirrored[name](x) for name, x in before.items()}, lambda: before
    )


def _color(name: str, seed: Seed, example: Example) -> tf.Tensor:
    image = decode(seed, example)["image"]
    colors.check_channels(name, image.shape[-1])
    return tf.cast(image, tf.float32)


def _boxes(name: str, example: Example) -> tf.Tensor:
    if "boxes" not in example:
        raise ValueError(f"{name} requires boxes; set config.data.extras=('boxes',).")
    return example["boxes"]


def _covers(example: Example, boxes: tf.Tensor) -> tf.Tensor:
    sides = tf.unstack(tf.cast(_shape(example)[:2], tf.float32))
    centres = ((tf.range(side) + 0.5) / side for side in sides)
    return boxes_lib.covers(tf, boxes, *centres)


def _filled(name: str, example: Example, is_filled: tf.Tensor, fill: Fill) -> tf.Tensor:
    image = example["image"]
    boxes_lib.check_fill(name, fill, image.shape[-1], is_integer=image.dtype == tf.uint8)
    return tf.where(is_filled[..., None], tf.constant(fill, tf.uint8), image)


def _shape(example: Example) -> Int[tf.Tensor, "3"]:
    """Height, width and channels, read from the header of a JPEG."""
    image = example["image"]
    if image.dtype != tf.string:
        return tf.shape(image)
    return tf.cond(
        tf.io.is_jpeg(image),
        lambda: tf.io.extract_jpeg_shape(image),
        lambda: tf.shape(tf.io.decode_image(image, expand_animations=False)),
    )


def _window(
    example: Example, top: Any, left: Any, height: Any, width: Any, dct_method: str = ""
) -> tf.Tensor:
    """The pixels of a window, equal to those of the fully decoded image."""
    image, channels = example["image"], example["shape"][-1]
    if image.dtype != tf.string:
        window = tf.slice(image, (top, left, 0), (height, width, -1))
        return tf.ensure_shape(window, (None, None, image.shape[-1]))

    def window_of_jpeg():
        # Chroma of half the width is interpolated between neighbours, so the neighbouring columns
        # are decoded too.
        before = tf.cast((left > 0) & (left % _BLOCK == 0), tf.int32)
        after = tf.cast(
            (left + width < tf.io.extract_jpeg_shape(image)[1]) & ((left + width) % 2 == 0),
            tf.int32,
        )
        wider = tf.stack((top, left - before, height, before + width + after))
        pixels = tf.image.decode_and_crop_jpeg(
            image, wider, channels=channels, dct_method=dct_method
        )
        return pixels[:, before : before + width]

    def window_of_other_format():
        return tf.slice(decode(None, example)["image"], (top, left, 0), (height, width, -1))

    pixels = tf.cond(tf.io.is_jpeg(image), window_of_jpeg, window_of_other_format)
    pixels.set_shape((None, None, channels))
    return pixels


def _resized_window(
    example: Example, begin: tf.Tensor, extent: tf.Tensor, size: int, method: str, dct_method: str
) -> Example:
    """The example with a window of its image, resized to `size` by `size` pixels."""
    window = (begin[0], begin[1], extent[0], extent[1])
    image = _window(example, *window, dct_method)
    return _windowed(example, _resized(image, (size, size), method, antialias=False), *window)


def _windowed(
    example: Example, image: tf.Tensor, top: Any, left: Any, height: Any, width: Any
) -> Example:
    """The example with the image of a window, maybe resized, and the boxes in the window."""
    changed = {"image": image}
    if "boxes" in example:
        size, corner, extent = (
            tf.cast(tf.stack(x), tf.float32)
            for x in (_shape(example)[:2], (top, left), (height, width))
        )
        changed["boxes"] = boxes_lib.cropped(tf, example["boxes"], size, corner, extent)
    return example | changed


def _check_sides(example: Example, least: int) -> None:
    """Raises a ValueError if the static shape is too small; other images fail in the graph."""
    image = example["image"]
    sides = (example["shape"] if image.dtype == tf.string else image.shape)[:2]
    if any(side is not None and side < least for side in sides):
        height, width = sides
        raise ValueError(
            f"images are {height} x {width} pixels, but both sides must be at least {least}."
        )


def _check_pixels(image: tf.Tensor) -> None:
    """Raises a ValueError if pixels are not uint8."""
    if image.dtype != tf.uint8:
        raise ValueError("requires pixels from 0 to 255, so it must come before value_range.")


def _resized(image: tf.Tensor, size: Any, method: str, antialias: bool) -> tf.Tensor:
    _check_pixels(image)
    resized = tf.image.resize(image, size, method=method, antialias=antialias) + 0.5
    # Bilinear weights are non-negative, so pixels stay in range; bicubic weights are not.
    return tf.cast(
        resized if method == "bilinear" else tf.clip_by_value(resized, 0.0, 255.5), tf.uint8
    )
