"""Validation of a data set: shapes, types, labels, ids and class names."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from heteroscedastic import smoothing
from heteroscedastic.batch import TRUNK_MAPS
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.storage import fields

# Names that the pipelines or the operations give to values of an example.
_RESERVED = {
    "image": "the image of an example",
    "context": "whether the objects of an example are removed",
    "occurrence": "how often an epoch had an example before",
    TRUNK_MAPS: "the cached maps of an example",
}
# Unicode categories: control characters, surrogates, line and paragraph separators.
_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")


def dataset(data: Dataset, where: str) -> Dataset:
    """Checks a data set and returns it.

    Raises:
      ValueError: an array is invalid; names the array, and the example if only some are invalid.
    """
    class_names(data.class_names, where)
    num_classes = len(data.class_names)
    for name, (inputs, split_labels, ids, extras) in data.splits.items():
        _inputs(inputs, f"{where}: {name}_inputs")
        if not len(inputs) == len(split_labels) == len(ids) > 0:
            raise ValueError(
                f"{where}: {name} has {len(inputs)} inputs, {len(split_labels)} labels and"
                f" {len(ids)} ids."
            )
        example_ids(ids, f"{where}: {name}_ids")
        labels(split_labels, ids, num_classes, f"{where}: {name}_labels")
        for extra, values in extras.items():
            _extra(f"{where}: {name}_{extra}", extra, values, ids, num_classes)
        clean = extras.get("clean_labels")
        if clean is not None and clean.ndim != split_labels.ndim:
            raise ValueError(
                f"{where}: one of {name}_labels and {name}_clean_labels holds lists of labels, the"
                " other one label per example."
            )
    (first_name, first), *others = data.splits.items()
    for name, split in others:
        if split.inputs.shape[1:] != first.inputs.shape[1:]:
            raise ValueError(
                f"{where}: inputs of {first_name} have shape {first.inputs.shape[1:]}, but inputs"
                f" of {name} have shape {split.inputs.shape[1:]}."
            )
        if split.labels.ndim != first.labels.ndim:
            raise ValueError(
                f"{where}: one of {first_name} and {name} has lists of labels, the other one label"
                " per example."
            )
    return data


def labels(
    values: Shaped[np.ndarray, "..."],
    ids: Shaped[np.ndarray, "n"],
    num_classes: int,
    where: str,
    *,
    may_be_unknown: bool = False,
) -> None:
    """Checks that labels are classes, of any integer type.

    A label is a class from 0 to num_classes - 1. A list of labels is padded with -1 at its end; a
    list of only -1 is empty, and -1 before a label is an error. A class that occurs twice in a list
    counts once.

    Args:
      values: one label per example, or one list of labels per example.
      ids: ids of the examples.
      num_classes: K.
      where: location of the labels, for errors.
      may_be_unknown: also accepts -1 as the single label of an example. In clean labels, which are
        not used in training, it means that the label is unknown.

    Raises:
      ValueError: a label is not a class; names the id of the first such example, and the label.
    """
    if values.ndim not in (1, 2) or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(
            f"{where} must be integers [n] or [n, m], but are {values.dtype} {values.shape}."
        )
    are_lists = values.ndim == 2
    rows = values if are_lists else values[:, None]
    is_padding = (rows == -1) & (are_lists or may_be_unknown)
    is_invalid = ((rows < 0) | (rows >= num_classes)) & ~is_padding
    is_invalid[:, :-1] |= is_padding[:, :-1] & ~is_padding[:, 1:]
    examples = np.flatnonzero(is_invalid.any(axis=1))
    if not len(examples):
        return
    first = examples[0]
    label = rows[first][is_invalid[first]][0]
    padding = "; only the end of a list may be padded with -1" if are_lists else ""
    others = f" ({len(examples):,} examples have invalid labels)" if len(examples) > 1 else ""
    raise ValueError(
        f"{where}: the example of id {ids[first]} has label {label}, but the {num_classes:,}"
        f" classes are 0 to {num_classes - 1}{padding}{others}."
    )


def example_ids(ids: Shaped[np.ndarray, "..."], where: str) -> None:
    """Checks that ids are unique non-negative integers within int32."""
    is_vector = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
    if not is_vector or len(np.unique(ids)) != len(ids) or (ids < 0).any() or (ids >= 2**31).any():
        raise ValueError(
            f"{where} must be unique integers [n] from 0 to 2**31 - 1, but are"
            f" {ids.dtype} {ids.shape}."
        )


def class_names(names: Sequence[str], where: str) -> None:
    """Checks that there are class names, and that each can be printed on one line.

    Blank names, control characters and line ends (often left over from reading a file of names) are
    errors. Two classes may have the same name, as in ImageNet: commands that accept the name of a
    class also accept its number.
    """
    if not names:
        raise ValueError(f"{where} has no class names; class_names requires one name per class.")
    for number, name in enumerate(names):
        if not name.strip():
            raise ValueError(
                f"{where}: the name of class {number} is {name!r}, but must not be blank."
            )
        if any(unicodedata.category(c) in _UNPRINTABLE for c in name):
            raise ValueError(
                f"{where}: the name of class {number} is {name!r}, but must not contain control"
                " characters or line ends; str.strip() removes them from both ends."
            )


def limit(name: str, value: Any) -> None:
    """Checks a setting that limits a number of things: an integer >= 1, or None for no limit."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is {value!r}, but must be an integer >= 1, or None.")


def fits_int32(where: str, values: Shaped[np.ndarray, "..."]) -> None:
    """Checks that integers fit into int32, the type on the device."""
    is_integer = values.dtype.kind in "iu"
    if is_integer and values.size and (values.min() < -(2**31) or values.max() >= 2**31):
        raise ValueError(
            f"{where} ranges from {values.min()} to {values.max()}, but must fit into int32."
        )


def groups(where: str, values: Shaped[np.ndarray, "n ..."]) -> None:
    """Checks that groups are integers >= 0, one per example."""
    fits = values.dtype.kind in "iu" and values.ndim == 1
    if not fits or values.min() < 0 or values.max() >= 2**31:
        raise ValueError(
            f"{where} must be one integer from 0 to {2**31 - 1} per example, but is"
            f" {values.dtype} {values.shape}; np.unique(groups, return_inverse=True)[1] converts"
            " any values to such integers."
        )


def soft_labels(
    values: Shaped[np.ndarray, "n ..."],
    ids: Shaped[np.ndarray, "n"],
    num_classes: int,
    where: str,
) -> None:
    """Checks that soft labels are a distribution over the classes for each example.

    Raises:
      ValueError: they are not; names the id of the first such example, and its value or sum.
    """
    if values.dtype.kind != "f" or values.shape[1:] != (num_classes,):
        raise ValueError(
            f"{where} must be floats [n, {num_classes}], a probability of each class, but are"
            f" {values.dtype} {values.shape}."
        )
    if fault := smoothing.invalid_distribution(values):
        row, reason = fault
        raise ValueError(
            f"{where}: the example of id {ids[row]} {reason}, but soft labels must be >= 0 and sum"
            " to 1."
        )


def all_with_boxes(boxes: Shaped[np.ndarray, "n m 4"], ids: np.ndarray, where: str) -> None:
    """Raises a ValueError if an example has no box; names the first one."""
    missing = np.flatnonzero(~boxes.any(axis=(1, 2)))
    if missing.size:
        raise ValueError(f"{where}: {fields.no_box(ids[missing[0]])}; set it to True.")


def at_most_boxes(
    boxes: Shaped[np.ndarray, "n m 4"], ids: np.ndarray, max_boxes: int, where: str
) -> None:
    """Raises a ValueError if a row after the first `max_boxes` is not padding.

    Names the example with the most boxes.
    """
    numbers = np.max(boxes.any(axis=2) * np.arange(1, boxes.shape[1] + 1), axis=1, initial=0)
    most = np.argmax(numbers)
    if numbers[most] > max_boxes:
        message = fields.too_many_boxes(ids[most], numbers[most], max_boxes)
        raise ValueError(f"{where}: {message}; raise it.")


def some_with_boxes(number: int, where: str) -> None:
    """Raises a ValueError if no example of a split has a box."""
    if not number:
        raise ValueError(
            f"{where} has no example with a box, but config.data.with_boxes keeps only those; set"
            " it to False."
        )


def _inputs(values: Shaped[np.ndarray, "..."], where: str) -> None:
    """Checks that inputs are images, or features that are finite."""
    if values.dtype == np.uint8 and values.ndim == 4:
        return
    if values.dtype not in (np.float16, np.float32) or values.ndim not in (2, 3):
        remedy = "; .astype(np.float32) converts them" if values.dtype == np.float64 else ""
        raise ValueError(
            f"{where} must be images, uint8 [n, h, w, c], or features, float16 or float32 [n, d] or"
            f" [n, t, d], but are {values.dtype} {values.shape}{remedy}."
        )
    wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if wrong.size:
        raise ValueError(
            f"{where}: features must be finite, but row {wrong[0]} is not ({len(wrong):,} rows are"
            " not)."
        )


def _extra(where: str, name: str, values: np.ndarray, ids: np.ndarray, num_classes: int) -> None:
    if values.shape[:1] != (len(ids),):
        raise ValueError(f"{where} has shape {values.shape}, but there are {len(ids)} examples.")
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"{where} is {values.dtype}, but must be numeric, as it is transferred to the device."
        )
    if name in _RESERVED:
        raise ValueError(
            f"{where} has the name of {_RESERVED[name]}, which the pipeline adds; rename the field."
        )
    fits_int32(where, values)
    if name == "groups":
        groups(where, values)
    if name == "boxes":
        if values.dtype.kind != "f" or values.ndim != 3 or values.shape[-1] != 4:
            raise ValueError(
                f"{where} must be floats [n, m, 4], but is {values.dtype} {values.shape}."
            )
        is_valid = (values >= 0) & (values <= 1) & (values[..., [0, 1, 0, 1]] <= values)
        if not is_valid.all():
            row, box = np.argwhere(~is_valid.all(axis=-1))[0]
            raise ValueError(f"{where}: {fields.invalid_box(ids[row], values[row, box].tolist())}.")
    if name == "clean_labels":
        labels(values, ids, num_classes, where, may_be_unknown=True)
