"""Images whose boxes can be read from the pixels: white inside of a box, black outside."""

import io

import numpy as np
from PIL import Image


def scene(rng, shape, margin=3):
    """An image [h, w, 3] and its boxes [2, 4]: a random box, and a row of zeros."""
    height, width = shape
    top, left = rng.integers(margin, (height - margin - 4, width - margin - 4))
    bottom, right = rng.integers((top + 3, left + 3), (height - margin, width - margin))
    image = np.zeros((height, width, 3), np.uint8)
    image[top:bottom, left:right] = 255
    box = (top / height, left / width, bottom / height, right / width)
    return image, np.array([box, (0, 0, 0, 0)], np.float32)


def encoded(image):
    """The image as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def box_of_white(image):
    """The box around the white pixels; zeros if there are none."""
    is_white = image[..., 0] > 127
    if not is_white.any():
        return np.zeros(4)
    (top, bottom), (left, right) = (
        np.flatnonzero(is_white.any(axis=axis))[[0, -1]] + [0, 1] for axis in (1, 0)
    )
    height, width = is_white.shape
    return np.array([top / height, left / width, bottom / height, right / width])


def assert_around_white(image, boxes, pixels=0.0):
    """The first box is around the white pixels, up to a number of pixels; the others are zeros."""
    slack = pixels / min(image.shape[:2]) + 1e-5
    expected = box_of_white(image)
    if not expected.any():  # less than half of a pixel may be black
        assert min(boxes[0, 2] - boxes[0, 0], boxes[0, 3] - boxes[0, 1]) <= slack
    else:
        np.testing.assert_allclose(boxes[0], expected, atol=slack)
    np.testing.assert_array_equal(boxes[1:], 0)
