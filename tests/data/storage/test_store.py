import collections
import io
import sys

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn import datasets

from heteroscedastic import label_lists
from heteroscedastic.data import dataset
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import encoded, store


def data_of(lists):
    """A small data set of two splits."""
    rng = np.random.default_rng(0)

    def split(n):
        labels = rng.integers(0, 3, n).astype(np.int32)
        if lists:
            labels = np.stack([labels, np.full(n, -1, np.int32)], axis=1)
        return Split(
            rng.integers(0, 256, (n, 2, 3, 1)).astype(np.uint8),
            labels,
            rng.permutation(n).astype(np.int32),
        )

    return Dataset({"train": split(9), "test": split(4)}, ("cat", "dog", "Käuzchen"))


def assert_same_bits(a, b):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def assert_same(one, other):
    assert one.class_names == other.class_names
    assert one.splits.keys() == other.splits.keys()
    for name, split in one.splits.items():
        jax.tree.map(assert_same_bits, split, other.splits[name])


def arrays_of(n=4, **changes):
    """The arrays of an .npz file, with these changes; None removes an array."""
    arrays = {
        "class_names": np.array(["cat", "dog"]),
        "train_inputs": np.zeros((n, 2, 2, 1), np.uint8),
        "train_labels": np.arange(n) % 2,
    }
    return {name: array for name, array in (arrays | changes).items() if array is not None}


@pytest.mark.parametrize("lists", [False, True])
def test_a_written_data_set_is_read_unchanged(tmp_path, lists):
    data = data_of(lists)
    store.write(tmp_path / "pets.npz", data)
    assert_same(store.read(tmp_path / "pets.npz"), data)
    assert_same(store.load("pets", str(tmp_path)), data)


def test_examples_without_ids_are_numbered(tmp_path):
    np.savez(tmp_path / "pets.npz", **arrays_of())
    np.testing.assert_array_equal(
        store.load("pets", str(tmp_path)).splits["train"].ids, np.arange(4)
    )


def test_extra_fields_are_stored(tmp_path):
    data = data_of(lists=False)
    extras = {"clean_labels": np.arange(9, dtype=np.int32) % 3, "sharpness": np.linspace(0, 1, 9)}
    data.splits["train"] = data.splits["train"]._replace(extras=extras)
    store.write(tmp_path / "pets.npz", data)
    assert_same(store.load("pets", str(tmp_path)), data)


@pytest.mark.parametrize("known", [0, 1])
def test_clean_labels_that_are_unknown_stay_unknown(tmp_path, known):
    clean = np.full(4, -1)
    clean[:known] = 0
    np.savez(tmp_path / "pets.npz", **arrays_of(train_clean_labels=clean))
    found = store.load("pets", str(tmp_path), splits={"train": "train[1:]"})
    labels = dataset.clean_labels(found, found, "train")
    np.testing.assert_array_equal(labels, [-1, -1, -1])


def test_more_boxes_than_the_limit_are_an_error_where_boxes_are_an_extra(tmp_path):
    boxes = np.zeros((4, 5, 4), np.float32)
    boxes[2, 3] = (0, 0, 1, 1)
    np.savez(tmp_path / "pets.npz", **arrays_of(train_boxes=boxes))
    message = r"train: the example of id 2 has 4 boxes, but config\.data\.max_boxes is 3; raise it"
    with pytest.raises(ValueError, match=message):
        store.load("pets", str(tmp_path), extras=("boxes",), max_boxes=3)
    for choices in (dict(extras=("boxes",), max_boxes=4), dict(max_boxes=3)):
        loaded = store.load("pets", str(tmp_path), **choices)
        np.testing.assert_array_equal(loaded.splits["train"].extras["boxes"], boxes)


def encoded_pets():
    """The arrays of a file of encoded images, and their pixels; one image is grey."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 6, 4, 3)).astype(np.uint8)
    pixels[3] = pixels[3, :, :, :1]
    images = []
    for image in pixels:
        out = io.BytesIO()
        Image.fromarray(image[..., 0] if (image == image[..., :1]).all() else image).save(
            out, "PNG"
        )
        images.append(out.getvalue())
    data, offsets = encoded.pack(images)
    labels = np.arange(10) % 3
    arrays = dict(
        train_encoded=data, train_offsets=offsets, train_labels=labels, train_human=(labels + 1) % 3
    )
    return arrays | {"class_names": np.array(["cat", "dog", "owl"])}, pixels


def test_encoded_images_are_decoded_and_may_be_sliced(tmp_path):
    arrays, pixels = encoded_pets()
    np.savez(tmp_path / "pets.npz", **arrays)
    split = store.load("pets", str(tmp_path)).splits["train"]
    np.testing.assert_array_equal(split.inputs, pixels)
    split = store.load(
        "pets", str(tmp_path), label="human", splits=dict(train="train[30%:50%]")
    ).splits["train"]
    np.testing.assert_array_equal(split.inputs, pixels[3:5])
    np.testing.assert_array_equal(split.ids, [3, 4])
    np.testing.assert_array_equal(split.labels, [1, 2])
    np.testing.assert_array_equal(split.extras["clean_labels"], [0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(train_offsets=None), "has no train_offsets; its arrays are"),
        (
            dict(train_offsets=np.arange(11)),
            "train: the offsets of encoded images must increase from 0 to",
        ),
        (dict(train_offsets=np.arange(4)), "train has 10 labels, but 3 offsets"),
        (dict(train_human=np.arange(9)), "train has 10 labels, but 9 human"),
        (dict(train_human=np.array(1)), "train has 10 labels, but 0 human"),
        (
            dict(train_encoded=encoded_pets()[0]["train_encoded"] ^ 1),
            "image 0 of 10 cannot be decoded",
        ),
        (dict(num_channels=np.array(2)), "images have 2 channels; supported are 1, 3, 4"),
    ],
)
def test_invalid_encoded_images_are_named(tmp_path, changes, message):
    arrays = {
        name: array for name, array in (encoded_pets()[0] | changes).items() if array is not None
    }
    np.savez(tmp_path / "pets.npz", **arrays)
    with pytest.raises(ValueError, match=f"pets.npz.*{message}"):
        store.load("pets", str(tmp_path))


def test_slices_and_first_classes_of_any_data_set_can_be_selected():
    full = store.load("digits").splits["train"]
    data = store.load("digits", splits=dict(train="train[:50%]", test="test"), max_classes=4)
    assert data.class_names == ("zero", "one", "two", "three")
    rows = np.flatnonzero(full.labels[:600] < 4)
    assert_same_bits(data.splits["train"].inputs, full.inputs[rows])
    assert_same_bits(data.splits["train"].ids, full.ids[rows])
    data = store.load("digits", splits=dict(train="train[100:]", test="test"), max_examples=10)
    assert_same_bits(data.splits["train"].ids, full.ids[100:110])
    pairs = store.load("digits_pairs", max_classes=4).splits["train"]
    assert (pairs.labels < 4).all()
    assert (pairs.labels.max(axis=1) >= 0).all()


def test_a_file_takes_precedence_over_a_bundled_set(tmp_path):
    data = data_of(lists=False)
    store.write(tmp_path / "digits.npz", data)
    assert_same(store.load("digits", str(tmp_path)), data)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, fraction):
    path = tmp_path / "pets.npz"
    store.write(path, data_of(lists=False))
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(
        ValueError, match=r"pets.npz cannot be read as an .npz file .* write it again"
    ):
        store.load("pets", str(tmp_path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("value", [0, 255])
def test_a_damaged_file_is_named(tmp_path, save, value):
    path = tmp_path / "pets.npz"
    images = np.random.default_rng(0).integers(0, 9, (1000, 2, 2, 1)).astype(np.uint8)
    save(path, **arrays_of(n=1000, train_inputs=images))
    damaged = bytearray(path.read_bytes())
    half = len(damaged) // 2
    damaged[half : half + 20] = bytes([value] * 20)
    path.write_bytes(damaged)
    with pytest.raises(
        ValueError, match=r"pets.npz cannot be read as an .npz file .* write it again"
    ):
        store.load("pets", str(tmp_path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_flipped_bit_changes_nothing_or_is_named(tmp_path, save):
    path = tmp_path / "pets.npz"
    save(path, **arrays_of())
    content, data = path.read_bytes(), store.load("pets", str(tmp_path))
    positions = np.random.default_rng(0).integers(0, 8 * len(content), 200)
    num_errors = 0
    for position in positions:
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            loaded = store.load("pets", str(tmp_path))
        except ValueError as error:
            assert "pets.npz" in str(error)  # noqa: PT017
            num_errors += 1
        else:
            assert_same(loaded, data)
    assert num_errors > 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(class_names=None), "has no class_names; its arrays are"),
        (dict(train_labels=None), "has no train_labels; its arrays are"),
        (dict(train_inputs=None), "has no SPLIT_inputs or SPLIT_encoded of any split; its arrays"),
        (dict(test_inputs=np.zeros((1, 2, 2, 1), np.uint8)), "has no test_labels; its arrays are"),
        (
            dict(train_labels=np.array([0, 1, 2, 7])),
            "train_labels: the example of id 2 has label 2, but the 2 classes are 0 to 1",
        ),
        (dict(train_labels=np.array([0, 1, 1])), "train has 3 labels, but 4 inputs"),
        (dict(train_inputs=np.zeros((4, 2, 2, 1))), "train_inputs must be images, uint8"),
        (dict(train_ids=np.array([0, 1, 1, 2])), "train_ids must be unique integers"),
        (
            dict(class_names=np.array(["cat", "dog"], object)),
            "cannot be read as an .npz file",
        ),  # it would be unpickled
    ],
)
def test_a_file_with_missing_or_invalid_arrays_is_named(tmp_path, changes, message):
    np.savez(tmp_path / "pets.npz", **arrays_of(**changes))
    with pytest.raises(ValueError, match=f"pets.npz.*{message}"):
        store.load("pets", str(tmp_path))


def test_the_error_of_an_unknown_name_says_where_it_was_searched(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        store.load("pets", str(tmp_path))
    message = str(caught.value)
    assert "no data set 'pets'" in message
    assert f"searched {tmp_path / 'pets.npz'} and {tmp_path / 'pets'}," in message
    # Without TensorFlow Datasets it is unknown whether there is a builder.
    assert (
        "TensorFlow Datasets has no builder for 'pets'" in message
        or "tfds.builder('pets'" in message
    )
    assert "digits, digits_pairs" in message
    with pytest.raises(
        FileNotFoundError, match="searched nothing on disk, as neither --data_dir nor TFDS_DATA_DIR"
    ):
        store.load("pets")


def test_the_error_without_scikit_learn_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        FileNotFoundError, match=r"pip install scikit-learn, or write digits.npz"
    ) as caught:
        store.load("digits")
    assert "searched nothing on disk" in str(caught.value)


def test_the_command_writes_a_bundled_data_set_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["store", "--name=digits", f"--data_dir={tmp_path}"])
    store.main()
    assert_same(store.read(tmp_path / "digits.npz"), store.load("digits"))
    with pytest.raises(SystemExit, match="exists already"):
        store.main()


def test_each_digit_of_scikit_learn_is_in_one_split():
    raw, data = datasets.load_digits(), store.load("digits")
    ids = np.concatenate([split.ids for split in data.splits.values()])
    np.testing.assert_array_equal(np.sort(ids), np.arange(len(raw.target)))
    for split in data.splits.values():
        np.testing.assert_array_equal(split.labels, raw.target[split.ids])
        np.testing.assert_allclose(
            split.inputs[..., 0] / 255, raw.images[split.ids] / 16, atol=0.5 / 255 + 1e-9
        )


@pytest.mark.parametrize("name", ["digits", "digits_pairs", "digits_mosaics"])
def test_a_bundled_data_set_is_deterministic_and_has_every_class_in_every_split(name):
    data = store.load(name)
    assert_same(store.load(name), data)
    number = len(data.class_names)
    for split in data.splits.values():
        # Class 0 of mosaics is the background.
        assert set(range(number - 10, number)) <= set(split.labels.ravel())


def test_training_pairs_consist_of_training_digits_and_test_pairs_of_test_digits():
    digits, pairs = store.load("digits"), store.load("digits_pairs")
    images = {
        name: {image.tobytes() for image in split.inputs} for name, split in digits.splits.items()
    }
    assert not images["train"] & images["test"]
    for name, split in pairs.splits.items():
        for side in (split.inputs[:, :, :8], split.inputs[:, :, 8:]):
            times = collections.Counter(image.tobytes() for image in side)
            assert times.keys() == images[name]
            assert set(times.values()) == {4}


def test_a_mosaic_has_in_each_box_the_enlarged_digit_of_its_label_and_nothing_outside():
    digits, mosaics = store.load("digits"), store.load("digits_mosaics", extras=("boxes",))
    shown = {}
    for name, split in mosaics.splits.items():
        own = digits.splits[name]
        labels = {(x.tobytes(), k + 1) for x, k in zip(own.inputs, own.labels.tolist())}
        shown[name], sides = set(), set()
        for image, classes, boxes in zip(split.inputs, split.labels, split.extras["boxes"]):
            is_box = classes >= 0
            assert 2 <= is_box.sum() <= 4
            assert not boxes[~is_box].any()
            rest = image.copy()
            for k, box in zip(classes[is_box].tolist(), (32 * boxes[is_box]).astype(int)):
                top, left, bottom, right = box
                crop, side = image[top:bottom, left:right], bottom - top
                starts = -(-np.arange(9) * side // 8)  # of each row and column of the digit
                digit = crop[starts[:8]][:, starts[:8]]
                enlarged = digit.repeat(np.diff(starts), 0).repeat(np.diff(starts), 1)
                np.testing.assert_array_equal(crop, enlarged)
                assert (digit.tobytes(), k) in labels
                shown[name].add(digit.tobytes())
                sides.add(side)
                rest[top:bottom, left:right] = 0
            assert not rest.any()
        assert sides == set(range(8, 16))
    assert not shown["train"] & shown["test"]


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
def test_no_image_of_a_validation_pair_is_in_a_training_pair(fraction):
    for seed in range(3):
        pairs = dataset.hold_out(store.load("digits_pairs"), seed, fraction)
        sides = {
            name: {
                side.tobytes() for image in split.inputs for side in (image[:, :8], image[:, 8:])
            }
            for name, split in pairs.splits.items()
        }
        assert (
            len(sides["train"]) + len(sides["valid"])
            == len(sides["train"] | sides["valid"])
            == 1200
        )
        assert len(sides["valid"]) == round(1200 * fraction)


def test_the_labels_of_a_pair_are_the_set_of_its_digits():
    digit = {
        i.tobytes(): label
        for split in store.load("digits").splits.values()
        for i, label in zip(*split[:2])
    }
    for split in store.load("digits_pairs").splits.values():
        hot = label_lists.multi_hot(split.labels, 10)
        sizes = set()
        for image, row in zip(split.inputs, hot):
            expected = {digit[image[:, :8].tobytes()], digit[image[:, 8:].tobytes()]}
            assert set(np.flatnonzero(row)) == expected
            sizes.add(len(expected))
        assert sizes == {1, 2}
