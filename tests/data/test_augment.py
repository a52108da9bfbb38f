import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from heteroscedastic.data import augment

NUM_KEYS = 2_000
KEYS = jax.random.split(jax.random.key(0), NUM_KEYS)
IMAGE = np.random.default_rng(0).integers(1, 256, (3, 4, 2)).astype(np.uint8)
MOVES = [(augment.pad_crop, "constant"), (augment.shift, "edge")]


def pixels(op, image, key=KEYS[0], **settings):
    """The image after the operation."""
    return op(key, {"image": jnp.asarray(image)}, **settings)["image"]


def draws(op, image=IMAGE, **settings):
    """The images after the operation for each key."""
    return np.asarray(jax.vmap(lambda key: pixels(op, image, key, **settings))(KEYS))


def windows(image, size, mode):
    """Every window that padding by `size` allows."""
    padded = np.pad(image, ((size, size), (size, size), (0, 0)), mode=mode)
    h, w, _ = image.shape
    return [padded[i : i + h, j : j + w] for i in range(2 * size + 1) for j in range(2 * size + 1)]


@pytest.mark.parametrize(("op", "mode"), MOVES)
@pytest.mark.parametrize("size", [1, 2])
def test_every_window_is_drawn_equally_often_and_nothing_else(op, mode, size):
    results, possible = draws(op, size=size), windows(IMAGE, size, mode)
    rates = [(results == window).all(axis=(1, 2, 3)).mean() for window in possible]
    assert sum(rates) == pytest.approx(1)
    expected = 1 / len(possible)
    assert np.abs(np.array(rates) - expected).max() <= 5 * np.sqrt(
        expected * (1 - expected) / NUM_KEYS
    )


def test_a_crop_pads_with_zeros_and_a_shift_with_the_nearest_pixel():
    one = np.full((2, 2, 1), 9, np.uint8)
    crops = draws(augment.pad_crop, one, size=1)
    assert set(crops.ravel()) == {0, 9}
    assert set(draws(augment.shift, one, size=1).ravel()) == {9}


@pytest.mark.parametrize(("op", "mode"), MOVES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_size_zero_is_the_identity(op, mode, dtype):
    results = draws(op, IMAGE.astype(dtype), size=0)
    assert results.dtype == dtype
    np.testing.assert_array_equal(results, np.broadcast_to(IMAGE, results.shape))


@pytest.mark.parametrize(("op", "mode"), MOVES)
def test_a_negative_size_is_an_error(op, mode):
    with pytest.raises(ValueError, match="size is -1"):
        pixels(op, IMAGE, size=-1)


def test_half_of_the_images_are_mirrored_and_the_others_unchanged():
    results = draws(augment.flip_lr)
    mirrored = (results == IMAGE[:, ::-1]).all(axis=(1, 2, 3))
    same = (results == IMAGE).all(axis=(1, 2, 3))
    assert (mirrored ^ same).all()
    assert abs(mirrored.mean() - 0.5) <= 5 * 0.5 / np.sqrt(NUM_KEYS)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 1.0), (0.0, 255.0), (1.0, -1.0)])
def test_the_range_of_values_is_linear_from_low_to_high(low, high):
    image = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    values = pixels(augment.value_range, image, low=low, high=high)
    assert values.dtype == jnp.float32
    np.testing.assert_allclose(
        values.ravel(), np.linspace(low, high, 256), atol=1e-6 * max(abs(low), abs(high))
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_window_of_a_random_crop_is_drawn_equally_often(size):
    image = np.random.default_rng(0).integers(1, 256, (3, 4, 2)).astype(np.uint8)
    results = draws(augment.random_crop, image, size=size)
    possible = [image[i : i + size, j : j + size] for i in range(4 - size) for j in range(5 - size)]
    rates = [(results == window).all(axis=(1, 2, 3)).mean() for window in possible]
    assert sum(rates) == pytest.approx(1)
    expected = 1 / len(possible)
    assert np.abs(np.array(rates) - expected).max() <= 5 * np.sqrt(
        expected * (1 - expected) / NUM_KEYS
    )


def test_central_crop_takes_the_central_pixels():
    image = jnp.arange(20).reshape(4, 5, 1)
    np.testing.assert_array_equal(
        pixels(augment.central_crop, image, size=2)[..., 0], [[6, 7], [11, 12]]
    )
    np.testing.assert_array_equal(pixels(augment.central_crop, image[:, :4], size=4), image[:, :4])


@pytest.mark.parametrize("size", [7, 16, 40])
def test_resizing_equals_that_of_pillow(size):
    image = np.random.default_rng(1).integers(0, 256, (12, 20, 3)).astype(np.uint8)
    resized = np.asarray(pixels(augment.resize, image, size=size))
    pillow = np.asarray(
        PIL.Image.fromarray(image).resize((size, size), PIL.Image.Resampling.BILINEAR)
    )
    assert resized.dtype == np.uint8
    assert (
        np.abs(resized.astype(int) - pillow.astype(int)).max() <= 1
    )  # both round, at different steps


def test_resizing_keeps_constants_and_images_of_that_size():
    image = np.random.default_rng(1).integers(0, 256, (8, 8, 1)).astype(np.uint8)
    np.testing.assert_array_equal(pixels(augment.resize, image, size=8), image)
    flat = jnp.full((5, 9, 3), 77, jnp.uint8)
    np.testing.assert_array_equal(pixels(augment.resize, flat, size=6), np.full((6, 6, 3), 77))
    assert pixels(augment.resize, flat.astype(jnp.float32) + 0.25, size=2)[
        0, 0, 0
    ] == pytest.approx(77.25)


def test_grey_images_become_three_channels_and_colour_images_are_unchanged():
    grey = jnp.arange(6, dtype=jnp.uint8).reshape(2, 3, 1)
    coloured = pixels(augment.to_rgb, grey)
    np.testing.assert_array_equal(coloured, np.repeat(grey, 3, axis=-1))
    np.testing.assert_array_equal(pixels(augment.to_rgb, coloured), coloured)
    with pytest.raises(ValueError, match="but these have 2"):
        pixels(augment.to_rgb, jnp.zeros((2, 2, 2)))


@pytest.mark.parametrize("op", [augment.random_crop, augment.central_crop, augment.resize])
def test_an_invalid_size_is_an_error(op):
    with pytest.raises(ValueError, match="size is 0"):
        pixels(op, IMAGE, size=0)
    if op is not augment.resize:
        with pytest.raises(ValueError, match="size is 4, but must be >= 1 and <= 3"):
            pixels(op, IMAGE, size=4)
