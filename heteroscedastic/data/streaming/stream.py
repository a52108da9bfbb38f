"""The pipeline of a data set that does not fit: every host reads, decodes and augments its part.

Feeds are batches, made by tf.data from the record files of TensorFlow Datasets in the order of
lanes.py. The device does no more than the last `value_range` of a chain, so uint8 goes there.
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
from jaxtyping import PRNGKeyArray

from heteroscedastic.batch import Batch
from heteroscedastic.bind import within
from heteroscedastic.data import augment, resident
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.pipeline import Places, Selected
from heteroscedastic.data.storage import tfds
from heteroscedastic.data.streaming import graph, in_memory, ops, reader_shards, records
from heteroscedastic.data.streaming.in_memory import InMemory
from heteroscedastic.data.streaming.sources import Chosen
from heteroscedastic.links import LabelForm


class Streaming:
    """The pipeline over record files."""

    def __init__(
        self,
        chosen: Chosen,
        *,
        seed: int,
        batch_size: int,
        training_chain: Sequence[Callable],
        chain: Sequence[Callable],
        lanes: int,
        window: int = 128,
        max_labels: int = 16,
        max_corrupt: int = 100,
    ):
        """Settings of config.data.

        Args:
          chosen: the examples of every split.
          seed: of the order, and of what operations draw.
          batch_size: of the global batch, a multiple of `lanes`.
          training_chain: operations of ops.py.
          chain: of evaluation.
          lanes: parts of a split that are read side by side, a multiple of any number of hosts to
            come.
          window: records of a lane that are shuffled together, and held in memory as they are
            stored.
          max_labels: the longest list of labels of an example.
          max_corrupt: images that may fail to decode, of those that all hosts knew of at the last
            checkpoint, and those that one has met since.
        """
        sources, self.class_names, self.class_counts, self.description = chosen
        self.sizes = {name: len(source.kept) for name, source in sources.items()}
        self.label_forms: dict[str, LabelForm] = {
            name: "list" if source.is_list else "one" for name, source in sources.items()
        }
        self.arrays = dict.fromkeys(sources, ())
        self._sources, self._seed, self._batch_size = sources, seed, batch_size
        self._chains = {True: _parted(training_chain), False: _parted(chain)}
        self._lanes, self._window, self._share = lanes, window, batch_size // lanes
        self._max_labels, self._max_corrupt = max_labels, max_corrupt
        self._images: dict[
            tuple[str, bool], Callable
        ] = {}  # by split, and whether it is of training
        self._left_out: dict[str, list[int]] = {name: [] for name in sources}

    @property
    def dataset(self) -> Dataset:
        """Splits as evaluation sees them, each decoded into memory when it is asked for."""
        return Dataset(InMemory(self.sizes, self._read), self.class_names)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        return {name: source.kept for name, source in self._sources.items()}

    @property
    def clean_labels(self) -> Mapping:
        """Labels before curation."""
        return InMemory(
            self.sizes, lambda split: self._sources[split].clean_labels(self._max_labels)
        )

    def training_feeds(
        self, epoch: int, start: int, places: Places, selected: Selected | None = None
    ) -> Iterator[Batch]:
        if selected is not None:
            raise ValueError(
                "the streaming pipeline reads files in order and cannot select the examples of an"
                " epoch; set config.data.pipeline='resident'."
            )
        return self._feeds("train", places, epoch, start)

    def feeds(self, split: str, places: Places) -> Iterator[Batch]:
        return self._feeds(split, places, None, 0)

    def example(self, split: str, training: bool) -> Batch:
        spec, size = self._image(split, training).structured_outputs, self._batch_size
        lists = (self._max_labels,) if self._sources[split].is_list else ()
        image, ids = (
            np.zeros((size, *spec.shape), spec.dtype.as_numpy_dtype),
            np.zeros(size, np.int32),
        )
        return Batch(image, np.zeros((size, *lists), np.int32), np.zeros(size, np.float32), ids, {})

    def training_batch(self, key: PRNGKeyArray, arrays: Any, feed: Batch) -> Batch:
        return _on_device(key, feed, self._chains[True][1])

    def batch(self, key: PRNGKeyArray, arrays: Any, feed: Batch | resident.Feed) -> Batch:
        on_device = self._chains[False][1]
        if isinstance(feed, resident.Feed):  # of a split that was read into memory
            return resident.batch(key, arrays, feed, chain=on_device)
        return _on_device(key, feed, on_device)

    def left_out(self) -> dict[str, list[int]]:
        return {split: sorted(ids) for split, ids in self._left_out.items() if ids}

    def leave_out(self, ids: Mapping[str, Sequence[int]]) -> None:
        for split, known in self._left_out.items():
            known[:] = sorted({*known, *ids.get(split, ())})

    def ids(
        self, split: str, places: Places, epoch: int | None = None, start: int = 0
    ) -> np.ndarray:
        """The ids of every step from `start` on, -1 where there is none; nothing is read.

        Args:
          split: to be told of.
          places: of each batch.
          epoch: of training; None is evaluation.
          start: the first step.
        """
        steps = self._num_steps(split) - start
        told = np.full((len(places) // self._share, steps * self._share), -1, np.int64)
        for row, found in zip(told, self._readings(split, places, epoch, start)):
            row[: len(found.ids)] = found.ids
        return (
            told.reshape(len(told), steps, self._share).swapaxes(0, 1).reshape(steps, len(places))
        )

    def _num_steps(self, split: str) -> int:
        return resident.steps_per_epoch(self.sizes[split], self._batch_size)

    def _readings(
        self, split: str, places: Places, epoch: int | None, start: int
    ) -> list[reader_shards.Reading]:
        """What is read of the lanes that fill these places."""
        mine = np.unique(places // self._share).tolist()
        if len(mine) * self._share != len(places):
            raise ValueError(
                f"config.data.lanes is {self._lanes}, but must be a multiple of the"
                f" {self._batch_size // len(places)}"
                " parts that the hosts of this run cut a batch into."
            )
        source = self._sources[split]
        cut = reader_shards.cut(source.kept, self._lanes)

        def draws(lane):
            return None if epoch is None else reader_shards.draws(self._seed, epoch, lane)

        return [
            reader_shards.reading(
                cut[i],
                source.records.files(source.part.split).lengths,
                start * self._share,
                self._window,
                draws(i),
            )
            for i in mine
        ]

    def _feeds(self, split: str, places: Places, epoch: int | None, start: int) -> Iterator[Batch]:
        step, steps = start, self._num_steps(split)
        while step < steps:  # each time round, a step was made or an image more is left out
            try:
                with self._readable(split, places, epoch, step):
                    for feed in self._batches(split, places, epoch, step):
                        yield self._checked(split, feed)
                        step += 1
            except tf.errors.InvalidArgumentError as error:
                with self._readable(split, places, epoch, step):
                    self._leave_out(split, places, epoch, step, error)
            else:
                break
        if step < steps:
            raise ValueError(
                f"{self._sources[split].where}: {split} ended after {step:,} of {steps:,} batches."
            )

    @contextlib.contextmanager
    def _readable(self, split: str, places: Places, epoch: int | None, step: int) -> Iterator[None]:
        """An error of reading names the file; one of decoding passes."""
        try:
            yield
        except tf.errors.InvalidArgumentError:
            raise
        except tf.errors.OpError as error:
            numbers = np.concatenate(
                [reading.file for reading in self._readings(split, places, epoch, step)]
            )
            raise self._sources[split].records.unreadable(
                self._sources[split].part.split, numbers, error
            ) from None

    def _batches(
        self, split: str, places: Places, epoch: int | None, start: int
    ) -> Iterator[Batch]:
        image_of, key = self._image(split, epoch is not None), graph.key(self._seed, epoch)
        example = graph.example(image_of, key, self._left_out[split])
        batches = (
            self._stored(split, places, epoch, start)
            .map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .batch(len(places), drop_remainder=True)
            .prefetch(tf.data.AUTOTUNE)
        )
        for found in batches.as_numpy_iterator():
            yield Batch(*found, {})

    def _checked(self, split: str, feed: Batch) -> Batch:
        """The feed, once its labels are classes; a list without labels tells a model of one
        nothing.
        """
        where, num_classes = self._sources[split].where, len(self.class_names)
        labels, weights = records.checked(feed.labels, feed.ids, num_classes, where), feed.weights
        if self.label_forms["train"] == "one" and self.label_forms[split] == "list":
            weights = weights * (labels[:, 0] >= 0)
        return feed._replace(labels=labels, weights=weights)

    def _stored(self, split: str, places: Places, epoch: int | None, start: int) -> tf.data.Dataset:
        readings, steps = (
            self._readings(split, places, epoch, start),
            self._num_steps(split) - start,
        )
        return graph.stored(
            self._sources[split], readings, self._window, self._share, steps, self._max_labels
        )

    def _image(self, split: str, training: bool) -> Callable:
        """What the host does with an image."""
        if (split, training) not in self._images:
            section = f"data.{'train' if training else 'eval'}"
            made = within(
                section,
                graph.image,
                self._sources[split].records.image_shape,
                self._chains[training][0],
            )
            shape = made.structured_outputs.shape
            if not shape.is_fully_defined():
                raise ValueError(
                    f"config.{section} makes images of {shape}, but all must be of one size; end"
                    " it with a crop or"
                    " resize to one."
                )
            self._images[split, training] = made
        return self._images[split, training]

    def _leave_out(
        self,
        split: str,
        places: Places,
        epoch: int | None,
        step: int,
        error: tf.errors.InvalidArgumentError,
    ) -> None:
        """Finds the images of a step that cannot be decoded, and leaves them out from now on.

        Raises:
          ValueError: all of them can be, so the chain has failed; or they are too many by now.
        """
        source, found = self._sources[split], []
        decoded, key = graph.image(source.records.image_shape, []), graph.key(0, None)
        try:
            of_step = list(self._stored(split, places, epoch, step).take(len(places)))
        except tf.errors.InvalidArgumentError as unread:
            raise ValueError(
                f"{source.where}: {split} holds a record that is no image with {source.label!r}"
                f" ({tfds.one_line(unread)}); prepare it again."
            ) from None
        for position, image, _ in of_step:
            try:
                if position >= 0:
                    decoded(key, position, image)
            except tf.errors.InvalidArgumentError:
                found.append(int(position))
        found = sorted(set(found) - set(self._left_out[split]))
        if not found:
            raise self._failure(split, epoch, of_step, error) from None
        self._left_out[split] += found
        logging.warning(
            "%s: images of ids %s cannot be decoded and are left out.", source.where, found
        )
        if sum(map(len, self._left_out.values())) > self._max_corrupt:
            raise ValueError(
                f"{source.where}: more than {self._max_corrupt} images cannot be decoded, now"
                f" those of ids {found};"
                " prepare the set again, or raise config.data.max_corrupt."
            ) from None

    def _failure(
        self,
        split: str,
        epoch: int | None,
        of_step: Sequence[tuple],
        error: tf.errors.InvalidArgumentError,
    ) -> ValueError:
        """That of the chain, which names the first image that fails alone as all did together."""
        image_of, key = self._image(split, epoch is not None), graph.key(self._seed, epoch)
        which = "an image"
        for position, image, _ in of_step:
            try:
                if position >= 0 and int(position) not in self._left_out[split]:
                    image_of(key, position, image)
            except tf.errors.InvalidArgumentError as found:
                which, error = f"the image of id {int(position)}", found
                break
        return ValueError(
            f"{self._sources[split].where}: the chain fails on {which} of {split}:"
            f" {tfds.one_line(error)}"
        )

    def _read(self, split: str) -> Split:
        """A split as evaluation sees it."""
        source = self._sources[split]
        in_memory.check_room(source.where, len(source.kept), self.example(split, False).inputs[0])
        return in_memory.gathered(self.feeds(split, np.arange(self._batch_size)), source.kept)


def _parted(chain: Sequence[Callable]) -> tuple[list[Callable], list[Callable]]:
    """What the host does of a chain, and what the device does: the last `value_range`."""
    if chain and chain[-1].func is ops.value_range:
        return list(chain[:-1]), [functools.partial(augment.value_range, **chain[-1].keywords)]
    return list(chain), []


def _on_device(key: PRNGKeyArray, feed: Batch, chain: Sequence[Callable]) -> Batch:
    inputs = feed.inputs
    for op in chain:
        inputs = jax.vmap(functools.partial(op, key))(inputs)
    return jax.tree.map(jnp.asarray, feed._replace(inputs=inputs))
