"""Batches of images of one orientation, on canvases of that orientation."""

import functools
import os
import shutil

import jax
import numpy as np
import pytest
from cases import mostly_extended
from streams import NUM_TEST, NUM_TRAIN, prepare, rewritten, stream

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_datasets")

from heteroscedastic import curation  # noqa: E402
from heteroscedastic.data import chains, dataset  # noqa: E402
from heteroscedastic.data.streaming import ops  # noqa: E402

BATCH = 8
ALL = np.arange(BATCH)
SQUARE = "fit(48, shorter=24, longer=40)"
FIT = "fit(48, shorter=24, longer=40, narrow=32)"
BOXES = dict(extras=("boxes",), max_boxes=2)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    prepare(directory)
    prepare(directory, "tall", size=(20, 24))
    return directory


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def pipeline(data_dir):
    return stream(data_dir, training=f"with_mirrored|{FIT}", evaluation=FIT, **BOXES)


@pytest.fixture(scope="module")
def epoch(pipeline):
    return list(pipeline.training_feeds(1, 0, ALL))


@pytest.fixture(scope="module")
def on_square(data_dir):
    return stream(data_dir, training=f"with_mirrored|{SQUARE}", evaluation=SQUARE, **BOXES)


def canvas(feed):
    return feed.inputs.shape[1:3]


def assert_same(one, other):
    assert len(one) == len(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def by_id(feeds):
    """The rows of each image."""
    found = {}
    for feed in feeds:
        for row in np.flatnonzero(feed.weights > 0):
            found.setdefault(int(feed.ids[row]), []).append(
                jax.tree.map(lambda x, r=row: x[r], feed)
            )
    return found


def test_a_batch_has_one_orientation_and_that_canvas(epoch):
    seen = set()
    for feed in epoch:
        height, width = feed.extras["stored_size"][feed.weights > 0].T
        is_tall = height > width
        assert len(set(is_tall)) == 1
        assert canvas(feed) == ((48, 32) if is_tall[0] else (32, 48))
        seen.add(bool(is_tall[0]))
    assert seen == {True, False}


def test_an_epoch_has_each_image_twice_and_every_batch_but_the_last_of_each_canvas_is_full(
    pipeline, epoch
):
    found = by_id(epoch)
    assert sorted(found) == list(range(NUM_TRAIN))
    assert {len(rows) for rows in found.values()} == {2}
    numbers = pipeline.description["orientations"]["train"]
    assert sum(numbers.values()) == NUM_TRAIN
    assert len(epoch) == pipeline.steps_per_epoch
    assert len(epoch) == sum(-(-2 * number // BATCH) for number in numbers.values())
    for shape, orientation in (((32, 48), "wide"), ((48, 32), "tall")):
        present = [int(np.sum(feed.weights > 0)) for feed in epoch if canvas(feed) == shape]
        assert sum(present) == 2 * numbers[orientation]
        assert sum(number < BATCH for number in present) == (sum(present) % BATCH > 0)


def test_an_image_is_that_of_the_square_canvas_without_its_empty_part(epoch, on_square):
    """So are its boxes in pixels, and which of the two is mirrored."""
    square = by_id(on_square.training_feeds(1, 0, ALL))
    for i, rows in by_id(epoch).items():
        kinds = [[], []]
        for kind, several in zip(kinds, (rows, square[i])):
            for row in several:
                height, width = row.extras["image_size"].astype(int)
                assert not row.inputs[height:].any()
                assert not row.inputs[:, width:].any()
                sides = np.tile(row.inputs.shape[:2], 2)
                pixels = row.inputs[:height, :width]
                kind.append((pixels.tobytes(), np.round(row.extras["boxes"] * sides, 3).tolist()))
        assert sorted(kinds[0]) == sorted(kinds[1])


@pytest.mark.parametrize("num_hosts", mostly_extended([2, 4], [2]))
def test_hosts_have_parts_of_the_same_batches(pipeline, epoch, num_hosts):
    hosts = [list(pipeline.training_feeds(1, 0, part)) for part in np.split(ALL, num_hosts)]
    for parts in zip(*hosts, strict=True):
        assert len({canvas(part) for part in parts}) == 1
    joined = [jax.tree.map(lambda *x: np.concatenate(x), *parts) for parts in zip(*hosts)]
    assert_same(joined, epoch)


def test_every_later_start_is_the_rest_of_the_epoch(pipeline, epoch):
    for start in (1, 5, len(epoch) - 1, len(epoch)):
        assert_same(list(pipeline.training_feeds(1, start, ALL)), epoch[start:])
    for start in range(len(epoch) + 1):  # without reading
        ids = [np.where(feed.weights > 0, feed.ids, -1) for feed in epoch[start:]]
        found = pipeline.ids("train", ALL, 1, start)
        np.testing.assert_array_equal(found, np.reshape(ids, (-1, BATCH)))


def test_the_order_of_the_canvases_follows_from_seed_and_epoch(data_dir, pipeline, epoch):
    def turns(seed, number):
        again = stream(data_dir, training=f"with_mirrored|{FIT}", seed=seed, **BOXES)
        return tuple(again._turns("train", number).tolist())

    found = tuple(int(canvas(feed) == (48, 32)) for feed in epoch)
    assert turns(0, 1) == found == tuple(pipeline._turns("train", 1).tolist())
    orders = {turns(seed, number) for seed in (0, 1) for number in range(4)}
    assert len(orders) > 6
    # Either may come first, and at any place about as often.
    many = np.array([pipeline._turns("train", number) for number in range(400)])
    np.testing.assert_allclose(many.mean(axis=0), many.mean(), atol=0.1)


def test_an_evaluation_has_each_image_once_in_a_fixed_order(pipeline, on_square):
    feeds = list(pipeline.feeds("test", ALL))
    assert_same(feeds, list(pipeline.feeds("test", ALL)))
    assert {canvas(feed) for feed in feeds} == {(32, 48), (48, 32)}
    found, expected = by_id(feeds), by_id(on_square.feeds("test", ALL))
    assert found.keys() == expected.keys() == set(range(NUM_TEST))
    for i, rows in found.items():
        assert len(rows) == 1
        assert rows[0].labels == expected[i][0].labels


def test_changed_labels_stay_with_their_images(data_dir):
    links = [functools.partial(curation.subset, num_examples=33)]
    links += [functools.partial(curation.confuse_pairs, pairs=((0, 1),), rate=0.5)]

    def labels(chain):
        made = stream(
            data_dir,
            training=chain,
            evaluation=chain,
            curate=lambda data: dataset.curate(data, 0, links),
            reads_labels=True,
            **BOXES,
        )
        rows = by_id(made.training_feeds(0, 0, ALL))
        return {i: int(row.labels) for i, (row,) in rows.items()}

    found = labels(FIT)
    assert found == labels(SQUARE)
    assert len(found) == 33


def test_images_of_one_shape_have_one_canvas_and_no_header_is_read(data_dir, monkeypatch):
    monkeypatch.setattr(ops, "is_tall", None)
    made = stream(data_dir, "tall", FIT, FIT, **BOXES)
    assert made.description["orientations"]["train"] == {"tall": NUM_TRAIN}
    assert {canvas(feed) for feed in made.training_feeds(0, 0, ALL)} == {(48, 32)}


def test_headers_are_read_once_and_again_where_a_file_has_changed(data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(data_dir / "pets", tmp_path / "pets")
    is_tall, read = ops.is_tall, []
    monkeypatch.setattr(ops, "is_tall", lambda image: read.append(1) or is_tall(image))

    def made():
        read.clear()
        found = stream(tmp_path, training=FIT, evaluation=FIT, **BOXES).description["orientations"]
        return found, len(read)

    first, num_read = made()
    assert num_read == NUM_TRAIN + NUM_TEST
    assert made() == (first, 0)
    path = sorted((tmp_path / "pets").rglob("*-train.tfrecord*"))[0]
    os.utime(path, ns=(0, 0))  # as a file that is written again
    assert made() == (first, NUM_TRAIN)
    for saved in (tmp_path / "cache").rglob("*.npz"):
        saved.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="orientations.*cannot be loaded"):
        assert made() == (first, num_read)


def test_an_image_whose_header_cannot_be_read_is_left_out(data_dir, tmp_path):
    shutil.copytree(data_dir / "pets", tmp_path / "pets")
    path = sorted((tmp_path / "pets").rglob("*-train.tfrecord*"))[0]

    def change(records):
        example = tf.train.Example.FromString(records[4])
        example.features.feature["image"].bytes_list.value[:] = [b"no image"]
        return [*records[:4], example.SerializeToString(), *records[5:]]

    rewritten(path, change)
    made = stream(tmp_path, training=FIT, evaluation=FIT, **BOXES)
    found = by_id(made.training_feeds(0, 0, ALL))
    assert sorted(found) == [i for i in range(NUM_TRAIN) if i != 4]
    assert made.left_out() == {"train": [4]}


def test_what_would_turn_an_image_or_does_not_suit_the_canvas_is_an_error(data_dir, pipeline):
    with pytest.raises(ValueError, match=r"^random_crop\(size=9\) may change the orientation of"):
        chains.parse(ops, f"random_crop(9)|{FIT}")
    chains.parse(ops, f"random_crop(9)|{SQUARE}")
    small = "fit(48, shorter=24, longer=40, narrow=16)"
    with pytest.raises(ValueError, match="narrow is 16, but must be between shorter, 24, and size"):
        next(stream(data_dir, training=small, **BOXES).training_feeds(0, 0, ALL))
    with pytest.raises(ValueError, match="two canvases and are not read into memory; remove narr"):
        pipeline.dataset.splits["test"]
