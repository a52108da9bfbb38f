"""Boxes whose pixels are filled, in both pipelines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenes import encoded

tf = pytest.importorskip("tensorflow")

from heteroscedastic import bind, boxes  # noqa: E402
from heteroscedastic.data import augment, chains, resident  # noqa: E402
from heteroscedastic.data.dataset import Split  # noqa: E402
from heteroscedastic.data.streaming import graph, ops  # noqa: E402

RNG = np.random.default_rng(0)
N, SHAPE = 30, (11, 14)
IMAGES = RNG.integers(0, 256, (N, *SHAPE, 3)).astype(np.uint8)
CORNERS = np.sort(RNG.random((N, 3, 2, 2)), axis=2).reshape(N, 3, 4).astype(np.float32)
CORNERS[::5, 1:] = 0  # one box
CORNERS[::7] = 0  # none
FILL = (1, 2, 3)


def by_resident(text, images=IMAGES, epoch=0, rows=None):
    ids = np.arange(len(images), dtype=np.int32)
    split = Split(images, ids, ids, {"boxes": CORNERS[: len(images)]})
    (feed,) = resident.feeds(ids if rows is None else rows, len(ids), epoch)
    chain = bind.chain(augment, text)
    batch = resident.batch(jax.random.key(0), split, feed, chain=chain)
    return jax.tree.map(np.asarray, {"image": batch.inputs, **batch.extras})


def by_stream(text, epoch=0):
    specs = {"boxes": tf.TensorSpec((3, 4), tf.float32)}
    function = graph.chain_function((None, None, 3), specs, bind.chain(ops, text))
    key = graph.epoch_key(0, epoch)
    examples = [
        function(key, tf.constant(i, tf.int64), tf.constant(encoded(image)), {"boxes": rows})
        for i, (image, rows) in enumerate(zip(IMAGES, CORNERS))
    ]
    return {name: np.stack([np.asarray(x[name]) for x in examples]) for name in examples[0]}


both = pytest.mark.parametrize("results", [by_resident, by_stream])


def contains(box, row, column):
    """Whether the centre of a pixel lies in a box."""
    y, x = (row + 0.5) / SHAPE[0], (column + 0.5) / SHAPE[1]
    return box[0] <= y < box[2] and box[1] <= x < box[3]


def filled_one_by_one(is_filled):
    """The images in which the pixels are filled whose boxes [m, 4] meet a condition."""
    expected = IMAGES.copy()
    for i, row, column in np.ndindex(N, *SHAPE):
        if is_filled([contains(box, row, column) for box in CORNERS[i]]):
            expected[i, row, column] = FILL
    return expected


@both
def test_other_boxes_are_filled_outside_of_the_first_and_removed(results):
    found = results(f"mask_others(fill={FILL})")
    expected = filled_one_by_one(lambda inside: any(inside[1:]) and not inside[0])
    np.testing.assert_array_equal(found["image"], expected)
    np.testing.assert_array_equal(found["boxes"][:, 0], CORNERS[:, 0])
    assert found["boxes"].shape[1] == 1
    assert (expected != IMAGES).any()


@both
def test_a_context_image_shows_no_box_and_an_image_without_boxes_is_unchanged(results):
    found = results(f"context(rate=1.0, fill={FILL})")
    np.testing.assert_array_equal(found["image"], filled_one_by_one(any))
    assert not found["boxes"].any()
    assert found["context"].all()  # whether a crop shows an object or not


@both
def test_at_rate_zero_no_image_is_a_context_image(results):
    found = results("context(rate=0.0)")
    np.testing.assert_array_equal(found["image"], IMAGES)
    np.testing.assert_array_equal(found["boxes"], CORNERS)
    assert not found["context"].any()


@both
@pytest.mark.parametrize("crop", ["central_crop(7)", "central_crop(6)"])
def test_filling_and_cropping_commute_where_the_crop_shows_a_box(results, crop):
    before, after = (
        results("|".join(order))
        for order in (("context(rate=1.0)", crop), (crop, "context(rate=1.0)"))
    )
    np.testing.assert_array_equal(after["image"], before["image"])
    assert after["context"].all()
    assert before["context"].all()


def test_images_are_chosen_at_the_rate_anew_in_each_epoch_and_for_each_repetition():
    images = np.zeros((N, 1, 1, 3), np.uint8)
    chosen = [by_resident("context(rate=0.3)", images, epoch)["context"] for epoch in range(60)]
    number = N * len(chosen)
    rate = np.sum(chosen) / number
    assert abs(rate - 0.3) < 5 * np.sqrt(0.3 * 0.7 / number)
    repeated = by_resident("context(rate=0.5)", images, rows=np.full(N, 1))["context"]
    assert 0 < repeated.sum() < N
    streamed = [by_stream("context(rate=0.5)", epoch)["context"] for epoch in range(2)]
    assert (streamed[0] != streamed[1]).any()
    assert 0 < streamed[0].sum() < N


def test_boxes_side_by_side_share_no_pixel_and_all_modules_agree():
    rows, columns = (np.arange(side, dtype=np.float32) / side for side in SHAPE)
    left, right = np.float32([[0, 0, 1, columns[5]]]), np.float32([[0, columns[5], 1, 1]])
    upper, lower = np.float32([[0, 0, rows[3], 1]]), np.float32([[rows[3], 0, 1, 1]])
    for one, other in ((left, right), (upper, lower)):
        halves = [boxes.covers(np, x, rows, columns) for x in (one, other)]
        np.testing.assert_array_equal(halves[0], ~halves[1])
    expected = boxes.covers(np, CORNERS[1], rows, columns)
    assert expected.any()
    assert not expected.all()
    np.testing.assert_array_equal(boxes.covers(jnp, CORNERS[1], rows, columns), expected)
    np.testing.assert_array_equal(
        boxes.covers(tf, *map(tf.constant, (CORNERS[1], rows, columns))), expected
    )


@pytest.mark.parametrize("module", [augment, ops])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mask_others(fill=(1, 2, 256))", "fill is .* a tuple of integers from 0 to 255"),
        ("mask_others(fill=())", "fill is .* a tuple of integers from 0 to 255"),
        ("context(rate=1.5)", r"rate is 1\.5.* a number in \[0, 1\]"),
        ("context()", "rate"),
    ],
)
def test_a_setting_out_of_range_is_an_error(module, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        chains.parse(module, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "num_channels", "extras", "message"),
    [
        ("mask_others()", 3, {}, r"mask_others requires boxes; set config\.data\.extras"),
        ("context(rate=0.1)", 3, {}, r"context requires boxes; set config\.data\.extras"),
        ("mask_others()", 1, {"boxes": CORNERS[0]}, "but the images have 1 channels; set a value"),
        (
            "value_range(-1, 1)|context(rate=0.1)",
            3,
            {"boxes": CORNERS[0]},
            "context requires integer pixels, so it must precede value_range",
        ),
    ],
)
def test_an_example_that_cannot_be_filled_is_an_error(text, num_channels, extras, message):
    example = {"image": np.zeros((4, 4, num_channels), np.uint8), **extras}
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in example.items()}
    with pytest.raises(ValueError, match=message):
        chains.check_shapes(chains.parse(augment, text), shapes)
    specs = {name: tf.TensorSpec(x.shape, tf.float32) for name, x in extras.items()}
    with pytest.raises(ValueError, match=message) as caught:
        graph.chain_function((4, 4, num_channels), specs, chains.parse(ops, text))
    assert "\n" not in str(caught.value)
