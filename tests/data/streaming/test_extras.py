import itertools
import shutil
import sys
from functools import partial

import jax
import numpy as np
import pytest
from cases import mostly_extended
from pack import PACK, needs
from scenes import assert_around_white, encoded, scene
from streams import relabelled, stream

tfds = pytest.importorskip("tensorflow_datasets")

from heteroscedastic.data.storage import store  # noqa: E402

NUM = {"train": 19, "test": 5}
NAMES = ("cat", "dog", "owl")
EXTRAS = ("boxes", "human", "weight", "point", "seen", "place/row", "votes")
ALL = np.arange(8)


def examples(split):
    """Images with a white box, and fields of several types; example i has up to 3 boxes."""
    rng = np.random.default_rng(len(split))
    for i in range(NUM[split]):
        image, rows = scene(rng, (20, 24))
        boxes = np.concatenate(
            [rows[:1], np.sort(rng.uniform(size=(2, 2, 2)), axis=1).reshape(2, 4)]
        )
        if i == 3:
            boxes[1] = (0.5, 0.2, 0.5, 0.8)  # has no area, so it is no box
        yield (
            i,
            {
                "image": encoded(image),
                "label": int(rng.integers(3)),
                "human": int(rng.integers(3)),
                "weight": float(np.float32(rng.normal())),
                "point": rng.normal(size=(2, 3)).astype(np.float32),
                "seen": bool(rng.integers(2)),
                "votes": rng.dirichlet(np.ones(3)).astype(np.float32),
                "face": tfds.features.BBox(0.25, 0.5, 0.75, 1.0),
                "place": {"row": int(rng.integers(-9, 9)), "name": "here"},
                "sizes": rng.integers(0, 9, 2),
                "objects": [
                    {"bbox": tfds.features.BBox(*map(float, b)), "kind": 7 * j, "label": j}
                    for j, b in enumerate(boxes[: i % 4])
                ],
            },
        )


def prepare(directory, name="toys", without=("face",)):
    features = {
        "image": tfds.features.Image(shape=(20, 24, 3)),
        "label": tfds.features.ClassLabel(names=list(NAMES)),
        "human": tfds.features.ClassLabel(names=list(NAMES)),
        "weight": np.float32,
        "point": tfds.features.Tensor(shape=(2, 3), dtype=np.float32),
        "seen": np.bool_,
        "votes": tfds.features.Tensor(shape=(3,), dtype=np.float32),
        "face": tfds.features.BBoxFeature(),
        "place": {"row": np.int64, "name": tfds.features.Text()},
        "sizes": tfds.features.Tensor(shape=(None,), dtype=np.int64),
        "objects": tfds.features.Sequence(
            {
                "bbox": tfds.features.BBoxFeature(),
                "kind": np.int64,
                "label": tfds.features.ClassLabel(names=list(NAMES)),
            }
        ),
    }
    chosen = {n: f for n, f in features.items() if n not in without}
    tfds.dataset_builders.store_as_tfds_dataset(
        name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(chosen),
        split_datasets={
            split: ((i, {n: example[n] for n in chosen}) for i, example in examples(split))
            for split in NUM
        },
        data_dir=directory,
        download_config=tfds.download.DownloadConfig(num_shards=2),
        disable_shuffling=True,
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    prepare(directory)
    prepare(directory, "plain", without=("face", "objects", "weight"))
    prepare(directory, "faces", without=())
    return str(directory)


def stored(split, name, max_boxes=16):
    """The values of a field, in the order of ids."""
    if name == "boxes":
        values = np.zeros((NUM[split], max_boxes, 4), np.float32)
        for i, example in examples(split):
            for row, thing in zip(values[i], example["objects"]):
                y0, x0, y1, x1 = thing["bbox"]
                if y0 < y1 and x0 < x1:
                    row[:] = y0, x0, y1, x1
        return values
    path = name.split("/")
    return np.array([e[path[0]][path[1]] if path[1:] else e[name] for _, e in examples(split)])


def by_id(feeds):
    """The extras of present examples in the order of ids."""
    feeds = list(feeds)
    present = np.concatenate([feed.weights > 0 for feed in feeds])
    order = np.argsort(np.concatenate([feed.ids for feed in feeds])[present])
    return {
        name: np.concatenate([feed.extras[name] for feed in feeds])[present][order]
        for name in feeds[0].extras
    }


def assert_stored(extras, split):
    assert set(extras) == set(EXTRAS)
    for name in EXTRAS:
        expected = stored(split, name)
        kind = {"i": np.int32, "f": np.float32, "b": bool}[expected.dtype.kind]
        assert extras[name].dtype == kind
        np.testing.assert_array_equal(extras[name], expected.astype(kind))


def test_a_set_in_memory_carries_the_stored_fields(data_dir):
    for split, part in store.load("toys", data_dir, extras=EXTRAS).splits.items():
        assert_stored(part.extras, split)


def test_a_stream_carries_the_stored_fields_also_where_it_is_read_into_memory(data_dir):
    pipeline = stream(data_dir, "toys", training="resize(8)", extras=EXTRAS)
    assert_stored(by_id(pipeline.training_feeds(1, 0, ALL)), "train")
    assert_stored(pipeline.dataset.splits["test"].extras, "test")


def test_no_field_is_carried_that_no_one_asks_for(data_dir):
    assert next(iter(stream(data_dir, "toys").feeds("test", ALL))).extras == {}
    assert set(store.load("toys", data_dir).splits["train"].extras) == {"human"}  # as all labels


def test_feeds_have_the_shapes_of_the_example_and_zeros_where_no_example_is(data_dir):
    chain = "flip_lr|value_range(-1, 1)"
    pipeline = stream(data_dir, "toys", training=chain, extras=EXTRAS, max_boxes=3)
    *_, last = pipeline.training_feeds(0, 0, ALL)
    for name, values in pipeline.example("train", training=True).extras.items():
        assert (values.shape, values.dtype) == (last.extras[name].shape, last.extras[name].dtype)
        np.testing.assert_array_equal(last.extras[name][last.weights == 0], 0)
    assert (last.weights == 0).any()
    batch = pipeline.training_batch(jax.random.key(0), (), last)
    np.testing.assert_array_equal(batch.extras["boxes"], last.extras["boxes"])


def test_boxes_of_a_stream_follow_its_crops(data_dir):
    chain = "inception_crop(16, min_area=0.3)|flip_lr|value_range(0, 255)"
    pipeline = stream(data_dir, "toys", training=chain, extras=("boxes",), max_boxes=3)
    num_boxes = 0
    for feed in pipeline.training_feeds(0, 0, ALL):
        for image, rows, stored_rows in zip(
            feed.inputs, feed.extras["boxes"], stored("train", "boxes", 3)[feed.ids]
        ):
            if stored_rows[0].any():  # the first box is that of the white pixels
                assert_around_white(image, rows[:1], pixels=1)
                num_boxes += 1
    assert num_boxes > 10


def test_the_clean_field_behind_noisy_labels_is_an_extra_of_both_pipelines(data_dir):
    choices = dict(label="human", extras=("clean_labels",))
    pipeline = stream(data_dir, "toys", **choices)
    values = by_id(pipeline.feeds("train", ALL))["clean_labels"]
    np.testing.assert_array_equal(values, stored("train", "label"))
    loaded = store.load("toys", data_dir, **choices).splits["train"].extras["clean_labels"]
    np.testing.assert_array_equal(loaded, values)
    assert set(by_id(pipeline.feeds("test", ALL))) == set()


def test_only_train_must_have_an_extra(data_dir):
    splits = dict(train="train", test="test", other=dict(name="plain", split="test"))
    pipeline = stream(data_dir, "toys", splits=splits, extras=("boxes", "human"))
    assert set(by_id(pipeline.feeds("test", ALL))) == {"boxes", "human"}
    assert set(by_id(pipeline.feeds("other", ALL))) == {"human"}


def test_an_unknown_extra_is_an_error_that_lists_the_fields(data_dir, tmp_path):
    fields = "boxes, human, label, objects/kind, objects/label, place/row, point, seen, votes"
    for name in ("box", "sizes", "objects/none", "place/name", "image"):  # not of a fixed shape
        for read in (partial(stream, data_dir, "toys"), partial(store.load, "toys", data_dir)):
            with pytest.raises(
                ValueError,
                match=rf"^toys in [^\n]* has no extra '{name}'[^\n]* {fields}, weight\.$",
            ):
                read(extras=(name,))
    store.write(tmp_path / "toys.npz", store.load("toys", data_dir, extras=("weight",)))
    with pytest.raises(ValueError, match=r"no extra 'boxes' in train; its extras are human, weigh"):
        store.load("toys", str(tmp_path), extras=("boxes",))


def test_where_a_set_has_several_fields_of_boxes_the_path_of_one_says_which_are_meant(data_dir):
    readers = partial(stream, data_dir, "faces"), partial(store.load, "faces", data_dir)
    message = (
        r"^faces in [^\n]* has several fields of boxes, face, objects/bbox; add the path of one to"
        r" config\.data\.extras, as in \('boxes', 'face'\)\.$"
    )
    for read, names in itertools.product(readers, (("boxes",), ("boxes", "face", "objects/bbox"))):
        with pytest.raises(ValueError, match=message):
            read(extras=names)
    for read in readers:
        with pytest.raises(ValueError, match="no extra 'face'"):  # it would be no extra `boxes`
            read(extras=("face",))
    face = np.zeros((NUM["test"], 16, 4), np.float32)
    face[:, 0] = (0.25, 0.5, 0.75, 1.0)
    for path, boxes in (("objects/bbox", stored("test", "boxes")), ("face", face)):
        streamed, in_memory = (read(extras=("boxes", path)) for read in readers)
        for found in (by_id(streamed.feeds("test", ALL)), in_memory.splits["test"].extras):
            assert set(found) - {"human"} == {"boxes"}
            np.testing.assert_array_equal(found["boxes"], boxes)


def test_more_boxes_than_the_limit_are_an_error(data_dir):
    message = r"^toys in [^\n]*of id 3 has 3 boxes, but config.data.max_boxes is 2[^\n]*raise it"
    choices = dict(extras=("boxes",), max_boxes=2, splits=dict(train="train[1:6]"))
    with pytest.raises(ValueError, match=message):
        store.load("toys", data_dir, **choices)
    with pytest.raises(ValueError, match=message):
        list(stream(data_dir, "toys", training="flip_lr", **choices).training_feeds(0, 0, ALL))


def test_a_stored_row_of_zeros_counts_as_a_box_of_its_example(data_dir, tmp_path):
    shutil.copytree(f"{data_dir}/toys", tmp_path / "toys")
    path = sorted((tmp_path / "toys").rglob("*-train.tfrecord*"))[0]
    relabelled(path, 2, "objects/bbox", [0.0] * 16)  # instead of two boxes
    choices = dict(extras=("boxes",), max_boxes=3, splits=dict(train="train[1:6]"))
    with pytest.raises(ValueError, match="the example of id 2 has 4 boxes"):
        list(stream(tmp_path, "toys", training="flip_lr", **choices).training_feeds(0, 0, ALL))


INVERTED, OUTSIDE, NAN = [0.5, 0.0, 0.25, 1.0], [0.0, 0.5, 1.0, 1.5], [0.0, float("nan"), 1.0, 1.0]


@pytest.mark.parametrize(
    ("reader", "box"),
    [("feeds", INVERTED), *itertools.product(("memory", "selection"), (INVERTED, OUTSIDE, NAN))],
)
def test_an_invalid_box_is_an_error_that_names_the_example_and_the_box(
    data_dir, tmp_path, reader, box
):
    shutil.copytree(f"{data_dir}/toys", tmp_path / "toys")
    path = sorted((tmp_path / "toys").rglob("*-train.tfrecord*"))[0]
    relabelled(path, 3, "objects/bbox", [0.0, 0.0, 1.0, 1.0, *box])
    choices = dict(extras=("boxes",), splits=dict(train="train[2:]"))
    values = ",? ".join(f"{x:g}(\\.0)?" for x in box)
    message = (
        r"^toys in [^\n]*: train(_boxes: | has a record that cannot be parsed [^\n]*)"
        rf"the example of id 3 has the box \[{values}\], but a box"
        r" \(y0, x0, y1, x1\) must have 0 <= y0 <= y1 <= 1 and [^\n]*$"
    )
    readers = {
        "memory": lambda: store.load("toys", str(tmp_path), **choices),
        "selection": lambda: stream(tmp_path, "toys", with_boxes=True, **choices),
        "feeds": lambda: next(stream(tmp_path, "toys", **choices).training_feeds(0, 0, ALL)),
    }
    with pytest.raises(ValueError, match=message):
        readers[reader]()


def test_an_example_whose_only_box_has_no_area_is_left_out_like_one_without_boxes(
    data_dir, tmp_path
):
    shutil.copytree(f"{data_dir}/toys", tmp_path / "toys")
    path = sorted((tmp_path / "toys").rglob("*-train.tfrecord*"))[0]
    relabelled(path, 1, "objects/bbox", [0.5, 0.2, 0.5, 0.8])
    pipeline = stream(tmp_path, "toys", extras=("boxes",), with_boxes=True)
    expected = [i for i in range(NUM["train"]) if i % 4 and i != 1]
    assert pipeline.example_ids["train"].tolist() == expected


def test_an_integer_that_does_not_fit_is_an_error(data_dir, tmp_path):
    shutil.copytree(f"{data_dir}/toys", tmp_path / "toys")
    path = sorted((tmp_path / "toys").rglob("*-train.tfrecord*"))[0]
    relabelled(path, 2, "place/row", [2**31])
    message = "place/row ranges from -?[0-9]+ to 2147483648, but must fit into int32"
    with pytest.raises(ValueError, match=message):
        store.load("toys", str(tmp_path), extras=("place/row",))
    pipeline = stream(tmp_path, "toys", extras=("place/row",))
    with pytest.raises(ValueError, match=message):
        list(pipeline.feeds("train", ALL))


@pytest.mark.parametrize(
    "votes", mostly_extended([[0.5, 0.25, 0.125], [1.0, 0.5, -0.5]], [[0.5, 0.25, 0.125]])
)
def test_soft_labels_of_training_that_are_no_distribution_are_an_error(data_dir, tmp_path, votes):
    shutil.copytree(f"{data_dir}/toys", tmp_path / "toys")
    for split in ("train", "test"):
        path = sorted((tmp_path / "toys").rglob(f"*-{split}.tfrecord*"))[0]
        relabelled(path, 1, "votes", votes)
    names, soft = ("votes",), {"soft_labels": ("votes",)}
    message = r"votes: the example of id 1 (sums to 0.875|has the value -0.5), but soft labels"
    with pytest.raises(ValueError, match=f"^toys in .*train_{message}"):
        store.load("toys", str(tmp_path), extras=names, **soft)
    pipeline = stream(tmp_path, "toys", extras=names, settings=soft)
    with pytest.raises(ValueError, match=f"^toys in .*train: {message}"):
        list(pipeline.training_feeds(0, 0, ALL))
    by_id(pipeline.feeds("test", ALL))  # there they are no targets
    store.load("toys", str(tmp_path), extras=names)  # here likewise


def test_valid_soft_labels_are_carried(data_dir):
    names, soft = ("votes",), {"soft_labels": ("votes",)}
    loaded = store.load("toys", data_dir, extras=names, **soft).splits["train"].extras["votes"]
    pipeline = stream(data_dir, "toys", extras=names, settings=soft)
    streamed = by_id(pipeline.training_feeds(0, 0, ALL))["votes"]  # the last feed has padding
    np.testing.assert_array_equal(streamed, loaded)
    np.testing.assert_array_equal(streamed, stored("train", "votes"))


def test_the_npz_file_of_a_set_may_have_its_extras(data_dir, tmp_path, monkeypatch):
    command = f"store --name=toys --data_dir={data_dir} --out={tmp_path} --extras boxes weight"
    monkeypatch.setattr(sys, "argv", command.split())
    store.main()
    one, other = (
        store.load("toys", folder, extras=("boxes", "weight")).splits["train"].extras
        for folder in (str(tmp_path), data_dir)
    )
    assert set(one) == set(other) == {"boxes", "human", "weight"}
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name])


@needs("tiny_imagenet")
def test_the_boxes_of_tiny_imagenet_are_the_same_in_both_pipelines():
    choices = dict(
        splits=dict(train="train[:1%]", test="validation[:1%]"), extras=("boxes",), max_boxes=2
    )
    loaded = store.load("tiny_imagenet", PACK, **choices)
    pipeline = stream(
        PACK,
        "tiny_imagenet",
        training="value_range(-1, 1)",
        evaluation="value_range(-1, 1)",
        **choices,
    )
    for split, feeds in (("train", pipeline.training_feeds(0, 0, ALL)), ("test", None)):
        boxes = by_id(feeds or pipeline.feeds(split, ALL))["boxes"]
        np.testing.assert_array_equal(boxes, loaded.splits[split].extras["boxes"])
        sides = boxes[:, 0, 2:] - boxes[:, 0, :2]
        assert (sides > 0).all()
        assert 0.2 < sides.prod(axis=-1).mean() < 0.8
        np.testing.assert_array_equal(boxes[:, 1], 0)  # one box per image


def test_labels_and_numbers_of_boxes_stand_in_their_rows_and_class_0_is_the_background(data_dir):
    pipeline = stream(
        data_dir,
        "toys",
        training="resize(8)",
        label="objects/label",
        extras=("boxes", "objects/kind"),
        of_regions=True,
        with_boxes=True,
        reads_labels=True,
    )
    assert pipeline.class_names == ("background", *NAMES)
    assert pipeline.class_counts.tolist() == [
        0,
        14,
        9,
        4,
    ]  # 19 examples of 0, 1, 2, 3, 0, ... boxes
    assert pipeline.description["degenerate_boxes"] == 1  # of example 3
    assert pipeline.sizes == {"train": 14, "test": 5}  # an evaluation has images without boxes too
    in_memory = store.load("toys", data_dir, extras=("boxes", "objects/kind")).splits["test"]
    found = by_id(pipeline.feeds("test", ALL))["objects/kind"]
    np.testing.assert_array_equal(in_memory.extras["objects/kind"], found)
    for feed in pipeline.feeds("test", ALL):
        for i in np.flatnonzero(feed.weights):
            number = feed.ids[i] % 4
            is_box = np.arange(3) < number
            assert feed.labels[i].tolist() == np.where(is_box, [1, 2, 3], -1).tolist()
            numbers = feed.extras["objects/kind"][i]
            assert numbers[:3].tolist() == np.where(is_box, [0, 7, 14], 0).tolist()
            assert not numbers[3:].any()
            has_empty = feed.ids[i] == 3
            assert np.any(feed.extras["boxes"][i], axis=1).sum() == number - has_empty
