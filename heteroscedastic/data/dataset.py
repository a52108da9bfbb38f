"""A data set in memory: checked, curated, split, told in words."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int, Shaped, UInt8

from heteroscedastic import curation

_MOST_GROUPS = 10**7  # as the fate of a group follows from its number, and is drawn for all below it


class Split(NamedTuple):
    """Examples of one split, in numpy.

    Of `extras` two names have a meaning here: `clean_labels`, where labels are known to be noisy
    copies of them, and `groups`, whole numbers from 0 that tell which examples share something
    (a photograph, a patient) and may not be held out from each other.
    """

    inputs: UInt8[np.ndarray, "n h w c"]
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]  # lists are padded with -1
    ids: Int[np.ndarray, "n"]  # positions in the stored split
    extras: dict[str, Shaped[np.ndarray, "n ..."]] = {}  # more by example; replaced, never written into

    def take(self, rows: Int[np.ndarray, "kept"]) -> "Split":
        """The examples at these places."""
        return jax.tree.map(lambda x: x[rows], self)

    def with_int32(self) -> "Split":
        """The split with whole numbers as the device takes them."""
        extras = {n: x.astype(np.int32) if np.issubdtype(x.dtype, np.integer) else x for n, x in self.extras.items()}
        return Split(self.inputs, self.labels.astype(np.int32), self.ids.astype(np.int32), extras)


class Dataset(NamedTuple):
    """Splits by name, and what the classes are called."""

    splits: dict[str, Split]
    class_names: tuple[str, ...]


def check(dataset: Dataset, where: str) -> Dataset:
    """The data set itself, once its shapes, types and labels are sound."""
    num_classes = len(dataset.class_names)
    for name, (inputs, labels, ids, extras) in dataset.splits.items():
        if inputs.dtype != np.uint8 or inputs.ndim != 4:
            raise ValueError(
                f"{where}: {name}_inputs must be uint8 [n, h, w, c], but is {inputs.dtype} {inputs.shape}."
            )
        if labels.ndim not in (1, 2) or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"{where}: {name}_labels must be integers [n] or [n, m], but are {labels.dtype} {labels.shape}."
            )
        if not len(inputs) == len(labels) == len(ids) > 0:
            raise ValueError(f"{where}: {name} has {len(inputs)} inputs, {len(labels)} labels and {len(ids)} ids.")
        lowest = 0 if labels.ndim == 1 else -1
        bad = np.unique(labels[(labels < lowest) | (labels >= num_classes)])
        if bad.size:
            raise ValueError(
                f"{where}: {name}_labels hold {bad[:5].tolist()}, but the {num_classes} classes are"
                f" 0 to {num_classes - 1}" + (", padded with -1." if lowest else ".")
            )
        if len(np.unique(ids)) != len(ids) or ids.min() < 0 or ids.max() >= 2**31:
            raise ValueError(f"{where}: {name}_ids must be different numbers from 0 to 2**31 - 1.")
        for extra, values in extras.items():
            _check_extra(f"{where}: {name}_{extra}", extra, values, len(ids), num_classes)
    (first, one), *others = dataset.splits.items()
    for name, split in others:
        if split.inputs.shape[1:] != one.inputs.shape[1:]:
            raise ValueError(
                f"{where}: images of {first} are {one.inputs.shape[1:]}, but those of {name} {split.inputs.shape[1:]}."
            )
        if split.labels.ndim != one.labels.ndim:
            raise ValueError(f"{where}: of {first} and {name} one has a label an example and the other lists of them.")
    return dataset


def _check_extra(which: str, name: str, values: np.ndarray, num_examples: int, num_classes: int) -> None:
    if values.shape[:1] != (num_examples,):
        raise ValueError(f"{which} is {values.shape}, but there are {num_examples} examples.")
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{which} is {values.dtype}, but must hold numbers, as it goes to the device.")
    whole = values.dtype.kind in "iu"
    if whole and values.size and (values.min() < -(2**31) or values.max() >= 2**31):
        raise ValueError(f"{which} reaches from {values.min()} to {values.max()}, but must be within 32 bits.")
    if name == "groups" and (not whole or values.ndim != 1 or values.min() < 0 or values.max() >= _MOST_GROUPS):
        raise ValueError(
            f"{which} must be a whole number from 0 to {_MOST_GROUPS - 1} an example, but is {values.dtype}"
            f" {values.shape}; np.unique(groups, return_inverse=True)[1] makes such numbers of anything."
        )
    if name == "clean_labels" and (not whole or values.min() < -1 or values.max() >= num_classes):
        raise ValueError(f"{which} must be classes from 0 to {num_classes - 1}.")


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
        # The same function twice is not the same noise twice; the order of different ones matters not.
        name = getattr(link, "func", link).__name__
        ids, labels = link(seed + (made[name] << 32), ids, labels, len(dataset.class_names))
        made[name] += 1
    rows = np.argsort(train.ids)[np.searchsorted(np.sort(train.ids), ids)]
    curated = train.take(rows)._replace(labels=labels, ids=ids)
    return dataset._replace(splits={**dataset.splits, "train": curated})


def hold_out(dataset: Dataset, seed: int, fraction: float) -> Dataset:
    """The data set with a split "valid" taken out of train, with the labels that train has.

    Where train has `groups`, it is this fraction of them that is held out, each as a whole.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"validation_fraction is {fraction}, but must be in [0, 1).")
    if fraction == 0:
        return dataset
    if "valid" in dataset.splits:
        raise ValueError(
            f"validation_fraction is {fraction}, but the data set has a split 'valid' of its own; set it to 0."
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
        raise ValueError(f"validation_fraction {fraction} of {len(units)} {what} is {found} of them.")
    order = np.argsort(curation.uniforms(seed, "validation", units), kind="stable")
    held_out = np.isin(of_example, units[order[:num_valid]])
    parts = {"train": train.take(np.flatnonzero(~held_out)), "valid": train.take(np.flatnonzero(held_out))}
    return dataset._replace(splits={**dataset.splits, **parts})


def description(dataset: Dataset, stored: Dataset) -> dict[str, Any]:
    """What a run records of its data: class names, counts, a fingerprint, and the known label noise.

    Args:
      dataset: as the run sees it.
      stored: before curation; `label_noise` counts (clean label, label that training sees) for each
        pair of classes that occurs, where examples have one label. Clean are the `clean_labels`
        of `extras`, or else the stored labels.
    """
    digest = hashlib.sha256()
    for name, split in sorted(dataset.splits.items()):
        named = [(name, x) for x in split[:3]] + [(f"{name} {n}", x) for n, x in sorted(split.extras.items())]
        for told_as, array in named:
            digest.update(f"{told_as} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array))
    told = {
        "class_names": list(dataset.class_names),
        "num_examples": {name: len(split.ids) for name, split in dataset.splits.items()},
        "fingerprint": hashlib.sha256(json.dumps([digest.hexdigest(), dataset.class_names]).encode()).hexdigest(),
        "examples_fingerprint": digest.hexdigest(),  # without class names: the fingerprint of runs of earlier versions
    }
    labels = dataset.splits["train"].labels
    if labels.ndim == 1:
        told["label_noise"] = label_noise(clean_labels(dataset, stored, "train"), labels)
    return told


def label_noise(clean: Int[np.ndarray, "n"], labels: Int[np.ndarray, "n"]) -> list[list[int]]:
    """(clean label, label that training sees, how often) for each pair of classes that occurs."""
    pairs, counts = np.unique(np.stack([clean, labels]), axis=1, return_counts=True)
    return [[int(a), int(b), int(n)] for (a, b), n in zip(pairs.T, counts)]


def clean_labels(dataset: Dataset, stored: Dataset, split: str) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
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
