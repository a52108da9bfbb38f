"""The fields of a prepared set that an example may carry as extras.

These are numbers of a fixed shape; `boxes`: the bounding boxes of the set, one or a list of them
per example, padded with rows of zeros; and numbers stored with each box of a list, padded with
zeros. Where a set has several fields of boxes, the names also have the path of one of them, as in
("boxes", "objects/bbox"); the path is then no extra of its own.
"""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

MAX_BOXES = 16  # default of config.data.max_boxes
_RESERVED = (("image",), ("shape",))  # an example of a stream has them already
_BOX_FORMATS = (None, "REL_YXYX")  # metadata of older versions of TFDS states none


class Field(NamedTuple):
    """A field, and its array in an example."""

    path: tuple[str, ...]  # keys of nested dicts, from the example to the field
    shape: tuple[int, ...]
    dtype: np.dtype  # bool, int64 or float32
    are_boxes: bool = False
    of_boxes: bool = False  # a number for each box


def choose(
    kinds: ModuleType,
    features: Any,
    names: Sequence[str],
    where: str,
    *,
    max_boxes: int,
    are_required: bool = True,
) -> dict[str, Field]:
    """The fields of these names, without the paths that choose `boxes`.

    Args:
      kinds: `tensorflow_datasets.features`.
      features: `FeaturesDict` of the set.
      names: a nested field is named by its path, such as "a/b".
      where: name and location of the set, for errors.
      max_boxes: number of rows of `boxes`.
      are_required: whether a name without a field is an error; else it is left out.

    Raises:
      ValueError: a name is not one of `available`, or it is unclear which boxes are meant.
    """
    paths = box_paths(kinds, features)
    fields = available(kinds, features, max_boxes=max_boxes, names=names)
    if "boxes" in names:
        names = [name for name in names if name == "boxes" or name not in paths]
    unknown = [name for name in names if name not in fields] if are_required else []
    if "boxes" in unknown and paths:
        raise ValueError(
            f"{where} has several fields of boxes, {', '.join(paths)}; add the path of one to"
            f" config.data.extras, as in ('boxes', {paths[0]!r})."
        )
    if unknown:
        raise ValueError(
            f"{where} has no extra {unknown[0]!r}; its fields of numbers are"
            f" {', '.join(sorted(fields)) or 'none'}."
        )
    return {name: fields[name] for name in names if name in fields}


def box_paths(kinds: ModuleType, features: Any) -> list[str]:
    """The paths of the fields of boxes, sorted."""
    leaves = _leaves(kinds, features)  # in an order that differs between processes
    return sorted("/".join(path) for path, *feature in leaves if _are_boxes(kinds, *feature))


def available(
    kinds: ModuleType, features: Any, *, max_boxes: int, names: Sequence[str] = ()
) -> dict[str, Field]:
    """All fields that an example may carry.

    `boxes` are among them if the set has one field of boxes, or the names have the path of one.
    """
    fields, boxes, lists = {}, [], []
    for path, feature, num_lists in _leaves(kinds, features):
        if isinstance(feature, kinds.BBoxFeature):
            if _are_boxes(kinds, feature, num_lists):
                boxes.append(Field(path, (max_boxes, 4), np.dtype(np.float32), are_boxes=True))
        elif isinstance(feature, kinds.Tensor) and num_lists <= 1 and path not in _RESERVED:
            info = feature.get_serialized_info()  # a string if the numbers are compressed
            dtype = {"b": bool, "i": np.int64, "u": np.int64, "f": np.float32}.get(
                np.dtype(info.np_dtype).kind
            )
            if dtype is None or None in info.shape:
                continue
            if num_lists:
                lists.append((path, feature.shape, np.dtype(dtype)))
            else:
                fields["/".join(path)] = Field(path, tuple(info.shape), np.dtype(dtype))
    if len(boxes) > 1:
        boxes = [field for field in boxes if "/".join(field.path) in names]
    if len(boxes) != 1:
        return fields
    for path, shape, dtype in lists:
        if not shape and len(path) > 1 and path[:-1] == boxes[0].path[:-1]:
            fields["/".join(path)] = Field(path, (max_boxes,), dtype, of_boxes=True)
    return fields | {"boxes": boxes[0]}


def too_many_boxes(example_id: Any, number: Any, max_boxes: int) -> str:
    """The error message for an example with too many boxes."""
    return (
        f"the example of id {example_id} has {number} boxes, but config.data.max_boxes is"
        f" {max_boxes}"
    )


def invalid_box(example_id: Any, box: Any) -> str:
    """The error message for an example with an invalid box."""
    return (
        f"the example of id {example_id} has the box {box}, but a box (y0, x0, y1, x1) must have"
        " 0 <= y0 <= y1 <= 1 and 0 <= x0 <= x1 <= 1, as fractions of the image"
    )


def no_box(example_id: Any) -> str:
    """The error message for a training example without a box that the config requires."""
    return f"the example of id {example_id} has no box, but config.data.with_boxes is False"


def _are_boxes(kinds: ModuleType, feature: Any, num_lists: int) -> bool:
    """Whether a feature is a box, or a list of boxes, in relative coordinates."""
    if not isinstance(feature, kinds.BBoxFeature):
        return False
    box_format = getattr(feature.bbox_format, "value", feature.bbox_format)
    return num_lists <= 1 and box_format in _BOX_FORMATS


def _leaves(
    kinds: ModuleType, feature: Any, path: tuple[str, ...] = (), num_lists: int = 0
) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    """Path and feature of each field, and the number of lists that contain it."""
    if isinstance(feature, kinds.FeaturesDict):
        for name, part in feature.items():
            yield from _leaves(kinds, part, (*path, name), num_lists)
    elif isinstance(feature, kinds.Sequence):
        yield from _leaves(kinds, feature.feature, path, num_lists + 1)
    else:
        yield path, feature, num_lists
