"""Data sets by name: an .npz file, a set prepared by TensorFlow Datasets, or bundled digits."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heteroscedastic import boxes as boxes_lib
from heteroscedastic import files, user_errors
from heteroscedastic.data import checks, split_spec
from heteroscedastic.data.dataset import Dataset, Part, Split, StoredDataset
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import digits, encoded, npz, tfds, vtab
from heteroscedastic.data.storage import fields as fields_lib
from heteroscedastic.data.storage.npz import Archive

_BUNDLED = {
    "digits": digits.digits,
    "digits_pairs": digits.digits_pairs,
    "digits_mosaics": digits.digits_mosaics,
}


def load(
    name: str,
    data_dir: str | None = None,
    *,
    label: str = "label",
    splits: Mapping[str, str | Mapping[str, str]] | None = None,
    max_classes: int | None = None,
    max_examples: int | None = None,
    extras: Sequence[str] = (),
    max_boxes: int = fields_lib.MAX_BOXES,
    with_boxes: bool = False,
    requires_boxes: bool = False,
    soft_labels: Sequence[str] = (),
) -> Dataset:
    """Loads a data set into memory.

    Searches `data_dir`/name.npz first, then `data_dir`/name (TFDS), then the bundled sets.

    Args:
      name: name of the set in TFDS, such as "cifar10_n", or of an .npz file.
      data_dir: directory of data sets.
      label: field that split "train" learns from. If it is not "label", train has the field "label"
        as `clean_labels` in extras. Other splits use "label".
      splits: split name -> slice of a stored split, or a dict of `split` and a chain `eval`, which
        is ignored; None takes every stored split.
      max_classes: keeps only examples of the first `max_classes` classes, by "label" and `label`.
      max_examples: keeps only the first examples of every split; applies before `max_classes`.
      extras: fields that examples of "train" must have as extras; see fields.py. An .npz file gives
        all its fields.
      max_boxes: maximum number of boxes per example if `extras` has boxes; those of TFDS are
        padded to it.
      with_boxes: keeps only training examples with a box; other splits keep all examples.
      requires_boxes: whether each example of "train" must have a box.
      soft_labels: extras of "train" that must be distributions over the classes.

    Raises:
      FileNotFoundError: no such set exists; says where it was searched and how to prepare it.
      ValueError: the set is damaged or invalid, or does not match the arguments.
    """
    # `clean_labels` is what `label` leaves of the field "label".
    stored_extras = [extra for extra in extras if extra != "clean_labels"]
    stored = stored_dataset(name, data_dir, extras=stored_extras, max_boxes=max_boxes)
    data = _selection(stored, label, splits, max_classes, max_examples)
    available = data.splits["train"].extras if "train" in data.splits else {}
    unknown = [extra for extra in extras if extra not in {*available, *stored.box_paths}]
    if unknown:
        raise ValueError(
            f"{stored.where} has no extra {unknown[0]!r} in train; its extras are"
            f" {', '.join(available) or 'none'}."
        )
    if "boxes" in extras:
        for name, split in data.splits.items():
            if "boxes" in split.extras:
                where = f"{stored.where}: {name}"
                checks.at_most_boxes(split.extras["boxes"], split.ids, max_boxes, where)
    if with_boxes and "train" in data.splits:
        train = _with_boxes(data.splits["train"], f"{stored.where}: train")
        data, available = data._replace(splits=data.splits | {"train": train}), train.extras
    if requires_boxes and "boxes" in available:
        train = data.splits["train"]
        checks.all_with_boxes(train.extras["boxes"], train.ids, f"{stored.where}: train")
    for extra in soft_labels:
        where = f"{stored.where}: train_{extra}"
        ids, num_classes = data.splits["train"].ids, len(data.class_names)
        checks.soft_labels(available[extra], ids, num_classes, where)
    return data


def is_there(name: str, data_dir: str | None = None) -> bool:
    """Whether a set of this name exists."""
    paths = (
        [files.as_path(data_dir) / f"{name}.npz", tfds.folder(name, data_dir)] if data_dir else []
    )
    return name in _BUNDLED or any(path.exists() for path in paths)


def read(path: files.Path) -> Dataset:
    """Reads a data set from an .npz file."""
    return _selection(npz.read(path))


def write(path: files.Path, data: Dataset) -> None:
    """Writes the .npz file that `read` reads; an interrupted write leaves no file."""
    files.write_arrays(path, npz.arrays_of_dataset(data))


def _selection(
    stored: StoredDataset,
    label: str = "label",
    splits: Mapping[str, str | Mapping[str, str]] | None = None,
    max_classes: int | None = None,
    max_examples: int | None = None,
) -> Dataset:
    checks.limit("max_classes", max_classes)
    checks.limit("max_examples", max_examples)
    if not splits:
        parts = {name: Slice(name, 0, size) for name, size in stored.sizes.items()}
    else:
        parts = {
            name: split_spec.parse(x if isinstance(x, str) else x["split"], stored.sizes)
            for name, x in splits.items()
        }
    if max_examples:
        parts = {
            name: part._replace(stop=min(part.stop, part.start + max_examples))
            for name, part in parts.items()
        }
    selected = {
        name: _split(
            stored,
            stored.read(part),
            part.split,
            label if name == "train" else "label",
            max_classes,
        )
        for name, part in parts.items()
    }
    data = checks.dataset(Dataset(selected, stored.class_names[:max_classes]), stored.where)
    splits = {name: _without_empty_boxes(x.with_int32()) for name, x in selected.items()}
    return data._replace(splits=splits)


def _split(
    stored: StoredDataset, part: Part, stored_split: str, label: str, max_classes: int | None
) -> Split:
    """The examples of a part of a stored split; checks labels before filtering and conversion."""
    fields = dict(part.fields)
    if label not in fields:
        raise ValueError(
            f"{stored.where} has no label field {label!r}; its fields are {', '.join(fields)}."
        )
    checks.example_ids(part.ids, f"{stored.where}: {stored_split}_ids")
    for name in {label, "label"} & set(fields):
        where = f"{stored.where}: {stored_split}_{'labels' if name == 'label' else name}"
        checks.labels(
            fields[name], part.ids, len(stored.class_names), where, may_be_unknown=name != label
        )
    if max_classes is not None:
        is_selected = [
            fields[name].reshape(len(part.ids), -1) < max_classes for name in {label, "label"}
        ]
        rows = np.flatnonzero(np.concatenate(is_selected, axis=1).all(axis=1))
        images = (
            [part.images[row] for row in rows]
            if isinstance(part.images, list)
            else part.images[rows]
        )
        part = Part(images, {name: values[rows] for name, values in fields.items()}, part.ids[rows])
        fields = dict(part.fields)
    labels = fields.pop(label)
    if label != "label":
        fields.setdefault("clean_labels", fields.pop("label"))
    # Clean labels that are all unknown must not look like no field of clean labels.
    extras = {
        name: values
        for name, values in fields.items()
        if name == "clean_labels" or not _is_empty(values)
    }
    inputs = part.images
    if isinstance(inputs, list):
        inputs = encoded.decode(inputs, stored.num_channels, stored.where)
    return Split(inputs, labels, part.ids, extras)


def _without_empty_boxes(split: Split) -> Split:
    if "boxes" not in split.extras:
        return split
    boxes = boxes_lib.without_empty(np, split.extras["boxes"])
    return split._replace(extras=split.extras | {"boxes": boxes})


def _with_boxes(split: Split, where: str) -> Split:
    if "boxes" not in split.extras:
        return split
    rows = np.flatnonzero(split.extras["boxes"].any(axis=(1, 2)))
    checks.some_with_boxes(len(rows), where)
    return split.take(rows)


def _is_empty(values: np.ndarray) -> bool:
    """Whether all values are -1, as are the human labels of test images in CIFAR-10N."""
    return np.issubdtype(values.dtype, np.integer) and bool((values == -1).all())


def stored_dataset(
    name: str,
    data_dir: str | None = None,
    *,
    extras: Sequence[str] = (),
    max_boxes: int = fields_lib.MAX_BOXES,
) -> StoredDataset:
    """The stored set that `load` reads from."""
    path = files.as_path(data_dir) / f"{name}.npz" if data_dir else None
    if path and path.exists():
        return npz.read(path)
    return _source(name, data_dir, extras=extras, max_boxes=max_boxes)


def _source(name: str, data_dir: str | None, **extras: Any) -> StoredDataset:
    """The set as prepared by TFDS, or the bundled one; an .npz file can be written from it."""
    searched = "nothing on disk, as neither --data_dir nor TFDS_DATA_DIR is set"
    if data_dir:
        searched = f"{files.as_path(data_dir) / name}.npz and {tfds.folder(name, data_dir)}"
    if data_dir and tfds.folder(name, data_dir).is_dir():
        try:
            return tfds.PreparedDataset(name, data_dir, **extras)
        except ModuleNotFoundError as error:
            raise FileNotFoundError(
                f"data set {name!r} is in {tfds.folder(name, data_dir)}, but TensorFlow Datasets"
                f' is not installed ({error}). Either pip install -e ".[tensorflow]", or write'
                f" {name}.npz on a machine with TensorFlow Datasets: {_command(name)}."
            ) from None
        except FileNotFoundError as error:
            searched += f" ({error})"
    if name in _BUNDLED:
        try:
            return Archive(npz.arrays_of_dataset(_BUNDLED[name]()), name)
        except ModuleNotFoundError as error:
            raise FileNotFoundError(
                f"data set {name!r} is part of scikit-learn, which is not installed ({error});"
                f" searched {searched}. Either pip install scikit-learn, or write {name}.npz on a"
                f" machine with scikit-learn: {_command(name)}."
            ) from None
    raise FileNotFoundError(
        f"no data set {name!r}: searched {searched}, and the bundled sets"
        f" ({', '.join(_BUNDLED)}). To use TensorFlow Datasets, prepare it with\n"
        f"  {vtab.preparation(name, data_dir or 'DIR')}\n"
        "which requires the extra [tensorflow] of this package, and pass"
        f" --data_dir={data_dir or 'DIR'}. Your own images go into DIR/{name}.npz; docs/own_data.md"
        " describes its fields."
    )


def _command(name: str) -> str:
    return f"python -m heteroscedastic.data.storage.store --name={name} --data_dir=DIR"


@user_errors.one_line()
def main() -> None:
    """Writes a data set as an .npz file, for machines without TensorFlow and scikit-learn."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of the prepared set"
    )
    parser.add_argument("--out", help="directory of the file; defaults to --data_dir")
    parser.add_argument(
        "--extras", nargs="*", default=(), help="further fields of TFDS, such as boxes"
    )
    parser.add_argument(
        "--max_boxes", type=int, default=fields_lib.MAX_BOXES, help="rows to which boxes are padded"
    )
    flags = parser.parse_args()
    out = flags.out or flags.data_dir
    if not out:
        parser.error("give --data_dir or --out.")
    path = files.as_path(out) / f"{flags.name}.npz"
    if path.exists():
        raise SystemExit(f"{path} exists already; remove it to write it again.")
    source = _source(flags.name, flags.data_dir, extras=flags.extras, max_boxes=flags.max_boxes)
    arrays = (
        npz.arrays_of_encoded(source)
        if isinstance(source, tfds.PreparedDataset)
        else npz.arrays_of_dataset(_selection(source))
    )
    files.write_arrays(path, arrays)
    print(f"wrote {path}, {files.size(path) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
