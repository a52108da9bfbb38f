import collections
import io
import sys

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn import datasets

from heteroscedastic import curation
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
    """What an .npz file holds, with these in place; None is left out."""
    arrays = {
        "class_names": np.array(["cat", "dog"]),
        "train_inputs": np.zeros((n, 2, 2, 1), np.uint8),
        "train_labels": np.arange(n) % 2,
    }
    return {name: array for name, array in (arrays | changes).items() if array is not None}


@pytest.mark.parametrize("lists", [False, True])
def test_what_is_written_is_what_is_read(tmp_path, lists):
    data = data_of(lists)
    store.write(tmp_path / "pets.npz", data)
    assert_same(store.read(tmp_path / "pets.npz"), data)
    assert_same(store.load("pets", str(tmp_path)), data)


def test_examples_without_ids_are_numbered(tmp_path):
    np.savez(tmp_path / "pets.npz", **arrays_of())
    np.testing.assert_array_equal(
        store.load("pets", str(tmp_path)).splits["train"].ids, np.arange(4)
    )


def test_what_else_is_known_of_an_example_is_kept(tmp_path):
    data = data_of(lists=False)
    extras = {"clean_labels": np.arange(9, dtype=np.int32) % 3, "sharpness": np.linspace(0, 1, 9)}
    data.splits["train"] = data.splits["train"]._replace(extras=extras)
    store.write(tmp_path / "pets.npz", data)
    assert_same(store.load("pets", str(tmp_path)), data)


def encoded_pets():
    """The arrays of a file of encoded images, and the pixels that they were made of; one image is
    grey.
    """
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
    found = store.load("pets", str(tmp_path)).splits["train"]
    np.testing.assert_array_equal(found.inputs, pixels)
    found = store.load(
        "pets", str(tmp_path), label="human", splits=dict(train="train[30%:50%]")
    ).splits["train"]
    np.testing.assert_array_equal(found.inputs, pixels[3:5])
    np.testing.assert_array_equal(found.ids, [3, 4])
    np.testing.assert_array_equal(found.labels, [1, 2])
    np.testing.assert_array_equal(found.extras["clean_labels"], [0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(train_offsets=None), "lacks train_offsets; it has"),
        (
            dict(train_offsets=np.arange(11)),
            "train: the offsets of encoded images must rise from 0 to their",
        ),
        (dict(train_offsets=np.arange(4)), "train has 10 labels, but 3 offsets"),
        (dict(train_human=np.arange(9)), "train has 10 labels, but 9 human"),
        (dict(train_human=np.array(1)), "train has 10 labels, but 0 human"),
        (
            dict(train_encoded=encoded_pets()[0]["train_encoded"] ^ 1),
            "image 0 of 10 cannot be decoded",
        ),
        (dict(num_channels=np.array(2)), "images of 2 channels; known are 1, 3, 4"),
    ],
)
def test_encoded_images_that_are_not_sound_are_named(tmp_path, changes, message):
    arrays = {
        name: array for name, array in (encoded_pets()[0] | changes).items() if array is not None
    }
    np.savez(tmp_path / "pets.npz", **arrays)
    with pytest.raises(ValueError, match=f"pets.npz.*{message}"):
        store.load("pets", str(tmp_path))


def test_slices_and_first_classes_are_had_of_any_data_set():
    whole = store.load("digits").splits["train"]
    data = store.load("digits", splits=dict(train="train[:50%]", test="test"), max_classes=4)
    assert data.class_names == ("zero", "one", "two", "three")
    rows = np.flatnonzero(whole.labels[:600] < 4)
    assert_same_bits(data.splits["train"].inputs, whole.inputs[rows])
    assert_same_bits(data.splits["train"].ids, whole.ids[rows])
    pairs = store.load("digits_pairs", max_classes=4).splits["train"]
    assert (pairs.labels < 4).all()
    assert (pairs.labels.max(axis=1) >= 0).all()


def test_a_file_comes_before_what_a_library_ships(tmp_path):
    data = data_of(lists=False)
    store.write(tmp_path / "digits.npz", data)
    assert_same(store.load("digits", str(tmp_path)), data)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, share):
    path = tmp_path / "pets.npz"
    store.write(path, data_of(lists=False))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"pets.npz is no readable .npz file .* write it again"):
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
    with pytest.raises(ValueError, match=r"pets.npz is no readable .npz file .* write it again"):
        store.load("pets", str(tmp_path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_flipped_bit_changes_nothing_or_is_named(tmp_path, save):
    path = tmp_path / "pets.npz"
    save(path, **arrays_of())
    whole, data = path.read_bytes(), store.load("pets", str(tmp_path))
    places = np.random.default_rng(0).integers(0, 8 * len(whole), 200)
    named = 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = store.load("pets", str(tmp_path))
        except ValueError as error:
            assert "pets.npz" in str(error)  # noqa: PT017
            named += 1
        else:
            assert_same(found, data)
    assert named > 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(class_names=None), "lacks class_names; it has"),
        (dict(train_labels=None), "lacks train_labels; it has"),
        (dict(train_inputs=None), "lacks any SPLIT_inputs or SPLIT_encoded; it has"),
        (dict(test_inputs=np.zeros((1, 2, 2, 1), np.uint8)), "lacks test_labels; it has"),
        (
            dict(train_labels=np.array([0, 1, 2, 7])),
            "train_labels: the example of id 2 has label 2, but the 2 classes are 0 to 1",
        ),
        (dict(train_labels=np.array([0, 1, 1])), "train has 3 labels, but 4 inputs"),
        (dict(train_inputs=np.zeros((4, 2, 2, 1))), "train_inputs must be uint8"),
        (dict(train_ids=np.array([0, 1, 1, 2])), "train_ids must be different numbers"),
        (
            dict(class_names=np.array(["cat", "dog"], object)),
            "no readable .npz file",
        ),  # it would be unpickled
    ],
)
def test_a_file_that_lacks_something_or_is_not_sound_is_named_with_its_path(
    tmp_path, changes, message
):
    np.savez(tmp_path / "pets.npz", **arrays_of(**changes))
    with pytest.raises(ValueError, match=f"pets.npz.*{message}"):
        store.load("pets", str(tmp_path))


def test_an_unknown_name_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        store.load("pets", str(tmp_path))
    message = str(caught.value)
    assert "no data set 'pets'" in message
    assert f"looked in {tmp_path / 'pets.npz'} and {tmp_path / 'pets'}," in message
    # Where TensorFlow Datasets is not installed nobody knows whether it has a builder.
    assert (
        "TensorFlow Datasets has no builder of 'pets'" in message
        or "tfds.builder('pets'" in message
    )
    assert "digits, digits_pairs" in message
    with pytest.raises(
        FileNotFoundError, match="looked nowhere on disk, as neither --data_dir nor TFDS_DATA_DIR"
    ):
        store.load("pets")


def test_without_the_library_that_ships_it_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        FileNotFoundError, match=r"pip install scikit-learn, or write digits.npz"
    ) as caught:
        store.load("digits")
    assert "looked nowhere on disk" in str(caught.value)


def test_the_command_writes_a_shipped_data_set_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["store", "--name=digits", f"--data_dir={tmp_path}"])
    store.main()
    assert_same(store.read(tmp_path / "digits.npz"), store.load("digits"))
    with pytest.raises(SystemExit, match="is there already"):
        store.main()


def test_the_digits_are_those_of_scikit_learn_each_in_one_split():
    raw, data = datasets.load_digits(), store.load("digits")
    ids = np.concatenate([split.ids for split in data.splits.values()])
    np.testing.assert_array_equal(np.sort(ids), np.arange(len(raw.target)))
    for split in data.splits.values():
        np.testing.assert_array_equal(split.labels, raw.target[split.ids])
        np.testing.assert_allclose(
            split.inputs[..., 0] / 255, raw.images[split.ids] / 16, atol=0.5 / 255 + 1e-9
        )


@pytest.mark.parametrize("name", ["digits", "digits_pairs"])
def test_a_shipped_data_set_is_the_same_at_every_call_and_has_every_class_in_every_split(name):
    data = store.load(name)
    assert_same(store.load(name), data)
    for split in data.splits.values():
        assert set(range(10)) <= set(split.labels.ravel())


def test_the_images_of_training_pairs_are_training_digits_and_those_of_test_pairs_test_digits():
    digits, pairs = store.load("digits"), store.load("digits_pairs")
    own = {
        name: {image.tobytes() for image in split.inputs} for name, split in digits.splits.items()
    }
    assert not own["train"] & own["test"]
    for name, split in pairs.splits.items():
        for side in (split.inputs[:, :, :8], split.inputs[:, :, 8:]):
            times = collections.Counter(image.tobytes() for image in side)
            assert times.keys() == own[name]
            assert set(times.values()) == {4}


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
def test_no_image_of_a_validation_pair_is_in_a_training_pair(fraction):
    for seed in range(3):
        pairs = dataset.hold_out(store.load("digits_pairs"), seed, fraction)
        seen = {
            name: {
                side.tobytes() for image in split.inputs for side in (image[:, :8], image[:, 8:])
            }
            for name, split in pairs.splits.items()
        }
        assert len(seen["train"]) + len(seen["valid"]) == len(seen["train"] | seen["valid"]) == 1200
        assert len(seen["valid"]) == round(1200 * fraction)


def test_the_labels_of_a_pair_are_the_set_of_its_digits():
    digit = {
        i.tobytes(): label
        for split in store.load("digits").splits.values()
        for i, label in zip(*split[:2])
    }
    for split in store.load("digits_pairs").splits.values():
        hot = curation.multi_hot(split.labels, 10)
        sizes = set()
        for image, row in zip(split.inputs, hot):
            stated = {digit[image[:, :8].tobytes()], digit[image[:, 8:].tobytes()]}
            assert set(np.flatnonzero(row)) == stated
            sizes.add(len(stated))
        assert sizes == {1, 2}
