"""A data set in memory: curated, split, described."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from heteroscedastic import curation
from heteroscedastic.data.split_spec import Slice


class Split(NamedTuple):
    """Examples of one split, in numpy.

    Of `extras` two names have a meaning here: `clean_labels`, where labels are known to be noisy
    copies of them, and `groups`, whole numbers from 0 that tell which examples share something
    (a photograph, a patient) and may not be held out from each other.
    """

    inputs: UInt8[np.ndarray, "n h w c"]
    labels: (
        Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]
    )  # lists are padded with -1, see checks.labels
    ids: Int[np.ndarray, "n"]  # positions in the stored split
    extras: dict[
        str, Shaped[np.ndarray, "n ..."]
    ] = {}  # more by example; replaced, never written into

    def take(self, rows: Int[np.ndarray, "kept"]) -> "Split":
        """The examples at these places."""
        return jax.tree.map(lambda x: x[rows], self)

    def with_int32(self) -> "Split":
        """The split with whole numbers as the device takes them."""
        extras = {
            n: x.astype(np.int32) if np.issubdtype(x.dtype, np.integer) else x
            for n, x in self.extras.items()
        }
        return Split(self.inputs, self.labels.astype(np.int32), self.ids.astype(np.int32), extras)


class Dataset(NamedTuple):
    """Splits by name, and what the classes are called."""

    splits: dict[str, Split]
    class_names: tuple[str, ...]


def curate(dataset: Dataset, seed: int, chain: Sequence[Callable]) -> Dataset:
    """The data set with its training split curated."""
    if "train" not in dataset.splits:
        raise ValueError(f"the data set has no split 'train', only {sorted(dataset.splits)}.")
    if not chain:
        return dataset
    train = dataset.splits["train"]
    ids, labels = train.ids, train.labels
    made = Counter()
    for link in chain:
        # The same function twice is not the same noise twice; the order of different ones matters
        # not.
        name = getattr(link, "func", link).__name__
        try:
            ids, labels = link(seed + (made[name] << 32), ids, labels, len(dataset.class_names))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        made[name] += 1
    rows = np.argsort(train.ids)[np.searchsorted(np.sort(train.ids), ids)]
    curated = train.take(rows)._replace(labels=labels, ids=ids)
    return dataset._replace(splits={**dataset.splits, "train": curated})


def hold_out(dataset: Dataset, seed: int, fraction: float) -> Dataset:
    """The data set with a split "valid" taken out of train, with the labels that train has.

    Where train has `groups`, it is this fraction of them that is held out, each as a whole.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise ValueError(f"validation_fraction is {fraction!r}, but must be in [0, 1).")
    if fraction == 0:
        return dataset
    if "valid" in dataset.splits:
        raise ValueError(
            f"validation_fraction is {fraction}, but the data set has a split 'valid' of its own;"
            " set it to 0."
        )
    train = dataset.splits["train"]
    grouped = "groups" in train.extras
    of_example = train.extras["groups"] if grouped else train.ids
    units = np.unique(of_example)
    num_valid = round(fraction * len(units))
    if not 0 < num_valid < len(units):
        what, found = (
            "groups of training examples" if grouped else "training examples",
            "none" if num_valid == 0 else "all",
        )
        raise ValueError(
            f"validation_fraction {fraction} of {len(units)} {what} is {found} of them."
        )
    order = np.argsort(curation.uniforms(seed, "validation", units), kind="stable")
    held_out = np.isin(of_example, units[order[:num_valid]])
    parts = {
        "train": train.take(np.flatnonzero(~held_out)),
        "valid": train.take(np.flatnonzero(held_out)),
    }
    return dataset._replace(splits={**dataset.splits, **parts})


def description(dataset: Dataset, stored: Dataset) -> dict[str, Any]:
    """What a run records of its data: class names, counts, a fingerprint, the known label noise,
    what curation changed.

    Args:
      dataset: as the run sees it.
      stored: before curation; `label_noise` counts (clean label, label that training sees) for each
        pair of classes that occurs, where examples have one label. Clean are the `clean_labels`
        of `extras`, or else the stored labels.
    """
    digest = hashlib.sha256()
    for name, split in sorted(dataset.splits.items()):
        named = [(name, x) for x in split[:3]] + [
            (f"{name} {n}", x) for n, x in sorted(split.extras.items())
        ]
        for told_as, array in named:
            digest.update(f"{told_as} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array))
    told = {
        "class_names": list(dataset.class_names),
        "num_examples": {name: len(split.ids) for name, split in dataset.splits.items()},
        "fingerprint": hashlib.sha256(
            json.dumps([digest.hexdigest(), dataset.class_names]).encode()
        ).hexdigest(),
        # without class names: the fingerprint of runs of earlier versions
        "examples_fingerprint": digest.hexdigest(),
    }
    labels = dataset.splits["train"].labels
    if labels.ndim == 1:
        told["label_noise"] = label_noise(clean_labels(dataset, stored, "train"), labels)
    of_train = {
        name: split
        for name, split in dataset.splits.items()
        if name == "train" or name not in stored.splits
    }
    return told | curation_changes(stored.splits["train"], of_train)


def label_noise(clean: Int[np.ndarray, "n"], labels: Int[np.ndarray, "n"]) -> list[list[int]]:
    """(clean label, label that training sees, how often) for each pair of classes that occurs.

    An example whose clean label is -1, which says that nobody knows it, counts in no pair.
    """
    known = clean >= 0
    pairs, counts = np.unique(np.stack([clean[known], labels[known]]), axis=1, return_counts=True)
    return [[int(a), int(b), int(n)] for (a, b), n in zip(pairs.T, counts)]


def class_counts(
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"], num_classes: int
) -> Float[np.ndarray, "k"]:
    """How many examples have each class; a class that a list names twice counts once."""
    rows = np.sort(labels.reshape(len(labels), -1), axis=1)
    counts = rows >= 0
    counts[:, 1:] &= rows[:, 1:] != rows[:, :-1]
    return np.bincount(rows[counts], minlength=num_classes).astype(np.float32)


def curation_changes(stored: Split, curated: Mapping[str, Split]) -> dict[str, Any]:
    """`curation`, for the record of a run's data: what it changed, or nothing if it changed
    nothing.

    Args:
      stored: the training examples before curation.
      curated: the splits that they became, train and what was held out of it.

    Returns:
      By split, how many of its examples have other labels than before; and how many examples of
      `stored` are in none of them.
    """
    order = np.argsort(stored.ids)
    changed = {}
    for name, split in curated.items():
        before = stored.labels[order[np.searchsorted(stored.ids, split.ids, sorter=order)]]
        changed[name] = int(
            (_as_sets(before, split.labels) != _as_sets(split.labels, before)).any(axis=1).sum()
        )
    dropped = len(stored.ids) - sum(len(split.ids) for split in curated.values())
    if not dropped and not any(changed.values()):
        return {}
    return {"curation": {"changed": changed, "dropped": dropped}}


def curation_lines(description: Mapping[str, Any]) -> list[str]:
    """What the record of a run's data says of curation, for its log; nothing where curation changed
    nothing.
    """
    found, lines = description.get("curation"), []
    if found and any(found["changed"].values()):
        what = "labels" if "label_noise" in description else "lists of labels"
        counts = [
            f"{n:,} of {description['num_examples'][split]:,} {what}"
            for split, n in found["changed"].items()
        ]
        names = [f" of split {split!r}" if len(counts) > 1 else "" for split in found["changed"]]
        lines.append("curation changed " + " and ".join(a + b for a, b in zip(counts, names)) + ".")
    if found and found["dropped"]:
        left = sum(description["num_examples"][split] for split in found["changed"])
        lines.append(
            f"curation dropped {found['dropped']:,} of {left + found['dropped']:,} training"
            " examples."
        )
    return lines


def _as_sets(labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Labels as rising rows, as wide as those or the others are."""
    rows, theirs = (x.reshape(len(x), -1) for x in (labels, others))
    missing = max(0, theirs.shape[1] - rows.shape[1])
    return np.sort(np.pad(rows, ((0, 0), (0, missing)), constant_values=-1), axis=1)


def clean_labels(
    dataset: Dataset, stored: Dataset, split: str
) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
    """The labels of a split's examples before curation, where known those they are noisy copies of.

    Args:
      dataset: as the run sees it.
      stored: before curation.
      split: of `dataset`; one that was held out comes from "train".
    """
    ids = dataset.splits[split].ids
    before = stored.splits[split if split in stored.splits else "train"]
    rows = np.argsort(before.ids)[np.searchsorted(np.sort(before.ids), ids)]
    return before.extras.get("clean_labels", before.labels)[rows]


class Part(NamedTuple):
    """Examples of one slice of a stored split."""

    images: UInt8[np.ndarray, "n h w c"] | list[bytes]  # pixels, or images as files hold them
    fields: dict[str, Shaped[np.ndarray, "n ..."]]  # "label", and whatever else is known by example
    ids: Int[np.ndarray, "n"]  # positions in the stored split


@runtime_checkable
class Stored(Protocol):
    """What can be read from."""

    where: str  # for errors
    class_names: tuple[str, ...]
    sizes: dict[str, int]  # examples of every stored split
    num_channels: int  # of images that are not decoded

    def read(self, part: Slice) -> Part:
        """The examples of a slice, in order."""
        ...
