"""Images as files hold them (JPEG, PNG): decoded, and laid end to end in one array.

Every image goes through this one decoder, so that the same file gives the same bits on a machine
with TensorFlow and on one without.
"""

import importlib.util
import io
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def decode(images: Sequence[bytes], num_channels: int, where: str) -> UInt8[np.ndarray, "n h w c"]:
    """The pixels of images of one size.

    Args:
      images: whole files.
      num_channels: 1 (grey), 3 or 4; grey images become coloured ones and the other way round.
      where: the images lie, for errors.

    Raises:
      ValueError: an image is damaged, or they are of several sizes.
      ModuleNotFoundError: without Pillow.
    """
    if importlib.util.find_spec("PIL") is None:
        raise ModuleNotFoundError(
            f"{where} holds encoded images, which Pillow decodes: pip install pillow."
        )
    if num_channels not in _MODES:
        raise ValueError(
            f"{where}: images of {num_channels} channels; known are {', '.join(map(str, _MODES))}."
        )
    pixels = None
    for place, image in enumerate(images):
        one = _pixels(image, num_channels, f"{where}: image {place} of {len(images)}")
        if pixels is None:
            pixels = np.empty((len(images), *one.shape), np.uint8)
        if one.shape != pixels.shape[1:]:
            raise ValueError(
                f"{where}: images are of several sizes ({_sizes(images)}), but must be of one to"
                " be resident."
            )
        pixels[place] = one
    return np.empty((0, 0, 0, num_channels), np.uint8) if pixels is None else pixels


def pack(images: Sequence[bytes]) -> tuple[UInt8[np.ndarray, "bytes"], Int[np.ndarray, "bounds"]]:
    """All images end to end, and the n + 1 places where one ends and the next begins."""
    offsets = np.cumsum([0, *map(len, images)], dtype=np.int64)
    return np.frombuffer(b"".join(images), np.uint8), offsets


def unpack(data: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    """The images that were packed, whatever a file holds in their place.

    Raises:
      ValueError: the offsets do not cut the data.
    """
    if (
        data.dtype != np.uint8
        or data.ndim != 1
        or offsets.ndim != 1
        or not np.issubdtype(offsets.dtype, np.integer)
    ):
        raise ValueError(
            f"encoded images must be uint8 [bytes] with integer offsets, but are {data.dtype}"
            f" {data.shape}."
        )
    if (
        not len(offsets)
        or offsets[0] != 0
        or offsets[-1] != len(data)
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(
            f"the offsets of encoded images must rise from 0 to their {len(data)} bytes."
        )
    return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]


def _pixels(image: bytes, num_channels: int, which: str) -> UInt8[np.ndarray, "h w c"]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image)) as opened:
            if opened.mode[0] in "IF":  # Pillow would clip 16 bits to 8
                raise ValueError(f"its pixels are {opened.mode}, not of 8 bits")
            pixels = np.asarray(opened.convert(_MODES[num_channels]))
    except Exception as error:  # damage shows as OSError, SyntaxError, EOFError, struct.error, zlib.error and others
        raise ValueError(f"{which} cannot be decoded ({error}).") from None
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _sizes(images: Sequence[bytes]) -> str:
    from PIL import Image

    found = {Image.open(io.BytesIO(image)).size for image in images}
    shown = sorted(found)[:5]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return ", ".join(f"{h}x{w}" for w, h in shown) + more
