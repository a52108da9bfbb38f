"""The tf.data graphs of a stream: reading, decoding and augmentation."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from jaxtyping import Int

from heteroscedastic.data import chains
from heteroscedastic.data.storage import fields
from heteroscedastic.data.streaming import ops, reader_shards, records
from heteroscedastic.data.streaming.sources import Source

_MAX_OPS = 64  # exceeds the number of operations in a chain
_MAX_POSITIONS = 2**31  # at least the number of examples, whose ids are int32
_EVALUATION_EPOCH = 2**31  # takes the place of the epoch in evaluation
_NO_EXTRAS = ("occurrence", "orientation", "shape")  # of an example, for operations alone
_without_autograph = tf.autograph.experimental.do_not_convert


def stored_examples(
    source: Source,
    plans: Sequence[reader_shards.ReadPlan],
    window: int,
    shard_batch_size: int,
    num_steps: int,
    max_labels: int,
    occurrences: int = 1,
    requires_boxes: bool = False,
) -> tf.data.Dataset:
    """(position, encoded image, labels, extras) of each example, in the order of the steps.

    Each step takes `shard_batch_size` examples from every shard in turn. An exhausted shard yields
    position -1. With `requires_boxes` an example without a box is an error. The plans are of the
    split `occurrences` times, one after another; see `example_specs` for the extras.
    """

    def int64(values):
        return tf.constant(values, tf.int64)

    files = source.records.files(source.part.split).repeated(occurrences)
    read_segment = records.segment_reader(files, plans)
    specs, num_stored = example_specs(source, occurrences), source.num_stored
    window_order = int64(np.concatenate([plan.window_order for plan in plans]))
    segment_ends, order_ends = (
        int64(np.cumsum([0, *(len(getattr(plan, name)) for plan in plans)]))
        for name in ("file", "window_order")
    )
    drops, num_missing = (
        int64([plan.drop for plan in plans]),
        int64([num_steps * shard_batch_size - len(plan.ids) for plan in plans]),
    )
    mask = source.mask
    mask = None if mask is None else tf.constant(mask)

    @_without_autograph
    def is_selected(position, record):
        return mask[position % num_stored]

    parse = source.parser(max_labels)

    @_without_autograph
    def parse_in_order(batch, order):
        occurrence, positions = batch[0] // num_stored, batch[0] % num_stored
        images, labels, extras = parse(positions, batch[1])
        extras |= {"occurrence": occurrence} if occurrences > 1 else {}
        values = (positions, images, labels, extras)
        with tf.control_dependencies([_box_check(*values)] if requires_boxes else []):
            order = tf.identity(order)
        return tf.nest.map_structure(lambda x: tf.gather(x, order), values)

    @_without_autograph
    def read_shard(i):
        stream = tf.data.Dataset.range(segment_ends[i], segment_ends[i + 1]).flat_map(read_segment)
        if mask is not None:
            stream = stream.filter(is_selected)
        order = tf.data.Dataset.from_tensor_slices(window_order[order_ends[i] : order_ends[i + 1]])
        # The records come first in the zip, so that they are read to their end, where a missing or
        # surplus record is detected.
        windows = tf.data.Dataset.zip((stream.batch(window), order.batch(window)))
        stream = windows.map(parse_in_order).unbatch()
        no_labels = tf.fill((max_labels + 1,) if source.is_list else (), tf.constant(-1, tf.int64))
        no_extras = {name: tf.zeros(x.shape, x.dtype) for name, x in specs.items()}
        absent = (tf.constant(-1, tf.int64), "", no_labels, no_extras)
        padding = tf.data.Dataset.from_tensors(absent).repeat(num_missing[i])
        return stream.skip(drops[i]).concatenate(padding)

    return tf.data.Dataset.range(len(plans)).interleave(
        read_shard,
        cycle_length=len(plans),
        block_length=shard_batch_size,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def example_specs(source: Source, occurrences: int) -> dict[str, tf.TensorSpec]:
    """Shape and type of each extra of an example.

    Where an epoch has an example several times, one of them is the number of its occurrence.
    """
    occurrence = {"occurrence": tf.TensorSpec((), tf.int64)} if occurrences > 1 else {}
    return source.extra_specs | occurrence


def _box_check(
    positions: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, extras: Mapping[str, tf.Tensor]
) -> tf.Operation:
    """Fails if an example has no box."""
    has_box = tf.reduce_any(extras["boxes"] != 0, axis=(1, 2))
    first = positions[tf.argmin(tf.cast(has_box, tf.int32))]
    message = tf.strings.format(fields.no_box("{}"), first)
    return tf.debugging.Assert(tf.reduce_all(has_box), [message])


def chain_function(
    shape: Sequence[int | None],
    extra_specs: Mapping[str, tf.TensorSpec],
    chain: Sequence[Callable],
    orientation: str | None = None,
) -> Callable:
    """(key, position, encoded image, extras) -> example, traced once.

    The result has the image and the extras after the chain, by name; operations may add extras.

    The random numbers of an operation follow from the key, the position of the example, the number
    of its occurrence and the index of the operation in the chain.

    Args:
      shape: height, width and channels of the images; None where it varies.
      extra_specs: see `example_specs`.
      chain: operations of ops.py.
      orientation: of all images; see `Source`.
    """

    def result(key, position, encoded, extras):
        example = extras | {"image": encoded, "shape": shape, "orientation": orientation}
        number = position + _MAX_POSITIONS * extras.get("occurrence", 0)
        for index, op in enumerate(chain):
            try:
                example = op(tf.stack((key, number * _MAX_OPS + index)), example)
            except ValueError as error:
                raise ValueError(
                    f"{chains.link_text(op)}: {str(error).partition(chr(10))[0]}"
                ) from None
        example = ops.decode(None, example)
        return {n: value for n, value in example.items() if n not in _NO_EXTRAS}

    numbers = [tf.TensorSpec((), tf.int64)] * 2
    return tf.function(
        result, [*numbers, tf.TensorSpec((), tf.string), dict(extra_specs)], autograph=False
    ).get_concrete_function()


def epoch_key(seed: int, epoch: int | None) -> Int[tf.Tensor, ""]:
    """Key of all random numbers of an epoch; None is evaluation."""
    number = _EVALUATION_EPOCH if epoch is None else epoch
    return tf.constant(((seed << 32) + number) % 2**63, tf.int64)


def example_function(
    function: Callable, key: Int[tf.Tensor, ""], left_out: Sequence[int]
) -> Callable:
    """(position, encoded image, labels, extras) -> image, labels, weight, id, extras.

    The weight is 0 where the position is -1 or in `left_out`; such an image is all zeros, and so
    are its extras.

    Args:
      function: a `chain_function`.
      key: of the epoch.
      left_out: positions of images that cannot be decoded.
    """
    left_out = tf.constant(left_out, tf.int64)

    @_without_autograph
    def example(position, encoded, labels, extras):
        is_present = (position >= 0) & ~tf.reduce_any(position == left_out)
        result = tf.cond(
            is_present,
            lambda: function(key, position, encoded, extras),
            lambda: {n: tf.zeros(x.shape, x.dtype) for n, x in function.structured_outputs.items()},
        )
        weight, example_id = tf.cast(is_present, tf.float32), tf.cast(position, tf.int32)
        return result.pop("image"), labels, weight, example_id, result

    return example
