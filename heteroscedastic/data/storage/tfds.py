"""Image sets prepared by TensorFlow Datasets, read from disk.

Nothing is downloaded or decoded here. Outside of builders, this is the only module that imports
tensorflow_datasets.
"""

import contextlib
import functools
import operator
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from heteroscedastic import files
from heteroscedastic.data.dataset import Part
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import fields
from heteroscedastic.data.storage.fields import Field

_BATCH_SIZE = 1024
MASK_SOURCES = {  # sets that data/builders/mask.py writes, and their sources
    "imagenet2012_boxes_mask": "imagenet2012_boxes",
    "coco_mask": "coco/2017",
    "tiny_imagenet_mask": "tiny_imagenet",
    "open_images_v4_mask": "open_images_v4/300k",
}


class Files(NamedTuple):
    """The record files of a stored split, in order."""

    paths: tuple[str, ...]
    lengths: tuple[int, ...]  # records of each file, as its metadata states

    def repeated(self, times: int) -> "Files":
        """The files of a split that is read several times, one time after another."""
        return Files(times * self.paths, times * self.lengths)


class PreparedDataset:
    """A prepared set with one image and one label per example; a StoredDataset.

    Other label fields with the same number of classes, such as the human labels of CIFAR-10N, are
    read too, and the extras that are asked for. All other fields are ignored.
    """

    def __init__(
        self,
        name: str,
        data_dir: str,
        *,
        extras: Sequence[str] = (),
        max_boxes: int = fields.MAX_BOXES,
    ):
        """Opens the set.

        Args:
          name: name of the set in TFDS.
          data_dir: directory of prepared sets.
          extras: names of further fields to read; see fields.py.
          max_boxes: number of rows to which `boxes` are padded.

        Raises:
          FileNotFoundError: the folder holds no prepared version.
          ValueError: the set does not have images with one label each, or has no such extra.
        """
        tfds = library()
        self.where = f"{name} in {data_dir}"
        self._builder = builder(name, data_dir)
        self._is_records = self._builder.info.file_format.value == "tfrecord"
        self.version = str(self._builder.version)
        info = self._builder.info
        self.sizes = {split: info.splits[split].num_examples for split in info.splits}
        has_names = isinstance(info.features, tfds.features.FeaturesDict)
        features = dict(info.features.items()) if has_names else {}
        image, label = features.get("image"), features.get("label")
        if not isinstance(image, tfds.features.Image) or not isinstance(
            label, tfds.features.ClassLabel
        ):
            raise ValueError(
                f"{self.where} requires the features 'image' and 'label' (one class), but its"
                f" features are {sorted(features)}."
            )
        if image.np_dtype != np.uint8:
            raise ValueError(
                f"{self.where} has images of type {image.np_dtype}, but they must be uint8."
            )
        self.num_channels = image.shape[-1] or 3
        self.class_names = tuple(label.names)
        labels = {
            n: Field((n,), (), f.np_dtype)
            for n, f in features.items()
            if isinstance(f, tfds.features.ClassLabel) and f.num_classes == label.num_classes
        }
        self.box_paths = fields.box_paths(tfds.features, info.features)
        self._fields = labels | fields.choose(
            tfds.features, info.features, extras, self.where, max_boxes=max_boxes
        )

    def read(self, part: Slice) -> Part:
        """The examples of a slice, in the order of the files."""
        tf, tfds = tensorflow(), library()
        try:
            examples = self._builder.as_dataset(
                split=f"{part.split}[{part.start}:{part.stop}]",
                shuffle_files=False,
                decoders={"image": tfds.decode.SkipDecoding()},
                read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
            )
            batches = list(
                examples.map(lambda e: _images_and_values(tf, e, self._fields))
                .padded_batch(_BATCH_SIZE)  # pads boxes
                .as_numpy_iterator()
            )
        except tf.errors.OpError as error:
            raise self._read_error(part.split, f"({error_message(error)})") from None
        images = [image for batch in batches for image in batch[0]]
        expected = part.stop - part.start
        if len(images) != expected:
            raise self._read_error(
                part.split, f"{len(images):,} of {expected:,} examples were read"
            )
        ids = np.arange(part.start, part.stop)
        for name in batches[0][2] if batches else ():
            numbers = np.concatenate([numbers[name] for *_, numbers in batches])
            max_boxes, most = self._fields[name].shape[0], np.argmax(numbers)
            if numbers[most] > max_boxes:
                message = fields.too_many_boxes(ids[most], numbers[most], max_boxes)
                raise ValueError(f"{self.where}: {part.split}: {message}; raise it.")
        values = {
            name: np.concatenate([_padded(values[name], field) for _, values, _ in batches])
            for name, field in self._fields.items()
        }
        return Part(images, values, ids)

    def _read_error(self, split: str, reason: str) -> ValueError:
        files = split_files(self._builder.info.splits[split])
        damaged_file = damage(files) if self._is_records else None
        return ValueError(
            f"{self.where}: {split} cannot be read: {damaged_file or reason}; prepare it again."
        )


def _images_and_values(
    tf: Any, example: Any, chosen: Mapping[str, Field]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The encoded image of an example, its fields, and the number of boxes of fields of boxes."""
    values = {name: _value(tf, example, field) for name, field in chosen.items()}
    numbers = {
        name: tf.shape(values[name])[0]
        for name, field in chosen.items()
        if field.are_boxes or field.of_boxes
    }
    return example["image"], values, numbers


def _value(tf: Any, example: Any, field: Field) -> Any:
    value = functools.reduce(operator.getitem, field.path, example)
    return tf.reshape(value, (-1, 4)) if field.are_boxes else value


def _padded(values: np.ndarray, field: Field) -> np.ndarray:
    """The values of a batch; those of boxes are padded to the number of rows of the field."""
    if not (field.are_boxes or field.of_boxes):
        return values
    padding = field.shape[0] - values.shape[1]
    return np.pad(values, ((0, 0), (0, padding), *[(0, 0)] * (values.ndim - 2)))


def split_files(split: Any) -> Files:
    """The files of a stored split."""
    shards = split.file_instructions
    return Files(tuple(str(x.filename) for x in shards), tuple(x.examples_in_shard for x in shards))


def file_states(record_files: Files) -> list[tuple[str, int, int]]:
    """Path, bytes and time of the last change of each file; zeros where it is missing."""
    tf = tensorflow()

    def state(path):
        try:
            found = tf.io.gfile.stat(path)
        except tf.errors.NotFoundError:
            return path, 0, 0
        return path, found.length, found.mtime_nsec

    with ThreadPoolExecutor() as pool:  # each request to a bucket takes its time
        return list(pool.map(state, record_files.paths))


def damage(record_files: Files) -> str | None:
    """Describes the first file whose number of records differs from its metadata.

    Returns None if there is no such file. All records are read.
    """
    tf = tensorflow()
    for path, expected in zip(*record_files):
        if not tf.io.gfile.exists(path):
            return f"{path} is missing, but its metadata states {expected:,} records"
        records, reason = tf.data.TFRecordDataset(path), ""
        try:
            count = int(records.reduce(np.int64(0), lambda count, _: count + 1))
        except tf.errors.OpError as error:
            count = _num_readable(records)
            reason = f" before it is damaged ({error_message(error)})"
        if reason or count != expected:
            return f"{path} has {count:,} records{reason}, but its metadata states {expected:,}"
    return None


def error_message(error: Any) -> str:
    """The message of a TensorFlow error, without its location in the graph."""
    message = error.message.partition("\n\t [[")[0].strip().rpartition("\n")[-1]
    prefix = r"^\{\{[^}]*\}\} |Error in user-defined function passed to .* with iterator: \S+: "
    return re.sub(prefix, "", message)


def _num_readable(records: Any) -> int:
    """Number of records before reading fails."""
    count = 0
    with contextlib.suppress(tensorflow().errors.OpError):
        for _ in records:
            count += 1
    return count


def folder(name: str, data_dir: str) -> files.Path:
    """The folder of all versions of a set; `name` may end in /config or :version."""
    return files.as_path(data_dir) / _name(name)


def _name(name: str) -> str:
    return name.partition("/")[0].partition(":")[0]


def preparation(name: str, data_dir: str) -> str:
    """The command that prepares a set; see vtab.py for tasks of VTAB.

    Unlike `tfds build`, it does not require Apache Beam.
    """
    if name in MASK_SOURCES:
        of_set = (  # readings L6 and L14
            " --hierarchy=bbox_labels_600_hierarchy.json --max_per_class=50000"
            if name == "open_images_v4_mask"
            else ""
        )
        return (
            "python -m heteroscedastic.data.builders.mask"
            f" --source={MASK_SOURCES[name]} --data_dir={data_dir}{of_set}"
        )
    if name == "tiny_imagenet":
        return (
            "python -m heteroscedastic.data.builders.tiny_imagenet"
            f" --archive=tiny-imagenet-200.zip --data_dir={data_dir}"
        )
    try:
        has_builder = instructions(name) is not None
    except ModuleNotFoundError:
        has_builder = True  # cannot be determined without TFDS
    if has_builder:
        call = f"tfds.builder({name!r}, data_dir={str(data_dir)!r}).download_and_prepare()"
        return (
            f'python -c "import tensorflow_datasets as tfds, heteroscedastic.data.builders; {call}"'
        )
    return (
        f"your own program, as TensorFlow Datasets has no builder for {name!r}; for images with"
        " lists of labels, use\n"
        f"  python -m heteroscedastic.data.builders.multilabel --name={name} --data_dir={data_dir}"
        " --class_names=FILE"
        " --split train=FILES --split validation=FILES --split test=FILES"
    )


def instructions(name: str) -> str | None:
    """Instructions for manual downloads, "" if none are required; None if there is no builder."""
    tfds = library()
    try:
        return textwrap.dedent(
            tfds.builder_cls(_name(name)).MANUAL_DOWNLOAD_INSTRUCTIONS or ""
        ).strip()
    except tfds.core.DatasetNotFoundError:
        return None


def builder(name: str, data_dir: str) -> Any:
    """The builder of a prepared set.

    Raises:
      FileNotFoundError: the folder holds no prepared version.
      ValueError: the set cannot be read.
    """
    tfds = library()
    try:
        prepared = tfds.builder(name, data_dir=str(files.as_path(data_dir)))
    except tfds.core.DatasetNotFoundError:
        raise FileNotFoundError("it holds no prepared version") from None
    except Exception as error:  # damaged JSON or protocol buffers, or an invalid name
        raise ValueError(
            f"{name} in {data_dir} cannot be read ({error}); prepare it again."
        ) from None
    if not prepared.info.splits:
        raise FileNotFoundError(f"it holds no {prepared.info.full_name}")
    return prepared


def source_builder(name: str, data_dir: str, dependent: str) -> Any:
    """The builder of the prepared set from which `dependent` is made.

    Raises:
      FileNotFoundError: it is not prepared; says how to prepare it.
      ValueError: it cannot be read.
    """
    try:
        return builder(name, data_dir)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{dependent} requires {name!r}, which is not in {folder(name, data_dir)} ({error});"
            f" prepare it with\n  {preparation(name, data_dir)}"
        ) from None


def tensorflow() -> Any:
    """Imports TensorFlow and hides the GPUs from it, as JAX uses them."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides warnings about missing libraries
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    return tf


def library() -> Any:
    """Imports TensorFlow Datasets and registers the builders of this package."""
    tensorflow()
    import tensorflow_datasets as tfds

    import heteroscedastic.data.builders  # noqa: F401, importing registers them

    return tfds
