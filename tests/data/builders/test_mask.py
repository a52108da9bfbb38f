import functools
import json
import shutil
import sys

import numpy as np
import pytest
from pack import PACK, needs
from streams import relabelled, stream

library = pytest.importorskip("tensorflow_datasets")

from heteroscedastic import curation  # noqa: E402
from heteroscedastic.data import dataset as dataset_lib  # noqa: E402
from heteroscedastic.data.builders import mask, objects  # noqa: E402
from heteroscedastic.data.storage import sample, store, tfds  # noqa: E402

NAMES = ("cat", "dog", "owl")
NUM_IMAGES = {"train": 12, "validation": 5, "test": 3}
UNDECODED = {"image": library.decode.SkipDecoding()}


def jpeg(i):
    digit = np.random.default_rng(i).integers(0, 256, (8, 8)).astype(np.uint8)
    return sample.image(digit, (16, 16, 3), "jpeg", i)


def source_examples(split):
    """Images with 0 to 4 boxes; every fifth box is a group, and every seventh has no area."""
    rng, number = np.random.default_rng(len(split)), 0
    for i in range(NUM_IMAGES[split]):
        boxes = []
        for _ in range(0 if split == "test" else i % 5):
            ymin, ymax, xmin, xmax = np.sort(rng.uniform(size=(2, 2)), axis=1).ravel().tolist()
            box = library.features.BBox(ymin, xmin, ymin if number % 7 == 3 else ymax, xmax)
            is_group = [-1, 1, 0, 0, 0][number % 5]
            boxes.append({"bbox": box, "label": int(rng.integers(3)), "is_group_of": is_group})
            number += 1
        name = f"{split}_{i}.jpg"
        yield (
            name,
            {
                "image": jpeg(100 * len(split) + i),
                "label": i % 3,
                "file_name": name,
                "objects": boxes,
            },
        )


def prepare(directory, *, box_labels=True, without=(), examples=source_examples):
    """Prepares the source `scenes`, whose labels are those of boxes or of images."""
    one = library.features.ClassLabel(names=list(NAMES))
    box_fields = {"bbox": library.features.BBoxFeature()}
    if box_labels:
        box_fields |= {"label": one, "is_group_of": np.int8}
    features = {
        "image": library.features.Image(shape=(16, 16, 3), encoding_format="jpeg"),
        "label": one,
        "file_name": library.features.Text(),
        "objects": library.features.Sequence(box_fields),
    }
    features = {n: f for n, f in features.items() if n not in without}

    def stored(split):
        for key, example in examples(split):
            boxes = [{n: box[n] for n in box_fields} for box in example["objects"]]
            yield key, {n: v for n, v in (example | {"objects": boxes}).items() if n in features}

    library.dataset_builders.store_as_tfds_dataset(
        "scenes",
        version="1.0.0",
        features=library.features.FeaturesDict(features),
        split_datasets={split: stored(split) for split in NUM_IMAGES},
        data_dir=directory,
    )


def read(name, data_dir):
    """The examples of every split."""
    builder = tfds.builder(name, str(data_dir))
    return {
        split: list(library.as_numpy(builder.as_dataset(split=split, decoders=UNDECODED)))
        for split in builder.info.splits
    }


def written(data_dir, source="scenes", **settings):
    mask.write(source, str(data_dir), name="scenes_mask", **settings)
    return read("scenes_mask", data_dir)


def content(image, label, name, boxes):
    """What an example consists of, as a value that can be sorted."""
    return name, label, image, tuple(map(tuple, np.asarray(boxes, np.float32).tolist()))


def contents(examples):
    rows = ((e["image"], int(e["label"]), e["file_name"], e["objects"]["bbox"]) for e in examples)
    return sorted(content(*row) for row in rows)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A directory with `scenes` and its mask set `scenes_mask`."""
    directory = tmp_path_factory.mktemp("mask")
    prepare(directory)
    mask.write("scenes", str(directory), name="scenes_mask")
    return directory


@pytest.mark.parametrize("box_labels", [True, False])
def test_every_box_is_one_example_of_its_label_with_the_bytes_of_its_image_and_its_box_first(
    data_dir, tmp_path, box_labels
):
    if not box_labels:
        prepare(tmp_path, box_labels=False)
        mask.write("scenes", str(tmp_path), name="scenes_mask")
    directory = data_dir if box_labels else tmp_path
    splits = read("scenes_mask", directory)
    assert set(splits) == {"train", "validation"}  # test has no boxes
    for split, examples in splits.items():
        expected = []
        for name, image in source_examples(split):
            boxes = [b for b in image["objects"] if b["bbox"].ymin < b["bbox"].ymax]
            for box in boxes:
                if box_labels and box["is_group_of"] == 1:
                    continue
                rows = [box["bbox"], *(b["bbox"] for b in boxes if b is not box)]
                label = box["label"] if box_labels else image["label"]
                expected.append(content(image["image"], label, name.encode(), rows))
        assert contents(examples) == sorted(expected)
        assert len(expected) > 5
    names = tfds.builder("scenes_mask", str(directory)).info.features["label"].names
    assert names == list(NAMES)


def test_a_limit_keeps_a_subset_of_each_training_class_and_evaluation_is_unlimited(
    data_dir, tmp_path
):
    shutil.copytree(data_dir / "scenes", tmp_path / "scenes")
    everything = read("scenes_mask", data_dir)
    previous = None
    for limit in (1, 3, 99):
        mask.write("scenes", str(tmp_path), name=f"limit_{limit}", max_per_class=limit)
        splits = read(f"limit_{limit}", tmp_path)
        assert contents(splits["validation"]) == contents(everything["validation"])
        counts, all_counts = (
            np.bincount([e["label"] for e in examples], minlength=3)
            for examples in (splits["train"], everything["train"])
        )
        np.testing.assert_array_equal(counts, np.minimum(all_counts, limit))
        train = set(contents(splits["train"]))
        assert previous is None or previous < train
        previous = train
    assert previous == set(contents(everything["train"]))


def test_a_limit_depends_on_ids_alone():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    hashes = np.array([objects.id_hash(f"{i}.jpg/0") for i in range(200)], np.uint64)
    order = rng.permutation(200)
    for limit in (1, 10, 50, 1000):
        largest = objects.largest_hashes(labels, hashes, 3, limit)
        permuted = objects.largest_hashes(labels[order], hashes[order], 3, limit)
        np.testing.assert_array_equal(largest, permuted)
        kept = np.bincount(labels[hashes <= largest[labels]])
        np.testing.assert_array_equal(kept, np.minimum(np.bincount(labels), limit))


def test_objects_of_an_image_are_held_out_together(data_dir):
    splits = read("scenes_mask", data_dir)
    image_of_group = {}
    for example in splits["train"]:
        assert image_of_group.setdefault(example["groups"], example["image"]) == example["image"]
    assert len(set(image_of_group.values())) == len(image_of_group)
    data = store.load("scenes_mask", str(data_dir), extras=("boxes", "groups"))
    data = data._replace(splits={"train": data.splits["train"]})
    for seed in range(3):
        parts = dataset_lib.hold_out(data, seed, 0.4).splits
        train, valid = (set(parts[name].extras["groups"].tolist()) for name in ("train", "valid"))
        assert valid
        assert not train & valid


def held_out(links, seed):
    """Curation of train that holds out a part of it."""

    def curate(data):
        data = data._replace(splits={"train": data.splits["train"]})
        return dataset_lib.hold_out(dataset_lib.curate(data, seed, links), seed, 0.4)

    return curate


HALF = functools.partial(curation.subset, fraction=0.5)


@pytest.mark.parametrize(
    ("links", "choices"),
    [([], {}), ([HALF], {}), ([], {"splits": {"train": "train[3:]"}, "max_classes": 2})],
    ids=["all", "curated", "selected"],
)
def test_both_pipelines_hold_out_the_same_images(data_dir, links, choices):
    choices, curate = {"extras": ("boxes", "groups"), **choices}, held_out(links, 1)
    resident = curate(store.load("scenes_mask", str(data_dir), **choices)).splits
    streamed = stream(data_dir, "scenes_mask", curate=curate, reads_labels=True, **choices)
    for split in ("train", "valid"):
        ids = np.sort(resident[split].ids)
        np.testing.assert_array_equal(streamed.example_ids[split], ids)
    feeds = streamed.feeds("valid", np.arange(8))
    groups = np.concatenate([feed.extras["groups"][feed.weights > 0] for feed in feeds])
    assert set(groups) == set(resident["valid"].extras["groups"])


def test_a_stream_with_a_negative_group_is_an_error(data_dir, tmp_path):
    shutil.copytree(data_dir / "scenes_mask", tmp_path / "scenes_mask")
    relabelled(next(tmp_path.rglob("*-train.tfrecord*")), 0, "groups", [-1])
    with pytest.raises(ValueError, match=r"^scenes_mask in .*: train: groups must be one integer"):
        stream(tmp_path, "scenes_mask", extras=("groups",))


def test_the_table_has_the_counts_of_the_set(data_dir, tmp_path):
    shutil.copytree(data_dir / "scenes", tmp_path / "scenes")
    _, table = mask.write("scenes", str(tmp_path), name="limited", max_per_class=2)
    everything = read("scenes_mask", data_dir)
    lines = table.splitlines()
    for line, (split, examples) in zip(lines[1:], read("limited", tmp_path).items()):
        counts = np.bincount([e["label"] for e in examples], minlength=3)
        cells = line.split()
        images = len({e["file_name"] for e in examples})
        assert cells[:3] == [split, str(images), str(counts.sum())]
        assert (f" of {len(everything[split])} " in line) == (split == "train")
        assert f"{counts.max()} ({NAMES[counts.argmax()]})" in line
        assert f"{counts.min()} ({NAMES[counts.argmin()]})" in line
        assert cells[-1] == str(max(len(e["objects"]["bbox"]) for e in everything[split]))
    assert lines[-1] == "The paper has no counts of scenes."


def test_the_numbers_of_the_paper_stand_below_those_of_its_sets():
    survey = mask.Survey(3, np.array([1, 3]), 9, 2, np.zeros(2, np.uint64))
    _, ours, paper = mask.table("imagenet2012_boxes", {"train": survey}, ["a", "b"]).splitlines()
    assert ours.split()[:5] == ["train", "3", "4", "of", "9"]
    assert paper.split()[:6] == ["train", "of", "the", "paper", "474,000", "528,000"]
    assert ours.index("3 (b)") == paper.index("1,349")
    assert ours.index("1 (a)") == paper.index("190")


def test_open_images_has_the_leaves_of_its_hierarchy(tmp_path):
    sample.write("open_images_v4/300k", str(tmp_path), ["train", "validation"])
    source = read("open_images_v4/300k", tmp_path)
    features = tfds.builder("open_images_v4/300k", str(tmp_path)).info.features
    names = features["bobjects"]["label"].names
    nodes = [{"LabelName": n} for n in names]
    parents = [{"LabelName": n, "Subcategory": nodes[-1:]} for n in names[:20]]
    path = tmp_path / "hierarchy.json"
    path.write_text(json.dumps({"LabelName": "/m/0bl9f", "Subcategory": [*nodes, *parents]}))
    name, settings = "open_images_v4/300k", dict(name="scenes_mask", hierarchy=path)
    _, printed = mask.write(name, str(tmp_path), **settings)
    assert "\ndropped: 20 have subcategories\n" in printed
    splits = read("scenes_mask", tmp_path)
    kept = tfds.builder("scenes_mask", str(tmp_path)).info.features["label"].names
    assert kept == [n for n in names[20:] if n in kept]
    for split, examples in splits.items():
        boxes = [b for e in source[split] for b in np.array(names)[e["bobjects"]["label"]]]
        labels = [kept[e["label"]] for e in examples]
        assert sorted(labels) == sorted(b for b in boxes if b in kept)
        assert 0 < len(labels) < len(boxes)


def one_image(boxes, label=0, name="a.jpg"):
    yield name, {"image": jpeg(0), "label": label, "file_name": name, "objects": boxes}


PLACES = objects.Layout(("boxes",), ("label",), None, "file_name")
INVALID = {
    "inverted": ([0.5, 0.1, 0.4, 0.2], 0, r"here: box 1 of a.jpg is \[0.5, 0.1.* ymin <= ymax"),
    "outside": ([0.5, 0.1, 0.6, 1.5], 0, r"here: box 1 of a.jpg is \[0.5, 0.1.* from 0 to 1"),
    "not a number": ([0.5, np.nan, 0.6, 1], 0, r"here: box 1 of a.jpg is \[0.5, nan"),
    "no class": ([0, 0, 1, 1], -1, r"here: a.jpg has label -1, but the 3 classes are 0 to 2"),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_box_or_label_is_named(case):
    box, label, message = INVALID[case]
    example = {"boxes": np.array([[0, 0, 1, 1], box], np.float32), "label": label}
    with pytest.raises(ValueError, match=message) as caught:
        objects.image_boxes(example, PLACES, np.arange(3), "a.jpg", "here")
    assert "\n" not in str(caught.value)


def same_name_twice(split):
    boxes = [{"bbox": library.features.BBox(0.0, 0.0, 1.0, 1.0), "label": 0, "is_group_of": 0}]
    for key in range(2):
        _, example = next(one_image(boxes))
        yield key, example


def no_objects(split):
    return one_image([])


SOURCES = {
    "no boxes": (dict(without=["objects"]), r"requires a feature 'image' and one field of boxes"),
    "no labels": (
        dict(without=["label"], box_labels=False),
        r"requires a feature 'label' \(one class\) of images or beside 'objects/bbox'",
    ),
    "one name": (dict(examples=same_name_twice), r"train has two images named a.jpg"),
    "no objects": (dict(examples=no_objects), r"scenes in \S+ has no objects"),
}


def command(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["mask", *map(str, flags)])
    mask.main()


@pytest.mark.parametrize("case", SOURCES)
def test_an_unsuitable_source_is_one_line_and_nothing_is_written(tmp_path, monkeypatch, case):
    settings, message = SOURCES[case]
    prepare(tmp_path, **settings)
    with pytest.raises(SystemExit, match=message) as caught:
        command(monkeypatch, "--source=scenes", f"--data_dir={tmp_path}")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "scenes_mask").exists()


FLAGS = {
    "hierarchy of another set": (["--hierarchy=x.json"], r"--hierarchy is for open_images_v4"),
    "existing set": ([], r"scenes_mask/1.0.0 exists already; remove it, or choose another --name"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_a_wrong_setting_is_one_line(tmp_path, monkeypatch, case):
    flags, message = FLAGS[case]
    prepare(tmp_path)
    if not flags:
        command(monkeypatch, "--source=scenes", f"--data_dir={tmp_path}")
    with pytest.raises(SystemExit, match=message) as caught:
        command(monkeypatch, "--source=scenes", f"--data_dir={tmp_path}", *flags)
    assert "\n" not in str(caught.value)


def test_a_missing_source_and_a_missing_mask_set_name_the_command_that_prepares_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"requires 'coco/2017', which is not in \S+/coco"):
        mask.write("coco/2017", str(tmp_path), name="coco_mask")
    for name, source in tfds.MASK_SOURCES.items():
        assert name == f"{source.partition('/')[0]}_mask"
        command = tfds.preparation(name, "DIR")
        assert f"builders.mask --source={source} " in command
        is_hierarchical = name == "open_images_v4_mask"
        assert (" --hierarchy=" in command) == is_hierarchical
        assert (" --max_per_class=50000" in command) == is_hierarchical


@needs("coco/2017")
def test_objects_of_real_photographs_are_their_boxes(tmp_path):
    (tmp_path / "coco").symlink_to(f"{PACK}/coco")
    splits = written(tmp_path, "coco/2017")
    for split, images in read("coco/2017", PACK).items():
        by_name = {e["image/filename"]: e for e in images}
        crowds = sum(int(e["objects"]["is_crowd"].sum()) for e in images)
        assert len(splits[split]) == sum(len(e["objects"]["bbox"]) for e in images) - crowds > 400
        for example in splits[split]:
            image = by_name[example["file_name"]]
            boxes, own = image["objects"]["bbox"], example["objects"]["bbox"]
            assert example["image"] == image["image"]
            assert sorted(map(tuple, own)) == sorted(map(tuple, boxes))
            rows = (boxes == own[0]).all(axis=1) & (image["objects"]["label"] == example["label"])
            assert (rows & ~image["objects"]["is_crowd"]).sum() == 1
