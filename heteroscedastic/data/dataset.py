"""Data sets in memory: curation, validation splits and descriptions."""

import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from heteroscedastic.curation import draws
from heteroscedastic.data.split_spec import Slice

# Curation functions that draw the random numbers of another one.
_SAME_DRAWS = {"confuse_random_pairs": "confuse_pairs"}


class Split(NamedTuple):
    """Examples of one split, in NumPy.

    Three names of `extras` have a meaning here: `clean_labels`, the labels before a known label
    noise; `boxes`, floats [n, m, 4] (see boxes.py); and `groups`, integers >= 0. Examples of one
    group share something, such as a photograph or a patient, and are held out together.
    """

    # Images, or features: one vector, or one for each token.
    inputs: UInt8[np.ndarray, "n h w c"] | Float[np.ndarray, "n d"] | Float[np.ndarray, "n t d"]
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]  # lists are padded; see checks.labels
    ids: Int[np.ndarray, "n"]  # positions in the stored split
    # Further fields by example; the default is shared, so it is replaced and never mutated.
    extras: dict[str, Shaped[np.ndarray, "n ..."]] = {}

    def take(self, rows: Int[np.ndarray, "rows"]) -> "Split":
        """The examples of these rows."""
        return jax.tree.map(lambda x: x[rows], self)

    def with_int32(self) -> "Split":
        """The split with all integers except pixels as int32, the type on the device."""
        extras = {
            n: x.astype(np.int32) if np.issubdtype(x.dtype, np.integer) else x
            for n, x in self.extras.items()
        }
        return Split(self.inputs, self.labels.astype(np.int32), self.ids.astype(np.int32), extras)


class Dataset(NamedTuple):
    """Splits by name, and the class names."""

    splits: dict[str, Split]
    class_names: tuple[str, ...]


def curate(dataset: Dataset, seed: int, chain: Sequence[Callable]) -> Dataset:
    """Applies a chain of curation functions to the training split."""
    if "train" not in dataset.splits:
        raise ValueError(
            f"the data set has no split 'train'; its splits are {sorted(dataset.splits)}."
        )
    if not chain:
        return dataset
    train = dataset.splits["train"]
    ids, labels = train.ids, train.labels
    num_calls = Counter()
    for link in chain:
        # The seed depends on the number of earlier calls of the same function, so that calling it
        # twice draws different noise, and the order of functions with other draws does not matter.
        name = getattr(link, "func", link).__name__
        stream = _SAME_DRAWS.get(name, name)
        link_seed = seed + (num_calls[stream] << 32)
        depends_on_images = "images" in inspect.signature(link).parameters
        images = {"images": train.inputs[_rows(train.ids, ids)]} if depends_on_images else {}
        try:
            ids, labels = link(link_seed, ids, labels, len(dataset.class_names), **images)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        num_calls[stream] += 1
    curated = train.take(_rows(train.ids, ids))._replace(labels=labels, ids=ids)
    return dataset._replace(splits={**dataset.splits, "train": curated})


def _rows(all_ids: Int[np.ndarray, "n"], ids: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
    """The rows of these ids."""
    order = np.argsort(all_ids)
    return order[np.searchsorted(all_ids[order], ids)]


def standardized(dataset: Dataset) -> Dataset:
    """Features with the mean of each training feature subtracted, divided by its deviation.

    Mean and standard deviation are over the examples, and tokens, of split "train". A feature that
    is constant there is only shifted. The result is float32.

    Raises:
      ValueError: the inputs are images.
    """
    train = dataset.splits["train"].inputs
    if train.ndim == 4:
        raise ValueError(
            "standardize is True, but the inputs are images; set it to False, and scale them with"
            " value_range in the chains of config.data."
        )
    mean, scale = feature_statistics(train)
    return dataset._replace(
        splits={
            name: split._replace(inputs=scaled_features(split.inputs, mean, scale))
            for name, split in dataset.splits.items()
        }
    )


def feature_statistics(
    inputs: Float[np.ndarray, "n *t d"],
) -> tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d"]]:
    """Mean and standard deviation of each feature, in float64; 1 for that of a constant feature.

    A feature is constant if its deviation, relative to its mean, is within the rounding of float32
    values, or of sums in float64 for other types.
    """
    rows = inputs.reshape(-1, inputs.shape[-1])
    mean = sum(np.sum(part, axis=0, dtype=np.float64) for part in _parts(rows)) / len(rows)
    squares = sum(np.sum((part - mean) ** 2, axis=0) for part in _parts(rows))
    deviation = np.sqrt(squares / len(rows))
    # Sums of 512 rows, and their sum, round: of 3 million examples by 400 times eps.
    is_single = inputs.dtype in (np.float16, np.float32)
    rounding = 1e-7 if is_single else 4096 * np.finfo(np.float64).eps
    return mean, np.where(deviation <= rounding * np.abs(mean), 1.0, deviation)


def scaled_features(
    inputs: Float[np.ndarray, "n *t d"],
    mean: Float[np.ndarray, "d"],
    scale: Float[np.ndarray, "d"],
) -> Float[np.ndarray, "n *t d"]:
    """(inputs - mean) / scale in float64, rounded to float32."""
    scaled = np.empty(inputs.shape, np.float32)
    for part, result in zip(_parts(inputs), _parts(scaled)):
        result[:] = (part - mean) / scale
    return scaled


def _parts(inputs):
    """Views of a few rows each, whose float64 copies stay in the cache of the processor."""
    return (inputs[start : start + 512] for start in range(0, len(inputs), 512))


def hold_out(dataset: Dataset, seed: int, fraction: float) -> Dataset:
    """Moves a fraction of the training examples, with their labels, to a split "valid".

    If train has `groups`, it moves this fraction of the groups instead.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise ValueError(f"validation_fraction is {fraction!r}, but must be in [0, 1).")
    if fraction == 0:
        return dataset
    if "valid" in dataset.splits:
        raise ValueError(
            f"validation_fraction is {fraction}, but the data set already has a split 'valid'; set"
            " validation_fraction to 0."
        )
    train = dataset.splits["train"]
    has_groups = "groups" in train.extras
    unit_of_example = train.extras["groups"] if has_groups else train.ids
    units = np.unique(unit_of_example)
    num_valid = round(fraction * len(units))
    if not 0 < num_valid < len(units):
        unit_name = "groups of training examples" if has_groups else "training examples"
        amount = "none" if num_valid == 0 else "all"
        raise ValueError(
            f"validation_fraction {fraction} of {len(units)} {unit_name} is {amount} of them."
        )
    order = np.argsort(draws.uniforms(seed, "validation", units), kind="stable")
    is_valid = np.isin(unit_of_example, units[order[:num_valid]])
    parts = {
        "train": train.take(np.flatnonzero(~is_valid)),
        "valid": train.take(np.flatnonzero(is_valid)),
    }
    return dataset._replace(splits={**dataset.splits, **parts})


def description(dataset: Dataset, stored: Dataset) -> dict[str, Any]:
    """Describes the data of a run, for dataset.json.

    It holds class names, the number of examples, the training examples of each class, fingerprints,
    the known label noise and the changes of curation. `label_noise` is present if examples have one
    label; see `label_noise` and `clean_labels`.

    Args:
      dataset: the data set after curation.
      stored: the data set before curation.
    """
    digest = hashlib.sha256()
    for name, split in sorted(dataset.splits.items()):
        arrays = [(name, x) for x in split[:3]]
        arrays += [(f"{name} {field}", x) for field, x in sorted(split.extras.items())]
        for array_name, array in arrays:
            digest.update(f"{array_name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array))
    description = {
        "class_names": list(dataset.class_names),
        "num_examples": {name: len(split.ids) for name, split in dataset.splits.items()},
        "fingerprint": hashlib.sha256(
            json.dumps([digest.hexdigest(), dataset.class_names]).encode()
        ).hexdigest(),
        # Excludes class names; earlier versions compared runs by this fingerprint.
        "examples_fingerprint": digest.hexdigest(),
    }
    labels = dataset.splits["train"].labels
    counts = class_counts(labels, len(dataset.class_names))
    description["class_counts"] = counts.astype(int).tolist()
    if labels.ndim == 1:
        description["label_noise"] = label_noise(clean_labels(dataset, stored, "train"), labels)
    curated = {
        name: split
        for name, split in dataset.splits.items()
        if name == "train" or name not in stored.splits
    }
    return description | curation_changes(stored.splits["train"], curated)


def label_noise(clean: Int[np.ndarray, "n"], labels: Int[np.ndarray, "n"]) -> list[list[int]]:
    """(clean label, training label, number of examples) for each pair of classes that occurs.

    Examples whose clean label is unknown (-1) are ignored.
    """
    known = clean >= 0
    pairs, counts = np.unique(np.stack([clean[known], labels[known]]), axis=1, return_counts=True)
    return [[int(a), int(b), int(n)] for (a, b), n in zip(pairs.T, counts)]


def class_counts(
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"], num_classes: int
) -> Float[np.ndarray, "k"]:
    """Number of examples of each class; a class that occurs twice in a list counts once."""
    rows = np.sort(labels.reshape(len(labels), -1), axis=1)
    counts = rows >= 0
    counts[:, 1:] &= rows[:, 1:] != rows[:, :-1]
    return np.bincount(rows[counts], minlength=num_classes).astype(np.float32)


def curation_changes(stored: Split, curated: Mapping[str, Split]) -> dict[str, Any]:
    """Entry `curation` of the description of a run's data.

    Args:
      stored: the training examples before curation.
      curated: the splits made of them: train, and the split held out of it.

    Returns:
      `changed`, the number of examples of each split whose labels changed, and `dropped`, the
      number of examples of `stored` that are in no split. Empty if curation changed nothing.
    """
    order = np.argsort(stored.ids)
    changed = {}
    for name, split in curated.items():
        before = stored.labels[order[np.searchsorted(stored.ids, split.ids, sorter=order)]]
        changed[name] = int(
            (_sorted_rows(before, split.labels) != _sorted_rows(split.labels, before))
            .any(axis=1)
            .sum()
        )
    dropped = len(stored.ids) - sum(len(split.ids) for split in curated.values())
    if not dropped and not any(changed.values()):
        return {}
    return {"curation": {"changed": changed, "dropped": dropped}}


def num_degenerate_boxes(split: Split) -> int:
    """Number of labelled boxes without an area; 0 if the labels are not one for each box.

    Loading sets such boxes to zeros, as padding, but keeps their labels.
    """
    boxes, labels = split.extras["boxes"], split.labels
    if boxes.shape[:2] != labels.shape:
        return 0
    return int(np.sum((labels >= 0) & ~boxes.any(axis=-1)))


def change_lines(description: Mapping[str, Any]) -> list[str]:
    """Log lines on the changes of curation and on boxes that are dropped; none if there are none.

    Args:
      description: the description of a run's data.
    """
    changes, lines = description.get("curation"), []
    if number := description.get("degenerate_boxes"):
        lines.append(f"{number:,} boxes of training examples have no area and are dropped.")
    if not changes:
        return lines
    changed, dropped = changes["changed"], changes["dropped"]
    num_examples = description["num_examples"]
    if any(changed.values()):
        unit = "labels" if "label_noise" in description else "lists of labels"
        counts = [
            f"{count:,} of {num_examples[split]:,} {unit}"
            + (f" of split {split!r}" if len(changed) > 1 else "")
            for split, count in changed.items()
        ]
        lines.append(f"curation changed {' and '.join(counts)}.")
    if dropped:
        total = sum(num_examples[split] for split in changed) + dropped
        lines.append(f"curation dropped {dropped:,} of {total:,} training examples.")
    return lines


def _sorted_rows(labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Labels as sorted rows [n, m], padded to the width of `others` if these are wider."""
    rows, other_rows = (x.reshape(len(x), -1) for x in (labels, others))
    padding = max(0, other_rows.shape[1] - rows.shape[1])
    return np.sort(np.pad(rows, ((0, 0), (0, padding)), constant_values=-1), axis=1)


def clean_labels(
    dataset: Dataset, stored: Dataset, split: str
) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
    """The clean labels of a split: `clean_labels` of `extras`, or else the stored labels.

    Args:
      dataset: the data set after curation.
      stored: the data set before curation.
      split: a split of `dataset`; a held-out split comes from "train" of `stored`.
    """
    ids = dataset.splits[split].ids
    before = stored.splits[split if split in stored.splits else "train"]
    rows = np.argsort(before.ids)[np.searchsorted(np.sort(before.ids), ids)]
    return before.extras.get("clean_labels", before.labels)[rows]


class Part(NamedTuple):
    """Examples of one slice of a stored split."""

    images: Shaped[np.ndarray, "n ..."] | list[bytes]  # pixels or features; or encoded images
    fields: dict[str, Shaped[np.ndarray, "n ..."]]  # "label", and further fields by example
    ids: Int[np.ndarray, "n"]  # positions in the stored split


@runtime_checkable
class StoredDataset(Protocol):
    """A data set on disk."""

    where: str  # name and location, for errors
    class_names: tuple[str, ...]
    sizes: dict[str, int]  # number of examples of every stored split
    num_channels: int  # channels of encoded images
    box_paths: Sequence[str]  # of the fields of boxes; each may choose which are `boxes`

    def read(self, part: Slice) -> Part:
        """The examples of a slice, in order."""
        ...
