"""Data sets prepared by TensorFlow Datasets, as record files that a stream reads in parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from jaxtyping import Bool, Float, Int, Shaped

from heteroscedastic import boxes as boxes_lib
from heteroscedastic import files as files_lib
from heteroscedastic.data import checks
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import fields as fields_lib
from heteroscedastic.data.storage import tfds, vtab
from heteroscedastic.data.storage.fields import Field
from heteroscedastic.data.storage.tfds import Files
from heteroscedastic.data.streaming import ops, reader_shards

# Graphs do not know all sizes, so names with an underscore are not checked.
TensorLabels = Int[tf.Tensor, "_n"] | Int[tf.Tensor, "_n _m"]
_BATCH_SIZE = 256
_PADDING = float("-inf")  # of lists of boxes, as a row of zeros may be stored
_READ_AHEAD = 1 << 20  # bytes of each open file
_SEGMENT_FIELDS = ("file", "skip", "take", "first")  # of a ReadPlan


class Records:
    """A prepared set with one image per example, and a class or a list of classes."""

    def __init__(self, name: str, data_dir: str | None, *, with_background: bool = False):
        """Opens the set.

        Args:
          name: of the set in TFDS.
          data_dir: directory of prepared sets.
          with_background: whether class 0 is the background, which no stored label is: the stored
            classes are numbered from 1.

        Raises:
          FileNotFoundError: the set is not prepared; says how to prepare it.
          ValueError: the set cannot be read, holds no images, or is not stored as TFRecord.
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
                f" with\n  {vtab.preparation(name, data_dir)}"
            ) from None
        info, self._types = builder.info, tfds.library().features
        self.where, self.full_name = f"{name} in {data_dir}", info.full_name
        if info.file_format.value != "tfrecord":
            raise ValueError(
                f"{self.where} is stored as {info.file_format.value}, but streaming requires"
                " tfrecord; prepare it with file_format='tfrecord'."
            )
        self._first_class = int(with_background)
        self._feature = info.features
        self._features = (
            dict(info.features.items())
            if isinstance(info.features, self._types.FeaturesDict)
            else {}
        )
        image = self._features.get("image")
        if not isinstance(image, self._types.Image) or image.np_dtype != np.uint8:
            raise ValueError(
                f"{self.where} has no feature 'image' of uint8; its features are"
                f" {sorted(self._features)}."
            )
        self.image_shape = (*image.shape[:2], image.shape[-1] or 3)  # None where sizes differ
        self.sizes = {split: info.splits[split].num_examples for split in info.splits}
        self._splits = info.splits

    def files(self, split: str) -> Files:
        """The files of a stored split."""
        return tfds.split_files(self._splits[split])

    def has_field(self, label: str) -> bool:
        """Whether the set has a field of this name."""
        return self._field(label)[0] is not None

    def is_list(self, label: str) -> bool:
        """Whether a field holds a list of labels per example, not one label.

        Raises:
          ValueError: the set has no such field, or the field holds no classes.
        """
        feature, is_list = self._field(label)
        if not isinstance(feature, self._types.ClassLabel):
            choices = [
                name
                for name, field in self._features.items()
                if isinstance(getattr(field, "feature", field), self._types.ClassLabel)
            ]
            for name, field in self._features.items():
                parts = getattr(field, "feature", None)
                if isinstance(parts, self._types.FeaturesDict):
                    choices += [
                        f"{name}/{part}"
                        for part, kind in parts.items()
                        if isinstance(kind, self._types.ClassLabel)
                    ]
            raise ValueError(
                f"{self.where} has no label field {label!r}; label fields:"
                f" {', '.join(sorted(choices)) or 'none'}."
            )
        return is_list

    def class_names(self, label: str) -> tuple[str, ...]:
        """Class names of a label field, with the background; raises like `is_list`."""
        self.is_list(label)
        return ("background",) * self._first_class + tuple(self._field(label)[0].names)

    def _field(self, label: str) -> tuple[Any, bool]:
        """The feature of a field, such as "label" or "objects/label", and whether it is a list."""
        if label in self._features:
            feature = self._features[label]
            is_list = isinstance(feature, self._types.Sequence)
            return (feature.feature if is_list else feature), is_list
        first, _, last = label.partition("/")
        parts = getattr(self._features.get(first), "feature", None)
        if last and isinstance(parts, self._types.FeaturesDict) and last in parts:
            return parts[last], True
        return None, False

    def extras(
        self, names: Sequence[str], *, max_boxes: int, are_required: bool
    ) -> dict[str, Field]:
        """The fields of these names; see `choose` of storage/fields.py."""
        limits = dict(max_boxes=max_boxes, are_required=are_required)
        return fields_lib.choose(self._types, self._feature, names, self.where, **limits)

    def parse(
        self,
        positions: Int[tf.Tensor, "_n"],
        records: Shaped[tf.Tensor, "_n"],
        label: str,
        max_labels: int,
        extras: Mapping[str, Field],
    ) -> tuple[Shaped[tf.Tensor, "_n"], TensorLabels, dict[str, Shaped[tf.Tensor, "_n ..."]]]:
        """Encoded images, labels and extras of serialized examples.

        Integers are int64, as stored; `valid_labels` and `valid_extras` check them. Lists of labels
        have m = max_labels + 1 entries, padded with -1, so that a longer list is detected. Parsing
        fails if an example has too many boxes, or an invalid one; see `parse_error`.
        """
        one_label = tf.io.FixedLenFeature((), tf.int64)
        label_list = tf.io.FixedLenSequenceFeature(
            (), tf.int64, allow_missing=True, default_value=-1
        )
        fields = tf.io.parse_example(
            records,
            {"/".join(field.path): _stored_feature(field) for field in extras.values()}
            | {
                "image": tf.io.FixedLenFeature((), tf.string),
                label: label_list if self.is_list(label) else one_label,
            },
        )
        values = {name: fields["/".join(field.path)] for name, field in extras.items()}
        stored = fields[label]
        return (
            fields["image"],
            pad_labels(tf.where(stored >= 0, stored + self._first_class, stored), max_labels),
            {name: _extra(values[name], field, positions) for name, field in extras.items()},
        )

    def labels(
        self, part: Slice, label: str, max_labels: int, *, may_be_unknown: bool = False
    ) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
        """Reads the labels of a slice, in order, without decoding images.

        Args:
          part: slice of a stored split.
          label: name of the field.
          max_labels: maximum length of a list.
          may_be_unknown: see checks.labels.

        Raises:
          ValueError: a label is not a class, or a file does not hold the number of records that its
            metadata states; names the example or the file.
        """
        return valid_labels(
            self._read(part, lambda *examples: self.parse(*examples, label, max_labels, {})[1]),
            np.arange(part.start, part.stop),
            len(self.class_names(label)),
            f"{self.where}: {part.split}",
            may_be_unknown=may_be_unknown,
        )

    def extra(self, part: Slice, label: str, field: Field) -> Shaped[np.ndarray, "n ..."]:
        """Reads an extra of the examples of a slice, in order, without decoding images.

        Args:
          part: slice of a stored split.
          label: name of a field of labels.
          field: the field of the extra.

        Raises:
          ValueError: as `labels`.
        """
        return self._read(
            part, lambda *examples: self.parse(*examples, label, 0, {"extra": field})[2]["extra"]
        )

    def numbers_of_boxes(self, part: Slice, field: Field) -> Int[np.ndarray, "n 2"]:
        """Boxes with an area, and without one, of each example of a slice, in order.

        Args:
          part: slice of a stored split.
          field: a field of boxes.

        Raises:
          ValueError: as `labels`.
        """
        name = "/".join(field.path)

        def parse(positions, records):
            stored = tf.io.parse_example(records, {name: _stored_feature(field)})[name]
            is_box = tf.reduce_any(stored != _PADDING, axis=2)
            has_area = tf.reduce_any(_extra(stored, field, positions) != 0, axis=2)
            totals = [tf.reduce_sum(tf.cast(x, tf.int32), axis=1) for x in (has_area, is_box)]
            return tf.stack([totals[0], totals[1] - totals[0]], axis=1)

        return self._read(part, parse)

    def are_tall(self, part: Slice) -> Bool[np.ndarray, "n"]:
        """Whether each image of a slice is higher than wide, in order; see `ops.is_tall`.

        The headers of images of several shapes are read once, see `files.cached_arrays`, and again
        where a file has changed.

        Raises:
          ValueError: as `labels`.
        """
        height, width = self.image_shape[:2]
        if height is not None and width is not None:
            return np.full(part.stop - part.start, height > width)

        def are_tall(images):
            return np.array([ops.is_tall(image) for image in images])

        def parse(positions, records):
            feature = {"image": tf.io.FixedLenFeature((), tf.string)}
            images = tf.io.parse_example(records, feature)["image"]
            return tf.numpy_function(are_tall, [images], tf.bool)

        def read():
            return {"are_tall": self._read(part, parse)}

        content = [self.full_name, *part, tfds.file_states(self.files(part.split))]
        return files_lib.cached_arrays("orientations", files_lib.digest(content), read)["are_tall"]

    def _read(self, part: Slice, parse: Callable) -> Shaped[np.ndarray, "n ..."]:
        """What `parse` makes of batches of serialized examples of a slice, in order."""
        files, ids = self.files(part.split), np.arange(part.start, part.stop)
        plan = reader_shards.read_plan(ids, files.lengths, 0, _BATCH_SIZE, None)

        @tf.autograph.experimental.do_not_convert
        def parsed(positions, records):
            return parse(positions, records)

        batches = (
            tf.data.Dataset.range(len(plan.file))
            .flat_map(segment_reader(files, [plan]))
            .batch(_BATCH_SIZE)
            .map(parsed)
        )
        try:
            return np.concatenate(list(batches.as_numpy_iterator()))
        except tf.errors.InvalidArgumentError as error:
            raise self.parse_error(part.split, error) from None
        except tf.errors.OpError as error:
            raise self.read_error(part.split, plan.file, error) from None

    def parse_error(self, split: str, error: tf.errors.InvalidArgumentError) -> ValueError:
        """The error to raise if `parse` fails."""
        message = tfds.error_message(error)
        remedies = {"max_boxes": "raise it", "with_boxes": "set it to True"}
        remedy = next(
            (remedy for setting, remedy in remedies.items() if setting in message),
            "prepare the set again",
        )
        return ValueError(
            f"{self.where}: {split} has a record that cannot be parsed ({message}); {remedy}."
        )

    def read_error(
        self, split: str, file_numbers: Int[np.ndarray, "_"], error: tf.errors.OpError
    ) -> ValueError:
        """The error to raise if a split cannot be read.

        It names the first of these files whose number of records differs from its metadata. To
        find it, all their records are read, but not decoded.
        """
        files = self.files(split)
        numbers = dict.fromkeys(file_numbers.tolist())
        subset = Files(*(tuple(values[i] for i in numbers) for values in files))
        reason = tfds.damage(subset) or f"({tfds.error_message(error)})"
        return ValueError(
            f"{self.where}: {split} cannot be read: {reason}; restore the file, or prepare the set"
            " again."
        )


def segment_reader(
    files: Files, plans: Sequence[reader_shards.ReadPlan]
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Number of a segment -> its positions and serialized examples.

    The segments of all plans are numbered consecutively. Reading fails if a file has fewer records
    than its metadata states, or more of them after a segment that ends the file.
    """
    file, skip, take, first = (
        np.concatenate([getattr(plan, name) for plan in plans]) for name in _SEGMENT_FIELDS
    )
    # Where a segment ends its file, one more record is requested, so that a surplus is detected.
    request = take + (skip + take == np.array(files.lengths)[file])
    paths, numbers = (
        tf.constant(files.paths),
        [tf.constant(x, tf.int64) for x in (file, skip, take, request, first)],
    )

    @tf.autograph.experimental.do_not_convert
    def read_segment(i):
        file, skip, take, request, first = (x[i] for x in numbers)
        records = (
            tf.data.TFRecordDataset(paths[file], buffer_size=_READ_AHEAD).skip(skip).take(request)
        )
        positions = tf.data.Dataset.range(first, first + request)
        segment = tf.data.Dataset.zip((positions, records))
        return segment.apply(tf.data.experimental.assert_cardinality(take))

    return read_segment


def _stored_feature(field: Field) -> Any:
    """How a record stores a field."""
    if field.are_boxes:
        return tf.io.FixedLenSequenceFeature(
            (4,), tf.float32, allow_missing=True, default_value=_PADDING
        )
    dtype = tf.float32 if field.dtype == np.float32 else tf.int64
    if field.of_boxes:
        return tf.io.FixedLenSequenceFeature((), dtype, allow_missing=True)
    return tf.io.FixedLenFeature(field.shape, dtype)


def _extra(
    values: Shaped[tf.Tensor, "_n ..."], field: Field, positions: Int[tf.Tensor, "_n"]
) -> Shaped[tf.Tensor, "_n ..."]:
    """The arrays of a field; boxes are padded, and are zeros where they have no area."""
    if field.of_boxes:  # no more than the boxes, which are checked
        padded = tf.pad(values, ((0, 0), (0, field.shape[0])))[:, : field.shape[0]]
        return tf.ensure_shape(tf.cast(padded, field.dtype), (None, *field.shape))
    if not field.are_boxes:
        return tf.cast(values, field.dtype)
    max_boxes, is_padding = field.shape[0], tf.reduce_all(values == _PADDING, axis=2)
    numbers = tf.reduce_sum(tf.cast(~is_padding, tf.int32), axis=1)
    example = tf.argmax(numbers)
    message = tf.strings.format(
        fields_lib.too_many_boxes("{}", "{}", max_boxes), (positions[example], numbers[example])
    )
    with tf.control_dependencies([tf.debugging.Assert(numbers[example] <= max_boxes, [message])]):
        values = tf.where(is_padding[..., None], 0.0, values)
        padded = tf.pad(values, ((0, 0), (0, max_boxes - tf.shape(values)[1]), (0, 0)))
    with tf.control_dependencies([_box_check(positions, padded)]):
        return tf.ensure_shape(boxes_lib.without_empty(tf, padded), (None, *field.shape))


def _box_check(positions: Int[tf.Tensor, "_n"], boxes: Float[tf.Tensor, "_n _m 4"]) -> tf.Operation:
    """Fails if a box is inverted, outside of the image or not finite."""
    low, high = boxes[..., :2], boxes[..., 2:]
    is_valid = tf.reduce_all((low >= 0) & (low <= high) & (high <= 1), axis=-1)
    is_of_valid = tf.reduce_all(is_valid, axis=1)
    example = tf.argmin(tf.cast(is_of_valid, tf.int32))
    box = tf.argmin(tf.cast(is_valid[example], tf.int32))
    fault = (positions[example], boxes[example, box])
    message = tf.strings.format(fields_lib.invalid_box("{}", "{}"), fault)
    return tf.debugging.Assert(tf.reduce_all(is_of_valid), [message])


def valid_extras(
    extras: Mapping[str, Shaped[np.ndarray, "n ..."]], where: str
) -> dict[str, Shaped[np.ndarray, "n ..."]]:
    """Checks extras of `Records.parse` and returns them with integers as int32.

    Raises:
      ValueError: an integer does not fit into int32.
    """
    for name, values in extras.items():
        checks.fits_int32(f"{where}: {name}", values)
    return {
        name: values.astype(np.int32) if values.dtype == np.int64 else values
        for name, values in extras.items()
    }


def pad_labels(labels: TensorLabels, max_labels: int) -> TensorLabels:
    """Pads lists of labels with -1, or cuts them, to max_labels + 1; other labels are unchanged."""
    if labels.shape.rank == 1:
        return labels
    padded = tf.pad(
        labels, ((0, 0), (0, max_labels + 1)), constant_values=tf.constant(-1, labels.dtype)
    )
    return tf.ensure_shape(padded[:, : max_labels + 1], (None, max_labels + 1))


def valid_labels(
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"],
    ids: Int[np.ndarray, "n"],
    num_classes: int,
    where: str,
    *,
    may_be_unknown: bool = False,
) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n l"]:
    """Checks labels of `Records.parse` and returns them as int32, lists without the last column.

    Rows with id -1 are padding and are not checked.

    Raises:
      ValueError: a label is not a class, or a list is too long; names the first such example.
    """
    if labels.ndim == 2:
        too_long = np.flatnonzero(labels[:, -1] != -1)
        if len(too_long):
            raise ValueError(
                f"{where}: the example of id {ids[too_long[0]]} has more than"
                f" {labels.shape[1] - 1} labels; raise config.data.max_labels."
            )
        labels = labels[:, :-1]
    is_example = ids >= 0
    checks.labels(
        labels[is_example], ids[is_example], num_classes, where, may_be_unknown=may_be_unknown
    )
    return labels.astype(np.int32)
