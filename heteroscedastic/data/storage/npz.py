"""Data sets as arrays by name, the form of an .npz file.

`class_names`, and of every split: SPLIT_inputs (pixels), or SPLIT_encoded and SPLIT_offsets (images
as files hold them, end to end); SPLIT_labels; SPLIT_ids, if they are not numbered from 0; and
SPLIT_NAME for anything else by example. `num_channels` is that of encoded images, 3 if absent.
"""

from collections.abc import Mapping

import numpy as np

from heteroscedastic import files
from heteroscedastic.data import checks
from heteroscedastic.data.dataset import Dataset, Part, Stored
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import encoded

_IMAGES = ("inputs", "encoded")


class Archive:
    """Arrays that can be read by slices."""

    def __init__(self, arrays: Mapping[str, np.ndarray], where: str):
        """Finds the splits.

        Raises:
          ValueError: an array is missing, or not as long as the others.
        """
        kinds = {
            name[: -len(kind) - 1]: kind
            for kind in _IMAGES
            for name in arrays
            if name.endswith(f"_{kind}")
        }
        missing = {"class_names", *(f"{split}_labels" for split in kinds)}
        missing |= {f"{split}_offsets" for split, kind in kinds.items() if kind == "encoded"}
        missing -= set(arrays)
        if not kinds or missing:
            absent = ", ".join(sorted(missing)) or "any SPLIT_inputs or SPLIT_encoded"
            raise ValueError(f"{where} lacks {absent}; it has {sorted(arrays)}.")
        self._arrays, self.where = arrays, where
        self.class_names = _names(arrays["class_names"], where)
        checks.class_names(self.class_names, where)
        self.num_channels = int(arrays.get("num_channels", 3))
        self._of_split = {split: {} for split in kinds}
        for name in arrays:  # of "train_x_labels", the split is "train_x" if there is one
            owners = [split for split in kinds if name.startswith(f"{split}_")]
            if owners:
                split = max(owners, key=len)
                self._of_split[split][name[len(split) + 1 :]] = arrays[name]
        self.sizes = {}
        for split, of in self._of_split.items():
            if not of["labels"].ndim:
                raise ValueError(
                    f"{where}: {split}_labels must be integers [n] or [n, m], but are one number."
                )
            self.sizes[split] = len(of["labels"])
            for field in set(of) - {"encoded"}:
                length = of[field].shape[0] - (field == "offsets") if of[field].ndim else 0
                if length != self.sizes[split]:
                    raise ValueError(
                        f"{where}: {split} has {self.sizes[split]} labels, but {length} {field}."
                    )

    def read(self, part: Slice) -> Part:
        """The examples of a slice, in order."""
        rows = slice(part.start, part.stop)
        arrays = dict(self._of_split[part.split])
        ids = arrays.pop("ids", np.arange(self.sizes[part.split]))[rows]
        if "encoded" in arrays:
            try:
                images = encoded.unpack(arrays.pop("encoded"), arrays.pop("offsets"))[rows]
            except ValueError as error:
                raise ValueError(f"{self.where}: {part.split}: {error}") from None
        else:
            images = arrays.pop("inputs")[rows]
        fields = arrays | {"label": arrays.pop("labels")}
        return Part(images, {name: values[rows] for name, values in fields.items()}, ids)


def _names(names: np.ndarray, where: str) -> tuple[str, ...]:
    """Class names as texts; numbers may be names too.

    Raises:
      ValueError: they are no list of names.
    """
    if names.ndim != 1 or names.dtype.kind not in "USiu":
        raise ValueError(
            f"{where}: class_names must be texts [k], but are {names.dtype} {names.shape}."
        )
    try:
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: class_names are bytes that are no UTF-8 ({error}).") from None


def read(path: files.Path) -> Archive:
    """An .npz file.

    Raises:
      ValueError: it is damaged, or lacks an array.
    """
    try:
        arrays = files.read_arrays(path)
    except (
        Exception
    ) as error:  # a damaged archive fails in the zip, zlib, ast or tokenize module, or here
        raise ValueError(f"{path} is no readable .npz file ({error}); write it again.") from None
    return Archive(arrays, str(path))


def of_dataset(data: Dataset) -> dict[str, np.ndarray]:
    """The arrays of a data set in memory."""
    arrays = {"class_names": np.array(data.class_names)}
    for name, split in data.splits.items():
        told = {"inputs": split.inputs, "labels": split.labels, "ids": split.ids} | split.extras
        arrays |= {f"{name}_{field}": array for field, array in told.items()}
    return arrays


def of_images(stored: Stored) -> dict[str, np.ndarray]:
    """The arrays of stored images that stay encoded, every split whole."""
    arrays = {
        "class_names": np.array(stored.class_names),
        "num_channels": np.array(stored.num_channels),
    }
    for name, size in stored.sizes.items():
        part = stored.read(Slice(name, 0, size))
        fields = {
            "labels" if field == "label" else field: values for field, values in part.fields.items()
        }
        fields["encoded"], fields["offsets"] = encoded.pack(part.images)
        arrays |= {f"{name}_{field}": array for field, array in fields.items()}
    return arrays
