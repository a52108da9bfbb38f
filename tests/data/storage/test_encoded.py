import io

import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key
from PIL import Image

from heteroscedastic.data import augment
from heteroscedastic.data.storage import encoded

RNG = np.random.default_rng(0)


def file_of(pixels, kind="PNG"):
    """The bytes of an image file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def pixels_of(*shape):
    return RNG.integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("num_channels", [1, 3, 4])
def test_a_png_is_decoded_exactly(num_channels):
    images = pixels_of(5, 6, 4, num_channels)
    decoded = encoded.decode(
        [file_of(i[..., 0] if num_channels == 1 else i) for i in images], num_channels, "here"
    )
    np.testing.assert_array_equal(decoded, images)


def test_a_grey_image_among_colour_images_has_three_equal_channels():
    grey, coloured = pixels_of(6, 4), pixels_of(6, 4, 3)
    decoded = encoded.decode([file_of(coloured), file_of(grey)], 3, "here")
    np.testing.assert_array_equal(decoded[0], coloured)
    np.testing.assert_array_equal(decoded[1], np.repeat(grey[..., None], 3, axis=-1))


@pytest.mark.parametrize("shape", [(16, 16), (16, 16, 3)])
def test_a_jpeg_is_within_two_levels_of_the_decoder_of_tensorflow(shape):
    tf = pytest.importorskip("tensorflow")
    smooth = np.linspace(0, 255, int(np.prod(shape))).reshape(shape).astype(np.uint8)
    image = file_of(smooth, "JPEG")
    decoded = encoded.decode([image], 3, "here")[0]
    expected = tf.io.decode_jpeg(
        image, channels=3, dct_method="INTEGER_ACCURATE", fancy_upscaling=True
    ).numpy()
    assert np.abs(decoded.astype(int) - expected).max() <= 2


@pytest.mark.parametrize(
    "damage", [lambda x: b"", lambda x: x[:40], lambda x: x[:-30], lambda x: b"no image" + x]
)
def test_an_image_that_cannot_be_decoded_is_named(damage):
    image = file_of(pixels_of(6, 4, 3))
    with pytest.raises(ValueError, match="here: image 1 of 2 cannot be decoded"):
        encoded.decode([image, damage(image)], 3, "here")


def test_images_of_16_bits_are_an_error():
    with pytest.raises(ValueError, match="not 8 bits"):
        encoded.decode([file_of(np.full((4, 4), 1000, np.uint16))], 1, "here")


def test_several_sizes_are_listed():
    images = [file_of(pixels_of(*size, 3)) for size in ((6, 4), (6, 4), (5, 7))]
    with pytest.raises(
        ValueError,
        match=r"here: images differ in size \(6x4, 5x7\), but the resident pipeline requires one",
    ):
        encoded.decode(images, 3, "here")


def test_images_of_several_sizes_are_resized_bilinearly_with_antialiasing():
    images = [pixels_of(*size, 3) for size in ((20, 9), (5, 7), (8, 8))]
    resized = encoded.decode([file_of(image) for image in images], 3, "here", 8)
    for image, result in zip(images, resized):
        expected = augment.resize(key(), {"image": jnp.asarray(image)}, size=8)["image"]
        assert np.abs(result.astype(int) - expected).max() <= 1
    np.testing.assert_array_equal(encoded.decode([file_of(images[1])], 3, "here", 8)[0], images[1])


def test_unpack_inverts_pack():
    images = [b"cat", b"", b"owl\0", b"\xff" * 9]
    assert encoded.unpack(*encoded.pack(images)) == images
    assert encoded.unpack(*encoded.pack([])) == []


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 2, 1, 3], [], [0.0, 3.0]])
def test_offsets_that_do_not_divide_the_bytes_are_an_error(offsets):
    with pytest.raises(ValueError, match="offsets"):
        encoded.unpack(np.zeros(3, np.uint8), np.array(offsets))
