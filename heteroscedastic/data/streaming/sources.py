"""The examples and labels that a stream reads for each split."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from jaxtyping import Bool, Float, Int

from heteroscedastic.data import checks, dataset, split_spec
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import fields
from heteroscedastic.data.storage.fields import Field
from heteroscedastic.data.streaming.records import Records, pad_labels

Labels = Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]


class Source(NamedTuple):
    """The examples of one split."""

    records: Records
    part: Slice  # of a stored split; contains all examples
    label: str  # field of the labels
    ids: Int[np.ndarray, "n"]  # increasing positions in the stored split
    labels: Labels | None = None  # labels that replace the stored ones
    # Further fields by example; the default is shared, so it is replaced and never mutated.
    extras: Mapping[str, Field] = {}
    orientation: str | None = None  # of all images, where the canvas depends on it: "wide", "tall"

    @property
    def where(self) -> str:
        return f"{self.records.where}: {self.part.split}"

    @property
    def is_list(self) -> bool:
        return self.records.is_list(self.label)

    @property
    def mask(self) -> Bool[np.ndarray, "stored"] | None:
        """Which positions of the stored split are examples; None if they are contiguous."""
        if self.ids[-1] - self.ids[0] == len(self.ids) - 1:
            return None
        mask = np.zeros(self.num_stored, bool)
        mask[self.ids] = True
        return mask

    @property
    def num_stored(self) -> int:
        """Number of examples of the stored split."""
        return self.records.sizes[self.part.split]

    @property
    def extra_specs(self) -> dict[str, tf.TensorSpec]:
        """Shape and type of each extra of an example."""
        return {name: tf.TensorSpec(x.shape, x.dtype) for name, x in self.extras.items()}

    def by_orientation(self) -> tuple["Source", ...]:
        """The wide images, with the square ones, and the tall ones; none is empty.

        Reads the headers of the images.
        """
        first, last = int(self.ids[0]), int(self.ids[-1])
        are_tall = self.records.are_tall(self.part._replace(start=first, stop=last + 1))
        is_tall = are_tall[self.ids - first]
        return tuple(
            self._replace(
                ids=self.ids[rows],
                labels=None if self.labels is None else self.labels[rows],
                orientation=orientation,
            )
            for orientation, rows in (("wide", ~is_tall), ("tall", is_tall))
            if rows.any()
        )

    def parser(self, max_labels: int) -> Callable:
        """(positions [n], serialized examples [n]) -> encoded images, labels, extras."""
        if self.labels is None:
            return lambda positions, records: self.records.parse(
                positions, records, self.label, max_labels, self.extras
            )
        # Created outside of any graph, which would store them as constants.
        ids, labels = tf.constant(self.ids, tf.int64), tf.constant(self.labels, tf.int32)

        def parse(positions, records):
            images, _, extras = self.records.parse(
                positions, records, self.label, max_labels, self.extras
            )
            rows = tf.searchsorted(ids, positions)
            chosen = pad_labels(tf.cast(tf.gather(labels, rows), tf.int64), max_labels)
            return images, chosen, extras

        return parse

    def read(self, label: str, max_labels: int) -> Labels:
        """The stored labels of a field; -1 is valid in fields other than the training labels."""
        values = self.records.labels(
            self.part, label, max_labels, may_be_unknown=label != self.label
        )
        return values[self.ids - self.part.start]

    def groups(self) -> dict[str, Int[np.ndarray, "n"]]:
        """The stored `groups`, if they are an extra."""
        if "groups" not in self.extras:
            return {}
        values = self.records.extra(self.part, self.label, self.extras["groups"])
        checks.groups(f"{self.where}: groups", values)
        return {"groups": values[self.ids - self.part.start]}

    def clean_labels(self, max_labels: int) -> Labels:
        """The labels before curation, or the clean labels behind a field of noisy ones."""
        return self.read(_clean_field(self.records, self.label), max_labels)


class StreamSources(NamedTuple):
    """The examples that a config selects from prepared sets."""

    sources: dict[str, Source]  # by split
    class_names: tuple[str, ...]
    class_counts: Float[np.ndarray, "k"]  # labels in training; 0 where labels were not read
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
    extras: Sequence[str] = (),
    max_boxes: int = fields.MAX_BOXES,
    with_boxes: bool = False,
    of_regions: bool = False,
) -> StreamSources:
    """Selects the examples of every split.

    Labels and boxes are read only where the selection depends on them, and the extra `groups` of
    train always, as `curate` may hold out whole groups. Images are never read.

    Args:
      name: name of the set in TFDS.
      data_dir: directory of prepared sets.
      curate: data set -> data set; changes ids and labels, and receives no images.
      reads_labels: whether `curate` needs labels, or class counts are required.
      label: field that split "train" learns from; other splits use "label" if it is of the same
        kind.
      splits: split name -> slice of a stored split, or a dict of `split`, and `name` and `label`
        for examples of another set; `eval`, a chain, is ignored. None takes every stored split.
      max_classes: keeps only examples of the first `max_classes` classes.
      max_examples: keeps only the first examples of every split; applies before `max_classes`.
      max_labels: maximum number of labels per example.
      extras: fields that examples of "train" have as extras; see storage/fields.py. Another split
        has those that its set has.
      max_boxes: maximum number of boxes per example.
      with_boxes: keeps only training examples with a box; other splits keep all examples.
      of_regions: whether labels are of boxes: class 0 is the background, and stored classes are
        numbered from 1.

    Raises:
      FileNotFoundError: a set is not prepared.
      ValueError: a set is damaged, or does not match the arguments.
    """
    checks.limit("max_classes", max_classes)
    checks.limit("max_examples", max_examples)
    records_by_name = {name: Records(name, data_dir, with_background=of_regions)}
    sources, numbers = {}, None
    splits = splits or {split: split for split in records_by_name[name].sizes}
    for split, value in splits.items():
        entry = _entry(split, value)
        set_name = entry.get("name", name)
        if set_name not in records_by_name:
            records_by_name[set_name] = Records(set_name, data_dir, with_background=of_regions)
        records = records_by_name[set_name]
        field = entry.get("label", label if split == "train" else _clean_field(records, label))
        part = split_spec.parse(entry["split"], records.sizes)
        if max_examples:
            part = part._replace(stop=min(part.stop, part.start + max_examples))
        ids = np.arange(part.start, part.stop, dtype=np.int32)
        if max_classes is not None and max_classes < len(records.class_names(field)):
            is_selected = np.ones(len(ids), bool)
            for other in sorted({field, _clean_field(records, field)}):
                labels = records.labels(part, other, max_labels, may_be_unknown=other != field)
                is_selected &= (labels.reshape(len(ids), -1) < max_classes).all(axis=1)
            ids = ids[is_selected]
        if not len(ids):
            raise ValueError(f"split {split!r} has no example of the first {max_classes} classes.")
        chosen = _extras(records, field, extras, max_boxes, are_required=split == "train")
        if with_boxes and "boxes" in chosen and split == "train":
            numbers = records.numbers_of_boxes(part, chosen["boxes"])
            ids = ids[numbers[ids - part.start, 0] > 0]
            checks.some_with_boxes(len(ids), f"{records.where}: {split}")
        sources[split] = Source(records, part, field, ids, extras=chosen)
    if "train" not in sources:
        raise ValueError(f"the data set has no split 'train'; its splits are {sorted(sources)}.")
    class_names = _class_names(sources)[:max_classes]
    train = sources["train"]
    is_noisy = _clean_field(train.records, train.label) != train.label
    labels = train.read(train.label, max_labels) if reads_labels or is_noisy else None
    curated, changes = _curated_sources(train, labels, set(sources), class_names, curate)
    sources |= curated
    description = {
        "class_names": list(class_names),
        "num_examples": {split: len(source.ids) for split, source in sources.items()},
        "fingerprint": _fingerprint(sources, class_names),
        **changes,
    }
    if numbers is not None:
        rows = sources["train"].ids - train.part.start
        description["degenerate_boxes"] = int(numbers[rows, 1].sum())
    counts = np.zeros(len(class_names), np.float32)
    if labels is not None:
        train = sources["train"]
        labels = train.read(train.label, max_labels) if train.labels is None else train.labels
        counts = dataset.class_counts(labels, len(class_names))
        description["class_counts"] = counts.astype(int).tolist()
        if labels.ndim == 1:
            clean_labels = train.clean_labels(max_labels)
            description["label_noise"] = dataset.label_noise(clean_labels, labels)
    return StreamSources(sources, class_names, counts, description)


def _entry(split: str, value: Any) -> dict[str, str]:
    entry = {"split": value} if isinstance(value, str) else dict(value)
    if "split" not in entry or set(entry) - {"name", "split", "label", "eval"}:
        raise ValueError(
            f"splits.{split} is {value!r}, but must be a slice such as 'train[:50000]', or a dict"
            " with 'split' and optionally 'name', 'label' and 'eval'."
        )
    return entry


def _clean_field(records: Records, label: str) -> str:
    """The field of clean labels: "label" if it is of the same kind as `label`, else `label`.

    Two fields are of the same kind if both hold one class per example, or both a list, and they
    have equally many classes.
    """
    if not records.has_field("label") or records.is_list("label") != records.is_list(label):
        return label
    is_same = len(records.class_names("label")) == len(records.class_names(label))
    return "label" if is_same else label


def _extras(
    records: Records, label: str, names: Sequence[str], max_boxes: int, *, are_required: bool
) -> dict[str, Field]:
    """The fields of extras by name; `clean_labels` is the clean field behind a noisy `label`."""
    clean = _clean_field(records, label)
    stored_names = {
        name: clean if name == "clean_labels" and clean != label else name for name in names
    }
    found = records.extras(
        list(stored_names.values()), max_boxes=max_boxes, are_required=are_required
    )
    return {name: found[stored] for name, stored in stored_names.items() if stored in found}


def _class_names(sources: Mapping[str, Source]) -> tuple[str, ...]:
    """The class names of train; raises a ValueError if a split has another number of classes."""
    names = {split: source.records.class_names(source.label) for split, source in sources.items()}
    train_names = names["train"]
    checks.class_names(train_names, sources["train"].records.where)
    for split, split_names in names.items():
        if len(split_names) != len(train_names):
            raise ValueError(
                f"split {split!r} has {len(split_names)} classes, but train has {len(train_names)}."
            )
        differences = [i for i, (a, b) in enumerate(zip(train_names, split_names)) if a != b]
        if differences:
            first = differences[0]
            logging.warning(
                "%d classes of split %r have other names than in train; class %d is %r, not %r.",
                *(len(differences), split, first, split_names[first], train_names[first]),
            )
    return train_names


def _curated_sources(
    train: Source,
    labels: Labels | None,
    splits: set[str],
    class_names: tuple[str, ...],
    curate: Callable,
) -> tuple[dict[str, Source], dict[str, Any]]:
    """The splits that `curate` makes of train, and a record of what it changed."""
    no_images = np.zeros((len(train.ids), 1, 1, 0), np.uint8)
    train_labels = np.zeros(len(train.ids), np.int32) if labels is None else labels
    stored = Split(no_images, train_labels, train.ids, train.groups())
    curated = curate(Dataset({"train": stored}, class_names)).splits
    sources = {}
    for split, (_, split_labels, ids, _) in curated.items():
        if split in splits - {"train"}:
            raise ValueError(
                f"validation_fraction creates a split {split!r}, but config.data.splits has one"
                " already; set validation_fraction to 0."
            )
        if split == "train" and ids is train.ids and split_labels is train_labels:
            sources[split] = train  # neither curated nor held out
            continue
        rows = np.argsort(ids)
        source = train._replace(ids=ids[rows])
        before = train_labels[np.searchsorted(train.ids, source.ids)]
        is_same = before.shape == split_labels.shape and np.array_equal(before, split_labels[rows])
        sources[split] = source if is_same else source._replace(labels=split_labels[rows])
    return sources, dataset.curation_changes(stored, curated)


def _fingerprint(sources: Mapping[str, Source], class_names: tuple[str, ...]) -> str:
    """Hash of names, versions, file lengths and selected examples; record contents are not read."""
    digest = hashlib.sha256(json.dumps(class_names).encode())
    for split, (records, part, label, ids, labels, *_) in sorted(sources.items()):
        header = (split, records.full_name, part.split, label, records.files(part.split).lengths)
        digest.update(json.dumps(header).encode())
        for array in (ids, labels):
            if array is not None:
                if array.ndim == 2:  # the amount of padding must not change the fingerprint
                    array = array[:, : np.flatnonzero((array >= 0).any(axis=0)).max(initial=-1) + 1]
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
