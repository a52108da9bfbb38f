"""Sets that TensorFlow Datasets prepared, as the files of records that a stream reads in parts."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from jaxtyping import Int

from heteroscedastic.data import checks
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import tfds, vtab
from heteroscedastic.data.storage.tfds import Files
from heteroscedastic.data.streaming import reader_shards

_AT_ONCE = 256
_READ_AHEAD = 1 << 20  # bytes of every file that is open
_OF_RUNS = ("file", "skip", "take", "first")  # of a Reading


class Records:
    """A prepared set: an image an example, and a class or a list of them."""

    def __init__(self, name: str, data_dir: str | None):
        """Opens the set.

        Raises:
          FileNotFoundError: it is not prepared; says what prepares it.
          ValueError: it cannot be read, holds no images, or its files are not of TFRecord.
        """
        if not data_dir:
            raise FileNotFoundError(
                f"no data set {name!r}: neither --data_dir nor TFDS_DATA_DIR is set."
            )
        try:
            builder = tfds.builder(name, data_dir)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"no data set {name!r} in {tfds.folder(name, data_dir)} ({error}); prepare it"
                " with\n"
                f"  {vtab.preparation(name, data_dir)}"
            ) from None
        info, self._types = builder.info, tfds.library().features
        self.where, self.full_name = f"{name} in {data_dir}", info.full_name
        if info.file_format.value != "tfrecord":
            raise ValueError(
                f"{self.where} is stored as {info.file_format.value}, but a stream reads tfrecord;"
                " prepare it with"
                " file_format='tfrecord'."
            )
        self._features = (
            dict(info.features.items())
            if isinstance(info.features, self._types.FeaturesDict)
            else {}
        )
        image = self._features.get("image")
        if not isinstance(image, self._types.Image) or image.np_dtype != np.uint8:
            raise ValueError(
                f"{self.where} has no feature image of uint8, but {sorted(self._features)}."
            )
        self.image_shape = (*image.shape[:2], image.shape[-1] or 3)  # None where images differ
        self.sizes = {split: info.splits[split].num_examples for split in info.splits}
        self._splits = info.splits

    def files(self, split: str) -> Files:
        """The files of a stored split."""
        return tfds.files_of(self._splits[split])

    def has(self, label: str) -> bool:
        """Whether there is such a field."""
        return label in self._features

    def is_list(self, label: str) -> bool:
        """Whether an example has a list of labels, not one.

        Raises:
          ValueError: there is no such field, or it names no classes.
        """
        feature = self._features.get(label)
        if isinstance(feature, self._types.Sequence) and isinstance(
            feature.feature, self._types.ClassLabel
        ):
            return True
        if not isinstance(feature, self._types.ClassLabel):
            named = [
                n
                for n, f in self._features.items()
                if isinstance(getattr(f, "feature", f), self._types.ClassLabel)
            ]
            raise ValueError(
                f"{self.where} has no field {label!r} of labels; those are"
                f" {', '.join(named) or 'none'}."
            )
        return False

    def class_names(self, label: str) -> tuple[str, ...]:
        """What the classes of a field are called; raises as `is_list` does."""
        is_list, feature = self.is_list(label), self._features[label]
        return tuple((feature.feature if is_list else feature).names)

    def parsed(
        self, records: tf.Tensor, label: str, max_labels: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encoded images and labels of serialized examples [n].

        Labels are int64 as they are stored, for `checked`. Lists of them are padded with -1 to one
        more than there may be, so that more is seen.
        """
        one = tf.io.FixedLenFeature((), tf.int64)
        several = tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True, default_value=-1)
        of_label = several if self.is_list(label) else one
        told = tf.io.parse_example(
            records, {"image": tf.io.FixedLenFeature((), tf.string), label: of_label}
        )
        return told["image"], padded(told[label], max_labels)

    def labels(
        self, part: Slice, label: str, max_labels: int, *, may_be_unknown: bool = False
    ) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
        """The labels of a slice, in order; no image is decoded.

        Args:
          part: of a stored split.
          label: field.
          max_labels: the longest list.
          may_be_unknown: see checks.labels.

        Raises:
          ValueError: names the example whose label is none, or the file that holds other records
            than its metadata promise.
        """
        files, ids = self.files(part.split), np.arange(part.start, part.stop)
        reading = reader_shards.reading(ids, files.lengths, 0, _AT_ONCE, None)

        @tf.autograph.experimental.do_not_convert
        def of(positions, records):
            return self.parsed(records, label, max_labels)[1]

        found = (
            tf.data.Dataset.range(len(reading.file))
            .flat_map(runs(files, [reading]))
            .batch(_AT_ONCE)
            .map(of)
        )
        try:
            labels = np.concatenate(list(found.as_numpy_iterator()))
        except tf.errors.OpError as error:
            raise self.unreadable(part.split, reading.file, error) from None
        return checked(
            labels,
            ids,
            len(self.class_names(label)),
            f"{self.where}: {part.split}",
            may_be_unknown=may_be_unknown,
        )

    def unreadable(
        self, split: str, numbers: Int[np.ndarray, "_"], error: tf.errors.OpError
    ) -> ValueError:
        """What to raise where a split cannot be read.

        It names the first of the files of these numbers that holds other records than its metadata
        promise. They are read whole to find it, without being decoded.
        """
        files = self.files(split)
        some = Files(
            *(tuple(values[i] for i in dict.fromkeys(numbers.tolist())) for values in files)
        )
        which = tfds.damage(some) or f"({tfds.one_line(error)})"
        return ValueError(
            f"{self.where}: {split} cannot be read: {which}; bring back what is missing, or"
            " prepare it again."
        )


def runs(
    files: Files, readings: Sequence[reader_shards.Reading]
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Number of a run -> its positions and serialized examples; the runs of all readings are
    numbered one by one.

    Reading fails where a file has fewer records than its metadata promise, or more after a run that
    ends it.
    """
    file, skip, take, first = (np.concatenate([getattr(r, n) for r in readings]) for n in _OF_RUNS)
    # One more is asked for of a run that ends its file, so that a record too many is seen.
    asked = take + (skip + take == np.array(files.lengths)[file])
    paths, numbers = (
        tf.constant(files.paths),
        [tf.constant(x, tf.int64) for x in (file, skip, take, asked, first)],
    )

    @tf.autograph.experimental.do_not_convert
    def run(i):
        file, skip, take, asked, first = (x[i] for x in numbers)
        records = (
            tf.data.TFRecordDataset(paths[file], buffer_size=_READ_AHEAD).skip(skip).take(asked)
        )
        numbered = tf.data.Dataset.zip((tf.data.Dataset.range(first, first + asked), records))
        return numbered.apply(tf.data.experimental.assert_cardinality(take))

    return run


def padded(labels: tf.Tensor, max_labels: int) -> tf.Tensor:
    """Classes as they are; lists of them [n, m] padded with -1, or cut, to one more than there may
    be.
    """
    if labels.shape.rank == 1:
        return labels
    filled = tf.pad(
        labels, ((0, 0), (0, max_labels + 1)), constant_values=tf.constant(-1, labels.dtype)
    )
    return tf.ensure_shape(filled[:, : max_labels + 1], (None, max_labels + 1))


def checked(
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"],
    ids: Int[np.ndarray, "n"],
    num_classes: int,
    where: str,
    *,
    may_be_unknown: bool = False,
) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n l"]:
    """Labels of `parsed` as int32, lists without the one place more, once all are classes.

    Places without an example have id -1, and labels that say nothing.

    Raises:
      ValueError: names the first example whose label is none, or that has one in that place.
    """
    if labels.ndim == 2:
        more = np.flatnonzero(labels[:, -1] != -1)
        if len(more):
            raise ValueError(
                f"{where}: the example of id {ids[more[0]]} has more than {labels.shape[1] - 1}"
                " labels; raise"
                " config.data.max_labels."
            )
        labels = labels[:, :-1]
    there = ids >= 0
    checks.labels(labels[there], ids[there], num_classes, where, may_be_unknown=may_be_unknown)
    return labels.astype(np.int32)
