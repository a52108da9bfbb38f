"""The objects of images: their boxes, classes and ids, as a prepared set stores them."""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as library
from jaxtyping import Bool, Float, Int, UInt64

from heteroscedastic.data.storage import fields, tfds

_LABEL = "label"
_GROUP_FLAGS = ("is_group_of", "is_crowd")
_IMAGE_NAMES = ("file_name", "image/filename")


class Layout(NamedTuple):
    """The fields of a set that describe objects: keys of nested dicts, or None."""

    boxes: tuple[str, ...]
    label: tuple[str, ...]
    group_of: tuple[str, ...] | None
    image_name: str | None


class Classes(NamedTuple):
    """A choice of classes."""

    names: list[str]
    numbers: Int[np.ndarray, "n"]  # of every stored class; -1 if its boxes are removed


class Boxes(NamedTuple):
    """The boxes of an image."""

    rows: Float[np.ndarray, "m 4"]  # float32: ymin, xmin, ymax, xmax
    labels: Int[np.ndarray, "m"]
    are_objects: Bool[np.ndarray, "m"]  # False for group-of boxes
    ids: tuple[str, ...]  # name of the image, and stored position of the box


def layout(features: Any, where: str) -> Layout:
    """Finds the fields.

    Args:
      features: `FeaturesDict` of the set.
      where: name and location of the set, for errors.

    Raises:
      ValueError: the set lacks images, one field of boxes, or labels of images or boxes.
    """
    kinds = library.features
    top = dict(features.items()) if isinstance(features, kinds.FeaturesDict) else {}
    boxes = fields.available(kinds, features, max_boxes=fields.MAX_BOXES).get("boxes")
    if not isinstance(top.get("image"), kinds.Image) or boxes is None:
        raise ValueError(
            f"{where} requires a feature 'image' and one field of boxes, but its features are"
            f" {sorted(top)}."
        )
    parent = boxes.path[:-1]
    siblings = dict(value(features, parent).items())
    if isinstance(siblings.get(_LABEL), kinds.ClassLabel):
        label = (*parent, _LABEL)
    elif isinstance(top.get(_LABEL), kinds.ClassLabel):
        label = (_LABEL,)
    else:
        raise ValueError(
            f"{where} requires a feature 'label' (one class) of images or beside"
            f" {'/'.join(boxes.path)!r}, but its features are {sorted({*top, *siblings})}."
        )
    group_of = next(((*parent, flag) for flag in _GROUP_FLAGS if flag in siblings), None)
    image_name = next((name for name in _IMAGE_NAMES if name in top), None)
    return Layout(boxes.path, label, group_of, image_name)


def images(
    builder: Any, split: str, places: Layout, numbers: Int[np.ndarray, "n"]
) -> Iterator[tuple[str, bytes, Boxes]]:
    """Name, bytes and boxes of every image of a split, in the order of the files.

    Args:
      builder: builder of the set.
      split: a stored split.
      places: the fields of the set.
      numbers: see `Classes`.

    Raises:
      ValueError: the split cannot be read, or an example is invalid; names it.
    """
    tf, where = tfds.tensorflow(), f"{builder.info.full_name}: {split}"
    used = {"image", places.boxes[0], places.label[0], places.image_name} - {None}
    examples = builder.as_dataset(
        split=split,
        shuffle_files=False,
        decoders={"image": library.decode.SkipDecoding()},
        read_config=library.ReadConfig(interleave_cycle_length=1, try_autocache=False),
    ).map(lambda example: {field: example[field] for field in used})
    try:
        for number, example in enumerate(library.as_numpy(examples)):
            name = f"{split}_{number:08d}"
            if places.image_name:
                name = example[places.image_name].decode()
            yield name, example["image"], image_boxes(example, places, numbers, name, where)
    except tf.errors.OpError as error:
        raise ValueError(
            f"{where} cannot be read ({tfds.error_message(error)}); prepare it again."
        ) from None


def image_boxes(
    example: Any, places: Layout, numbers: Int[np.ndarray, "n"], name: str, where: str
) -> Boxes:
    """The boxes of an image, without those of no area and those of removed classes.

    Args:
      example: the fields of the image.
      places: the fields of the set.
      numbers: see `Classes`.
      name: name of the image.
      where: name and split of the set, for errors.

    Raises:
      ValueError: a box is inverted, outside of the image or not finite, or a label is not a class.
    """
    rows = np.reshape(value(example, places.boxes), (-1, 4)).astype(np.float32)
    is_valid = (rows >= 0) & (rows <= 1) & (rows[:, [0, 1, 0, 1]] <= rows)
    if not is_valid.all():
        first = np.argmin(is_valid.all(axis=1))
        raise ValueError(
            f"{where}: box {first} of {name} is {rows[first].tolist()}, but must be ymin <= ymax,"
            " xmin <= xmax in the order (ymin, xmin, ymax, xmax), as fractions of the image from 0"
            " to 1."
        )
    labels = np.broadcast_to(value(example, places.label), len(rows))
    if unknown := labels[(labels < 0) | (labels >= len(numbers))].tolist():
        raise ValueError(
            f"{where}: {name} has label {unknown[0]}, but the {len(numbers)} classes are 0 to"
            f" {len(numbers) - 1}."
        )
    are_groups = np.zeros(len(rows), bool)
    if places.group_of:
        are_groups = value(example, places.group_of) == 1  # -1 means unknown
    remaining = (rows[:, 2:] > rows[:, :2]).all(axis=1) & (numbers[labels] >= 0)
    return Boxes(
        rows[remaining],
        numbers[labels][remaining],
        ~are_groups[remaining],
        tuple(f"{name}/{i}" for i in np.flatnonzero(remaining)),
    )


def id_hash(object_id: str) -> int:
    """A hash of 64 bits that is the same on every machine."""
    digest = hashlib.blake2b(object_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def largest_hashes(
    labels: Int[np.ndarray, "n"],
    hashes: UInt64[np.ndarray, "n"],
    num_classes: int,
    max_per_class: int | None,
) -> UInt64[np.ndarray, "k"]:
    """The largest hash of each class that a limit keeps: it keeps the smallest hashes."""
    largest = np.full(num_classes, np.iinfo(np.uint64).max, np.uint64)
    if max_per_class is not None:
        for k in range(num_classes):
            own = np.sort(hashes[labels == k])
            if len(own) > max_per_class:
                largest[k] = own[max_per_class - 1]
    return largest


def value(tree: Any, path: tuple[str, ...]) -> Any:
    """A part of nested dicts."""
    for key in path:
        tree = tree[key]
    return tree
