"""Data sets as .npz files.

A file has `class_names` and, for every split, these arrays:

    SPLIT_inputs    uint8 [n, h, w, c], or features, float16 or float32 [n, d] or [n, t, d], or else
    SPLIT_encoded   uint8 [bytes], the encoded images (JPEG, PNG) one after the other, and
    SPLIT_offsets   integers [n + 1], the start of each image and the end of the last one;
                    beside features they are the images that analyses show
    SPLIT_labels    integers [n], or lists [n, m] padded with -1
    SPLIT_ids       integers [n]; optional, 0 to n - 1 by default
    SPLIT_NAME      a further field by example; optional

`num_channels` is the number of channels of encoded images; it defaults to 3.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Shaped

from heteroscedastic import files
from heteroscedastic.data import checks
from heteroscedastic.data.dataset import Dataset, Part, StoredDataset
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import encoded

_IMAGES = ("inputs", "encoded")


class Archive:
    """The data set of an .npz file; a StoredDataset."""

    box_paths = ()  # the boxes of a file are always those of its arrays SPLIT_boxes

    def __init__(self, arrays: Mapping[str, Shaped[np.ndarray, "..."]], where: str):
        """Assigns the arrays to splits.

        Raises:
          ValueError: an array is missing, or its length differs from the others.
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
            names = ", ".join(sorted(missing)) or "SPLIT_inputs or SPLIT_encoded of any split"
            raise ValueError(f"{where} has no {names}; its arrays are {sorted(arrays)}.")
        self.where = where
        self.class_names = _names(arrays["class_names"], where)
        checks.class_names(self.class_names, where)
        self.num_channels = int(arrays.get("num_channels", 3))
        self._arrays_by_split = {split: {} for split in kinds}
        for name in arrays:  # the split of "train_x_labels" is "train_x" if it exists, else "train"
            owners = [split for split in kinds if name.startswith(f"{split}_")]
            if owners:
                split = max(owners, key=len)
                self._arrays_by_split[split][name[len(split) + 1 :]] = arrays[name]
        self.sizes = {}
        for split, fields in self._arrays_by_split.items():
            if not fields["labels"].ndim:
                raise ValueError(
                    f"{where}: {split}_labels must be integers [n] or [n, m], but are a scalar."
                )
            self.sizes[split] = len(fields["labels"])
            for field in set(fields) - {"encoded"}:
                array = fields[field]
                length = array.shape[0] - (field == "offsets") if array.ndim else 0
                if length != self.sizes[split]:
                    raise ValueError(
                        f"{where}: {split} has {self.sizes[split]} labels, but {length} {field}."
                    )

    def read(self, part: Slice) -> Part:
        """The examples of a slice, in order."""
        rows = slice(part.start, part.stop)
        arrays = dict(self._arrays_by_split[part.split])
        ids = arrays.pop("ids", np.arange(self.sizes[part.split]))[rows]
        images = arrays.pop("inputs", None)
        if images is None:
            images = self.encoded_images(part.split)
        images = images[rows]
        for name in ("encoded", "offsets"):
            arrays.pop(name, None)
        fields = arrays | {"label": arrays.pop("labels")}
        return Part(images, {name: values[rows] for name, values in fields.items()}, ids)

    def encoded_images(self, split: str) -> list[bytes] | None:
        """The encoded images of a split, if it has any.

        Raises:
          ValueError: the offsets are damaged.
        """
        arrays = self._arrays_by_split[split]
        if "encoded" not in arrays:
            return None
        try:
            return encoded.unpack(arrays["encoded"], arrays["offsets"])
        except ValueError as error:
            raise ValueError(f"{self.where}: {split}: {error}") from None


def _names(names: np.ndarray, where: str) -> tuple[str, ...]:
    """Class names as strings; integers are converted.

    Raises:
      ValueError: the array does not hold names.
    """
    if names.ndim != 1 or names.dtype.kind not in "USiu":
        raise ValueError(
            f"{where}: class_names must be strings [k], but are {names.dtype} {names.shape}."
        )
    try:
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: class_names are not valid UTF-8 ({error}).") from None


def read(path: files.Path) -> Archive:
    """Reads an .npz file.

    Raises:
      ValueError: the file is damaged, or an array is missing.
    """
    try:
        arrays = files.read_arrays(path)
    except Exception as error:  # raised by the zip, zlib, ast or tokenize module, or files
        raise ValueError(
            f"{path} cannot be read as an .npz file ({error}); write it again."
        ) from None
    return Archive(arrays, str(path))


def arrays_of_dataset(data: Dataset) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays of a data set in memory, by name."""
    arrays = {"class_names": np.array(data.class_names)}
    for name, split in data.splits.items():
        fields = {"inputs": split.inputs, "labels": split.labels, "ids": split.ids} | split.extras
        arrays |= {f"{name}_{field}": array for field, array in fields.items()}
    return arrays


def arrays_of_encoded(stored: StoredDataset) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays of a stored data set, by name; images stay encoded."""
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
