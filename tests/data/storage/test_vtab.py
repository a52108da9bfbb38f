import numpy as np
import pytest
from cases import mostly_extended
from vtab_sources import clevr, dsprites, random, stored

from heteroscedastic.data.storage import store, vtab

tfds = pytest.importorskip("tensorflow_datasets")

GROUPS = {"natural": 7, "specialized": 4, "structured": 8}


def test_there_are_nineteen_tasks_in_three_groups():
    assert {g: sum(task.group == g for task in vtab.TASKS.values()) for g in GROUPS} == GROUPS
    assert len(vtab.TASKS) == 19


@pytest.mark.parametrize("name", vtab.TASKS)
def test_the_sources_have_these_labels_and_images(name, tmp_path):
    task = vtab.TASKS[name]
    features = tfds.builder(task.source, data_dir=tmp_path, try_gcs=False).info.features
    if isinstance(task.label, str):
        assert features[task.label].num_classes == task.num_classes
    assert features["image"].shape[:2] == (task.side, task.side) or task.side is None


# One of each form of splits and of labels.
_FORMS = {
    *("cifar100", "dtd", "eurosat", "oxford_iiit_pet"),
    *("clevr_count", "dsprites_position", "kitti_distance", "smallnorb_azimuth"),
}


@pytest.mark.parametrize("name", mostly_extended(vtab.TASKS, _FORMS))
def test_every_task_is_prepared_from_its_source_and_loads(name, tmp_path):
    task = vtab.TASKS[name]
    examples = {"clevr": clevr, "dsprites": dsprites}.get(task.source) or random(
        task.source, tmp_path
    )
    stored(task.source, tmp_path, examples, {"train": 20, "validation": 8, "test": 4})
    vtab.prepare(name, str(tmp_path), num_train=2, num_valid=2)
    data = store.load(f"vtab_{name}", str(tmp_path))
    train, valid, test = (
        list(
            tfds.load(
                task.source, data_dir=tmp_path, split=split, download=False
            ).as_numpy_iterator()
        )
        for split in (task.train, task.valid, task.test)
    )
    for split, fields in (("train", [*train[:2], *valid[:2]]), ("test", test)):
        labels = [task.label(one) if callable(task.label) else one[task.label] for one in fields]
        np.testing.assert_array_equal(data.splits[split].labels, labels)
        for image, one in zip(data.splits[split].inputs, fields, strict=True):
            # Two libraries decode a JPEG of random pixels with differences up to 16.
            np.testing.assert_allclose(
                image, np.broadcast_to(one["image"] * task.scale, image.shape), atol=16
            )
    assert len(data.class_names) == task.num_classes


def scene(depths):
    coordinates = np.zeros((len(depths), 3), np.float32)
    coordinates[:, 2] = depths
    return {"objects": {"size": np.zeros(len(depths), np.int64), "pixel_coords": coordinates}}


@pytest.mark.parametrize(
    ("depths", "number", "distance"),
    [
        ([9.0, 12.0, 11.0], 0, 2),
        ([7.9] * 10, 7, 0),
        ([8.01, 30.0, 30.0], 0, 1),
        ([10.5] * 4, 1, 5),
        ([9.5] * 3, 0, 3),
    ],
)
def test_objects_are_counted_from_three_and_distances_are_classified_by_thresholds(
    depths, number, distance
):
    assert vtab.count(scene(depths)) == number
    assert vtab.object_distance(scene(depths)) == distance


@pytest.mark.parametrize(
    ("kinds", "depths", "label"),
    [
        ([0, 1], [30.0, 7.0], 0),
        ([2, 3], [8.5, 1.0], 1),
        ([0], [20.5], 2),
        ([3, 7], [1.0, 2.0], 3),
        ([], [], 3),
    ],
)
def test_the_closest_vehicle_determines_the_class_and_pedestrians_are_ignored(kinds, depths, label):
    location = np.zeros((len(depths), 3), np.float32)
    location[:, 2] = depths
    assert (
        vtab.vehicle_distance(
            {"objects": {"type": np.array(kinds, np.int64), "location": location}}
        )
        == label
    )


def test_positions_and_orientations_have_sixteen_classes():
    positions = [vtab.x_position({"label_x_position": np.int64(i)}) for i in range(32)]
    assert positions == [i // 2 for i in range(32)]
    orientations = np.array(
        [vtab.orientation({"label_orientation": np.int64(i)}) for i in range(40)]
    )
    assert (np.diff(orientations) >= 0).all()
    assert sorted(set(np.bincount(orientations))) == [2, 3]
    assert np.bincount(orientations).shape == (16,)


def test_a_task_is_written_once_and_loads_like_any_set(tmp_path, monkeypatch, capsys):
    stored("clevr", tmp_path, clevr, {"train": 40, "validation": 9, "test": 3})
    vtab.prepare("clevr_count", str(tmp_path), num_train=20, num_valid=4)
    data = store.load("vtab_clevr_count", str(tmp_path))
    assert {split: len(value.ids) for split, value in data.splits.items()} == {
        "train": 24,
        "test": 9,
    }
    # The first 20 examples of the first 90 %, then the first 4 of the rest, which begins at 36.
    np.testing.assert_array_equal(
        data.splits["train"].labels, [i % 8 for i in (*range(20), *range(36, 40))]
    )
    np.testing.assert_array_equal(data.splits["test"].labels, [i % 8 for i in range(9)])
    np.testing.assert_array_equal(data.splits["test"].inputs[5], list(clevr(9))[5]["image"])
    assert len(data.class_names) == 8
    halves = store.load(
        "vtab_clevr_count", str(tmp_path), splits=dict(train="train[:20]", valid="train[20:]")
    )
    assert [len(split.ids) for split in halves.splits.values()] == [20, 4]
    monkeypatch.setattr(
        "sys.argv", ["vtab", "--tasks", "clevr_count", "dtd", f"--data_dir={tmp_path}"]
    )
    with pytest.raises(SystemExit, match="1 of 2 tasks could not be prepared: dtd"):
        vtab.main()
    output = capsys.readouterr().out
    assert "clevr_count: exists already" in output
    assert "dtd: task 'dtd' requires 'dtd', which is not in" in output
    assert "download_and_prepare" in output
    with pytest.raises(
        FileNotFoundError, match=r"heteroscedastic\.data\.storage\.vtab --tasks dtd --data_dir"
    ):
        store.load("vtab_dtd", str(tmp_path))
    with pytest.raises(ValueError, match="fewer than the 800 examples"):
        vtab.prepare("clevr_distance", str(tmp_path))


def test_black_and_white_sprites_become_images_of_three_channels(tmp_path):
    stored("dsprites", tmp_path, dsprites, {"train": 60})
    vtab.prepare("dsprites_orientation", str(tmp_path), num_train=8, num_valid=2)
    data = store.load("vtab_dsprites_orientation", str(tmp_path))
    train = data.splits["train"]
    assert train.inputs.shape == (10, 64, 64, 3)
    assert set(np.unique(train.inputs)) == {0, 255}
    np.testing.assert_array_equal(train.inputs[9, 49], 255)  # validation begins at 80 % of 60
    np.testing.assert_array_equal(
        data.splits["test"].labels, [int((i % 40) // 2.5) for i in range(54, 60)]
    )
