"""Encoded images (JPEG, PNG): decoding, and packing into one array.

All resident images are decoded here, so that the same file gives the same pixels on machines with
and without TensorFlow.
"""

import importlib.util
import io
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped, UInt8

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class DifferentSizesError(ValueError):
    """Images that must have one size differ in size."""


def decode(
    images: Sequence[bytes], num_channels: int, where: str, size: int | None = None
) -> UInt8[np.ndarray, "n h w c"]:
    """Decodes images to one size.

    Args:
      images: contents of image files.
      num_channels: 1 (grey), 3 or 4; images are converted between grey and colour.
      where: location of the images, for errors.
      size: pixels of each side to which images that differ in size are resized, bilinearly with
        antialiasing; images of one size keep it.

    Raises:
      ValueError: an image is damaged, or images differ in size without `size`.
      ModuleNotFoundError: Pillow is not installed.
    """
    if importlib.util.find_spec("PIL") is None:
        raise ModuleNotFoundError(
            f"{where} has encoded images; decoding them requires Pillow: pip install pillow."
        )
    if num_channels not in _MODES:
        raise ValueError(
            f"{where}: images have {num_channels} channels; supported are"
            f" {', '.join(map(str, _MODES))}."
        )
    pixels = None
    for index, image in enumerate(images):
        image_pixels = _pixels(image, num_channels, f"{where}: image {index} of {len(images)}")
        if pixels is None:
            pixels = np.empty((len(images), *image_pixels.shape), np.uint8)
        if image_pixels.shape != pixels.shape[1:]:
            if size is not None:
                return _squares(images, num_channels, where, size)
            raise DifferentSizesError(
                f"{where}: images differ in size ({_sizes(images)}), but the resident pipeline"
                " requires one size."
            )
        pixels[index] = image_pixels
    return np.empty((0, 0, 0, num_channels), np.uint8) if pixels is None else pixels


def _squares(
    images: Sequence[bytes], num_channels: int, where: str, size: int
) -> UInt8[np.ndarray, "n size size c"]:
    pixels = np.empty((len(images), size, size, num_channels), np.uint8)
    for index, image in enumerate(images):
        which = f"{where}: image {index} of {len(images)}"
        pixels[index] = _pixels(image, num_channels, which, size)
    return pixels


def pack(images: Sequence[bytes]) -> tuple[UInt8[np.ndarray, "bytes"], Int[np.ndarray, "bounds"]]:
    """Concatenates n images; returns their bytes, and n + 1 offsets of their ends."""
    offsets = np.cumsum([0, *map(len, images)], dtype=np.int64)
    return np.frombuffer(b"".join(images), np.uint8), offsets


def unpack(data: Shaped[np.ndarray, "..."], offsets: Shaped[np.ndarray, "..."]) -> list[bytes]:
    """The images of `pack`; checks its arguments, which may come from a damaged file.

    Raises:
      ValueError: the types are wrong, or the offsets do not divide the data.
    """
    if (
        data.dtype != np.uint8
        or data.ndim != 1
        or offsets.ndim != 1
        or not np.issubdtype(offsets.dtype, np.integer)
    ):
        raise ValueError(
            f"encoded images must be uint8 [bytes] with integer offsets [n + 1], but are"
            f" {data.dtype} {data.shape} with offsets {offsets.dtype} {offsets.shape}."
        )
    if (
        not len(offsets)
        or offsets[0] != 0
        or offsets[-1] != len(data)
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(
            f"the offsets of encoded images must increase from 0 to {len(data)}, their total size."
        )
    return [data[start:stop].tobytes() for start, stop in itertools.pairwise(offsets)]


def _pixels(
    image: bytes, num_channels: int, which: str, size: int | None = None
) -> UInt8[np.ndarray, "h w c"]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image)) as file:
            if file.mode[0] in "IF":  # Pillow would clip 16 bits to 8
                raise ValueError(f"its pixels are {file.mode}, not 8 bits")
            converted = file.convert(_MODES[num_channels])
            if size is not None:
                converted = converted.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(converted)
    except (
        Exception
    ) as error:  # OSError, SyntaxError, EOFError, struct.error, zlib.error and others
        raise ValueError(f"{which} cannot be decoded ({error}).") from None
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _sizes(images: Sequence[bytes]) -> str:
    from PIL import Image

    sizes = sorted({Image.open(io.BytesIO(image)).size for image in images})
    rest = f" and {len(sizes) - 5} more" if len(sizes) > 5 else ""
    return ", ".join(f"{height}x{width}" for width, height in sizes[:5]) + rest
