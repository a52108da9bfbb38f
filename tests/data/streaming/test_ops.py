import colorsys
import contextlib
import inspect
import io

import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import key
from PIL import Image
from streams import photograph

tf = pytest.importorskip("tensorflow")

from heteroscedastic.bind import chain  # noqa: E402
from heteroscedastic.data import augment, chains  # noqa: E402
from heteroscedastic.data.streaming import ops  # noqa: E402

FILE = photograph(np.random.default_rng(3))
PIXELS = tf.io.decode_jpeg(FILE, channels=3).numpy()
RAW = {"image": tf.constant(PIXELS), "shape": (None, None, 3)}


def encoded(file):
    return {"image": tf.constant(file), "shape": (None, None, 3)}


def graph(text, example):
    """A chain on an example, as a graph: seed -> result."""
    links = chain(ops, text)

    @tf.function(autograph=False)
    def run(seed):
        result = example
        for op in links:
            result = op(seed, result)
        return result["image"]

    return run


def program(text, example):
    """A chain on an example: seed -> result."""
    run = graph(text, example)
    return lambda seed: run(tf.constant(seed, tf.int64)).numpy()


def applied(text, example, seeds=((0, 0),)):
    """The results of a chain on an example, for each seed."""
    return list(map(program(text, example), seeds))


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_decoded_window_equals_the_window_of_the_decoded_image(file_format, subsampling):
    draws = np.random.default_rng(0)
    noise = draws.integers(0, 256, (67, 83, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(
        file, file_format, **({"subsampling": subsampling} if file_format == "JPEG" else {})
    )
    example = encoded(file.getvalue())
    full = ops.decode(None, example)["image"].numpy()

    @tf.function(autograph=False)
    def window(top, left, height, width):
        return ops._window(example, top, left, height, width)

    edges = [
        (0, 0, 67, 83),
        (1, 16, 9, 16),
        (16, 0, 3, 32),
        (5, 15, 60, 1),
        (66, 82, 1, 1),
        (3, 48, 10, 35),
    ]
    drawn = [
        (t, s, draws.integers(1, 68 - t), draws.integers(1, 84 - s))
        for t, s in draws.integers(0, 67, (60, 2))
    ]
    for top, left, height, width in [*edges, *drawn]:
        pixels = window(*(tf.constant(x, tf.int32) for x in (top, left, height, width)))
        np.testing.assert_array_equal(pixels, full[top : top + height, left : left + width])


@pytest.mark.parametrize(
    "crop",
    mostly_extended(
        ["inception_crop", "efficientnet_random_crop", "random_crop"],
        ["inception_crop", "random_crop"],
    ),
)
def test_only_the_window_of_a_jpeg_is_decoded(crop):
    truncated = encoded(FILE[: len(FILE) * 3 // 4])
    with pytest.raises(tf.errors.InvalidArgumentError):
        ops.decode(None, truncated)
    seeds, num_decoded = [(0, i) for i in range(20)], 0
    crops, run = applied(f"{crop}(16)", encoded(FILE), seeds), program(f"{crop}(16)", truncated)
    for seed, expected in zip(seeds, crops, strict=True):
        with contextlib.suppress(tf.errors.InvalidArgumentError):  # of a window in the lower part
            np.testing.assert_array_equal(run(seed), expected)
            num_decoded += 1
    assert 0 < num_decoded < len(seeds)


def windows(text):
    """Area fractions, aspect ratios and results of 400 draws of a crop to 64 pixels."""
    # The pixels are their own coordinates, so the window can be read from the crop.
    rows, columns = np.meshgrid(np.arange(200), np.arange(250), indexing="ij")
    example = {
        "image": tf.constant(np.stack([rows, columns, 0 * rows], -1).astype(np.uint8)),
        "shape": (200, 250, 3),
    }
    crops = np.array(applied(text, example, [(0, i) for i in range(400)])).astype(float)
    # The centers of the first and the last of 64 pixels are 63/64 of the window apart.
    heights = (crops[:, -1, 0, 0] - crops[:, 0, 0, 0]) * 64 / 63
    widths = (crops[:, 0, -1, 1] - crops[:, 0, 0, 1]) * 64 / 63
    return heights * widths / (200 * 250), widths / heights, crops


SLACK = 0.04  # for rounding to integers


def test_the_windows_of_an_inception_crop_keep_their_bounds_and_cover_the_image():
    area, aspect, crops = windows("inception_crop(64)")
    assert area.min() > 0.08 - 0.01
    assert area.max() < 1 + SLACK
    assert aspect.min() > 3 / 4 - SLACK
    assert aspect.max() < 4 / 3 + 2 * SLACK
    assert area.min() < 0.15
    assert area.max() > 0.8
    middles = crops[:, 31:33, 31:33].mean(axis=(1, 2))
    np.testing.assert_allclose(middles[:, 0].mean(), 99.5, atol=6)
    np.testing.assert_allclose(middles[:, 1].mean(), 124.5, atol=7)


def test_a_random_crop_of_efficientnet_takes_at_least_a_tenth_or_else_the_center():
    area, aspect, _ = windows("efficientnet_random_crop(64, method='bilinear')")
    assert 0.1 - 0.01 < area.min() < 0.15
    assert area.max() > 0.8
    assert aspect.min() > 3 / 4 - SLACK
    assert aspect.max() < 4 / 3 + 2 * SLACK
    # No window of a valid aspect ratio covers a tenth of such a long image.
    long = {"image": tf.constant(np.tile(PIXELS[:8], (1, 12, 1))), "shape": (None, None, 3)}
    (middle,) = applied("efficientnet_center_crop(16)", long)
    for crop in applied("efficientnet_random_crop(16)", long, [(0, i) for i in range(5)]):
        np.testing.assert_array_equal(crop, middle)


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (1, 1)])
def test_an_image_one_pixel_wide_has_a_center(shape):
    file = io.BytesIO()
    Image.fromarray(np.full((*shape, 3), 200, np.uint8)).save(file, "JPEG")
    for text in ("efficientnet_center_crop(16)", "efficientnet_random_crop(16)"):
        for crop in applied(text, encoded(file.getvalue()), [(0, i) for i in range(3)]):
            np.testing.assert_array_equal(crop, np.full((16, 16, 3), 200))


def test_a_crop_of_an_encoded_image_equals_the_crop_of_its_pixels():
    seeds = [(4, i) for i in range(20)]
    crops = (
        "inception_crop",
        "efficientnet_center_crop",
        "efficientnet_random_crop",
        "central_crop",
        "random_crop",
    )
    for text in (f"{name}(16)" for name in crops):
        for a, b in zip(applied(text, encoded(FILE), seeds), applied(text, RAW, seeds)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("first", ["flip_lr", "decode", "resize_small(16)", "color_jitter"])
@pytest.mark.parametrize("crop", ["inception_crop(8)", "efficientnet_random_crop(8)"])
def test_a_crop_after_other_operations_has_a_known_shape(first, crop):
    traced = graph(f"{first}|{crop}", encoded(FILE))
    result = traced.get_concrete_function(tf.TensorSpec((2,), tf.int64)).structured_outputs
    assert result.shape == (8, 8, 3)


def test_random_numbers_depend_on_the_seed_alone():
    for text in (
        "inception_crop(16)",
        "resize(16)|flip_lr",
        "resize(16)|pad_crop(4)",
        "random_crop(20)",
    ):
        seeds = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 3), (5, 5), (2, 2)]
        one, two = applied(text, encoded(FILE), seeds), applied(text, encoded(FILE), seeds)
        for a, b in zip(one, two):
            np.testing.assert_array_equal(a, b)
        assert any(not np.array_equal(one[0], other) for other in one[1:])


def test_operations_equal_those_of_the_same_name_on_the_device():
    np.testing.assert_allclose(
        applied("value_range(-1, 1)", RAW)[0],
        augment.value_range(key(), {"image": jnp.asarray(PIXELS)}, low=-1, high=1)["image"],
        atol=1e-6,
    )
    small = PIXELS[:12, :10]
    example = {"image": tf.constant(small), "shape": (12, 10, 3)}
    seeds = [(0, i) for i in range(300)]
    flips = [np.array_equal(x, small[:, ::-1]) for x in applied("flip_lr", example, seeds)]
    assert all(
        np.array_equal(x, small) or f for x, f in zip(applied("flip_lr", example, seeds), flips)
    )
    assert 110 < sum(flips) < 190  # 150 and a standard deviation of 8.7
    padded = np.pad(small, ((2, 2), (2, 2), (0, 0)))
    windows = {padded[i : i + 12, j : j + 10].tobytes(): (i, j) for i in range(5) for j in range(5)}
    corners = [windows[x.tobytes()] for x in applied("pad_crop(2)", example, seeds)]
    assert len(set(corners)) == 25
    np.testing.assert_allclose(np.mean(corners, axis=0), 2, atol=0.3)


def test_results_have_the_size_of_the_setting():
    height, width, _ = PIXELS.shape
    (small,) = applied("resize_small(24)", encoded(FILE))
    assert min(small.shape[:2]) == 24
    assert max(small.shape[:2]) == round(24 * max(height, width) / min(height, width))
    (middle,) = applied("central_crop(20)", RAW)
    top, left = (height - 20) // 2, (width - 20) // 2
    np.testing.assert_array_equal(middle, PIXELS[top : top + 20, left : left + 20])
    extent = int(np.float32(32 / 64) * min(height, width))
    (center,) = applied("efficientnet_center_crop(32)", RAW)
    top, left = (height - extent + 1) // 2, (width - extent + 1) // 2
    window = PIXELS[top : top + extent, left : left + extent]
    expected = tf.image.resize(window, (32, 32), method="bicubic").numpy()
    np.testing.assert_allclose(center, np.clip(expected, 0, 255), atol=0.51)


def test_images_are_made_smaller_with_antialiasing():
    for method in ("bilinear", "bicubic"):
        for text in ("resize(8", "resize_small(8", "fit(40, shorter=8, longer=16"):
            (actual,) = applied(f"{text}, method={method!r})", RAW)
            if text.startswith("fit"):  # below and to the right of the image are zeros
                rows, columns = (actual.any(axis=(1 - i, 2)) for i in range(2))
                actual = actual[rows][:, columns]
            expected = tf.image.resize(PIXELS, actual.shape[:2], method, antialias=True)
            np.testing.assert_allclose(actual, np.clip(expected, 0, 255), atol=0.51)


def test_every_window_of_a_random_crop_is_drawn_equally_often():
    """Of 2 rows and 4 columns; the same random number for both would leave out half of them."""
    pixels = np.arange(45, dtype=np.uint8).reshape(3, 5, 3)
    example = {"image": tf.constant(pixels), "shape": (3, 5, 3)}
    crops = np.array(applied("random_crop(2)", example, [(0, i) for i in range(300)]))
    found, counts = np.unique(crops.reshape(300, -1), axis=0, return_counts=True)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (2, 2, 3)).reshape(8, -1)
    np.testing.assert_array_equal(found, windows)
    assert counts.min() > 15


def defaults(op):
    parameters = inspect.signature(op).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def test_the_defaults_are_those_of_the_sources_and_of_the_same_operation_on_the_device():
    color = dict(brightness=32 / 255, saturation=0.5, hue=0.2, contrast=0.5)  # of Inception
    assert defaults(ops.color_jitter) == color
    crop = dict(min_area=0.08, max_area=1.0, min_aspect=3 / 4, max_aspect=4 / 3)
    assert defaults(ops.inception_crop) == crop | {"method": "bilinear", "dct_method": ""}
    for name in {*ops.__all__} & {*dir(augment)} - {"resize"}:  # which has methods in a stream
        assert defaults(getattr(ops, name)) == defaults(getattr(augment, name)), name


def test_greyscale_images_become_colour():
    for file_format in ("JPEG", "PNG"):
        file = io.BytesIO()
        Image.fromarray(PIXELS[..., 0]).save(file, file_format)
        (image,) = applied("decode", encoded(file.getvalue()))
        assert image.shape == PIXELS.shape
        np.testing.assert_array_equal(image[..., 0], image[..., 2])


def test_zero_jitter_changes_nothing_and_brightness_changes_the_mean():
    zero = "color_jitter(brightness=0.0, saturation=0.0, hue=0.0, contrast=0.0)"
    np.testing.assert_allclose(applied(zero, RAW)[0].astype(int), PIXELS, atol=2)
    grey = {"image": tf.constant(np.full((8, 8, 3), 128, np.uint8)), "shape": (8, 8, 3)}
    seeds = [(0, i) for i in range(200)]
    levels = np.array(
        [
            x.mean()
            for x in applied("color_jitter(saturation=0.0, hue=0.0, contrast=0.0)", grey, seeds)
        ]
    )
    assert np.abs(levels - 128).max() <= 32 + 1
    assert np.abs(levels - 128).max() > 28
    assert abs(levels.mean() - 128) < 4


def jittered(image, **limits):
    """300 draws of color_jitter in which only these properties change."""
    settings = dict(brightness=0.0, saturation=0.0, hue=0.0, contrast=0.0) | limits
    text = f"color_jitter({', '.join(f'{name}={value}' for name, value in settings.items())})"
    example = {"image": tf.constant(image), "shape": image.shape}
    return np.array(applied(text, example, [(0, i) for i in range(300)])).astype(float)


def assert_covers(results, low, high, slack):
    """Draws are uniform between these bounds, up to rounding."""
    width = high - low
    assert low - slack <= results.min() < low + 0.05 * width
    assert high - 0.05 * width < results.max() <= high + slack
    np.testing.assert_allclose(results.mean(), (low + high) / 2, atol=0.1 * width)


COLOUR = np.tile(np.uint8((180, 120, 100)), (4, 4, 1))  # a red of saturation 4/9
GREY = np.repeat(np.arange(0, 256, 17, dtype=np.uint8).reshape(4, 4, 1), 3, axis=-1)


def test_saturation_scales_the_distance_of_channels_from_the_largest():
    results = jittered(COLOUR, saturation=0.5)
    np.testing.assert_allclose(results[..., 0], 180, atol=1)
    factors = (180 - results[:, 0, 0, 2]) / 80
    np.testing.assert_allclose(
        (180 - results[..., 1]) / 60,
        np.broadcast_to(factors[:, None, None], (300, 4, 4)),
        atol=0.04,
    )
    assert_covers(factors, 0.5, 1.5, 0.02)
    np.testing.assert_allclose(
        jittered(GREY, saturation=0.5), np.broadcast_to(GREY, (300, *GREY.shape)), atol=1
    )


def test_hue_changes_the_hue_and_not_saturation_or_value():
    results = jittered(COLOUR, hue=0.2)
    np.testing.assert_allclose(results.max(axis=-1), 180, atol=1)
    np.testing.assert_allclose(results.min(axis=-1), 100, atol=1)
    # The hue of COLOUR is 1 / 24.
    rotation = np.array([colorsys.rgb_to_hsv(*(x[0, 0] / 255))[0] for x in results]) - 1 / 24
    assert_covers((rotation + 0.5) % 1 - 0.5, -0.2, 0.2, 0.01)
    np.testing.assert_allclose(
        jittered(GREY, hue=0.2), np.broadcast_to(GREY, (300, *GREY.shape)), atol=1
    )


def test_contrast_scales_the_distance_from_the_mean_of_each_channel():
    image = np.uint8([[[110, 40, 150], [130, 60, 190]]])
    results = jittered(image, contrast=0.5)
    np.testing.assert_allclose(
        results.mean(axis=(1, 2)), np.broadcast_to((120, 50, 170), (300, 3)), atol=1
    )
    factors = (results[:, 0, 1, 2] - results[:, 0, 0, 2]) / 40
    np.testing.assert_allclose(
        (results[:, 0, 1, :2] - results[:, 0, 0, :2]) / 20, factors[:, None].repeat(2, 1), atol=0.1
    )
    assert_covers(factors, 0.5, 1.5, 0.04)


def test_each_property_has_its_own_random_numbers():
    image = np.uint8([[[110, 40, 150], [130, 60, 190]]])
    results = jittered(image, brightness=0.1, contrast=0.5)
    level, factor = (
        results[:, 0, :, 0].mean(axis=1) - 120,
        (results[:, 0, 1, 2] - results[:, 0, 0, 2]) / 40,
    )
    assert abs(np.corrcoef(level, factor)[0, 1]) < 0.2
    results = [
        colorsys.rgb_to_hsv(*(x[0, 0] / 255))[:2] for x in jittered(COLOUR, saturation=0.5, hue=0.1)
    ]
    hue, saturation = np.transpose(results)
    assert abs(np.corrcoef((hue + 0.5) % 1, saturation)[0, 1]) < 0.2


@pytest.mark.parametrize(
    ("stored", "fitted"), [((40, 50), (24, 30)), ((50, 40), (30, 24)), ((20, 60), (11, 32))]
)
def test_an_image_fits_its_canvas_and_its_boxes_follow(stored, fitted):
    pixels, box = np.zeros((*stored, 3), np.uint8), np.array([0.2, 0.5, 0.8, 1.0], np.float32)
    y0, x0, y1, x1 = np.round(box * np.tile(stored, 2)).astype(int)
    pixels[y0:y1, x0:x1] = 255
    example = RAW | {"image": tf.constant(pixels), "boxes": tf.constant([box, np.zeros(4)])}
    found = ops.fit(tf.constant((0, 0), tf.int64), example, size=40, shorter=24, longer=32)
    assert found["image_size"].numpy().tolist() == list(fitted)
    assert found["stored_size"].numpy().tolist() == list(stored)
    assert found["boxes"][1].numpy().tolist() == [0, 0, 0, 0]
    low, high = (40 * found["boxes"][0].numpy()).reshape(2, 2)
    bright = np.argwhere(found["image"].numpy()[..., 0] > 127)
    np.testing.assert_allclose(bright.min(axis=0), low, atol=0.6)
    np.testing.assert_allclose(bright.max(axis=0) + 1, high, atol=0.6)
    assert found["image"].shape == (40, 40, 3)
    np.testing.assert_array_equal(found["image"][fitted[0] :], 0)


def test_what_follows_or_exceeds_a_canvas_is_an_error():
    with pytest.raises(ValueError, match="only value_range may follow it"):
        chains.parse(ops, "fit(40, shorter=24, longer=32)|flip_lr")
    fit = "fit(40, shorter=24, longer=32)|value_range(-1, 1)"
    assert len(chains.evaluation_of_boxes(ops, f"decode|{fit}")) == 3
    for moved in ("resize_small(30)", "central_crop(20)"):
        for other in (chains.parse, chains.evaluation):  # of which no box is reported
            assert len(other(ops, f"{moved}|{fit}")) == 3
        with pytest.raises(ValueError, match="before fit gives boxes in other pixels than those"):
            chains.evaluation_of_boxes(ops, f"{moved}|{fit}")
    with pytest.raises(ValueError, match="longer 32 and size 16, but they must not decrease"):
        ops.fit(tf.constant((0, 0), tf.int64), RAW, size=16, shorter=8, longer=32)
