import numpy as np
import pytest
from test_dataset import NAMES, changed, data_of, split_of

from heteroscedastic.data import checks, dataset
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store


@pytest.mark.parametrize("lists", [False, True])
def test_a_valid_data_set_is_returned_unchanged(lists):
    data = data_of(lists)
    assert checks.dataset(data, "here") is data


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        (
            "inputs",
            lambda x: x / 255,
            r"test_inputs must be images, .* but are float64 \(10, 2, 3, 1\)",
        ),
        (
            "inputs",
            lambda x: x[..., 0],
            r"test_inputs must be images, .* but are uint8 \(10, 2, 3\)",
        ),
        ("inputs", lambda x: x[:9], "test has 9 inputs, 10 labels and 10 ids"),
        ("labels", lambda x: x[:8], "test has 10 inputs, 8 labels and 10 ids"),
        ("ids", lambda x: x[:7], "test has 10 inputs, 10 labels and 7 ids"),
        (
            "labels",
            lambda x: x + 1,
            r"test_labels: the example of id \d+ has label 3, but the 3 classes are 0 to 2",
        ),
        (
            "labels",
            lambda x: x / 1,
            r"test_labels must be integers \[n\] or \[n, m\], but are float64 \(10,\)",
        ),
        ("ids", lambda x: 0 * x, r"test_ids must be unique integers \[n\] from 0"),
        ("ids", lambda x: x - 1 - x.min(), r"test_ids must be unique integers \[n\] from 0"),
        (
            "ids",
            lambda x: x + 0.5,
            r"test_ids must be unique integers \[n\] from 0 .* but are float64",
        ),
    ],
)
def test_an_invalid_array_is_named(field, change, message):
    data = data_of()
    invalid = changed(data, "test", field, change(getattr(data.splits["test"], field)))
    with pytest.raises(ValueError, match=f"^here: {message}"):
        checks.dataset(invalid, "here")


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        (
            "inputs",
            lambda x: x[:, :, :2],
            r"inputs of train have shape \(2, 3, 1\), but inputs of test have shape \(2, 2, 1\)",
        ),
        (
            "labels",
            lambda x: x[:, None],
            "one of train and test has lists of labels, the other one label",
        ),
        (
            "extras",
            lambda x: {"clean_labels": np.zeros(9)},
            r"test_clean_labels has shape \(9,\), but there are 10 examples",
        ),
        (
            "extras",
            lambda x: {"size": np.array(3)},
            r"test_size has shape \(\), but there are 10 examples",
        ),
        (
            "extras",
            lambda x: {"clean_labels": np.zeros((10, 2), int)},
            "one of test_labels and test_clean_labels holds lists",
        ),
    ],
)
def test_inconsistent_splits_are_named(field, change, message):
    data = data_of()
    invalid = changed(data, "test", field, change(getattr(data.splits["test"], field)))
    with pytest.raises(ValueError, match=f"^here: {message}"):
        checks.dataset(invalid, "here")


def test_lists_of_labels_may_be_longer_in_one_split_than_in_another():
    data = data_of(lists=True)
    longer = np.pad(data.splits["test"].labels, ((0, 0), (0, 2)), constant_values=-1)
    padded = changed(data, "test", "labels", longer)
    assert checks.dataset(padded, "here") is padded


def test_an_empty_split_is_an_error():
    empty = Dataset({"test": split_of(10, 0).take(np.arange(0))}, NAMES)
    with pytest.raises(ValueError, match="here: test has 0 inputs"):
        checks.dataset(empty, "here")


def boxes_with(box):
    """Two boxes of each of three examples, of which the second one of the second is `box`."""
    boxes = np.full((3, 2, 4), [0, 0, 1.0, 1])
    boxes[1, 1] = box
    return boxes


INVALID = "^mine: train_boxes: the example of id 1 has the box"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("file", np.array(["a", "b", "c"]), "train_file is <U1, but must be numeric"),
        ("time", np.array([1, 2, 2**40]), "train_time ranges from 1 to .* int32"),
        ("groups", np.array([0, -1, 2]), "train_groups must be one integer from 0"),
        ("context", np.zeros(3), "train_context has the name of whether the objects"),
        ("trunk_maps", np.zeros(3), "train_trunk_maps has the name of the cached maps"),
        ("groups", np.array([0.0, 1.0, 2.0]), "train_groups must be one integer from 0"),
        (
            "clean_labels",
            np.array([0, 1, 99]),
            "train_clean_labels: the example of id 2 has label 99, but the 2 classes",
        ),
        ("height", np.array([1.0, 2.0]), "but there are 3 examples"),
        ("image", np.zeros(3), "train_image has the name of the image"),
        (
            "boxes",
            np.zeros((3, 4)),
            r"train_boxes must be floats \[n, m, 4\], but is float64 \(3, 4\)",
        ),
        (
            "boxes",
            np.zeros((3, 1, 4), int),
            r"train_boxes must be floats \[n, m, 4\], but is int64",
        ),
        ("boxes", boxes_with([0, 0, 20, 9]), rf"{INVALID} \[0\.0, 0\.0, 20\.0, 9\.0\], but"),
        ("boxes", boxes_with([0.5, 0, 0.25, 1]), rf"{INVALID} \[0\.5, 0\.0, 0\.25, 1\.0\], but"),
        ("boxes", boxes_with([0, np.nan, 1, 1]), rf"{INVALID} \[0\.0, nan, 1\.0, 1\.0\], but"),
    ],
)
def test_extra_fields_are_checked(name, values, message):
    split = Split(
        np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 1, 1]), np.arange(3), {name: values}
    )
    with pytest.raises(ValueError, match=message):
        checks.dataset(Dataset({"train": split}, ("a", "b")), "mine")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.5, 0.5], [0.4, 0.5], [1, 0]], "the example of id 5 sums to 0.9, but soft labels must"),
        ([[0.5, 0.5], [1, 0], [1.25, -0.25]], "the example of id 9 has the value -0.25"),
        ([[np.nan, 1], [1, 0], [1, 0]], "the example of id 7 sums to nan"),
        ([[1], [1], [1]], r"must be floats \[n, 2\], a probability of each class, but are float"),
        (np.eye(3, 2, dtype=int), "but are int64"),
        ([1.0, 1.0, 1.0], r"but are float64 \(3,\)"),
    ],
)
def test_soft_labels_that_are_no_distribution_are_an_error_that_names_the_example(values, message):
    values = np.asarray(values, None if isinstance(values, np.ndarray) else float)
    with pytest.raises(ValueError, match=f"^mine.*{message}") as caught:
        checks.soft_labels(values, np.array([7, 5, 9]), 2, "mine")
    assert "\n" not in str(caught.value)


def test_soft_labels_that_were_rounded_are_valid():
    thirds = np.full((1, 3), 0.333)
    for dtype in (np.float16, np.float32, float):
        assert checks.soft_labels(thirds.astype(dtype), np.arange(1), 3, "mine") is None


IDS = np.array([7, 5, 9])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 3, 2**40 + 1]), "id 9 has label 1099511627777, but the 4 classes are 0 to 3"),
        (np.array([0, 2**63 + 1, 3], np.uint64), "id 5 has label 9223372036854775809, but"),
        (np.array([0, 4, 4]), r"id 5 has label 4, but .* \(2 examples have invalid labels\)"),
        (np.array([-1, 0, 0]), "id 7 has label -1, but"),
        (
            np.array([[0, -1], [1, 99], [-1, -1]]),
            "id 5 has label 99, but .*; only the end of a list may be padded with -1",
        ),
        (np.array([[0, -1], [1, -5], [-1, -1]]), "id 5 has label -5, but"),
        (
            np.array([[0, 1], [1, 2], [-1, 2]]),
            "id 9 has label -1, but .*; only the end of a list may be padded with -1",
        ),
    ],
)
def test_a_label_that_is_not_a_class_is_named_with_the_id_of_its_example(labels, message):
    with pytest.raises(
        ValueError, match=rf"^pets.npz: train_labels: the example of {message}[^\n]*$"
    ):
        checks.labels(labels, IDS, 4, "pets.npz: train_labels")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_labels_may_have_any_integer_type_and_signed_lists_may_be_padded(dtype):
    def are_valid(labels):
        try:
            checks.labels(np.array(labels, dtype), IDS, 4, "here")
        except ValueError:
            return False
        return True

    assert are_valid([0, 3, 1])
    assert not are_valid([0, 4, 1])
    if np.issubdtype(dtype, np.signedinteger):
        assert are_valid([[0, 3, 3], [2, -1, -1], [-1, -1, -1]])
        assert not are_valid([0, -1, 1])


@pytest.mark.parametrize("labels", [[0.0, 0.5], [0.0, np.nan], [True, False], ["cat", "dog"], 3])
@pytest.mark.parametrize("choices", [{}, {"max_classes": 1}, {"label": "human"}])
def test_labels_that_are_not_integers_are_an_error_for_any_selection(tmp_path, labels, choices):
    valid = np.array([0, 1])
    arrays = {
        "train_inputs": np.zeros((2, 2, 2, 1), np.uint8),
        "class_names": np.array(["cat", "dog"]),
    }
    fields = {"train_labels": np.array(labels), "train_human": valid}
    if choices.get("label") and np.ndim(labels):
        fields = {"train_labels": valid, "train_human": np.array(labels)}
    np.savez(tmp_path / "pets.npz", **arrays, **fields)
    with pytest.raises(
        ValueError, match=r"pets.npz: train_\w+ must be integers \[n\] or \[n, m\], but are "
    ):
        store.load("pets", str(tmp_path), **choices)


@pytest.mark.parametrize("field", ["labels", "human"])
def test_labels_are_checked_before_the_first_classes_are_selected(tmp_path, field):
    arrays = {
        "train_inputs": np.zeros((3, 2, 2, 1), np.uint8),
        "class_names": np.array(["cat", "dog", "owl"]),
    }
    fields = {"labels": np.arange(3), "human": np.arange(3)} | {field: np.array([0, 1, 99])}
    np.savez(
        tmp_path / "pets.npz",
        **arrays,
        **{f"train_{name}": values for name, values in fields.items()},
    )
    with pytest.raises(
        ValueError, match=rf"pets.npz: train_{field}: the example of id 2 has label 99, but the 3"
    ):
        store.load("pets", str(tmp_path), label="human", max_classes=2)


def test_unknown_clean_labels_are_valid_and_not_counted(tmp_path):
    arrays = {
        "train_inputs": np.zeros((3, 2, 2, 1), np.uint8),
        "class_names": np.array(["cat", "dog"]),
    }
    np.savez(
        tmp_path / "pets.npz",
        **arrays,
        train_labels=np.array([0, -1, 1]),
        train_human=np.array([0, 1, 0]),
    )
    data = store.load("pets", str(tmp_path), label="human")
    assert dataset.description(data, data)["label_noise"] == [[0, 0, 1], [1, 0, 1]]
    with pytest.raises(ValueError, match="train_labels: the example of id 1 has label -1"):
        store.load("pets", str(tmp_path))


def test_a_class_that_occurs_twice_in_a_list_counts_once():
    once, twice = np.array([[2, 0, -1], [1, -1, -1]]), np.array([[2, 0, 2], [1, 1, 1]])
    np.testing.assert_array_equal(dataset.class_counts(once, 4), [1, 1, 1, 0])
    np.testing.assert_array_equal(dataset.class_counts(twice, 4), [1, 1, 1, 0])
    np.testing.assert_array_equal(dataset.class_counts(np.array([3, 1, 3]), 4), [0, 1, 0, 2])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cat", ""], "name of class 1 is '', but must not be blank"),
        (["cat", "  "], "name of class 1 is '  ', but must not be blank"),
        (
            ["cat\n", "dog\n"],
            r"name of class 0 is 'cat\\n', but must not contain control characters or line ends;"
            r" str.strip",
        ),
        (
            ["cat", "\x1b[31mdog"],
            r"name of class 1 is '\\x1b\[31mdog', but must not contain control characters",
        ),
        (["cat", "dog\u2028"], "name of class 1 is .* line ends"),
        ([], r"has no class names|class_names must be strings \[k\]"),
        ([["cat", "dog"]], r"class_names must be strings \[k\], but are <U3 \(1, 2\)"),
        ([0.5, 1.5], r"class_names must be strings \[k\], but are float64"),
        ([b"c\xff", b"d"], "class_names are not valid UTF-8"),
        (["cat"], "the example of id 1 has label 1, but the 1 classes are 0 to 0"),
    ],
)
def test_invalid_class_names_are_an_error(tmp_path, names, message):
    labels = {"train_inputs": np.zeros((2, 2, 2, 1), np.uint8), "train_labels": np.arange(2)}
    np.savez(tmp_path / "pets.npz", class_names=np.array(names), **labels)
    with pytest.raises(ValueError, match=rf"^\S*pets.npz[^\n]*({message})[^\n]*$"):
        store.load("pets", str(tmp_path))


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        (["crane", "crane"], ("crane", "crane")),
        ([b"K\xc3\xa4uzchen", b"cat"], ("Käuzchen", "cat")),
        ([3, 7], ("3", "7")),
    ],
)
def test_class_names_may_repeat_and_may_be_bytes_or_integers(tmp_path, stored, names):
    labels = {"train_inputs": np.zeros((2, 2, 2, 1), np.uint8), "train_labels": np.arange(2)}
    np.savez(tmp_path / "pets.npz", class_names=np.array(stored), **labels)
    assert store.load("pets", str(tmp_path)).class_names == names


@pytest.mark.parametrize("value", [0, -3, 2.5, True, "3", float("nan"), float("inf")])
def test_an_invalid_number_of_classes_or_examples_is_an_error(value):
    for name in ("max_classes", "max_examples"):
        with pytest.raises(ValueError, match=f"{name} is {value!r}, but must be an integer >= 1"):
            checks.limit(name, value)
    checks.limit("max_classes", None)
