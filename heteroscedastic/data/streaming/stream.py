"""The streaming pipeline: every host reads, decodes and augments its part of each batch.

tf.data reads the record files of TensorFlow Datasets in the order of reader_shards.py. Feeds are
batches. Only the last `value_range` of a chain runs on the device, so that images are transferred
as uint8.

Where the canvas of an image has its orientation, a batch has images of one. The wide and the tall
images are then read as two streams with batches of their own, and the batches of an epoch are
shuffled together.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from absl import logging
from jaxtyping import Int, PRNGKeyArray

from heteroscedastic.batch import Batch
from heteroscedastic.bind import in_section
from heteroscedastic.data import augment, chains, checks, resident
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.pipeline import Slots
from heteroscedastic.data.storage import tfds
from heteroscedastic.data.streaming import graph, in_memory, ops, reader_shards, records
from heteroscedastic.data.streaming.in_memory import LazySplits
from heteroscedastic.data.streaming.sources import Source, StreamSources
from heteroscedastic.links import LabelForm
from heteroscedastic.selection import Selected


class Streaming:
    """The pipeline over record files; see data.pipeline.Pipeline."""

    def __init__(
        self,
        sources: StreamSources,
        *,
        seed: int,
        batch_size: int,
        training_chain: Sequence[Callable],
        chain: Sequence[Callable],
        own_chains: Mapping[str, Sequence[Callable]] | None = None,
        reader_shards: int,
        window: int = 128,
        max_labels: int = 16,
        max_corrupt: int = 100,
        soft_labels: Sequence[str] = (),
        requires_boxes: bool = False,
    ):
        """Binds the settings of config.data.

        Args:
          sources: the examples of every split.
          seed: seed of the order and of the operations.
          batch_size: global batch size, a multiple of `reader_shards`.
          training_chain: operations of ops.py for training.
          chain: operations of ops.py for evaluation.
          own_chains: the same for the splits that have a chain of their own.
          reader_shards: number of parts of a split that are read in parallel;
            a multiple of the number of hosts, also of every later number of hosts.
          window: records of a reader shard that are shuffled together; they are held in memory as
            stored.
          max_labels: maximum number of labels per example.
          max_corrupt: maximum number of images that may fail to decode. It counts images that all
            hosts knew of at the last checkpoint, and images that this host found since.
          soft_labels: extras of "train" that must be distributions over the classes.
          requires_boxes: whether each example must have a box in training.
        """
        splits, self.class_names, self.class_counts, self.description = sources
        self._by_orientation = functools.cache(lambda split: splits[split].by_orientation())
        self.sizes = {name: len(source.ids) for name, source in splits.items()}
        self.label_forms: dict[str, LabelForm] = {
            name: "list" if source.is_list else "one" for name, source in splits.items()
        }
        self.arrays = dict.fromkeys(splits, ())
        self._sources, self._seed, self._batch_size = splits, seed, batch_size
        self.chain, self.own_chains = chain, dict(own_chains or {})
        self._training_links = training_chain
        self._training_chain, self._chain = map(_host_and_device, (training_chain, chain))
        self.occurrences = chains.occurrences(training_chain)
        self._own_chains = {name: _host_and_device(x) for name, x in self.own_chains.items()}
        self._num_shards, self._window = reader_shards, window
        self._shard_batch_size = batch_size // reader_shards
        self._max_labels, self._max_corrupt = max_labels, max_corrupt
        self._soft_labels, self._requires_boxes = soft_labels, requires_boxes
        # By split, whether it is for training, and orientation.
        self._chain_functions: dict[tuple[str, bool, str | None], Callable] = {}
        self._left_out: dict[str, list[int]] = {name: [] for name in splits}
        orientations = {
            split: {part.orientation: len(part.ids) for part in self._by_orientation(split)}
            for split in splits
            if self._has_orientations(split, training=split == "train")
        }
        if orientations:  # on which hosts must agree, as batches depend on them
            self.description = {**self.description, "orientations": orientations}

    @property
    def steps_per_epoch(self) -> int:
        return len(self._turns("train", 0))

    @functools.cached_property
    def dataset(self) -> Dataset:
        """Splits as evaluation sees them; each is decoded into memory on first access."""
        return Dataset(LazySplits(self.sizes, self._read), self.class_names)

    @property
    def example_ids(self) -> dict[str, Int[np.ndarray, "_"]]:
        """Ids of every split, including those of images that cannot be decoded."""
        return {name: source.ids for name, source in self._sources.items()}

    @property
    def clean_labels(self) -> Mapping:
        """Labels before curation, by split; each is read on first access."""
        return LazySplits(
            self.sizes, lambda split: self._sources[split].clean_labels(self._max_labels)
        )

    def training_feeds(
        self, epoch: int, start: int, slots: Slots, selected: Selected | None = None
    ) -> Iterator[Batch]:
        if selected is not None:
            raise ValueError(
                "the streaming pipeline reads files in order and cannot select the examples of an"
                " epoch; set config.data.pipeline='resident'."
            )
        return self._feeds("train", slots, epoch, start)

    def feeds(self, split: str, slots: Slots) -> Iterator[Batch]:
        return self._feeds(split, slots, None, 0)

    def example(self, split: str, training: bool) -> Batch:
        size, list_shape = self._batch_size, (self._max_labels,) * self._sources[split].is_list
        function = self._chain_function(split, self._parts(split, training)[0], training)
        extras = {
            name: np.zeros((size, *spec.shape), spec.dtype.as_numpy_dtype)
            for name, spec in function.structured_outputs.items()
        }
        return Batch(
            inputs=extras.pop("image"),
            labels=np.zeros((size, *list_shape), np.int32),
            weights=np.zeros(size, np.float32),
            ids=np.zeros(size, np.int32),
            extras=records.valid_extras(extras, self._sources[split].where),
        )

    def training_batch(self, key: PRNGKeyArray, arrays: Any, feed: Batch) -> Batch:
        return _device_batch(key, feed, self._training_chain[1])

    def batch(
        self,
        key: PRNGKeyArray,
        arrays: Any,
        feed: Batch | resident.Feed,
        chain_of: str | None = None,
    ) -> Batch:
        device_chain = self._evaluation_chain(chain_of)[1]
        if isinstance(feed, resident.Feed):  # of a split that was read into memory
            return resident.batch(key, arrays, feed, chain=device_chain)
        return _device_batch(key, feed, device_chain)

    def left_out(self) -> dict[str, list[int]]:
        return {split: sorted(ids) for split, ids in self._left_out.items() if ids}

    def leave_out(self, ids: Mapping[str, Sequence[int]]) -> None:
        for split, known_ids in self._left_out.items():
            known_ids[:] = sorted({*known_ids, *ids.get(split, ())})

    def ids(
        self, split: str, slots: Slots, epoch: int | None = None, start: int = 0
    ) -> Int[np.ndarray, "steps part"]:
        """The ids of every step, -1 for padding; no records are read.

        Args:
          split: name of the split.
          slots: slots of each global batch.
          epoch: epoch of training; None is evaluation.
          start: the first step.
        """
        turns = self._turns(split, epoch)
        ids = np.full((len(turns), len(slots)), -1, np.int64)
        for i, part in enumerate(self._parts(split, epoch is not None)):
            first = int(np.sum(turns[:start] == i))
            num_steps, size = self._num_steps(part, epoch) - first, self._shard_batch_size
            rows = np.full((len(slots) // size, num_steps * size), -1, np.int64)
            for row, plan in zip(rows, self._read_plans(part, slots, epoch, first)):
                row[: len(plan.ids)] = plan.ids % part.num_stored
            by_step = rows.reshape(len(rows), num_steps, size).swapaxes(0, 1)
            ids[start:][turns[start:] == i] = by_step.reshape(num_steps, len(slots))
        return ids[start:]

    def _evaluation_chain(self, split: str | None) -> tuple[list[Callable], list[Callable]]:
        return self._own_chains.get(split, self._chain)

    def _occurrences(self, epoch: int | None) -> int:
        return 1 if epoch is None else self.occurrences

    def _has_orientations(self, split: str, training: bool) -> bool:
        own = self.own_chains.get(split, self.chain)
        return chains.has_orientations(self._training_links if training else own)

    def _parts(self, split: str, training: bool) -> tuple[Source, ...]:
        """The examples of a split in parts, of which each has batches of its own."""
        if self._has_orientations(split, training):
            return self._by_orientation(split)
        return (self._sources[split],)

    def _turns(self, split: str, epoch: int | None) -> Int[np.ndarray, "steps"]:
        """The number of the part that fills the batch of each step."""
        lengths = [self._num_steps(part, epoch) for part in self._parts(split, epoch is not None)]
        turns = np.repeat(np.arange(len(lengths)), lengths)
        if epoch is None:
            return turns
        # Its number is that of no shard.
        return reader_shards.generator(self._seed, epoch, self._num_shards).permutation(turns)

    def _num_steps(self, source: Source, epoch: int | None) -> int:
        num_examples = self._occurrences(epoch) * len(source.ids)
        return resident.steps_per_epoch(num_examples, self._batch_size)

    def _read_plans(
        self, source: Source, slots: Slots, epoch: int | None, start: int
    ) -> list[reader_shards.ReadPlan]:
        """Plans of the reader shards that fill these slots of the global batch.

        Where each example occurs several times, the plans are of the split repeated as often. The
        shards divide the repeated split, so a batch has examples of every pass over the split.
        """
        shard_numbers = np.unique(slots // self._shard_batch_size).tolist()
        if len(shard_numbers) * self._shard_batch_size != len(slots):
            raise ValueError(
                f"config.data.reader_shards is {self._num_shards}, but must be a multiple of"
                f" {self._batch_size // len(slots)}, the number of parts that a batch is divided"
                " into among hosts."
            )
        occurrences = self._occurrences(epoch)
        starts = source.num_stored * np.arange(occurrences)
        shards = reader_shards.shards((starts[:, None] + source.ids).ravel(), self._num_shards)
        file_lengths = source.records.files(source.part.split).repeated(occurrences).lengths

        def plan(shard):
            is_training = epoch is not None
            generator = reader_shards.generator(self._seed, epoch, shard) if is_training else None
            return reader_shards.read_plan(
                shards[shard], file_lengths, start * self._shard_batch_size, self._window, generator
            )

        return [plan(shard) for shard in shard_numbers]

    def _feeds(self, split: str, slots: Slots, epoch: int | None, start: int) -> Iterator[Batch]:
        turns = self._turns(split, epoch)
        feeds = [
            self._feeds_of(part, split, slots, epoch, int(np.sum(turns[:start] == i)))
            for i, part in enumerate(self._parts(split, epoch is not None))
        ]
        for turn in turns[start:]:
            yield next(feeds[turn])
        for rest in feeds:  # none is left, but surplus records are detected at the end
            yield from rest

    def _feeds_of(
        self, source: Source, split: str, slots: Slots, epoch: int | None, start: int
    ) -> Iterator[Batch]:
        """The feeds of a part of a split."""
        step, num_steps = start, self._num_steps(source, epoch)
        while step < num_steps:  # each iteration yields steps, or leaves out one more image
            try:
                with self._read_errors(source, slots, epoch, step):
                    for feed in self._batches(source, split, slots, epoch, step):
                        yield self._valid_feed(split, feed)
                        step += 1
            except tf.errors.InvalidArgumentError as error:
                with self._read_errors(source, slots, epoch, step):
                    self._leave_out_corrupt(source, split, slots, epoch, step, error)
            else:
                break
        if step < num_steps:
            raise ValueError(
                f"{source.where}: {split} ended after {step:,} of {num_steps:,} batches."
            )

    @contextlib.contextmanager
    def _read_errors(
        self, source: Source, slots: Slots, epoch: int | None, step: int
    ) -> Iterator[None]:
        """Adds the name of the file to errors of reading; errors of decoding pass unchanged."""
        try:
            yield
        except tf.errors.InvalidArgumentError:
            raise
        except tf.errors.OpError as error:
            plans = self._read_plans(source, slots, epoch, step)
            num_files = len(source.records.files(source.part.split).paths)
            file_numbers = np.concatenate([plan.file for plan in plans]) % num_files
            raise source.records.read_error(source.part.split, file_numbers, error) from None

    def _batches(
        self, source: Source, split: str, slots: Slots, epoch: int | None, start: int
    ) -> Iterator[Batch]:
        key = graph.epoch_key(self._seed, epoch)
        function = self._chain_function(split, source, epoch is not None)
        example = graph.example_function(function, key, self._left_out[split])
        batches = (
            self._stored_examples(source, slots, epoch, start)
            .map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .batch(len(slots), drop_remainder=True)
            .prefetch(tf.data.AUTOTUNE)
        )
        for arrays in batches.as_numpy_iterator():
            yield Batch(*arrays)

    def _valid_feed(self, split: str, feed: Batch) -> Batch:
        """The feed with checked labels and extras.

        An empty list of labels has weight 0 for a model of one label.
        """
        where, num_classes = self._sources[split].where, len(self.class_names)
        labels = records.valid_labels(feed.labels, feed.ids, num_classes, where)
        weights = feed.weights
        if self.label_forms["train"] == "one" and self.label_forms[split] == "list":
            weights = weights * (labels[:, 0] >= 0)
        extras, is_present = records.valid_extras(feed.extras, where), feed.weights > 0
        for name in self._soft_labels if split == "train" else ():
            checks.soft_labels(
                extras[name][is_present], feed.ids[is_present], num_classes, f"{where}: {name}"
            )
        return feed._replace(labels=labels, weights=weights, extras=extras)

    def _stored_examples(
        self, source: Source, slots: Slots, epoch: int | None, start: int
    ) -> tf.data.Dataset:
        return graph.stored_examples(
            source,
            self._read_plans(source, slots, epoch, start),
            self._window,
            self._shard_batch_size,
            self._num_steps(source, epoch) - start,
            self._max_labels,
            self._occurrences(epoch),
            self._requires_boxes and epoch is not None,
        )

    def _chain_function(self, split: str, source: Source, training: bool) -> Callable:
        """The operations of the host on one example of a part of a split."""
        name = split, training, source.orientation
        if name not in self._chain_functions:
            if training:
                section, chain = "data.train", self._training_chain
            else:
                own = split in self._own_chains
                section = f"data.splits.{split}.eval" if own else "data.eval"
                chain = self._evaluation_chain(split)
            function = in_section(
                section,
                graph.chain_function,
                source.records.image_shape,
                graph.example_specs(source, self.occurrences if training else 1),
                chain[0],
                source.orientation,
            )
            shape = function.structured_outputs["image"].shape
            if not shape.is_fully_defined():
                raise ValueError(
                    f"config.{section} produces images of shape {shape}, but all images must have"
                    " one size; end the chain with a crop or a resize to a fixed size."
                )
            self._chain_functions[name] = function
        return self._chain_functions[name]

    def _leave_out_corrupt(
        self,
        source: Source,
        split: str,
        slots: Slots,
        epoch: int | None,
        step: int,
        error: tf.errors.InvalidArgumentError,
    ) -> None:
        """Finds the images of a step that cannot be decoded, and leaves them out from now on.

        Raises:
          ValueError: all images can be decoded, so the chain has failed; or more than
            `max_corrupt` images cannot be decoded.
        """
        corrupt = []
        decode, key = (
            graph.chain_function(source.records.image_shape, {}, []),
            graph.epoch_key(0, None),
        )
        try:
            examples = list(self._stored_examples(source, slots, epoch, step).take(len(slots)))
        except tf.errors.InvalidArgumentError as parse_error:
            raise source.records.parse_error(source.part.split, parse_error) from None
        for position, image, *_ in examples:
            try:
                if position >= 0:
                    decode(key, position, image, {})
            except tf.errors.InvalidArgumentError:
                corrupt.append(int(position))
        corrupt = sorted(set(corrupt) - set(self._left_out[split]))
        if not corrupt:
            raise self._chain_error(source, split, epoch, examples, error) from None
        self._left_out[split] += corrupt
        logging.warning(
            "%s: images of ids %s cannot be decoded and are left out.", source.where, corrupt
        )
        if sum(map(len, self._left_out.values())) > self._max_corrupt:
            raise ValueError(
                f"{source.where}: more than {self._max_corrupt} images cannot be decoded, most"
                f" recently those of ids {corrupt}; prepare the set again, or raise"
                " config.data.max_corrupt."
            ) from None

    def _chain_error(
        self,
        source: Source,
        split: str,
        epoch: int | None,
        examples: Sequence[tuple],
        error: tf.errors.InvalidArgumentError,
    ) -> ValueError:
        """An error of the chain that names the first image on which the chain fails."""
        function = self._chain_function(split, source, epoch is not None)
        key, which = graph.epoch_key(self._seed, epoch), "an image"
        for position, image, _, extras in examples:
            try:
                if position >= 0 and int(position) not in self._left_out[split]:
                    function(key, position, image, extras)
            except tf.errors.InvalidArgumentError as image_error:
                which, error = f"the image of id {int(position)}", image_error
                break
        return ValueError(
            f"{source.where}: the chain fails on {which} of {split}: {tfds.error_message(error)}"
        )

    def _read(self, split: str) -> Split:
        """A split as evaluation sees it, in memory."""
        source = self._sources[split]
        if self._has_orientations(split, training=False):
            raise ValueError(
                f"{source.where}: images of two orientations have two canvases and are not read"
                " into memory; remove narrow from fit, for a square canvas."
            )
        in_memory.check_size(source.where, len(source.ids), self.example(split, False).inputs[0])
        return in_memory.split_from_feeds(
            self.feeds(split, np.arange(self._batch_size)), source.ids
        )


def _host_and_device(chain: Sequence[Callable]) -> tuple[list[Callable], list[Callable]]:
    """The operations of the host, and those of the device: a `value_range` at the end."""
    if chain and chain[-1].func is ops.value_range:
        return list(chain[:-1]), [functools.partial(augment.value_range, **chain[-1].keywords)]
    return list(chain), []


def _device_batch(key: PRNGKeyArray, feed: Batch, chain: Sequence[Callable]) -> Batch:
    example = feed.extras | {"image": feed.inputs}
    for op in chain:
        example = jax.vmap(functools.partial(op, key))(example)
    inputs = example.pop("image")
    return jax.tree.map(jnp.asarray, feed._replace(inputs=inputs, extras=example))
