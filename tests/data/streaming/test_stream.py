import functools
import itertools
import logging
import re
import shutil

import numpy as np
import pytest
from streams import NAMES, NUM_TEST, NUM_TRAIN, examples, prepare, relabelled, rewritten, stream

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_datasets")

from heteroscedastic import curation  # noqa: E402
from heteroscedastic.data import dataset  # noqa: E402
from heteroscedastic.data.pipeline import Selected  # noqa: E402
from heteroscedastic.data.storage import store  # noqa: E402

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


def joined(hosts):
    """The global feeds that the hosts' parts make."""
    return [
        [np.concatenate(x) for x in zip(*(part[:4] for part in parts))] for parts in zip(*hosts)
    ]


def training(pipeline, hosts=1, epoch=0, start=0):
    return joined(
        [list(pipeline.training_feeds(epoch, start, part)) for part in np.split(ALL, hosts)]
    )


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        for x, y in zip(a, b):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("start", "stop", "hosts"), [(0, NUM_TRAIN, (2, 4)), (3, 36, ()), (0, 5, (4,))]
)
def test_every_example_is_seen_once_and_a_batch_is_the_same_whatever_the_number_of_hosts(
    data_dir, start, stop, hosts
):
    pipeline = stream(data_dir, splits={"train": f"train[{start}:{stop}]"})
    whole = training(pipeline)
    ids = np.concatenate([ids[weights > 0] for _, _, weights, ids in whole])
    np.testing.assert_array_equal(np.sort(ids), np.arange(start, stop))
    assert len(whole) == -(-(stop - start) // BATCH)
    for number in hosts:
        assert_same(training(pipeline, number), whole)


def test_a_later_start_is_the_rest_of_the_epoch_on_any_number_of_hosts(data_dir):
    pipeline = stream(data_dir)
    whole = training(pipeline, epoch=1)
    for start, hosts in ((1, 1), (3, 4), (len(whole), 1)):
        assert_same(training(pipeline, hosts, epoch=1, start=start), whole[start:])


def test_the_ids_that_are_told_are_those_that_are_read(data_dir):
    pipeline = stream(data_dir)
    for places, start in ((ALL[:4], 0), (ALL[6:], 3)):
        read = [feed.ids for feed in pipeline.training_feeds(2, start, places)]
        np.testing.assert_array_equal(pipeline.ids("train", places, 2, start), read)


def test_evaluation_is_exact_and_in_a_fixed_order(data_dir):
    for batch_size in (8, 32):
        pipeline = stream(data_dir, batch_size=batch_size)
        feeds = list(pipeline.feeds("test", np.arange(batch_size)))
        weights = np.concatenate([feed.weights for feed in feeds])
        ids = np.concatenate([feed.ids for feed in feeds])
        np.testing.assert_array_equal(np.sort(ids[weights > 0]), np.arange(NUM_TEST))
        assert set(weights) == {0.0, 1.0}
        assert_same(
            [f[:4] for f in feeds], [f[:4] for f in pipeline.feeds("test", np.arange(batch_size))]
        )


def test_what_an_example_looks_like_follows_from_seed_epoch_and_id_and_not_from_its_batch(data_dir):
    def images(epoch=0, **settings):
        pipeline = stream(data_dir, **settings)
        places = np.arange(settings.get("batch_size", BATCH))
        feeds = list(pipeline.training_feeds(epoch, 0, places))
        return {
            int(i): x for feed in feeds for i, x, w in zip(feed.ids, feed.inputs, feed.weights) if w
        }

    one = images()
    other = images(batch_size=6, settings={"lanes": 3, "window": 2})
    assert set(one) == set(other)
    assert all(np.array_equal(one[i], other[i]) for i in one)
    for elsewhere in (images(epoch=1), images(seed=1)):
        assert np.mean([np.array_equal(one[i], elsewhere[i]) for i in one]) < 0.1


def test_each_place_of_a_chain_draws_for_itself(data_dir):
    def images(chain):
        feeds = stream(
            data_dir, "same", training=chain, evaluation="value_range(0, 255)"
        ).training_feeds(0, 0, ALL)
        return {
            int(i): x for feed in feeds for i, x, w in zip(feed.ids, feed.inputs, feed.weights) if w
        }

    as_stored, once, twice = (images(chain) for chain in ("decode", "flip_lr", "flip_lr|flip_lr"))
    flipped = {i for i in once if not np.array_equal(once[i], as_stored[i])}
    of_two = {i for i in twice if not np.array_equal(twice[i], as_stored[i])}
    assert all(np.array_equal(twice[i], as_stored[i][:, ::-1]) for i in of_two)
    # Were the draws of both the same, two mirrors would undo each other.
    for found in (flipped, of_two, flipped ^ of_two):
        assert NUM_TRAIN / 4 < len(found) < 3 * NUM_TRAIN / 4


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
    # Each label is still that of its own example, though one list of them is shorter than the
    # other.
    clean = dict(zip(pipeline.kept["train"].tolist(), pipeline.clean_labels["train"], strict=True))
    whole = pipeline.dataset.splits["train"]
    assert len(clean) == NUM_TRAIN == len(whole.ids) + len(CORRUPT)
    np.testing.assert_array_equal([clean[i] for i in whole.ids.tolist()], whole.labels)
    seen = np.concatenate([ids[weights > 0] for _, _, weights, ids in one])
    np.testing.assert_array_equal(np.sort(seen), np.setdiff1d(np.arange(NUM_TRAIN), CORRUPT))
    # All others are where they are in a set that is whole, and look as they do there.
    for (images, _, weights, ids), (theirs, _, _, expected) in zip(one, training(stream(data_dir))):
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_array_equal(images[weights > 0], theirs[weights > 0])
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


FAULTS = {  # what is done to a file, and what is said of it
    "empty": (lambda path: path.write_bytes(b""), "holds 0 records, but the metadata promise {}"),
    "one record less": (
        lambda path: rewritten(path, lambda x: x[:-1]),
        "holds {less} records, but .* promise {}",
    ),
    "one record more": (
        lambda path: rewritten(path, lambda x: x + x[:1]),
        "holds {more} records, but .* promise {}",
    ),
    "cut": (
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        r"holds {less} records before .* \(.*promise {}",
    ),
    "damaged": (
        flip_a_bit,
        r"holds \d+ records before it is damaged \(.*, but the metadata promise {}",
    ),
    "missing": (
        lambda path: path.unlink(),
        "is missing, but the metadata promise {} records in it",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_does_not_hold_the_records_that_were_promised_is_named_with_both_numbers(
    data_dir, tmp_path, fault
):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    pipeline, (damage, said) = stream(tmp_path, "same"), FAULTS[fault]
    readers = {
        "train": [
            lambda: training(pipeline),
            lambda: stream(tmp_path, "same", reads_labels=True),
            lambda: store.load("same", str(tmp_path)),
        ],
        "test": [lambda: list(pipeline.feeds("test", ALL))],
    }
    for split, number in (("test", 2), ("train", 1)):
        path = sorted((tmp_path / "same").rglob(f"*-{split}.tfrecord*"))[number]
        promised = pipeline._sources[split].records.files(split).lengths[number]
        damage(path)
        told = said.format(promised, less=promised - 1, more=promised + 1)
        for read in readers[split]:
            with pytest.raises(
                ValueError, match=rf"^same in .*: {split} cannot be read: {path} {told}[^\n]*$"
            ):
                read()


def test_records_missing_in_one_file_are_not_made_up_for_by_those_too_many_in_another(
    data_dir, tmp_path
):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    first, second, _ = sorted((tmp_path / "same").rglob("*-train.tfrecord*"))
    rewritten(first, lambda records: records[1:])
    rewritten(second, lambda records: records + records[:1])
    for read in (
        lambda: stream(tmp_path, "same", reads_labels=True),
        lambda: training(stream(tmp_path, "same")),
    ):
        with pytest.raises(
            ValueError, match=rf"train cannot be read: {first} holds 13 records, but"
        ):
            read()


def test_a_record_that_is_no_image_with_a_label_is_an_error(data_dir, tmp_path):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    path = sorted((tmp_path / "same").rglob("*-train.tfrecord*"))[0]
    rewritten(path, lambda records: [b"", *records[1:]])
    with pytest.raises(
        ValueError,
        match=r"^same in .*: train holds a record that is no image with 'label' \(.*image",
    ):
        training(stream(tmp_path, "same"))


def test_a_stream_that_ends_early_for_another_reason_is_an_error_too(data_dir, monkeypatch):
    pipeline = stream(data_dir)
    batches = pipeline._batches
    monkeypatch.setattr(pipeline, "_batches", lambda *which: itertools.islice(batches(*which), 2))
    with pytest.raises(ValueError, match="train ended after 2 of 6 batches"):
        training(pipeline)


def test_what_is_known_to_be_undecodable_is_left_out_unasked(data_dir, caplog):
    pipeline = stream(data_dir)  # where all of them can be decoded
    pipeline.leave_out({"train": [5, 7], "test": [1]})
    assert pipeline.left_out() == {"train": [5, 7], "test": [1]}
    absent = np.concatenate([ids[weights == 0] for _, _, weights, ids in training(pipeline)])
    assert set(absent) == {-1, 5, 7}
    (feed, *_) = pipeline.feeds("test", ALL)
    assert feed.weights[list(feed.ids).index(1)] == 0
    assert not caplog.text


def test_a_chain_that_fails_names_the_image_and_one_of_several_sizes_is_an_error(data_dir):
    sides = {
        i: min(tf.io.decode_jpeg(x["image"]).shape[:2]) for i, x in examples(NUM_TRAIN, 0, (), None)
    }
    smallest, next_one = sorted(set(sides.values()))[:2]
    with pytest.raises(
        ValueError, match=r"the chain fails on the image of id \d+ of train: "
    ) as caught:
        training(stream(data_dir, training=f"central_crop({next_one})"))
    assert sides[int(re.search(r"of id (\d+)", str(caught.value))[1])] == smallest
    with pytest.raises(ValueError, match=r"config.data.train makes images of .*one size"):
        training(stream(data_dir, training="flip_lr"))


def test_lanes_that_do_not_suit_the_hosts_are_an_error(data_dir):
    with pytest.raises(ValueError, match="lanes is 2, but must be a multiple of the 4 parts"):
        next(stream(data_dir, settings={"lanes": 2}).training_feeds(0, 0, ALL[:2]))


def curated(links=(), fraction=0.0):
    return lambda data: dataset.hold_out(dataset.curate(data, 0, links), 0, fraction)


PAIRS = functools.partial(curation.confuse_pairs, pairs=((0, 1),), rate=0.5)
SUBSET = functools.partial(curation.subset, num_examples=20)


@pytest.mark.parametrize(
    ("curate", "choices"),
    [
        (curated([SUBSET, PAIRS]), {"max_examples": 30}),
        (curated([PAIRS], 0.25), {}),
        (curated(), {"max_classes": 2}),
        (curated(), {"label": "human", "splits": {"train": "train[:50%]", "valid": "train[50%:]"}}),
    ],
    ids=["subset", "held out", "classes", "human"],
)
def test_examples_labels_and_noise_are_those_of_the_resident_pipeline(data_dir, curate, choices):
    stored = store.load("same", str(data_dir), **choices)
    expected = curate(stored)
    streamed = stream(data_dir, "same", curate=curate, reads_labels=True, **choices)
    assert streamed.class_names == expected.class_names
    assert set(streamed.sizes) == set(expected.splits)
    for split, (images, labels, ids, _) in expected.splits.items():
        rows = np.argsort(ids)
        found = streamed.dataset.splits[split]
        np.testing.assert_array_equal(found.ids, ids[rows])
        np.testing.assert_array_equal(found.labels, labels[rows])
        resized = tf.image.resize(images[rows], (8, 8), antialias=True).numpy()
        np.testing.assert_allclose(found.inputs, resized, atol=0.51)
        clean = dataset.clean_labels(expected, stored, split)
        np.testing.assert_array_equal(streamed.clean_labels[split], clean[rows])
    trained = np.concatenate([f.labels[f.weights > 0] for f in streamed.training_feeds(0, 0, ALL)])
    np.testing.assert_array_equal(
        streamed.class_counts, np.bincount(trained, minlength=len(expected.class_names))
    )
    told = dataset.description(expected, stored)
    assert streamed.description["num_examples"] == told["num_examples"]
    assert streamed.description["label_noise"] == told["label_noise"]


def test_the_fingerprint_tells_other_examples_and_labels_apart(data_dir):
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
    several = {"label": "labels", "splits": {"train": "train"}}
    pipeline = stream(data_dir, **several)
    assert not pipeline.is_single
    for feed in pipeline.training_feeds(0, 0, ALL):
        assert feed.labels.shape == (BATCH, 3)
        listed = [y[y >= 0].tolist() for y in feed.labels]
        assert [sorted(y) for y in listed] == listed
        assert all((y[len(of) :] == -1).all() for y, of in zip(feed.labels, listed))
    with pytest.raises(
        ValueError, match=r"example of id \d+ has more than 1 labels; raise config.data.max_labels"
    ):
        training(stream(data_dir, max_labels=1, **several))


WRONG = [([99], 99), ([-1], -1), ([-5], -5), ([2**40 + 1], 2**40 + 1), ([-(2**63)], -(2**63))]


@pytest.mark.parametrize(("stored", "value"), WRONG)
def test_a_label_of_a_stream_that_is_no_class_is_named_with_its_id_and_split(
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
        lambda: stream(
            tmp_path, "same", max_classes=2
        ),  # though only examples of the first two are taken
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
    ("stored", "value"), [([1, 99], 99), ([-1, 2], -1), ([-5], -5), ([0, 2**40 + 1], 2**40 + 1)]
)
def test_a_list_of_a_stream_that_holds_no_class_is_named(data_dir, tmp_path, stored, value):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    relabelled(first(tmp_path, "train"), 4, "labels", stored)
    relabelled(first(tmp_path, "test"), 2, "labels", stored)
    message = "{}: the example of id {} has label {}, but the 3 classes are 0 to 2; only the end of a list is padded"
    with pytest.raises(ValueError, match=message.format("train", 4, value)):
        training(stream(tmp_path, "same", label="labels", splits={"train": "train"}))
    # Right answers beside one label, as ReaL's.
    splits = {"train": "train", "real": {"split": "test", "label": "labels"}}
    with pytest.raises(ValueError, match=message.format("test", 2, value)):
        list(stream(tmp_path, "same", splits=splits).feeds("real", ALL))


def test_human_labels_and_the_clean_ones_beside_them_are_checked_and_only_these_may_be_unknown(
    data_dir, tmp_path
):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    relabelled(first(tmp_path, "train"), 4, "label", [-1])
    human = {"label": "human", "splits": {"train": "train"}, "reads_labels": True}
    found = stream(tmp_path, "same", **human)
    assert found.clean_labels["train"][4] == -1
    assert sum(n for _, _, n in found.description["label_noise"]) == NUM_TRAIN - 1
    relabelled(first(tmp_path, "train"), 5, "label", [3])
    with pytest.raises(ValueError, match="the example of id 5 has label 3, but the 3 classes"):
        stream(tmp_path, "same", **human)
    relabelled(first(tmp_path, "train"), 5, "label", [0])
    relabelled(first(tmp_path, "train"), 6, "human", [-1])
    with pytest.raises(ValueError, match="the example of id 6 has label -1, but the 3 classes"):
        stream(tmp_path, "same", **human)


def test_a_class_that_a_list_of_a_stream_names_twice_counts_once(data_dir, tmp_path):
    shutil.copytree(data_dir / "same", tmp_path / "same")
    several = {"label": "labels", "splits": {"train": "train"}, "reads_labels": True}
    found = []
    for labels in ([2, 0], [2, 0, 2]):
        relabelled(first(tmp_path, "train"), 4, "labels", labels)
        found.append(stream(tmp_path, "same", **several).class_counts)
    np.testing.assert_array_equal(*found)


def test_right_answers_of_another_set_stand_in_lists_and_empty_ones_are_absent(data_dir):
    splits = {"train": "train", "real": {"name": "birds", "split": "test", "label": "labels"}}
    feeds = list(stream(data_dir, splits=splits).feeds("real", ALL))
    found = {
        int(i): (y[y >= 0].tolist(), w)
        for f in feeds
        for i, y, w in zip(f.ids, f.labels, f.weights)
        if i >= 0
    }
    stored = {i: x["labels"] for i, x in examples(NUM_TEST, 1, (), None)}
    assert {i: y for i, (y, _) in found.items()} == stored
    assert {i for i, (_, w) in found.items() if w == 0} == {i for i, y in stored.items() if not y}
    assert any(not y for y in stored.values())


def test_sets_of_other_classes_do_not_go_together(data_dir, caplog):
    with pytest.raises(ValueError, match="split 'other' has 4 classes, but train 3"):
        stream(data_dir, splits={"train": "train", "other": {"name": "few", "split": "test"}})
    with caplog.at_level(logging.WARNING):
        stream(data_dir, splits={"train": "train", "other": {"name": "birds", "split": "test"}})
    assert (
        "1 classes of split 'other' are called otherwise than in train, as class 2: 'eagle', not"
        " 'owl'" in caplog.text
    )


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"splits": {"train": {"slice": "train"}}}, "splits.train is"),
        ({"splits": {"test": "test"}}, "no split 'train'"),
        (
            {"label": "colour"},
            "no field 'colour' of labels; those are label, human, labels|no field 'colour'",
        ),
        ({"max_classes": 0}, "max_classes is 0"),
        (
            {"splits": {"train": "train", "valid": "test"}, "curate": curated((), 0.5)},
            "validation_fraction makes",
        ),
    ],
)
def test_what_was_not_meant_is_an_error(data_dir, choices, message):
    with pytest.raises(ValueError, match=message):
        stream(data_dir, **choices)


def test_a_set_that_is_not_prepared_says_what_prepares_it(data_dir):
    with pytest.raises(
        FileNotFoundError, match=r"(?s)no data set 'absent' in .*no builder of 'absent'.*multilabel"
    ):
        stream(data_dir, "absent")


def test_a_stream_cannot_select_the_examples_of_an_epoch(data_dir):
    selected = Selected(np.arange(4), np.ones(4))
    with pytest.raises(ValueError, match=r"cannot select .*config\.data\.pipeline='resident'"):
        stream(data_dir).training_feeds(0, 0, ALL, selected)
