"""Small data sets for detectors: mosaics of Tiny-ImageNet, and COCO."""

import numpy as np
import pytest
from cases import mostly_extended

from experiments import study
from experiments.adaptive_label_smoothing import detection_data, rows, small_detectors
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store
from heteroscedastic.runs import assembly, compiled

NAMES = tuple(f"class {i}" for i in range(120))
NUMBERS = {"train": 6, "test_0": 4, "test_1": 4}


def photographs(number, brightness=1.0):
    """One image of each class, grey, whose object is brighter by its class; the last has no box."""
    images = np.full((number, 64, 64, 3), 60, np.uint8)
    rng = np.random.default_rng(0)
    corners, sides = rng.integers(0, 30, (number, 2)), rng.integers(16, 34, (number, 2))
    boxes = np.zeros((number, 1, 4), np.float32)
    for i, ((top, left), (height, width)) in enumerate(zip(corners, sides)):
        images[i, top : top + height, left : left + width] = 100 + i
        boxes[i, 0] = np.array([top, left, top + height, left + width]) / 64
    boxes[-1] = 0
    images = (brightness * images).astype(np.uint8)
    return Split(images, np.arange(number), np.arange(number, dtype=np.int32), {"boxes": boxes})


SOURCE = Dataset({"train": photographs(100), "test": photographs(100)}, NAMES)


@pytest.fixture(scope="module")
def mosaics():
    return detection_data.mosaic_data(SOURCE, NUMBERS)


def test_a_box_of_a_mosaic_holds_the_object_of_its_class(mosaics):
    assert mosaics.class_names == ("background", *NAMES[50:100])
    seen, sides = set(), []
    for name, split in mosaics.splits.items():
        assert split.inputs.shape == (NUMBERS[name], 64, 64, 3)
        for image, labels, boxes in zip(split.inputs, split.labels, split.extras["boxes"]):
            quarters, rest = set(), image.copy()
            for label, box in zip(labels, boxes * 64):
                # One pixel less on each side, as resizing mixes the pixels of an edge.
                (top, left), (bottom, right) = np.ceil(box[:2]) + 1, np.floor(box[2:]) - 1
                inside = image[int(top) : int(bottom), int(left) : int(right)]
                assert inside.size
                assert (inside == 100 + 50 + label - 1).all()
                low, high = np.maximum(np.floor(box[:2]) - 1, 0), np.ceil(box[2:]) + 1
                rest[int(low[0]) : int(high[0]), int(low[1]) : int(high[1])] = 0
                quarters.add((top > 31, left > 31))
                source = SOURCE.splits[name.partition("_")[0]].extras["boxes"][49 + label, 0]
                scale = (box[2:] - box[:2]) / (source[2:] - source[:2])
                assert scale[0] == pytest.approx(scale[1], rel=1e-4)
                sides.append(scale[0])
            assert (rest < 100).all()  # no object is outside of the boxes
            assert len(quarters) == 4
            seen |= set(labels.tolist())
    assert seen <= set(range(1, 50))  # not the class without a box
    assert min(sides) >= 19.9
    assert max(sides) <= 31.1
    assert np.ptp(sides) > 8


def test_a_mosaic_follows_from_its_id_alone(mosaics):
    more = detection_data.mosaic_data(SOURCE, {name: 9 for name in NUMBERS})
    for name, split in mosaics.splits.items():
        same = more.splits[name].take(split.ids)
        np.testing.assert_array_equal(split.inputs, same.inputs)
        np.testing.assert_array_equal(split.extras["boxes"], same.extras["boxes"])


def test_each_test_set_has_other_mosaics_of_images_of_the_test_split(mosaics):
    first, second = (mosaics.splits[f"test_{i}"] for i in range(2))
    for a, b in ((first.labels, second.labels), (first.extras["boxes"], second.extras["boxes"])):
        assert not any(np.array_equal(x, y) for x, y in zip(a, b))
    darker = {"train": SOURCE.splits["train"], "test": photographs(100, brightness=0.5)}
    other = detection_data.mosaic_data(Dataset(darker, NAMES), NUMBERS)
    same = {n: np.array_equal(mosaics.splits[n].inputs, other.splits[n].inputs) for n in NUMBERS}
    assert same == {"train": True, "test_0": False, "test_1": False}


class Examples:
    """Two images, of one and three boxes; the second of the three is of a crowd."""

    def as_numpy_iterator(self):
        rng = np.random.default_rng(0)
        for number, shape in ((1, (300, 200)), (3, (100, 500))):
            yield {
                "image": rng.integers(0, 256, (*shape, 3), dtype=np.uint8),
                "objects": {
                    "bbox": np.tile([0.1, 0.2, 0.3, 0.4], (number, 1)).astype(np.float32),
                    "label": np.arange(number) + 7,
                    "is_crowd": np.arange(number) == 1,
                },
            }


def small_coco():
    split = detection_data._split(Examples())
    return Dataset({"train": split, "test": split}, ("background", *NAMES[:80]))


def test_coco_is_in_squares_without_crowds():
    split = small_coco().splits["train"]
    assert split.inputs.shape == (2, 256, 256, 3)
    assert split.labels.tolist() == [[8, -1], [8, 10]]
    assert split.extras["boxes"].any(axis=-1).tolist() == [[True, False], [True, True]]


def test_all_objects_can_have_one_class():
    several = small_coco()
    one = detection_data.merged_classes(several)
    assert one.class_names == ("background", "object")
    assert one.splits["test"].labels.tolist() == [[1, -1], [1, 1]]
    np.testing.assert_array_equal(
        one.splits["test"].extras["boxes"], several.splits["test"].extras["boxes"]
    )


def test_without_a_directory_the_error_says_what_is_missing():
    with pytest.raises(ValueError, match="give --data_dir, the directory of the prepared set coco"):
        detection_data.coco(None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, mosaics):
    """Small sets of the names and class names of the real ones."""
    path = tmp_path_factory.mktemp("data")
    coco = small_coco()
    rows, ids = np.arange(20) % 2, np.arange(20, dtype=np.int32)
    splits = {name: x.take(rows)._replace(ids=ids) for name, x in coco.splits.items()}
    coco = Dataset(splits, coco.class_names)
    made = {
        detection_data.MOSAICS: detection_data.merged_classes(mosaics),
        detection_data.COCO: coco,
        detection_data.OBJECTS: detection_data.merged_classes(coco),
    }
    for name, data in made.items():
        store.write(path / f"{name}.npz", data)
    return str(path)


_ALIKE = {"mosaic_detectors_all", "coco_by_heart"}  # with the networks of other tables


@pytest.mark.parametrize(
    "name", mostly_extended(small_detectors.TABLES, set(small_detectors.TABLES) - _ALIKE)
)
def test_a_run_of_every_table_has_valid_shapes(name, directory):
    for job in study.jobs(rows.TABLES[name], "cpu", study.Path("runs") / name)[:1]:
        compiled.check_shapes(assembly.build(job.config, directory))
