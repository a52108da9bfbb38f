import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import bind
from heteroscedastic.data import augment, resident
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.selection import Selected

N = 11
RNG = np.random.default_rng(0)
SPLIT = Split(
    inputs=RNG.integers(0, 256, (N, 4, 4, 1)).astype(np.uint8),
    labels=RNG.integers(0, 5, N).astype(np.int32),
    ids=RNG.permutation(100)[:N].astype(np.int32),
)
KEY = jax.random.key(0)


def on_image(function):
    """The operation that applies (key, image) -> image."""
    return lambda key, example: example | {"image": function(key, example["image"])}


# An operation whose result differs for every key.
add_noise = on_image(lambda key, image: image + jax.random.uniform(key, image.shape))


def by_id(key, split, feed, chain=(add_noise,)):
    """The inputs of present examples, by id."""
    batch = resident.batch(key, split, feed, chain=chain)
    return {int(i): np.asarray(x) for i, x, w in zip(batch.ids, batch.inputs, batch.weights) if w}


def feed_of(rows, epoch=0, padding=0):
    rows = np.asarray(rows, np.int32)
    weights = np.pad(np.ones(len(rows), np.float32), (0, padding))
    return resident.Feed(np.pad(rows, (0, padding)), weights, np.int32(epoch))


@pytest.mark.parametrize("batch_size", [1, 4, 11, 20])
def test_an_epoch_has_every_example_once_and_pads_the_last_batch(batch_size):
    rows = resident.order(0, 0, N)
    feeds = list(resident.feeds(rows, batch_size))
    assert len(feeds) == resident.steps_per_epoch(N, batch_size)
    assert all(feed.rows.shape == feed.weights.shape == (batch_size,) for feed in feeds)
    chosen, weights = (
        np.concatenate([getattr(feed, name) for feed in feeds]) for name in ("rows", "weights")
    )
    np.testing.assert_array_equal(chosen[weights == 1], rows)
    np.testing.assert_array_equal(np.sort(chosen[weights == 1]), np.arange(N))
    np.testing.assert_array_equal(weights, np.arange(len(weights)) < N)
    assert chosen.max() < N


def test_every_seed_and_every_epoch_has_its_own_order():
    data, orders = Dataset({"train": SPLIT}, ("a", "b")), set()
    for seed, epoch in itertools.product(range(2), range(2)):
        pipeline = resident.Resident(data, data, seed, batch_size=N, training_chain=[], chain=[])
        (feed,) = pipeline.training_feeds(epoch, 0, np.arange(N))
        orders.add(tuple(feed.rows.tolist()))
    assert len(orders) == 4


def test_a_selected_epoch_has_the_rows_with_their_weights_and_all_rows_are_plain_training():
    data = Dataset({"train": SPLIT}, ("a", "b"))
    pipeline = resident.Resident(data, data, seed=0, batch_size=4, training_chain=[], chain=[])
    rows, weights = np.array([3, 3, 7, 1, 9]), np.array([1.0, 2.0, 0.5, 4.0, 1.0])
    feeds = list(pipeline.training_feeds(2, 0, np.arange(4), Selected(rows, weights)))
    fed = sorted((r, w) for f in feeds for r, w in zip(f.rows.tolist(), f.weights.tolist()) if w)
    assert fed == sorted(zip(rows.tolist(), weights.tolist()))
    (later,) = pipeline.training_feeds(2, 1, np.arange(4), Selected(rows, weights))
    np.testing.assert_array_equal(later.rows, feeds[1].rows)

    everything = Selected(np.arange(N), np.ones(N))
    for one, other in zip(
        pipeline.training_feeds(5, 1, np.arange(4)),
        pipeline.training_feeds(5, 1, np.arange(4), everything),
        strict=True,
    ):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_an_epoch_with_mirrored_has_each_selected_row_plain_and_mirrored():
    boxes = np.tile(np.array([0.25, 0.0, 0.75, 0.25], np.float32), (N, 1, 1))
    split = SPLIT._replace(extras={"boxes": boxes})
    data = Dataset({"train": split}, ("a", "b"))
    chain = bind.chain(augment, "with_mirrored")
    pipeline = resident.Resident(data, data, seed=0, batch_size=4, training_chain=chain, chain=[])
    num_first = []
    for selected in (None, Selected(np.array([3, 3, 7, 1, 9]), np.array([1, 2, 0.5, 4, 1.0]))):
        rows, weights = selected or (np.arange(N), np.ones(N))
        for epoch in range(3):
            feeds = list(pipeline.training_feeds(epoch, 0, np.arange(4), selected))
            assert len(feeds) == -(-2 * len(rows) // 4)
            drawn = []
            for feed in feeds:
                batch = pipeline.training_batch(KEY, split, feed)
                for i, image in enumerate(np.asarray(batch.inputs)):
                    row, weight = int(feed.rows[i]), float(feed.weights[i])
                    is_plain = np.array_equal(image, SPLIT.inputs[row])
                    expected = (0.25, 0, 0.75, 0.25) if is_plain else (0.25, 0.75, 0.75, 1)
                    assert is_plain or np.array_equal(image[:, ::-1], SPLIT.inputs[row])
                    np.testing.assert_allclose(batch.extras["boxes"][i, 0], expected)
                    drawn += [(row, is_plain, weight)] if weight else []
            assert sorted(d[0] for d in drawn) == sorted([*rows, *rows])
            assert sorted(d[0] for d in drawn if d[1]) == sorted(rows)
            assert sorted(d[::2] for d in drawn) == sorted(2 * [*zip(rows, weights)])
            is_plain_first = {row: is_plain for row, is_plain, _ in reversed(drawn)}
            num_first += is_plain_first.values()
    # Either may come first: about 45 draws, of standard deviation 3.4.
    assert len(num_first) / 4 < sum(num_first) < 3 * len(num_first) / 4


def test_the_order_depends_on_seed_and_epoch_alone():
    orders = {
        (seed, epoch): tuple(resident.order(seed, epoch, 50)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    for (seed, epoch), order in orders.items():
        assert sorted(order) == list(range(50))
        assert order == tuple(resident.order(seed, epoch, 50))


@pytest.mark.parametrize("start", [0, 1, 2, 3, 5])
def test_a_later_start_is_the_tail_of_the_epoch(start):
    rows = resident.order(0, 3, N)
    feeds = list(resident.feeds(rows, 4, epoch=3))
    tail = list(resident.feeds(rows, 4, epoch=3, start=start))
    assert len(tail) == max(0, 3 - start)
    jax.tree.map(np.testing.assert_array_equal, tail, feeds[start:])


def test_a_later_start_has_the_same_boxes_and_contexts_on_any_number_of_hosts():
    boxes = np.sort(RNG.random((N, 2, 2, 2)), axis=2).reshape(N, 2, 4).astype(np.float32)
    split = SPLIT._replace(extras={"boxes": boxes})
    data = Dataset({"train": split}, ("a", "b"))
    chain = bind.chain(augment, "flip_lr|context(0.5, fill=(9,))")
    pipeline = resident.Resident(data, data, seed=0, batch_size=4, training_chain=chain, chain=[])
    batch_of = jax.jit(pipeline.training_batch)

    def batches(start, slots):
        return [batch_of(KEY, split, feed) for feed in pipeline.training_feeds(2, start, slots)]

    whole = batches(0, np.arange(4))
    contexts = np.concatenate([batch.extras["context"] for batch in whole])
    assert 0 < contexts.sum() < N
    for start, hosts in ((1, 1), (2, 4)):  # a batch of another size is compiled anew
        parts = [batches(start, slots) for slots in np.split(np.arange(4), hosts)]
        joined = [jax.tree.map(lambda *x: np.concatenate(x), *step) for step in zip(*parts)]
        assert len(joined) == len(whole) - start
        jax.tree.map(np.testing.assert_array_equal, joined, whole[start:])


def test_augmentation_does_not_depend_on_the_batch():
    together = by_id(KEY, SPLIT, feed_of(range(N)))
    assert sorted(together) == sorted(SPLIT.ids)
    for feed in (feed_of([4]), feed_of([7, 4, 0]), feed_of([0, 4], padding=3)):
        for example, image in by_id(KEY, SPLIT, feed).items():
            np.testing.assert_array_equal(image, together[example])


def test_augmentation_does_not_depend_on_the_row():
    order = np.random.default_rng(1).permutation(N)
    reordered = SPLIT.take(order)
    jax.tree.map(
        np.testing.assert_array_equal,
        by_id(KEY, reordered, feed_of(range(N))),
        by_id(KEY, SPLIT, feed_of(range(N))),
    )


def test_key_epoch_id_and_index_in_the_chain_each_change_the_augmentation():
    # With equal inputs, only the noise differs.
    same = Split(np.zeros_like(SPLIT.inputs), SPLIT.labels, SPLIT.ids)
    noises = [
        *by_id(KEY, same, feed_of(range(N))).values(),
        *by_id(KEY, same, feed_of(range(N), epoch=1)).values(),
        *by_id(jax.random.key(1), same, feed_of(range(N))).values(),
        *by_id(
            KEY, same, feed_of(range(N)), chain=(on_image(lambda key, image: 0 * image), add_noise)
        ).values(),
    ]
    assert len({noise.tobytes() for noise in noises}) == 4 * N


def test_the_operations_of_a_chain_run_in_order():
    chain = (on_image(lambda key, image: image + 1.0), on_image(lambda key, image: image * 2.0))
    batch = resident.batch(KEY, SPLIT, feed_of(range(N)), chain=chain)
    np.testing.assert_array_equal(batch.inputs, (SPLIT.inputs.astype(np.float32) + 1) * 2)


@pytest.mark.parametrize(
    "labels", [SPLIT.labels, np.stack([SPLIT.labels, np.full(N, -1, np.int32)], axis=1)]
)
def test_without_a_chain_a_batch_is_the_stored_rows(labels):
    split, rows = SPLIT._replace(labels=labels), [3, 9, 0]
    batch = resident.batch(KEY, split, feed_of(rows, padding=1), chain=())
    np.testing.assert_array_equal(batch.inputs[:3], split.inputs[rows])
    np.testing.assert_array_equal(batch.labels[:3], labels[rows])
    np.testing.assert_array_equal(batch.ids[:3], split.ids[rows])
    np.testing.assert_array_equal(batch.weights, [1, 1, 1, 0])


def test_a_compiled_batch_is_the_same():
    chain = bind.chain(augment, "shift(1)|flip_lr")
    feed = feed_of([3, 9, 0], epoch=2, padding=1)
    on_device = jax.tree.map(jnp.asarray, SPLIT)
    compiled = jax.jit(lambda split, feed: resident.batch(KEY, split, feed, chain=chain))(
        on_device, feed
    )
    jax.tree.map(
        np.testing.assert_array_equal, compiled, resident.batch(KEY, SPLIT, feed, chain=chain)
    )


def test_extra_fields_are_part_of_the_batch():
    extras = {"clean_labels": np.arange(N), "boxes": np.arange(4 * N).reshape(N, 4)}
    batch = resident.batch(
        KEY, SPLIT._replace(extras=extras), feed_of([3, 9, 0], padding=1), chain=()
    )
    assert batch.extras.keys() == extras.keys()
    for name, values in extras.items():
        np.testing.assert_array_equal(batch.extras[name], values[[3, 9, 0, 0]])
    assert resident.batch(KEY, SPLIT, feed_of([3]), chain=()).extras == {}
