"""What a stream reads and does, as graphs of tf.data."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from heteroscedastic.data import lanes, ops
from heteroscedastic.data.sources import Source

_PLACES = 64  # more than the operations of a chain
_EVALUATION = 2**31  # in place of the epoch
_READ_AHEAD = 1 << 20  # bytes of every file that is open
_as_written = tf.autograph.experimental.do_not_convert


class Spec(NamedTuple):
    """Shapes and types of an example."""

    image: tf.TensorSpec
    labels: tf.TensorSpec
    weight: tf.TensorSpec
    id: tf.TensorSpec


def records(
    source: Source, readings: Sequence[lanes.Reading], window: int, share: int, num_steps: int
) -> tf.data.Dataset:
    """(position, serialized example) step by step, `share` of every lane in turn; (-1, "") where it has no more."""

    def whole(values):
        return tf.constant(values, tf.int64)

    def joined(name):
        return whole(np.concatenate([getattr(r, name) for r in readings]))

    paths = tf.constant(source.records.files(source.part.split).paths)
    runs, shuffled = [joined(name) for name in ("file", "skip", "take", "first")], joined("shuffled")
    run_ends, ends = (whole(np.cumsum([0, *(len(getattr(r, n)) for r in readings)])) for n in ("file", "shuffled"))
    drops, missing = whole([r.drop for r in readings]), whole([num_steps * share - len(r.ids) for r in readings])
    mask = None if source.mask is None else tf.constant(source.mask)

    @_as_written
    def run(i):
        file, skip, take, first = (x[i] for x in runs)
        stored = tf.data.TFRecordDataset(paths[file], buffer_size=_READ_AHEAD).skip(skip).take(take)
        return tf.data.Dataset.zip((tf.data.Dataset.range(first, first + take), stored))

    @_as_written
    def is_kept(position, record):
        return mask[position]

    @_as_written
    def in_order(order, found):
        return tuple(tf.gather(x, order) for x in found)

    @_as_written
    def lane(i):
        found = tf.data.Dataset.range(run_ends[i], run_ends[i + 1]).flat_map(run)
        if mask is not None:
            found = found.filter(is_kept)
        order = tf.data.Dataset.from_tensor_slices(shuffled[ends[i] : ends[i + 1]])
        windows = tf.data.Dataset.zip((order.batch(window), found.batch(window)))
        nothing = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), "")).repeat(missing[i])
        return windows.map(in_order).unbatch().skip(drops[i]).concatenate(nothing)

    return tf.data.Dataset.range(len(readings)).interleave(
        lane, cycle_length=len(readings), block_length=share, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


def present(source: Source, chain: Sequence[Callable], seed: int, epoch: int | None, max_labels: int) -> Callable:
    """(position, serialized example) -> image, labels, weight 1, id.

    What an operation draws follows from the seed, the epoch, the position and its place in the chain.
    """
    key = tf.constant(((seed << 32) + (_EVALUATION if epoch is None else epoch)) % 2**63, tf.int64)
    parsed, shape = source.parser(max_labels), source.records.image_shape

    @_as_written
    def found(position, record):
        image, labels = parsed(record, position)
        example = {"image": image, "shape": shape}
        for place, op in enumerate(chain):
            example = op(example, tf.stack((key, position * _PLACES + place)))
        return ops.decode(example, None)["image"], labels, tf.constant(1.0), tf.cast(position, tf.int32)

    return found


def spec(example: Callable) -> Spec:
    """What `present` gives; nothing is read."""
    traced = tf.function(example, autograph=False)
    of = (tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.string))
    return Spec(*traced.get_concrete_function(*of).structured_outputs)


def with_absent(example: Callable, found: Spec, left_out: Sequence[int]) -> Callable:
    """The same, and an example of weight 0 where there is none or it is left out."""
    lost = tf.constant(left_out, tf.int64)

    def absent(position):
        no_labels = tf.fill(found.labels.shape, tf.constant(-1 if found.labels.shape.rank else 0, tf.int32))
        image = tf.zeros(found.image.shape, found.image.dtype)
        return image, no_labels, tf.constant(0.0), tf.cast(position, tf.int32)

    @_as_written
    def either(position, record):
        is_there = position >= 0
        if left_out:
            is_there &= ~tf.reduce_any(position == lost)
        return tf.cond(is_there, lambda: example(position, record), lambda: absent(position))

    return either
