"""The images of examples, for people: of a data set of features, those that it was made from."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped, UInt8

from heteroscedastic import files
from heteroscedastic.data import split_spec
from heteroscedastic.data.dataset import StoredDataset
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import encoded, npz, store


def pictures(
    data: Mapping[str, Any],
    data_dir: str | None,
    split: str,
    ids: Int[np.ndarray, "n"],
    inputs: Shaped[np.ndarray, "n ..."],
) -> Shaped[np.ndarray, "n ..."]:
    """The inputs if they are images, else the images of the same examples if they are at hand.

    The images of features are the encoded images of the same file, or those of the data set that
    the description of `runs/embed.py` beside the file names.

    Args:
      data: section of a config.
      data_dir: directory of the data sets.
      split: of the run; a split that is held out has the images of "train".
      ids: of the examples, in the stored split.
      inputs: of the examples.

    Returns:
      uint8 images [n, h, w, c], or the inputs if there are none.
    """
    if inputs.dtype == np.uint8 or not data_dir or not len(ids):
        return inputs
    splits = data.get("splits") or {}
    entry = splits.get(split, split)
    if split == "valid" and split not in splits:  # held out of the training examples
        entry = splits.get("train", "train")
    try:
        images = _images(data["name"], data_dir, entry, ids)
    except (FileNotFoundError, ModuleNotFoundError, ValueError, KeyError):
        return inputs  # the original set is elsewhere, or was changed
    return inputs if images is None else images


def _images(
    name: str, data_dir: str, entry: Any, ids: Int[np.ndarray, "n"]
) -> UInt8[np.ndarray, "n h w c"] | None:
    features = store.stored_dataset(name, data_dir)
    expression = entry["split"] if isinstance(entry, Mapping) else entry
    split = split_spec.parse(expression, features.sizes).split
    positions = _positions(features, split, ids)
    if isinstance(features, npz.Archive) and (own := features.encoded_images(split)) is not None:
        chosen = [own[i] for i in positions]
        return encoded.decode(chosen, features.num_channels, features.where)
    description = files.as_path(data_dir) / f"{name}.json"
    if not description.exists():
        return None
    recipe = files.read_json(description)
    original = store.stored_dataset(recipe["data"], data_dir)
    if dict(original.sizes) != recipe["num_examples"]:
        return None
    part = original.read(Slice(split, 0, original.sizes[split]))
    rows = _rows(part.ids, ids)
    if isinstance(part.images, list):
        chosen = [part.images[i] for i in rows]
        return encoded.decode(chosen, original.num_channels, original.where, recipe["size"])
    return part.images[rows]


def _positions(stored: StoredDataset, split: str, ids: Int[np.ndarray, "n"]) -> list[int]:
    return _rows(stored.read(Slice(split, 0, stored.sizes[split])).ids, ids)


def _rows(stored_ids: Int[np.ndarray, "m"], ids: Int[np.ndarray, "n"]) -> list[int]:
    row_of = {example: row for row, example in enumerate(stored_ids.tolist())}
    return [row_of[example] for example in ids.tolist()]
