import functools
import itertools
import logging
import re
import shutil

import jax
import numpy as np
import pytest
from cases import mostly_extended
from streams import NAMES, NUM_TEST, NUM_TRAIN, examples, prepare, relabelled, rewritten, stream

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_datasets")

from heteroscedastic import curation  # noqa: E402
from heteroscedastic.data import dataset  # noqa: E402
from heteroscedastic.data.storage import store  # noqa: E402
from heteroscedastic.selection import Selected  # noqa: E402

BATCH = 8
ALL = np.arange(BATCH)
CORRUPT = (3, 30)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    prepare(directory)
    prepare(directory, "broken", CORRUPT)
    prepare(directory, "birds", names=("cat", "dog", "eagle"))
    prepare(directory, "few", names=(*NAMES, "cow"))
    prepare(directory, "same", size=(20, 24))
    return directory


def global_feeds(hosts):
    """The global feeds, joined from the parts of the hosts."""
    return [jax.tree.map(lambda *x: np.concatenate(x), *parts) for parts in zip(*hosts)]


def training(pipeline, hosts=1, epoch=0, start=0):
    return global_feeds(
        [list(pipeline.training_feeds(epoch, start, part)) for part in np.split(ALL, hosts)]
    )


def assert_same(one, other):
    assert len(one) == len(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    ("start", "stop", "hosts"),
    mostly_extended(
        [(0, NUM_TRAIN, (2, 4)), (3, 36, ()), (0, 5, (4,))], [(0, NUM_TRAIN, (2, 4)), (3, 36, ())]
    ),
)
def test_every_example_occurs_once_and_batches_are_the_same_for_any_number_of_hosts(
    data_dir, start, stop, hosts
):
    pipeline = stream(data_dir, splits={"train": f"train[{start}:{stop}]"})
    feeds = training(pipeline)
    ids = np.concatenate([feed.ids[feed.weights > 0] for feed in feeds])
    np.testing.assert_array_equal(np.sort(ids), np.arange(start, stop))
    assert len(feeds) == -(-(stop - start) // BATCH)
    for num_hosts in hosts:
        assert_same(training(pipeline, num_hosts), feeds)


def test_a_later_start_is_the_rest_of_the_epoch_on_any_number_of_hosts(data_dir):
    chain = "inception_crop(8)|context(0.5)|flip_lr|value_range(-1, 1)"
    pipeline = stream(data_dir, training=chain, extras=("boxes",), max_boxes=1)
    feeds = training(pipeline, epoch=1)
    contexts = np.concatenate([feed.extras["context"] for feed in feeds])
    assert NUM_TRAIN / 5 < contexts.sum() < 4 * NUM_TRAIN / 5
    for start, hosts in ((1, 2), (len(feeds), 1)):
        assert_same(training(pipeline, hosts, epoch=1, start=start), feeds[start:])


def test_the_ids_of_a_step_are_known_without_reading(data_dir):
    pipeline = stream(data_dir)
    for slots, start in ((ALL[:4], 0), (ALL[6:], 3)):
        read = [feed.ids for feed in pipeline.training_feeds(2, start, slots)]
        np.testing.assert_array_equal(pipeline.ids("train", slots, 2, start), read)


@pytest.mark.parametrize(
    "settings", mostly_extended([{}, {"reader_shards": 1, "window": 50}], [{}])
)
def test_an_epoch_with_mirrored_has_each_image_plain_and_mirrored(data_dir, settings):
    def thinned(data):  # not contiguous, so records are filtered
        links = [functools.partial(curation.subset, num_examples=33)]
        return dataset.curate(data, 0, links)

    choices = dict(curate=thinned, settings=settings, extras=("boxes",), max_boxes=2)
    pipeline = stream(data_dir, "same", "with_mirrored", "decode", **choices)
    split = pipeline.dataset.splits["train"]
    stored = dict(zip(split.ids.tolist(), split.inputs, strict=True))
    boxes = dict(zip(split.ids.tolist(), split.extras["boxes"], strict=True))
    feeds = training(pipeline, epoch=2)
    assert len(feeds) == -(-2 * len(stored) // BATCH)
    drawn = {i: [] for i in stored}
    for images, _, weights, ids, extras in feeds:
        for image, i, weight, (box, padding) in zip(images, ids.tolist(), weights, extras["boxes"]):
            if weight:
                drawn[i] += [np.array_equal(image, stored[i])]
                assert drawn[i][-1] or np.array_equal(image[:, ::-1], stored[i])
                y0, x0, y1, x1 = boxes[i][0]
                expected = boxes[i][0] if drawn[i][-1] else (y0, 1 - x1, y1, 1 - x0)
                np.testing.assert_allclose(box, expected, atol=1e-6)
                assert not padding.any()
    assert all(sorted(plain) == [False, True] for plain in drawn.values())
    # Either may come first.
    assert len(stored) / 4 < sum(first for first, _ in drawn.values()) < 3 * len(stored) / 4
    num_hosts = 2 if not settings else 1
    assert_same(training(pipeline, num_hosts, epoch=2, start=3), feeds[3:])
    np.testing.assert_array_equal(
        pipeline.ids("train", ALL, 2, 3),
        [np.where(feed.weights > 0, feed.ids, -1) for feed in feeds[3:]],
    )


def test_the_occurrences_of_an_image_have_their_own_random_numbers(data_dir):
    pipeline = stream(data_dir, "same", "random_crop(9)|with_mirrored", "central_crop(9)")
    drawn = {}
    for feed in pipeline.training_feeds(0, 0, ALL):
        for i, image in zip(feed.ids[feed.weights > 0].tolist(), feed.inputs[feed.weights > 0]):
            drawn.setdefault(i, []).append(image)
    same = [np.array_equal(a[:, ::-1], b) for a, b in drawn.values()]
    assert len(same) == NUM_TRAIN
    assert sum(same) < NUM_TRAIN / 4


def test_evaluation_is_exact_and_in_a_fixed_order(data_dir):
    for batch_size in (8, 32):
        pipeline = stream(data_dir, batch_size=batch_size)
        feeds = list(pipeline.feeds("test", np.arange(batch_size)))
        weights = np.concatenate([feed.weights for feed in feeds])
        ids = np.concatenate([feed.ids for feed in feeds])
        np.testing.assert_array_equal(np.sort(ids[weights > 0]), np.arange(NUM_TEST))
        assert set(weights) == {0.0, 1.0}
        assert_same(feeds, list(pipeline.feeds("test", np.arange(batch_size))))


def test_augmentation_depends_on_seed_epoch_and_id_and_not_on_the_batch(data_dir):
    def images(epoch=0, **settings):
        pipeline = stream(data_dir, **settings)
        slots = np.arange(settings.get("batch_size", BATCH))
        feeds = list(pipeline.training_feeds(epoch, 0, slots))
        return {
            int(i): x for feed in feeds for i, x, w in zip(feed.ids, feed.inputs, feed.weights) if w
        }

    one = images()
    other = images(batch_size=6, settings={"reader_shards": 3, "window": 2})
    assert set(one) == set(other)
    assert all(np.array_equal(one[i], other[i]) for i in one)
    for elsewhere in (images(epoch=1), images(seed=1)):
        assert np.mean([np.array_equal(one[i], elsewhere[i]) for i in one]) < 0.1


def test_each_operation_of_a_chain_has_its_own_random_numbers(data_dir):
    def images(chain):
        feeds = stream(
            data_dir, "same", training=chain, evaluation="value_range(0, 255)"
        ).training_feeds(0, 0, ALL)
        return {
            int(i): x for feed in feeds for i, x, w in zip(feed.ids, feed.inputs, feed.weights) if w
        }

    as_stored, once, twice = (images(chain) for chain in ("decode", "flip_lr", "flip_lr|flip_lr"))
    flipped = {i for i in once if not np.array_equal(once[i], as_stored[i])}
    flipped_by_two = {i for i in twice if not np.array_equal(twice[i], as_stored[i])}
    assert all(np.array_equal(twice[i], as_stored[i][:, ::-1]) for i in flipped_by_two)
    # If both operations drew the same numbers, the second would undo the first.
    for ids in (flipped, flipped_by_two, flipped ^ flipped_by_two):
        assert NUM_TRAIN / 4 < len(ids) < 3 * NUM_TRAIN / 4


def test_orders_differ_by_epoch_and_seed(data_dir):
    orders = {
        tuple(stream(data_dir, seed=s).ids("train", ALL, e).ravel()) for s in (0, 1) for e in (0, 1)
    }
    assert len(orders) == 4


def test_images_that_cannot_be_decoded_are_named_and_left_out(data_dir, caplog):
    pipeline = stream(data_dir, "broken")
    with caplog.at_level(logging.WARNING):
        one = training(pipeline)
    assert pipeline.left_out() == {"train": list(CORRUPT)}
    assert "cannot be decoded and are left out" in caplog.text
    assert all(str(i) in caplog.text for i in CORRUPT)
    # `example_ids` includes the corrupt images and `dataset` does not, but labels match by id.
    clean = dict(
        zip(pipeline.example_ids["train"].tolist(), pipeline.clean_labels["train"], strict=True)
    )
    split = pipeline.dataset.splits["train"]
    assert len(clean) == NUM_TRAIN == len(split.ids) + len(CORRUPT)
    np.testing.assert_array_equal([clean[i] for i in split.ids.tolist()], split.labels)
    seen = np.concatenate([feed.ids[feed.weights > 0] for feed in one])
    np.testing.assert_array_equal(np.sort(seen), np.setdiff1d(np.arange(NUM_TRAIN), CORRUPT))
    # All other images are the same as in a set without corrupt images, at the same positions.
    intact = training(stream(data_dir))
    for (images, _, weights, ids, _), (intact_images, _, _, intact_ids, _) in zip(one, intact):
        np.testing.assert_array_equal(ids, intact_ids)
        np.testing.assert_array_equal(images[weights > 0], intact_images[weights > 0])
    with pytest.raises(
        ValueError, match=r"broken.*more than 1 images cannot be decoded.*max_corrupt"
    ):
        training(stream(data_dir, "broken", settings={"max_corrupt": 1}))


def first(directory, split):
    """The first file of a split."""
    return sorted((directory / "same").rglob(f"*-{split}.tfrecord*"))[0]


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FAULTS = {  # the change of a file, and the error
    "empty": (lambda path: path.write_bytes(b""), "has 0 records, but its metadata states {}"),
    "one record less": (
        lambda path: rewritten(path, lambda x: x[:-1]),
        "has {less} records, but .* states {}",
    ),
    "one record more": (
        lambda path: rewritten(path, lambda x: x + x[:1]),
        "has {more} records, but .* states {}",
    ),
    "cut": (
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        r"has {less} records before .* \(.*states {}",
    ),
    "damaged": (
        flip_a_bit,
        r"has \d+ records before it is damaged \(.*, but its metadata states {}",
    ),
    "missing": (
        lambda path: path.unlink(),
        "is missing, but its metadata states {} records",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_with_another_number_of_records_than_its_metadata_is_named_with_both_numbers(
    data_dir, tmp_path, fault
):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    pipeline, (damage, message) = stream(tmp_path, "same"), FAULTS[fault]
    readers = {
        "train": [
            lambda: training(pipeline),
            lambda: stream(tmp_path, "same", reads_labels=True),
            lambda: store.load("same", str(tmp_path)),
        ],
        "test": [lambda: list(pipeline.feeds("test", ALL))],
    }
    if fault not in ("empty", "damaged"):  # two faults for every reader, the others for one
        readers = {"train": readers["train"][:1]}
    for split, number in (("test", 2), ("train", 1)):
        path = sorted((tmp_path / "same").rglob(f"*-{split}.tfrecord*"))[number]
        expected = pipeline._sources[split].records.files(split).lengths[number]
        damage(path)
        reason = message.format(expected, less=expected - 1, more=expected + 1)
        for read in readers.get(split, ()):
            with pytest.raises(
                ValueError, match=rf"^same in .*: {split} cannot be read: {path} {reason}[^\n]*$"
            ):
                read()


def test_surplus_records_of_one_file_do_not_hide_missing_records_of_another(data_dir, tmp_path):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    first, second, _ = sorted((tmp_path / "same").rglob("*-train.tfrecord*"))
    rewritten(first, lambda records: records[1:])
    rewritten(second, lambda records: records + records[:1])
    for read in (
        lambda: stream(tmp_path, "same", reads_labels=True),
        lambda: training(stream(tmp_path, "same")),
    ):
        with pytest.raises(ValueError, match=rf"train cannot be read: {first} has 13 records, but"):
            read()


def test_a_record_without_an_image_and_a_label_is_an_error(data_dir, tmp_path):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    path = sorted((tmp_path / "same").rglob("*-train.tfrecord*"))[0]
    rewritten(path, lambda records: [b"", *records[1:]])
    with pytest.raises(
        ValueError,
        match=r"^same in .*: train has a record that cannot be parsed \(.*image.*prepare",
    ):
        training(stream(tmp_path, "same"))


def test_a_stream_that_ends_early_is_an_error(data_dir, monkeypatch):
    pipeline = stream(data_dir)
    batches = pipeline._batches
    monkeypatch.setattr(pipeline, "_batches", lambda *args: itertools.islice(batches(*args), 2))
    with pytest.raises(ValueError, match="train ended after 2 of 6 batches"):
        training(pipeline)


def test_known_corrupt_images_are_left_out_without_decoding(data_dir, caplog):
    pipeline = stream(data_dir)  # all its images can be decoded
    pipeline.leave_out({"train": [5, 7], "test": [1]})
    assert pipeline.left_out() == {"train": [5, 7], "test": [1]}
    absent = np.concatenate([feed.ids[feed.weights == 0] for feed in training(pipeline)])
    assert set(absent) == {-1, 5, 7}
    (feed, *_) = pipeline.feeds("test", ALL)
    assert feed.weights[list(feed.ids).index(1)] == 0
    assert not caplog.text


def test_a_failing_chain_names_the_image_and_images_of_several_sizes_are_an_error(data_dir):
    sides = {
        i: min(tf.io.decode_jpeg(x["image"]).shape[:2]) for i, x in examples(NUM_TRAIN, 0, (), None)
    }
    smallest, next_one = sorted(set(sides.values()))[:2]
    with pytest.raises(
        ValueError, match=r"the chain fails on the image of id \d+ of train: "
    ) as caught:
        training(stream(data_dir, training=f"central_crop({next_one})"))
    assert sides[int(re.search(r"of id (\d+)", str(caught.value))[1])] == smallest
    with pytest.raises(ValueError, match=r"config.data.train produces images of .*one size"):
        training(stream(data_dir, training="flip_lr"))


def test_reader_shards_that_do_not_divide_among_hosts_are_an_error(data_dir):
    with pytest.raises(
        ValueError, match="reader_shards is 2, but must be a multiple of 4, the number of parts"
    ):
        next(stream(data_dir, settings={"reader_shards": 2}).training_feeds(0, 0, ALL[:2]))


def curated(links=(), fraction=0.0):
    return lambda data: dataset.hold_out(dataset.curate(data, 0, links), 0, fraction)


PAIRS = functools.partial(curation.confuse_pairs, pairs=((0, 1),), rate=0.5)
SUBSET = functools.partial(curation.subset, num_examples=20)


@pytest.mark.parametrize(
    ("curate", "choices"),
    [
        (curated([SUBSET, PAIRS]), {"max_examples": 30, "splits": {"train": "train[5:]"}}),
        pytest.param(curated([PAIRS], 0.25), {}, marks=pytest.mark.extended),
        pytest.param(curated(), {"max_classes": 2}, marks=pytest.mark.extended),
        (curated(), {"label": "human", "splits": {"train": "train[:50%]", "valid": "train[50%:]"}}),
    ],
    ids=["subset", "held out", "classes", "human"],
)
def test_examples_labels_and_noise_equal_those_of_the_resident_pipeline(data_dir, curate, choices):
    stored = store.load("same", str(data_dir), **choices)
    expected = curate(stored)
    streamed = stream(data_dir, "same", curate=curate, reads_labels=True, **choices)
    assert streamed.class_names == expected.class_names
    assert set(streamed.sizes) == set(expected.splits)
    for split, (images, labels, ids, _) in expected.splits.items():
        rows = np.argsort(ids)
        actual = streamed.dataset.splits[split]
        np.testing.assert_array_equal(actual.ids, ids[rows])
        np.testing.assert_array_equal(actual.labels, labels[rows])
        resized = tf.image.resize(images[rows], (8, 8), antialias=True).numpy()
        np.testing.assert_allclose(actual.inputs, resized, atol=0.51)
        clean = dataset.clean_labels(expected, stored, split)
        np.testing.assert_array_equal(streamed.clean_labels[split], clean[rows])
    trained = np.concatenate([f.labels[f.weights > 0] for f in streamed.training_feeds(0, 0, ALL)])
    np.testing.assert_array_equal(
        streamed.class_counts, np.bincount(trained, minlength=len(expected.class_names))
    )
    description = dataset.description(expected, stored)
    assert streamed.description["num_examples"] == description["num_examples"]
    for name in ("label_noise", "class_counts"):
        assert streamed.description[name] == description[name]


def test_the_fingerprint_differs_for_other_examples_and_labels(data_dir):
    others = [
        {},
        {"splits": {"train": "train[1:]", "test": "test"}},
        {"label": "human"},
        {"max_classes": 2},
        {"curate": curated([PAIRS]), "reads_labels": True},
    ]
    prints = [stream(data_dir, **choices).description["fingerprint"] for choices in others]
    assert len(set(prints)) == len(prints)
    assert prints[0] == stream(data_dir, batch_size=32, seed=3).description["fingerprint"]


def test_lists_of_labels_are_padded_and_one_that_is_too_long_is_named(data_dir):
    choices = {"label": "labels", "splits": {"train": "train"}}
    pipeline = stream(data_dir, **choices)
    assert pipeline.label_forms["train"] == "list"
    for feed in pipeline.training_feeds(0, 0, ALL):
        assert feed.labels.shape == (BATCH, 3)
        listed = [y[y >= 0].tolist() for y in feed.labels]
        assert [sorted(y) for y in listed] == listed
        assert all((y[len(x) :] == -1).all() for y, x in zip(feed.labels, listed))
    with pytest.raises(
        ValueError, match=r"example of id \d+ has more than 1 labels; raise config.data.max_labels"
    ):
        training(stream(data_dir, max_labels=1, **choices))


# Below and above the classes; in 32 bits the large one would be class 1.
@pytest.mark.parametrize(("stored", "value"), [([-1], -1), ([2**40 + 1], 2**40 + 1)])
def test_a_label_that_is_not_a_class_is_named_with_its_id_and_split(
    data_dir, tmp_path, stored, value
):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    relabelled(first(tmp_path, "train"), 4, "label", stored)
    relabelled(first(tmp_path, "test"), 2, "label", stored)
    pipeline = stream(tmp_path, "same")
    message = "^same in .*: {}: the example of id {} has label {}, but the 3 classes are 0 to 2.$"
    for read in (
        lambda: training(pipeline),
        lambda: stream(tmp_path, "same", reads_labels=True),
        # Labels are checked before examples of the first two classes are selected.
        lambda: stream(tmp_path, "same", max_classes=2),
    ):
        with pytest.raises(ValueError, match=message.format("train", 4, value)):
            read()
    with pytest.raises(ValueError, match=message.format("test", 2, value)):
        list(pipeline.feeds("test", ALL))
    with pytest.raises(
        ValueError, match=rf"same in .*: train_labels: the example of id 4 has label {value}, but"
    ):
        store.load("same", str(tmp_path))


@pytest.mark.parametrize(
    ("stored", "value"), [([-1, 2], -1), ([-5], -5), ([0, 2**40 + 1], 2**40 + 1)]
)
def test_a_list_with_a_label_that_is_not_a_class_is_named(data_dir, tmp_path, stored, value):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    relabelled(first(tmp_path, "train"), 4, "labels", stored)
    relabelled(first(tmp_path, "test"), 2, "labels", stored)
    message = (
        "{}: the example of id {} has label {}, but the 3 classes are 0 to 2; only the end of a"
        " list may be padded"
    )
    with pytest.raises(ValueError, match=message.format("train", 4, value)):
        training(stream(tmp_path, "same", label="labels", splits={"train": "train"}))
    # Lists of correct answers beside single training labels, as in ReaL.
    splits = {"train": "train", "real": {"split": "test", "label": "labels"}}
    with pytest.raises(ValueError, match=message.format("test", 2, value)):
        list(stream(tmp_path, "same", splits=splits).feeds("real", ALL))


def test_human_and_clean_labels_are_checked_and_only_clean_labels_may_be_unknown(
    data_dir, tmp_path
):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    relabelled(first(tmp_path, "train"), 4, "label", [-1])
    human = {"label": "human", "splits": {"train": "train"}, "reads_labels": True}
    pipeline = stream(tmp_path, "same", **human)
    assert pipeline.clean_labels["train"][4] == -1
    assert sum(n for _, _, n in pipeline.description["label_noise"]) == NUM_TRAIN - 1
    relabelled(first(tmp_path, "train"), 5, "label", [3])
    with pytest.raises(ValueError, match="the example of id 5 has label 3, but the 3 classes"):
        stream(tmp_path, "same", **human)
    relabelled(first(tmp_path, "train"), 5, "label", [0])
    relabelled(first(tmp_path, "train"), 6, "human", [-1])
    with pytest.raises(ValueError, match="the example of id 6 has label -1, but the 3 classes"):
        stream(tmp_path, "same", **human)


def test_a_class_that_occurs_twice_in_a_list_counts_once(data_dir, tmp_path):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    choices = {"label": "labels", "splits": {"train": "train"}, "reads_labels": True}
    counts = []
    for labels in ([2, 0], [2, 0, 2]):
        relabelled(first(tmp_path, "train"), 4, "labels", labels)
        counts.append(stream(tmp_path, "same", **choices).class_counts)
    np.testing.assert_array_equal(*counts)


def test_answers_of_another_set_are_lists_and_empty_lists_are_absent(data_dir):
    splits = {"train": "train", "real": {"name": "birds", "split": "test", "label": "labels"}}
    feeds = list(stream(data_dir, splits=splits).feeds("real", ALL))
    answers = {
        int(i): (y[y >= 0].tolist(), w)
        for f in feeds
        for i, y, w in zip(f.ids, f.labels, f.weights)
        if i >= 0
    }
    stored = {i: x["labels"] for i, x in examples(NUM_TEST, 1, (), None)}
    assert {i: y for i, (y, _) in answers.items()} == stored
    assert {i for i, (_, w) in answers.items() if w == 0} == {i for i, y in stored.items() if not y}
    assert any(not y for y in stored.values())


def test_sets_with_other_classes_cannot_be_combined(data_dir, caplog):
    with pytest.raises(ValueError, match="split 'other' has 4 classes, but train has 3"):
        stream(data_dir, splits={"train": "train", "other": {"name": "few", "split": "test"}})
    with caplog.at_level(logging.WARNING):
        stream(data_dir, splits={"train": "train", "other": {"name": "birds", "split": "test"}})
    assert (
        "1 classes of split 'other' have other names than in train; class 2 is 'eagle', not 'owl'"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"splits": {"train": {"slice": "train"}}}, "splits.train is"),
        ({"splits": {"test": "test"}}, "no split 'train'"),
        (
            {"label": "colour"},
            "no label field 'colour'; label fields: human, label, labels",
        ),
        ({"max_classes": 0}, "max_classes is 0"),
        (
            {"splits": {"train": "train", "valid": "test"}, "curate": curated((), 0.5)},
            "validation_fraction creates",
        ),
    ],
)
def test_invalid_settings_are_errors(data_dir, choices, message):
    with pytest.raises(ValueError, match=message):
        stream(data_dir, **choices)


def test_the_error_of_a_missing_set_says_how_to_prepare_it(data_dir):
    with pytest.raises(
        FileNotFoundError,
        match=r"(?s)no data set 'absent' in .*no builder for 'absent'.*multilabel",
    ):
        stream(data_dir, "absent")


def test_a_stream_cannot_select_the_examples_of_an_epoch(data_dir):
    selected = Selected(np.arange(4), np.ones(4))
    with pytest.raises(ValueError, match=r"cannot select .*config\.data\.pipeline='resident'"):
        stream(data_dir).training_feeds(0, 0, ALL, selected)
