import numpy as np
import pytest

from heteroscedastic.data.storage import sample, store, tfds

library = pytest.importorskip("tensorflow_datasets")

SETS = {  # name: a split, and the number of classes of the config
    "imagenet2012": ("train", 1000),
    "imagenet2012_real": ("validation", 1000),
    "imagenet_v2": ("test", 1000),
    "imagenet21k": ("train", 21_843),
    "webvision": ("validation", 1000),
    "inaturalist2019": ("validation", 9),
    "imagenet2012_boxes": ("train", 1000),
    "coco_labels": ("train", 80),
    "coco/2017": ("train", 80),
    "cifar10_n": ("train", 10),
}


def examples(name, data_dir, split):
    return list(
        library.as_numpy(tfds.library().builder(name, data_dir=data_dir).as_dataset(split=split))
    )


def labels_of(value):
    return np.concatenate([np.ravel(value["label"] if isinstance(value, dict) else value)])


@pytest.mark.parametrize("name", SETS)
def test_a_copy_has_the_features_of_the_set_in_several_files(tmp_path, name):
    split, num_classes = SETS[name]
    real = tfds.library().builder(name, data_dir=tmp_path / "absent")
    sample.write(name, str(tmp_path), [split], num_classes=num_classes)
    copy = tfds.library().builder(name, data_dir=tmp_path)
    assert copy.info.full_name == real.info.full_name
    assert type(copy) is type(real)
    pairs = zip(_flat(copy.info.features), _flat(real.info.features), strict=True)
    for feature, expected in pairs:
        assert type(feature) is type(expected)
        assert (feature.shape, feature.dtype) == (expected.shape, expected.dtype)
        if isinstance(expected, library.features.ClassLabel):
            assert feature.num_classes == (expected.num_classes or num_classes)
    assert list(copy.info.splits) == [split]
    assert copy.info.splits[split].shard_lengths == [sample.NUM_EXAMPLES // 4] * 4
    copies = examples(name, tmp_path, split)
    assert len(copies) == sample.NUM_EXAMPLES
    assert all(e["image"].std() > 10 for e in copies)
    if "image/id" in copies[0]:
        assert len({int(e["image/id"]) for e in copies}) == sample.NUM_EXAMPLES


def _flat(feature):
    if isinstance(feature, library.features.FeaturesDict):
        return [leaf for name in sorted(feature) for leaf in _flat(feature[name])]
    if isinstance(feature, library.features.Sequence):
        return _flat(feature.feature)
    return [feature]


def test_labels_are_of_the_first_classes_and_lists_are_short_or_empty(tmp_path):
    sample.write("jft", str(tmp_path), ["train"], label="labels", labels="list", num_classes=18_291)
    features = tfds.library().builder("jft", data_dir=tmp_path).info.features
    assert features["labels"].feature.num_classes == 18_291
    lists = [e["labels"].tolist() for e in examples("jft", tmp_path, "train")]
    assert {len(labels) for labels in lists} >= {0, 1, 2}
    assert all(labels == sorted(set(labels)) for labels in lists)
    assert max(map(max, filter(None, lists))) < sample.MAX_CLASSES


def test_a_set_without_a_builder_has_one_label_by_default(tmp_path):
    sample.write("private", str(tmp_path), ["train", "test"], num_classes=7)
    for split in ("train", "test"):
        assert {int(e["label"]) for e in examples("private", tmp_path, split)} <= set(range(7))


def test_a_set_without_a_builder_has_boxes_where_they_are_asked_for(tmp_path):
    sample.write("private", str(tmp_path), ["train"], has_boxes=True, size=8)
    found = store.load("private", str(tmp_path), extras=("boxes",)).splits["train"].extras["boxes"]
    assert {3, 0} <= set((found.any(axis=-1)).sum(axis=-1))
    sample.write("plain", str(tmp_path), ["train"], size=8)
    with pytest.raises(ValueError, match="no extra 'boxes'"):
        store.load("plain", str(tmp_path), extras=("boxes",))


def test_images_are_digits_of_several_sizes_and_colours(tmp_path):
    sample.write("imagenet2012", str(tmp_path), ["train"])
    images = [e["image"] for e in examples("imagenet2012", tmp_path, "train")]
    assert len({image.shape for image in images}) == 4
    grey = [bool((image[..., :1] == image).all()) for image in images]
    assert sum(grey) == sample.NUM_EXAMPLES // 4


def test_a_copy_is_read_like_the_set(tmp_path):
    sample.write("cifar10_n", str(tmp_path), ["train", "test"])
    data = store.load(
        "cifar10_n",
        str(tmp_path),
        label="worse_label",
        splits=dict(train="train[:50%]", test="test"),
    )
    assert {name: len(split.ids) for name, split in data.splits.items()} == {
        "train": 16,
        "test": 32,
    }
    assert data.splits["train"].inputs.shape[1:] == (32, 32, 3)


def test_two_splits_have_different_images(tmp_path):
    sample.write("imagenet2012", str(tmp_path), ["train", "validation"])
    train, validation = (
        {e["image"].tobytes() for e in examples("imagenet2012", tmp_path, s)}
        for s in ("train", "validation")
    )
    assert not train & validation


def test_unsupported_features_are_an_error(tmp_path):
    with pytest.raises(
        ValueError, match=r"field 'audio' is Audio.*, which a small copy does not support"
    ):
        sample.write("speech_commands", str(tmp_path), ["train"])
