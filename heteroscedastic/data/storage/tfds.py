"""Image sets that TensorFlow Datasets has prepared: read from disk, never downloaded or decoded
here.

The one place that imports tensorflow_datasets.
"""

import contextlib
import os
import re
import textwrap
from typing import Any, NamedTuple

import numpy as np

from heteroscedastic import files
from heteroscedastic.data.dataset import Part
from heteroscedastic.data.split_spec import Slice

_AT_ONCE = 1024


class Files(NamedTuple):
    """Where the examples of a stored split lie, in order."""

    paths: tuple[str, ...]
    lengths: tuple[int, ...]  # records of each, as the metadata promise


class Prepared:
    """A prepared set: one image and one class an example, and other answers to the same question.

    Further fields are those that name a class among as many as `label` does, such as the human
    labels of CIFAR-10N; fields of another kind are passed over.
    """

    def __init__(self, name: str, data_dir: str):
        """Opens the set.

        Raises:
          FileNotFoundError: the folder holds no prepared version of it.
          ValueError: it is no set of images with one label each.
        """
        tfds = library()
        self.where = f"{name} in {data_dir}"
        self._builder = builder(name, data_dir)
        self._is_records = self._builder.info.file_format.value == "tfrecord"
        self.version = str(self._builder.version)
        info = self._builder.info
        self.sizes = {split: info.splits[split].num_examples for split in info.splits}
        named = isinstance(info.features, tfds.features.FeaturesDict)
        features = dict(info.features.items()) if named else {}
        image, label = features.get("image"), features.get("label")
        if not isinstance(image, tfds.features.Image) or not isinstance(
            label, tfds.features.ClassLabel
        ):
            raise ValueError(
                f"{self.where} has no features image and label, of one class each, but"
                f" {sorted(features)}."
            )
        if image.np_dtype != np.uint8:
            raise ValueError(
                f"{self.where} has images of {image.np_dtype}, but they must be uint8."
            )
        self.num_channels = image.shape[-1] or 3
        self.class_names = tuple(label.names)
        self._fields = [
            n
            for n, f in features.items()
            if isinstance(f, tfds.features.ClassLabel) and f.num_classes == label.num_classes
        ]

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
            names = ["image", *self._fields]
            batches = list(
                examples.map(lambda e: {n: e[n] for n in names}).batch(_AT_ONCE).as_numpy_iterator()
            )
        except tf.errors.OpError as error:
            raise self._unreadable(part.split, f"({one_line(error)})") from None
        images = [image for batch in batches for image in batch["image"]]
        expected = part.stop - part.start
        if len(images) != expected:
            raise self._unreadable(part.split, f"{len(images):,} of {expected:,} examples came")
        fields = {n: np.concatenate([batch[n] for batch in batches]) for n in self._fields}
        return Part(images, fields, np.arange(part.start, part.stop))

    def _unreadable(self, split: str, reason: str) -> ValueError:
        which = damage(files_of(self._builder.info.splits[split])) if self._is_records else None
        return ValueError(
            f"{self.where}: {split} cannot be read: {which or reason}; prepare it again."
        )


def files_of(split: Any) -> Files:
    """The files of a stored split."""
    found = split.file_instructions
    return Files(tuple(str(x.filename) for x in found), tuple(x.examples_in_shard for x in found))


def damage(record_files: Files) -> str | None:
    """The first file that holds other records than promised, in words; None if there is none. Reads
    them whole.
    """
    tf = tensorflow()
    for path, promised in zip(*record_files):
        if not tf.io.gfile.exists(path):
            return f"{path} is missing, but the metadata promise {promised:,} records in it"
        records, reason = tf.data.TFRecordDataset(path), ""
        try:
            found = int(records.reduce(np.int64(0), lambda count, _: count + 1))
        except tf.errors.OpError as error:
            found, reason = _whole_records(records), f" before it is damaged ({one_line(error)})"
        if reason or found != promised:
            return f"{path} holds {found:,} records{reason}, but the metadata promise {promised:,}"
    return None


def one_line(error: Any) -> str:
    """What an error of TensorFlow says, without where in its graph."""
    told = error.message.partition("\n\t [[")[0].strip().rpartition("\n")[-1]
    return re.sub(
        r"^\{\{[^}]*\}\} |Error in user-defined function passed to .* with iterator: \S+: ",
        "",
        told,
    )


def _whole_records(records: Any) -> int:
    """How many can be read before one fails."""
    found = 0
    with contextlib.suppress(tensorflow().errors.OpError):
        for _ in records:
            found += 1
    return found


def folder(name: str, data_dir: str) -> files.Path:
    """Where TFDS keeps all versions of a set; `name` may end in /config or :version."""
    return files.as_path(data_dir) / _name(name)


def _name(name: str) -> str:
    return name.partition("/")[0].partition(":")[0]


def preparation(name: str, data_dir: str) -> str:
    """What prepares a set that is no task of VTAB (see vtab.py); unlike `tfds build`, it needs no
    Apache Beam.
    """
    try:
        is_known = instructions(name) is not None
    except ModuleNotFoundError:
        is_known = True  # for all that is known here
    if is_known:
        call = f"tfds.builder({name!r}, data_dir={str(data_dir)!r}).download_and_prepare()"
        return (
            f'python -c "import tensorflow_datasets as tfds, heteroscedastic.data.builders; {call}"'
        )
    return (
        f"a program of its own, as TensorFlow Datasets has no builder of {name!r}; of images with"
        " lists of labels,\n"
        f"  python -m heteroscedastic.data.builders.multilabel --name={name} --data_dir={data_dir}"
        " --class_names=FILE"
        " --split train=FILES --split validation=FILES --split test=FILES"
    )


def instructions(name: str) -> str | None:
    """What must be downloaded by hand before a set can be prepared; None of a set that has no
    builder.
    """
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
      FileNotFoundError: the folder holds no prepared version of it.
      ValueError: it cannot be read.
    """
    tfds = library()
    try:
        found = tfds.builder(name, data_dir=str(files.as_path(data_dir)))
    except tfds.core.DatasetNotFoundError:
        raise FileNotFoundError("it holds no prepared version") from None
    except Exception as error:  # of damaged JSON, protocol buffers, or a name that is none
        raise ValueError(
            f"{name} in {data_dir} cannot be read ({error}); prepare it again."
        ) from None
    if not found.info.splits:
        raise FileNotFoundError(f"it holds no {found.info.full_name}")
    return found


def tensorflow() -> Any:
    """TensorFlow, which leaves the GPUs to JAX."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it tells at length of what it lacks
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # they are JAX's
    return tf


def library() -> Any:
    """TensorFlow Datasets, which knows our builders too."""
    tensorflow()
    import tensorflow_datasets as tfds

    import heteroscedastic.data.builders  # noqa: F401, as they are found by name

    return tfds
