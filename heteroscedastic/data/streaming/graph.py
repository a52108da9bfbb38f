"""What a stream reads and does, as graphs of tf.data."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from heteroscedastic.data import chains
from heteroscedastic.data.streaming import ops, reader_shards, records
from heteroscedastic.data.streaming.sources import Source

_PLACES = 64  # more than the operations of a chain
_EVALUATION = 2**31  # in place of the epoch
_as_written = tf.autograph.experimental.do_not_convert


def stored(
    source: Source,
    readings: Sequence[reader_shards.Reading],
    window: int,
    share: int,
    num_steps: int,
    max_labels: int,
) -> tf.data.Dataset:
    """(position, encoded image, labels) by step, `share` of every lane in turn; position -1 where
    it has no more.
    """

    def whole(values):
        return tf.constant(values, tf.int64)

    run = records.runs(source.records.files(source.part.split), readings)
    shuffled = whole(np.concatenate([r.shuffled for r in readings]))
    run_ends, ends = (
        whole(np.cumsum([0, *(len(getattr(r, n)) for r in readings)])) for n in ("file", "shuffled")
    )
    drops, missing = (
        whole([r.drop for r in readings]),
        whole([num_steps * share - len(r.ids) for r in readings]),
    )
    mask = source.mask
    mask = None if mask is None else tf.constant(mask)

    @_as_written
    def is_kept(position, record):
        return mask[position]

    parsed = source.parser(max_labels)

    @_as_written
    def in_order(found, order):
        positions, serialized = found
        images, labels = parsed(positions, serialized)
        return tuple(tf.gather(x, order) for x in (positions, images, labels))

    @_as_written
    def lane(i):
        found = tf.data.Dataset.range(run_ends[i], run_ends[i + 1]).flat_map(run)
        if mask is not None:
            found = found.filter(is_kept)
        order = tf.data.Dataset.from_tensor_slices(shuffled[ends[i] : ends[i + 1]])
        # What is found comes first, so that it is read to its end, where what is missing or too
        # much shows.
        windows = tf.data.Dataset.zip((found.batch(window), order.batch(window)))
        found = windows.map(in_order).unbatch()
        no_labels = tf.fill((max_labels + 1,) if source.is_list else (), tf.constant(-1, tf.int64))
        nothing = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), "", no_labels)).repeat(
            missing[i]
        )
        return found.skip(drops[i]).concatenate(nothing)

    return tf.data.Dataset.range(len(readings)).interleave(
        lane,
        cycle_length=len(readings),
        block_length=share,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def image(shape: Sequence[int | None], chain: Sequence[Callable]) -> Callable:
    """(key, position, encoded image) -> image, traced once.

    What an operation draws follows from the key, the position and its place in the chain.
    """

    def of(key, position, encoded):
        example = {"image": encoded, "shape": shape}
        for place, op in enumerate(chain):
            try:
                example = op(example, tf.stack((key, position * _PLACES + place)))
            except ValueError as error:
                raise ValueError(
                    f"{chains.words(op)}: {str(error).partition(chr(10))[0]}"
                ) from None
        return ops.decode(example, None)["image"]

    numbers = [tf.TensorSpec((), tf.int64)] * 2
    return tf.function(
        of, [*numbers, tf.TensorSpec((), tf.string)], autograph=False
    ).get_concrete_function()


def key(seed: int, epoch: int | None) -> tf.Tensor:
    """What the draws of an epoch begin from; None is evaluation."""
    return tf.constant(((seed << 32) + (_EVALUATION if epoch is None else epoch)) % 2**63, tf.int64)


def example(image_of: Callable, key: tf.Tensor, left_out: Sequence[int]) -> Callable:
    """(position, encoded image, labels) -> image, labels, weight, id; weight 0 where it is none or
    left out.
    """
    lost, spec = tf.constant(left_out, tf.int64), image_of.structured_outputs

    @_as_written
    def of(position, encoded, labels):
        is_there = (position >= 0) & ~tf.reduce_any(position == lost)
        nothing = functools.partial(tf.zeros, spec.shape, spec.dtype)
        found = tf.cond(is_there, lambda: image_of(key, position, encoded), nothing)
        return found, labels, tf.cast(is_there, tf.float32), tf.cast(position, tf.int32)

    return of
