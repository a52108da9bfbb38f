"""Data sets by name: an .npz file, a set that TensorFlow Datasets prepared, or one that a library
ships.
"""

import os
from collections.abc import Mapping

import numpy as np

from heteroscedastic import files, user_errors
from heteroscedastic.data import checks, split_spec
from heteroscedastic.data.dataset import Dataset, Part, Split, Stored
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import digits, encoded, npz, tfds, vtab
from heteroscedastic.data.storage.npz import Archive

_SHIPPED = {"digits": digits.digits, "digits_pairs": digits.digits_pairs}


def load(
    name: str,
    data_dir: str | None = None,
    *,
    label: str = "label",
    splits: Mapping[str, str] | None = None,
    max_classes: int | None = None,
    max_examples: int | None = None,
) -> Dataset:
    """The data set of this name, from the first of `data_dir`/name.npz, `data_dir`/name and a
    library.

    Args:
      name: as TFDS says it, such as "cifar10_n", or of an .npz file.
      data_dir: where data sets lie.
      label: field that split "train" learns from; other splits keep "label", and train has its
        "label" as `clean_labels` in extras.
      splits: our names of splits to slices of stored ones; every stored split if there are none.
      max_classes: only examples of the first so many classes, by "label" and by `label`.
      max_examples: only the first so many examples of every split, counted before that.

    Raises:
      FileNotFoundError: none of the three has it; says where it was looked for and what prepares
        it.
      ValueError: what is stored is damaged, not sound, or not what was asked for.
    """
    return _chosen(stored(name, data_dir), label, splits, max_classes, max_examples)


def is_there(name: str, data_dir: str | None = None) -> bool:
    """Whether `load` would find something of this name."""
    places = (
        [files.as_path(data_dir) / f"{name}.npz", tfds.folder(name, data_dir)] if data_dir else []
    )
    return name in _SHIPPED or any(place.exists() for place in places)


def read(path: files.Path) -> Dataset:
    """A data set from an .npz file."""
    return _chosen(npz.read(path))


def write(path: files.Path, data: Dataset) -> None:
    """Writes the .npz file that `read` reads; an interrupted write leaves no file."""
    files.write_arrays(path, npz.of_dataset(data))


def _chosen(
    stored: Stored,
    label: str = "label",
    splits: Mapping[str, str] | None = None,
    max_classes: int | None = None,
    max_examples: int | None = None,
) -> Dataset:
    checks.limit("max_classes", max_classes)
    checks.limit("max_examples", max_examples)
    if not splits:
        parts = {name: Slice(name, 0, size) for name, size in stored.sizes.items()}
    else:
        parts = {
            name: split_spec.parse(expression, stored.sizes) for name, expression in splits.items()
        }
    if max_examples:
        parts = {
            name: part._replace(stop=min(part.stop, part.start + max_examples))
            for name, part in parts.items()
        }
    found = {
        name: _split(
            stored,
            stored.read(part),
            part.split,
            label if name == "train" else "label",
            max_classes,
        )
        for name, part in parts.items()
    }
    data = checks.dataset(Dataset(found, stored.class_names[:max_classes]), stored.where)
    return data._replace(splits={name: split.with_int32() for name, split in found.items()})


def _split(stored: Stored, part: Part, of: str, label: str, max_classes: int | None) -> Split:
    """The examples of a part of the stored split `of`, their labels checked before any is left out
    or cast.
    """
    fields = dict(part.fields)
    if label not in fields:
        raise ValueError(
            f"{stored.where} has no field {label!r} of labels; its fields are {', '.join(fields)}."
        )
    checks.example_ids(part.ids, f"{stored.where}: {of}_ids")
    for name in {label, "label"} & set(fields):
        where = f"{stored.where}: {of}_{'labels' if name == 'label' else name}"
        checks.labels(
            fields[name], part.ids, len(stored.class_names), where, may_be_unknown=name != label
        )
    if max_classes is not None:
        known = [fields[name].reshape(len(part.ids), -1) < max_classes for name in {label, "label"}]
        rows = np.flatnonzero(np.concatenate(known, axis=1).all(axis=1))
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
    extras = {name: values for name, values in fields.items() if not _is_blank(values)}
    inputs = part.images
    if isinstance(inputs, list):
        inputs = encoded.decode(inputs, stored.num_channels, stored.where)
    return Split(inputs, labels, part.ids, extras)


def _is_blank(values: np.ndarray) -> bool:
    """Whether a field says nothing: CIFAR-10N has -1 for the human labels of its test images."""
    return np.issubdtype(values.dtype, np.integer) and bool((values == -1).all())


def stored(name: str, data_dir: str | None = None) -> Stored:
    """What lies under this name, before anything is chosen of it; see `load`."""
    path = files.as_path(data_dir) / f"{name}.npz" if data_dir else None
    return npz.read(path) if path and path.exists() else _source(name, data_dir)


def _source(name: str, data_dir: str | None) -> Stored:
    """The set that TFDS prepared or a library ships, which an .npz file can be written from."""
    looked = "nowhere on disk, as neither --data_dir nor TFDS_DATA_DIR is set"
    if data_dir:
        looked = f"in {files.as_path(data_dir) / name}.npz and {tfds.folder(name, data_dir)}"
    if data_dir and tfds.folder(name, data_dir).is_dir():
        try:
            return tfds.Prepared(name, data_dir)
        except ModuleNotFoundError as error:
            raise FileNotFoundError(
                f"data set {name!r} is in {tfds.folder(name, data_dir)}, but TensorFlow Datasets"
                " is not installed"
                f' ({error}). Either pip install -e ".[tensorflow]", or write {name}.npz on a machine that has it,'
                f" with {_command(name)}."
            ) from None
        except FileNotFoundError as error:
            looked += f" ({error})"
    if name in _SHIPPED:
        try:
            return Archive(npz.of_dataset(_SHIPPED[name]()), name)
        except ModuleNotFoundError as error:
            raise FileNotFoundError(
                f"data set {name!r} comes with scikit-learn, which is not installed ({error});"
                f" looked {looked}."
                f" Either pip install scikit-learn, or write {name}.npz on a machine that has it,"
                " with"
                f" {_command(name)}."
            ) from None
    raise FileNotFoundError(
        f"no data set {name!r}: looked {looked}, and no library ships it ({', '.join(_SHIPPED)}"
        " are shipped)."
        f" For TensorFlow Datasets prepare it with\n  {vtab.preparation(name, data_dir or 'DIR')}\n"
        "which needs the extra [tensorflow] of this package, and give"
        f" --data_dir={data_dir or 'DIR'}."
        f" Images of your own go into DIR/{name}.npz; README.md tells its fields."
    )


def _command(name: str) -> str:
    return f"python -m heteroscedastic.data.storage.store --name={name} --data_dir=DIR"


@user_errors.one_line()
def main() -> None:
    """Writes a data set as an .npz file, for machines without TensorFlow and scikit-learn."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="where the prepared set lies"
    )
    parser.add_argument("--out", help="where the file goes; --data_dir if not given")
    flags = parser.parse_args()
    out = flags.out or flags.data_dir
    if not out:
        parser.error("give --data_dir or --out.")
    path = files.as_path(out) / f"{flags.name}.npz"
    if path.exists():
        raise SystemExit(f"{path} is there already; remove it to write it again.")
    source = _source(flags.name, flags.data_dir)
    arrays = (
        npz.of_images(source)
        if isinstance(source, tfds.Prepared)
        else npz.of_dataset(_chosen(source))
    )
    files.write_arrays(path, arrays)
    print(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
