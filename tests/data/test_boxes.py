import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenes import assert_around_white, box_of_white, encoded, scene

tf = pytest.importorskip("tensorflow")

from heteroscedastic import boxes  # noqa: E402
from heteroscedastic.bind import chain  # noqa: E402
from heteroscedastic.data import augment, resident  # noqa: E402
from heteroscedastic.data.dataset import Split  # noqa: E402
from heteroscedastic.data.streaming import graph, ops  # noqa: E402

RNG = np.random.default_rng(0)
SHAPE = (26, 20)
SCENES = [scene(RNG, SHAPE) for _ in range(40)]
EXACT = [  # chains of operations that do not interpolate
    "flip_lr",
    "pad_crop(6)",
    "central_crop(12)",
    "random_crop(9)",
    "pad_crop(5)|flip_lr|random_crop(15)|flip_lr|value_range(-300, 255)",
]
INTERPOLATED = ["resize(37)", "random_crop(15)|resize(30)|flip_lr|pad_crop(4)"]


@pytest.mark.parametrize("text", [*EXACT, "shift(3)", "shift(3)|flip_lr|to_rgb", *INTERPOLATED])
def test_boxes_follow_the_pixels_of_the_resident_pipeline(text):
    images, rows = map(np.stack, zip(*SCENES))
    n = len(images)
    ids, labels = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
    split = Split(images, labels, ids, {"boxes": rows, "clean_labels": 3 * ids})
    (feed,) = resident.feeds(np.arange(n), n)
    batch = resident.batch(jax.random.key(0), split, feed, chain=chain(augment, text))
    changed = np.asarray(batch.extras["boxes"])
    for image, box in zip(np.asarray(batch.inputs), changed, strict=True):
        assert_around_white(image, box, pixels=text in INTERPOLATED)
    np.testing.assert_array_equal(changed[~rows.any(axis=-1)], 0)
    assert (changed != rows).any() or text == "resize(37)"
    np.testing.assert_array_equal(batch.extras["clean_labels"], 3 * ids)


@pytest.mark.parametrize("text", ["shift(3)", "pad_crop(3)"])
def test_a_box_that_touches_the_border_ends_where_the_stored_image_ends(text):
    image = np.zeros((*SHAPE, 3), np.uint8)
    image[..., 0], image[..., 1] = np.indices(SHAPE)  # each pixel states its row and column
    example = {"image": jnp.asarray(image), "boxes": jnp.array([[0.0, 0.0, 1.0, 1.0]])}
    (link,) = chain(augment, text)
    keys = jax.random.split(jax.random.key(0), 20)
    changed = jax.tree.map(np.asarray, jax.jit(jax.vmap(link, (0, None)))(keys, example))
    centre = np.array(SHAPE) // 2
    start = centre - changed["image"][:, centre[0], centre[1], :2]  # of the stored image
    ends = np.clip(np.concatenate([start, start + SHAPE], axis=1), 0, SHAPE * 2)
    np.testing.assert_allclose(changed["boxes"][:, 0], ends / (SHAPE * 2), atol=1e-6)
    assert (start.min(axis=0) == -3).all()
    assert (start.max(axis=0) == 3).all()


STREAMED = [
    *EXACT,
    "color_jitter(0.0, 0.0, 0.0, 0.0)|random_crop(15)",
    *INTERPOLATED,
    "resize_small(31)",
    "inception_crop(24, min_area=0.3)",
    "efficientnet_center_crop(24, padding=8, method='bilinear')",
    "efficientnet_random_crop(24, method='bilinear')|flip_lr|pad_crop(3)",
]


@pytest.mark.parametrize("text", STREAMED)
def test_boxes_follow_the_pixels_of_a_stream(text):
    spec = {"boxes": tf.TensorSpec((2, 4), tf.float32)}
    function = graph.chain_function((None, None, 3), spec, chain(ops, text))
    has_moved = []
    for i, (image, rows) in enumerate(SCENES):
        result = function(
            *(tf.constant(x, tf.int64) for x in (7, i)),
            tf.constant(encoded(image)),
            {"boxes": rows},
        )
        result = {name: np.asarray(x) for name, x in result.items()}
        assert result["boxes"].dtype == np.float32
        assert_around_white(result["image"], result["boxes"], pixels=text not in EXACT)
        np.testing.assert_array_equal(result["boxes"][~rows.any(axis=-1)], 0)
        has_moved.append((result["boxes"] != rows).any())
    assert any(has_moved) or text in ("resize(37)", "resize_small(31)")


def test_boxes_change_no_pixel_of_either_pipeline():
    text = "pad_crop(5)|flip_lr|random_crop(15)|value_range(-1, 1)"
    image, rows = SCENES[0]
    image = RNG.integers(0, 256, image.shape).astype(np.uint8)
    streamed, resident_images = [], []
    for extras in ({}, {"boxes": rows}):
        specs = {name: tf.TensorSpec(x.shape, tf.float32) for name, x in extras.items()}
        function = graph.chain_function((None, None, 3), specs, chain(ops, text))
        arguments = (tf.constant(7, tf.int64), tf.constant(3, tf.int64))
        streamed.append(function(*arguments, tf.constant(encoded(image)), extras)["image"])
        ids = np.arange(1, dtype=np.int32)
        split = Split(image[None], ids, ids, {name: x[None] for name, x in extras.items()})
        (feed,) = resident.feeds(ids, 1)
        batch = resident.batch(jax.random.key(0), split, feed, chain=chain(augment, text))
        resident_images.append(batch.inputs)
    np.testing.assert_array_equal(*streamed)
    np.testing.assert_array_equal(*resident_images)


def test_a_stream_mirrors_the_images_that_tensorflow_would():
    image = tf.constant(RNG.integers(0, 256, (4, 5, 3)).astype(np.uint8))
    for i in range(20):
        seed = tf.constant((i, 1))
        expected = tf.image.stateless_random_flip_left_right(image, seed)
        np.testing.assert_array_equal(ops.flip_lr(seed, {"image": image})["image"], expected)


MODULES = {np: np.float32, jnp: jnp.float32, tf: lambda x: tf.constant(x, tf.float32)}


def cropped(rows, size, corner, extent):
    """The boxes of a crop, which are the same for all modules of arrays."""
    results = [
        np.asarray(boxes.cropped(xp, *map(array, (rows, size, corner, extent))))
        for xp, array in MODULES.items()
    ]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], atol=1e-6)
    return results[0]


def test_a_box_outside_of_a_window_is_a_row_of_zeros_also_where_it_touches_the_window():
    rng = np.random.default_rng(1)
    for side in range(3, 1000, 31):
        edge = int(rng.integers(1, side))
        # The upper part, the lower part and padding.
        rows = np.array([(0, 0, edge / side, 1), (edge / side, 0, 1, 1), (0, 0, 0, 0)], np.float32)
        upper = cropped(rows, (side, side), (0, 0), (edge, side))
        lower = cropped(rows, (side, side), (edge, 0), (side - edge, side))
        np.testing.assert_allclose(upper[0], (0, 0, 1, 1), atol=1e-6)
        np.testing.assert_allclose(lower[1], (0, 0, 1, 1), atol=1e-6)
        np.testing.assert_array_equal((upper[1:], lower[[0, 2]]), 0)


def test_mirroring_twice_is_the_identity_and_padding_stays_zero():
    rows = np.stack([rows for _, rows in SCENES]).reshape(-1, 4)
    is_padding = ~rows.any(axis=-1)
    assert 0 < is_padding.sum() < len(SCENES)  # some have two boxes
    for xp, array in MODULES.items():
        once = boxes.mirrored(xp, array(rows))
        np.testing.assert_allclose(boxes.mirrored(xp, once), rows, atol=1e-6)
        assert np.abs(np.asarray(once) - rows).max() > 0.1
        np.testing.assert_array_equal(np.asarray(once)[is_padding], 0)


PLACES = np.sort(RNG.random((6, 2, 2)), axis=1).reshape(6, 4).astype(np.float32)
PLACES[[1, 5]] = 0  # padding


def sampled_by_jax(num_boxes, number):
    keys = jax.random.split(jax.random.key(0), number)
    op = chain(augment, f"sample_boxes({num_boxes})")[0]
    return np.asarray(jax.vmap(lambda key: op(key, {"boxes": jnp.asarray(PLACES)})["boxes"])(keys))


def sampled_by_tensorflow(num_boxes, number):
    seeds = tf.stack((tf.zeros(number, tf.int64), tf.range(number, dtype=tf.int64)), axis=1)
    op = chain(ops, f"sample_boxes({num_boxes})")[0]
    draw = tf.function(
        lambda seeds: tf.map_fn(
            lambda seed: op(seed, {"boxes": tf.constant(PLACES)})["boxes"],
            seeds,
            fn_output_signature=tf.float32,
        )
    )
    return draw(seeds).numpy()


@pytest.mark.parametrize("sampled", [sampled_by_jax, sampled_by_tensorflow])
def test_so_many_boxes_are_kept_in_their_rows_each_set_of_them_equally_often(sampled):
    results = sampled(2, 600)
    kept = results.any(axis=-1)
    np.testing.assert_array_equal(results, np.where(kept[..., None], PLACES, 0))
    assert (kept.sum(axis=1) == 2).all()
    sets, counts = np.unique(kept, axis=0, return_counts=True)
    assert len(sets) == 6  # of two among four boxes
    assert np.abs(counts - 100).max() < 40  # of standard deviation 9
    for enough in (4, 50):
        np.testing.assert_array_equal(sampled(enough, 1)[0], PLACES)


def test_without_occurrences_with_mirrored_says_where_it_belongs():
    for module, key in ((augment, jax.random.key(0)), (ops, tf.zeros(2, tf.int64))):
        with pytest.raises(ValueError, match=r"with_mirrored is for config\.data\.train alone"):
            module.with_mirrored(key, {})


def test_an_image_without_a_box_in_view_has_none():
    image, rows = np.zeros((16, 16, 3), np.uint8), np.zeros((1, 4), np.float32)
    image[:3, :3], rows[0] = 255, (0, 0, 3 / 16, 3 / 16)
    (link,) = chain(augment, "central_crop(8)")
    result = link(jax.random.key(0), {"image": jnp.asarray(image), "boxes": jnp.asarray(rows)})
    assert not box_of_white(np.asarray(result["image"])).any()
    np.testing.assert_array_equal(result["boxes"], 0)
