"""Which examples of which prepared set a stream reads for each split, with which labels."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from jaxtyping import Float, Int

from heteroscedastic.data import checks, dataset, split_spec
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.streaming.records import Records, padded

Labels = Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]


class Source(NamedTuple):
    """The examples of one split."""

    records: Records
    part: Slice  # of a stored split, that holds all of them
    label: str  # field
    kept: Int[np.ndarray, "n"]  # rising positions in the stored split
    labels: Labels | None = None  # where they are others than the stored ones

    @property
    def where(self) -> str:
        return f"{self.records.where}: {self.part.split}"

    @property
    def is_list(self) -> bool:
        return self.records.is_list(self.label)

    @property
    def mask(self) -> np.ndarray | None:
        """Which positions of the stored split are kept; None where all from the first to the last
        are.
        """
        if self.kept[-1] - self.kept[0] == len(self.kept) - 1:
            return None
        mask = np.zeros(self.records.sizes[self.part.split], bool)
        mask[self.kept] = True
        return mask

    def parser(self, max_labels: int) -> Callable:
        """(positions [n], serialized examples [n]) -> encoded images, labels."""
        if self.labels is None:
            return lambda positions, records: self.records.parsed(records, self.label, max_labels)
        # Made here, outside of any graph, where they would be constants.
        kept, labels = tf.constant(self.kept, tf.int64), tf.constant(self.labels, tf.int32)

        def parsed(positions, records):
            images, _ = self.records.parsed(records, self.label, max_labels)
            return images, padded(
                tf.cast(tf.gather(labels, tf.searchsorted(kept, positions)), tf.int64), max_labels
            )

        return parsed

    def read(self, label: str, max_labels: int) -> Labels:
        """The stored labels of a field; where it is not the one that is learned from, -1 may say
        that nobody knows.
        """
        read = self.records.labels(self.part, label, max_labels, may_be_unknown=label != self.label)
        return read[self.kept - self.part.start]

    def clean_labels(self, max_labels: int) -> Labels:
        """The labels before curation, or those that the field's are noisy copies of."""
        return self.read(_usual(self.records, self.label), max_labels)


class Chosen(NamedTuple):
    """What a config chooses of prepared sets."""

    sources: dict[str, Source]  # by split
    class_names: tuple[str, ...]
    class_counts: Float[np.ndarray, "k"]  # labels in training; 0 where they were not read
    description: dict[str, Any]


def choose(
    name: str,
    data_dir: str | None,
    curate: Callable[[Dataset], Dataset],
    *,
    reads_labels: bool,
    label: str = "label",
    splits: Mapping[str, str | Mapping[str, str]] | None = None,
    max_classes: int | None = None,
    max_examples: int | None = None,
    max_labels: int = 16,
) -> Chosen:
    """The examples of every split; labels are read where the choice depends on them, images never.

    Args:
      name: as TFDS says it.
      data_dir: where prepared sets lie.
      curate: data set -> data set, of which ids and labels count; it holds no images.
      reads_labels: whether `curate` looks at labels, or they are to be counted.
      label: field that split "train" learns from; others keep "label" if it is of the same kind.
      splits: our names of splits to slices of stored ones, or to dicts of `split`, and of `name`
        and `label` for those of another set; every stored split if there are none.
      max_classes: only examples of the first so many classes.
      max_examples: only the first so many examples of every split, counted before that.
      max_labels: the longest list of labels of an example.

    Raises:
      FileNotFoundError: a set is not prepared.
      ValueError: a set is damaged, or not what was asked for.
    """
    checks.limit("max_classes", max_classes)
    checks.limit("max_examples", max_examples)
    opened = {name: Records(name, data_dir)}
    sources = {}
    for split, told in (splits or {split: split for split in opened[name].sizes}).items():
        told = _entry(split, told)
        of = told.get("name", name)
        records = opened.setdefault(of, opened.get(of) or Records(of, data_dir))
        field = told.get("label", label if split == "train" else _usual(records, label))
        part = split_spec.parse(told["split"], records.sizes)
        if max_examples:
            part = part._replace(stop=min(part.stop, part.start + max_examples))
        kept = np.arange(part.start, part.stop, dtype=np.int32)
        is_cut = max_classes is not None and max_classes < len(records.class_names(field))
        if is_cut:
            fields = sorted({field, _usual(records, field)})
            read = [records.labels(part, n, max_labels, may_be_unknown=n != field) for n in fields]
            kept = kept[
                np.all([(x.reshape(len(kept), -1) < max_classes).all(axis=1) for x in read], axis=0)
            ]
        if not len(kept):
            raise ValueError(f"split {split!r} has no example of the first {max_classes} classes.")
        sources[split] = Source(records, part, field, kept)
    if "train" not in sources:
        raise ValueError(f"the data set has no split 'train', only {sorted(sources)}.")
    class_names = _class_names(sources)[:max_classes]
    train = sources["train"]
    noisy = _usual(train.records, train.label) != train.label
    labels = train.read(train.label, max_labels) if reads_labels or noisy else None
    curated, changes = _curated(train, labels, set(sources), class_names, curate)
    sources |= curated
    told = {
        "class_names": list(class_names),
        "num_examples": {split: len(source.kept) for split, source in sources.items()},
        "fingerprint": _fingerprint(sources, class_names),
        **changes,
    }
    counts = np.zeros(len(class_names), np.float32)
    if labels is not None:
        train = sources["train"]
        seen = train.read(train.label, max_labels) if train.labels is None else train.labels
        counts = dataset.class_counts(seen, len(class_names))
        if seen.ndim == 1:
            told["label_noise"] = dataset.label_noise(train.clean_labels(max_labels), seen)
    return Chosen(sources, class_names, counts, told)


def _entry(split: str, told: Any) -> dict[str, str]:
    entry = {"split": told} if isinstance(told, str) else dict(told)
    if "split" not in entry or set(entry) - {"name", "split", "label"}:
        raise ValueError(
            f"splits.{split} is {told!r}, but must be a slice such as 'train[:50000]', or a dict"
            " of split, and of name"
            " and label where they are others."
        )
    return entry


def _usual(records: Records, label: str) -> str:
    """Field "label", where it tells the same of an example as this one: a class, or a list of
    them.
    """
    same = records.has("label") and records.is_list("label") == records.is_list(label)
    return (
        "label"
        if same and len(records.class_names("label")) == len(records.class_names(label))
        else label
    )


def _class_names(sources: Mapping[str, Source]) -> tuple[str, ...]:
    """Those of train, once the other splits have as many."""
    names = {split: source.records.class_names(source.label) for split, source in sources.items()}
    ours = names["train"]
    checks.class_names(ours, sources["train"].records.where)
    for split, theirs in names.items():
        if len(theirs) != len(ours):
            raise ValueError(f"split {split!r} has {len(theirs)} classes, but train {len(ours)}.")
        other = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
        if other:
            logging.warning(
                "%d classes of split %r are called otherwise than in train, as class %d: %r, not"
                " %r.",
                *(len(other), split, other[0], theirs[other[0]], ours[other[0]]),
            )
    return ours


def _curated(
    train: Source,
    labels: Labels | None,
    others: set[str],
    class_names: tuple[str, ...],
    curate: Callable,
) -> tuple[dict[str, Source], dict[str, Any]]:
    """The splits that come of train, and what curation changed; images take no part."""
    blank = np.zeros((len(train.kept), 1, 1, 0), np.uint8)
    known = np.zeros(len(train.kept), np.int32) if labels is None else labels
    stored = Split(blank, known, train.kept)
    made = curate(Dataset({"train": stored}, class_names))
    found = {}
    for split, (_, seen, ids, _) in made.splits.items():
        if split in others - {"train"}:
            raise ValueError(
                f"validation_fraction makes a split {split!r}, but splits has one; set it to 0."
            )
        if split == "train" and ids is train.kept and seen is known:  # neither curated nor held out
            found[split] = train
            continue
        rows = np.argsort(ids)
        source = train._replace(kept=ids[rows])
        before = known[np.searchsorted(train.kept, source.kept)]
        same = before.shape == seen.shape and np.array_equal(before, seen[rows])
        found[split] = source if same else source._replace(labels=seen[rows])
    return found, dataset.curation_changes(stored, made.splits)


def _fingerprint(sources: Mapping[str, Source], class_names: tuple[str, ...]) -> str:
    """Of names, versions, lengths of files and the examples chosen; contents are not read."""
    digest = hashlib.sha256(json.dumps(class_names).encode())
    for split, (records, part, label, kept, labels) in sorted(sources.items()):
        told = (split, records.full_name, part.split, label, records.files(part.split).lengths)
        digest.update(json.dumps(told).encode())
        for array in (kept, labels):
            if array is not None:
                if array.ndim == 2:  # how far lists are padded is of no matter
                    array = array[:, : np.flatnonzero((array >= 0).any(axis=0)).max(initial=-1) + 1]
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
