"""Images whose boxes can be read from the pixels: channel i is white inside of box i alone."""

import io

import numpy as np
from PIL import Image


def scene(rng, shape, margin=3):
    """An image [h, w, 3] and its boxes [2, 4]: one or two random boxes; else a row of zeros."""
    height, width = shape
    image, boxes = np.zeros((height, width, 3), np.uint8), np.zeros((2, 4), np.float32)
    for i in range(rng.integers(1, 3)):
        top, left = rng.integers(margin, (height - margin - 4, width - margin - 4))
        bottom, right = rng.integers((top + 3, left + 3), (height - margin, width - margin))
        image[top:bottom, left:right, i] = 255
        boxes[i] = (top / height, left / width, bottom / height, right / width)
    return image, boxes


def encoded(image):
    """The image as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def box_of_white(image, channel=0):
    """The box around the white pixels of a channel; zeros if there are none."""
    is_white = image[..., channel] > 127
    if not is_white.any():
        return np.zeros(4)
    (top, bottom), (left, right) = (
        np.flatnonzero(is_white.any(axis=axis))[[0, -1]] + [0, 1] for axis in (1, 0)
    )
    height, width = is_white.shape
    return np.array([top / height, left / width, bottom / height, right / width])


def assert_around_white(image, boxes, pixels=0.0):
    """Each box is around the white pixels of its channel, up to a number of pixels."""
    slack = pixels / min(image.shape[:2]) + 1e-5
    for channel, box in enumerate(boxes):
        expected = box_of_white(image, channel)
        if not expected.any():  # less than half of a pixel may be black
            assert min(box[2] - box[0], box[3] - box[1]) <= slack
        else:
            np.testing.assert_allclose(box, expected, atol=slack)
