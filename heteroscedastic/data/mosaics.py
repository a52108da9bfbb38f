"""Images for detectors: several images in one, each with its box and class."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int, UInt8

from heteroscedastic.data.dataset import Split

Pixels = UInt8[np.ndarray, "h w c"]


def mosaics(
    images: UInt8[np.ndarray, "n h w c"],
    labels: Int[np.ndarray, "n"],
    boxes: Float[np.ndarray, "n 4"],
    *,
    number: int,
    seed: int,
    quarter: int,
    smallest: int,
    counts: tuple[int, int],
    resized: Callable[[Pixels, int], Pixels],
) -> Split:
    """Mosaics of random images, each at a random size and place in a quarter of its own.

    Class 0 is the background, so an image of label k has class k + 1. Class and box of an image
    stand in the same row, and -1 and zeros are padding. A mosaic follows from the seed and its id,
    and an image may be in several. Pixels outside of the images are 0.

    Args:
      images: of one size.
      labels: of the images.
      boxes: of the object of each image, as fractions of it.
      number: of mosaics.
      seed: of sizes, places and the choice of images.
      quarter: side of a quarter, in pixels.
      smallest: least side of an image; the largest is below that of a quarter.
      counts: least and largest number of images in a mosaic, at most 4.
      resized: image and side -> the image at that side.
    """

    def mosaic(example):
        generator = np.random.Generator(np.random.Philox(key=[seed, example]))
        count = generator.integers(counts[0], counts[1] + 1)
        pixels = np.zeros((2 * quarter, 2 * quarter, images.shape[-1]), np.uint8)
        of_rows = np.full(4, -1, np.int32), np.zeros((4, 4), np.float32)
        quarters = generator.permutation(4)[:count]
        chosen = generator.integers(len(images), size=count)
        for row, (place, i) in enumerate(zip(quarters, chosen)):
            side = generator.integers(smallest, quarter)
            room = generator.integers(quarter - side + 1, size=2)
            top, left = quarter * np.array(divmod(place, 2)) + room
            pixels[top : top + side, left : left + side] = resized(images[i], side)
            corner = np.array([top, left, top, left])
            of_rows[0][row] = labels[i] + 1
            of_rows[1][row] = (corner + side * boxes[i]) / (2 * quarter)
        return pixels, *of_rows

    pixels, classes, found = map(np.stack, zip(*map(mosaic, range(number))))
    return Split(pixels, classes, np.arange(number, dtype=np.int32), {"boxes": found})
