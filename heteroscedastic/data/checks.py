"""What a data set must be: its shapes, types, labels, ids and class names."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from heteroscedastic.data.dataset import Dataset

_MOST_GROUPS = (
    10**7
)  # as the fate of a group follows from its number, and is drawn for all below it
_UNPRINTABLE = (
    "Cc",
    "Cs",
    "Zl",
    "Zp",
)  # of Unicode: control characters, halves of others, ends of lines


def dataset(data: Dataset, where: str) -> Dataset:
    """The data set itself, once it is sound.

    Raises:
      ValueError: names the array, and the example where it is one that is wrong.
    """
    class_names(data.class_names, where)
    num_classes = len(data.class_names)
    for name, (inputs, split_labels, ids, extras) in data.splits.items():
        if inputs.dtype != np.uint8 or inputs.ndim != 4:
            raise ValueError(
                f"{where}: {name}_inputs must be uint8 [n, h, w, c], but is {inputs.dtype}"
                f" {inputs.shape}."
            )
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
                f"{where}: of {name}_labels and {name}_clean_labels one is a list per example."
            )
    (first, one), *others = data.splits.items()
    for name, split in others:
        if split.inputs.shape[1:] != one.inputs.shape[1:]:
            raise ValueError(
                f"{where}: images of {first} are {one.inputs.shape[1:]}, but those of {name}"
                f" {split.inputs.shape[1:]}."
            )
        if split.labels.ndim != one.labels.ndim:
            raise ValueError(
                f"{where}: of {first} and {name} one has a label per example and the other lists"
                " of them."
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
    """Checks that labels are classes, in whatever type they are stored.

    A label is a class from 0 to num_classes - 1. Where an example has one label [n], nothing else
    is one. A list of them [n, m] may end in -1, which says that it has no further label; a list of
    nothing but -1 is empty. -1 before a label is an error. A class that a list names twice is as if
    it named it once.

    Args:
      values: one label per example, or one list of them.
      ids: of the examples.
      num_classes: K.
      where: the labels are stored.
      may_be_unknown: -1 is also legal as the one label of an example. Of clean labels, which
        nothing learns from, it says that nobody knows it.

    Raises:
      ValueError: names the first example that has another label, by its id, and the label.
    """
    if values.ndim not in (1, 2) or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(
            f"{where} must be integers [n] or [n, m], but are {values.dtype} {values.shape}."
        )
    in_lists = values.ndim == 2
    rows = values if in_lists else values[:, None]
    is_padding = (rows == -1) & (in_lists or may_be_unknown)
    wrong = ((rows < 0) | (rows >= num_classes)) & ~is_padding
    wrong[:, :-1] |= is_padding[:, :-1] & ~is_padding[:, 1:]
    examples = np.flatnonzero(wrong.any(axis=1))
    if not len(examples):
        return
    first = examples[0]
    label = rows[first][wrong[first]][0]
    padding = "; only the end of a list is padded with -1" if in_lists else ""
    more = f" ({len(examples):,} examples have such labels)" if len(examples) > 1 else ""
    raise ValueError(
        f"{where}: the example of id {ids[first]} has label {label}, but the {num_classes:,}"
        " classes are"
        f" 0 to {num_classes - 1}{padding}{more}."
    )


def example_ids(ids: Shaped[np.ndarray, "..."], where: str) -> None:
    """Checks that ids are different whole numbers that int32 holds."""
    whole = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
    if not whole or len(np.unique(ids)) != len(ids) or (ids < 0).any() or (ids >= 2**31).any():
        raise ValueError(
            f"{where} must be different numbers from 0 to 2**31 - 1, integers [n], but are"
            f" {ids.dtype} {ids.shape}."
        )


def class_names(names: Sequence[str], where: str) -> None:
    """Checks that there are classes and that each has a name that can be printed on one line.

    Classes may share a name, as two of ImageNet do: whatever takes a class by name takes its number
    too. A name that is empty or blank, or that holds a control character or the end of a line
    (often left over from reading a file of names), is an error.
    """
    if not names:
        raise ValueError(f"{where} names no classes; class_names needs one name for each.")
    for number, name in enumerate(names):
        if not name.strip():
            raise ValueError(
                f"{where}: the name of class {number} is {name!r}, but must not be blank."
            )
        if any(unicodedata.category(c) in _UNPRINTABLE for c in name):
            raise ValueError(
                f"{where}: the name of class {number} is {name!r}, but must not hold control"
                " characters or line ends;"
                " strip() removes those around it."
            )


def limit(name: str, value: Any) -> None:
    """Checks a setting that says how many are taken: a whole number from 1 on, or None for all."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is {value!r}, but must be a whole number >= 1.")


def _extra(which: str, name: str, values: np.ndarray, ids: np.ndarray, num_classes: int) -> None:
    if values.shape[:1] != (len(ids),):
        raise ValueError(f"{which} is {values.shape}, but there are {len(ids)} examples.")
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"{which} is {values.dtype}, but must hold numbers, as it goes to the device."
        )
    whole = values.dtype.kind in "iu"
    if whole and values.size and (values.min() < -(2**31) or values.max() >= 2**31):
        raise ValueError(
            f"{which} reaches from {values.min()} to {values.max()}, but must be within 32 bits."
        )
    if name == "groups" and (
        not whole or values.ndim != 1 or values.min() < 0 or values.max() >= _MOST_GROUPS
    ):
        raise ValueError(
            f"{which} must be a whole number from 0 to {_MOST_GROUPS - 1} per example, but is"
            f" {values.dtype}"
            f" {values.shape}; np.unique(groups, return_inverse=True)[1] makes such numbers of"
            " anything."
        )
    if name == "clean_labels":
        labels(values, ids, num_classes, which, may_be_unknown=True)
