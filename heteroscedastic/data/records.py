"""Sets that TensorFlow Datasets prepared, as the files of records that a stream reads in parts."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from jaxtyping import Int

from heteroscedastic.data import tfds, vtab
from heteroscedastic.data.slices import Slice

_AT_ONCE = 256


class Files(NamedTuple):
    """Where the examples of a stored split lie, in order."""

    paths: tuple[str, ...]
    lengths: tuple[int, ...]  # records of each


class Records:
    """A prepared set: an image an example, and a class or a list of them."""

    def __init__(self, name: str, data_dir: str | None):
        """Opens the set.

        Raises:
          FileNotFoundError: it is not prepared; says what prepares it.
          ValueError: it cannot be read, holds no images, or its files are not of TFRecord.
        """
        if not data_dir:
            raise FileNotFoundError(f"no data set {name!r}: neither --data_dir nor TFDS_DATA_DIR is set.")
        try:
            builder = tfds.builder(name, data_dir)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"no data set {name!r} in {tfds.folder(name, data_dir)} ({error}); prepare it with\n"
                f"  {vtab.preparation(name, data_dir)}"
            ) from None
        info, self._types = builder.info, tfds.library().features
        self.where, self.full_name = f"{name} in {data_dir}", info.full_name
        if info.file_format.value != "tfrecord":
            raise ValueError(
                f"{self.where} is stored as {info.file_format.value}, but a stream reads tfrecord; prepare it with"
                " file_format='tfrecord'."
            )
        self._features = dict(info.features.items()) if isinstance(info.features, self._types.FeaturesDict) else {}
        image = self._features.get("image")
        if not isinstance(image, self._types.Image) or image.np_dtype != np.uint8:
            raise ValueError(f"{self.where} has no feature image of uint8, but {sorted(self._features)}.")
        self.image_shape = (*image.shape[:2], image.shape[-1] or 3)  # None where images differ
        self.sizes = {split: info.splits[split].num_examples for split in info.splits}
        self._splits = info.splits

    def files(self, split: str) -> Files:
        """The files of a stored split."""
        told = self._splits[split].file_instructions
        return Files(tuple(str(x.filename) for x in told), tuple(x.examples_in_shard for x in told))

    def has(self, label: str) -> bool:
        """Whether there is such a field."""
        return label in self._features

    def is_list(self, label: str) -> bool:
        """Whether an example has a list of labels, not one.

        Raises:
          ValueError: there is no such field, or it names no classes.
        """
        feature = self._features.get(label)
        if isinstance(feature, self._types.Sequence) and isinstance(feature.feature, self._types.ClassLabel):
            return True
        if not isinstance(feature, self._types.ClassLabel):
            named = [
                n for n, f in self._features.items() if isinstance(getattr(f, "feature", f), self._types.ClassLabel)
            ]
            raise ValueError(f"{self.where} has no field {label!r} of labels; those are {', '.join(named) or 'none'}.")
        return False

    def class_names(self, label: str) -> tuple[str, ...]:
        """What the classes of a field are called; raises as `is_list` does."""
        is_list, feature = self.is_list(label), self._features[label]
        return tuple((feature.feature if is_list else feature).names)

    def parsed(self, records: tf.Tensor, label: str, max_labels: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Encoded images and labels of serialized examples [n].

        Lists of labels are padded with -1 to one more than there may be, so that more is seen.
        """
        one = tf.io.FixedLenFeature((), tf.int64)
        several = tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True, default_value=-1)
        of_label = several if self.is_list(label) else one
        told = tf.io.parse_example(records, {"image": tf.io.FixedLenFeature((), tf.string), label: of_label})
        return told["image"], padded(tf.cast(told[label], tf.int32), max_labels)

    def labels(self, part: Slice, label: str, max_labels: int) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
        """The labels of a slice, in order; no image is decoded."""
        files = tf.data.TFRecordDataset(list(self.files(part.split).paths), buffer_size=1 << 20)

        @tf.autograph.experimental.do_not_convert
        def of(records):
            return self.parsed(records, label, max_labels)[1]

        found = files.skip(part.start).take(part.stop - part.start).batch(_AT_ONCE).map(of)
        try:
            labels = np.concatenate(list(found.as_numpy_iterator()))
        except tf.errors.OpError as error:
            raise ValueError(f"{self.where} is damaged ({error.message}); prepare it again.") from None
        if len(labels) != part.stop - part.start:
            raise ValueError(f"{self.where} is damaged: {part} has {len(labels)} examples; prepare it again.")
        return checked(labels, np.arange(part.start, part.stop), f"{self.where}: {part.split}")


def padded(labels: tf.Tensor, max_labels: int) -> tf.Tensor:
    """Classes as they are; lists of them [n, m] padded with -1, or cut, to one more than there may be."""
    if labels.shape.rank == 1:
        return labels
    filled = tf.pad(labels, ((0, 0), (0, max_labels + 1)), constant_values=-1)
    return tf.ensure_shape(filled[:, : max_labels + 1], (None, max_labels + 1))


def checked(labels: np.ndarray, ids: np.ndarray, where: str) -> np.ndarray:
    """Labels without the one place more.

    Raises:
      ValueError: an example has a label there.
    """
    if labels.ndim == 1:
        return labels
    more = np.flatnonzero(labels[:, -1] >= 0)
    if len(more):
        raise ValueError(
            f"{where}: the example of id {ids[more[0]]} has more than {labels.shape[1] - 1} labels; raise"
            " config.data.max_labels."
        )
    return labels[:, :-1]
