"""The resident pipeline: the data set is transferred to the device once, as it is stored.

The host sends the rows of a step; the jitted step gathers and augments the examples.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic.batch import TRUNK_MAPS, Batch
from heteroscedastic.data import chains
from heteroscedastic.data import dataset as dataset_lib
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.pipeline import Slots
from heteroscedastic.links import LabelForm
from heteroscedastic.selection import Selected


class Feed(NamedTuple):
    """The rows of a step, sent by the host."""

    rows: Int[np.ndarray, "b"] | Int[Array, "b"]  # of the split
    weights: Float[np.ndarray, "b"] | Float[Array, "b"]  # 0 for padding
    epoch: Int[np.ndarray, ""] | Int[Array, ""]
    # Number of this occurrence of each row in the epoch, from 0; one number holds for all rows.
    repeats: Int[np.ndarray, "*b"] | Int[Array, "*b"] | np.int32 = np.int32(0)


def order(seed: int, epoch: int, num_examples: int) -> Int[np.ndarray, "n"]:
    """The order of an epoch; depends on seed and epoch alone."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_examples)


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Number of steps that cover every example once; the last batch is padded."""
    return -(-num_examples // batch_size)


def feeds(
    rows: Int[np.ndarray, "n"],
    batch_size: int,
    epoch: int = 0,
    start: int = 0,
    weights: Float[np.ndarray, "n"] | None = None,
    repeats: Int[np.ndarray, "n"] | None = None,
) -> Iterator[Feed]:
    """Feeds of these rows, in order, from step `start` on; the last feed is padded, not dropped.

    Args:
      rows: positions in a split.
      batch_size: of each feed.
      epoch: augmentation depends on it.
      start: number of steps to skip.
      weights: of the rows; 1 each if not given.
      repeats: numbers of the occurrences of each row; in their order if not given.
    """
    weights = np.ones(len(rows), np.float32) if weights is None else weights.astype(np.float32)
    repeats = _repeats(rows) if repeats is None else repeats
    for first in range(start * batch_size, len(rows), batch_size):
        chosen = rows[first : first + batch_size]
        padding = batch_size - len(chosen)
        yield Feed(
            rows=np.pad(chosen, (0, padding)).astype(np.int32),
            weights=np.pad(weights[first : first + batch_size], (0, padding)),
            epoch=np.int32(epoch),
            repeats=np.pad(repeats[first : first + batch_size], (0, padding)),
        )


def _repeats(rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """The number of earlier occurrences of each row."""
    order = np.argsort(rows, kind="stable")
    ordered, positions = rows[order], np.arange(len(rows))
    starts = np.maximum.accumulate(np.where(np.diff(ordered, prepend=-1) != 0, positions, 0))
    repeats = np.empty(len(rows), np.int32)
    repeats[order] = positions - starts
    return repeats


def batch(key: PRNGKeyArray, split: Split, feed: Feed, *, chain: Sequence[Callable]) -> Batch:
    """Gathers and augments the examples of a feed, with their extras.

    The random numbers of an example depend on the key, the epoch, its id, the index of the
    operation in the chain, and, for a repeated example, on the number of its occurrence in the
    epoch; they do not depend on the rest of the batch.
    """
    chosen = jax.tree.map(lambda x: x[feed.rows], split)

    def augmented(example, example_id, repeats):
        own = jax.random.fold_in(jax.random.fold_in(key, feed.epoch), example_id)
        own = jax.lax.select(repeats > 0, jax.random.fold_in(own, repeats), own)
        example = example | {"occurrence": repeats}
        for place, op in enumerate(chain):
            example = op(jax.random.fold_in(own, place), example)
        if TRUNK_MAPS in example:  # one for each occurrence of an image in an epoch
            maps = example[TRUNK_MAPS]
            example = example | {TRUNK_MAPS: maps[repeats % len(maps)]}
        return {name: value for name, value in example.items() if name != "occurrence"}

    repeats = jnp.broadcast_to(feed.repeats, feed.rows.shape)
    examples = jax.vmap(augmented)(chosen.extras | {"image": chosen.inputs}, chosen.ids, repeats)
    inputs = examples.pop("image")
    return Batch(
        inputs=jnp.asarray(inputs, jnp.float32 if inputs.dtype == jnp.float16 else None),
        labels=chosen.labels,
        weights=jnp.asarray(feed.weights),
        ids=chosen.ids,
        extras=examples,
    )


@dataclasses.dataclass(frozen=True)
class Resident:
    """The pipeline over a data set in memory."""

    dataset: Dataset
    stored: Dataset  # before curation
    seed: int
    batch_size: int
    training_chain: Sequence[Callable]
    chain: Sequence[Callable]
    own_chains: Mapping[str, Sequence[Callable]] = dataclasses.field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.dataset.class_names

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(split.ids) for name, split in self.dataset.splits.items()}

    @property
    def label_forms(self) -> dict[str, LabelForm]:
        splits = self.dataset.splits.items()
        return {name: "one" if split.labels.ndim == 1 else "list" for name, split in splits}

    @property
    def occurrences(self) -> int:
        return chains.occurrences(self.training_chain)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.occurrences * self.sizes["train"], self.batch_size)

    @functools.cached_property
    def class_counts(self) -> Float[np.ndarray, "k"]:
        return dataset_lib.class_counts(self.dataset.splits["train"].labels, len(self.class_names))

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        return dataset_lib.description(self.dataset, self.stored)

    @property
    def example_ids(self) -> dict[str, np.ndarray]:
        return {name: split.ids for name, split in self.dataset.splits.items()}

    @functools.cached_property
    def clean_labels(self) -> dict[str, np.ndarray]:
        return {
            name: dataset_lib.clean_labels(self.dataset, self.stored, name)
            for name in self.dataset.splits
        }

    @property
    def arrays(self) -> dict[str, Split]:
        return dict(self.dataset.splits)

    def training_feeds(
        self, epoch: int, start: int, slots: Slots, selected: Selected | None = None
    ) -> Iterator[Feed]:
        rows, weights = selected or (np.arange(self.sizes["train"]), None)
        rows = np.tile(rows, self.occurrences)
        drawn = order(self.seed, epoch, len(rows))
        weights = None if weights is None else np.tile(weights, self.occurrences)[drawn]
        # Numbered before they are ordered, as mirrored examples would else come later in an epoch.
        repeats = _repeats(rows)[drawn] if self.occurrences > 1 else None
        every = feeds(rows[drawn], self.batch_size, epoch, start, weights, repeats)
        return (at_slots(feed, slots) for feed in every)

    def feeds(self, split: str, slots: Slots) -> Iterator[Feed]:
        return (
            at_slots(feed, slots) for feed in feeds(np.arange(self.sizes[split]), self.batch_size)
        )

    def example(self, split: str, training: bool) -> Feed:
        return next(feeds(np.zeros(self.batch_size, np.int32), self.batch_size))

    def training_batch(self, key: PRNGKeyArray, arrays: Split, feed: Feed) -> Batch:
        return batch(key, arrays, feed, chain=self.training_chain)

    def batch(
        self, key: PRNGKeyArray, arrays: Split, feed: Feed, chain_of: str | None = None
    ) -> Batch:
        chain = self.chain if chain_of is None else self.own_chains[chain_of]
        return batch(key, arrays, feed, chain=chain)

    def left_out(self) -> dict[str, list[int]]:
        return {}

    def leave_out(self, ids: Mapping[str, Sequence[int]]) -> None:
        """Does nothing, as all examples are decoded before training."""


def at_slots(feed: Feed, slots: Slots) -> Feed:
    """The part of a feed of these slots of its batch."""
    return feed._replace(
        rows=feed.rows[slots], weights=feed.weights[slots], repeats=feed.repeats[slots]
    )
