"""The text pipeline: rows of packed sentence pairs, which the device holds as a whole.

A row is the unit of batches, orders and hosts; a token of the target is an example.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import tree
from jaxtyping import Float, Int, PRNGKeyArray

from heteroscedastic.batch import Batch, SentencePairs
from heteroscedastic.data import packing, resident
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.packing import MAX_TOKENS, Packed
from heteroscedastic.data.pipeline import Slots
from heteroscedastic.data.resident import Feed
from heteroscedastic.data.text import words
from heteroscedastic.data.text.pairs import Pairs
from heteroscedastic.data.text.prepared import PreparedText, Sentences
from heteroscedastic.links import LabelForm
from heteroscedastic.selection import Selected

CURATION = ("permute_labels", "subset")  # the functions that have a meaning for sentence pairs
_MULTIPLE = 8  # of the length of a row of an evaluation
_MAX_SENTENCES = 2**31 // MAX_TOKENS  # so that the id of a token is an int32


class Training(NamedTuple):
    """The pairs of training: sentence rows[i] of the source with targets[i] of the target."""

    rows: Int[np.ndarray, "n"]
    targets: Int[np.ndarray, "n"]


def check_curation(chain: Sequence[Callable]) -> None:
    """Raises a ValueError where a function of the chain has no meaning for sentence pairs."""
    names = [getattr(link, "func", link).__name__ for link in chain]
    for name in names:
        if name not in CURATION or names.count(name) > 1:
            raise ValueError(
                f"{name}: sentence pairs are curated by {' and '.join(CURATION)}, each once."
            )


def curated(num_pairs: int, seed: int, chain: Sequence[Callable], first: int = 0) -> Training:
    """The pairs after curation, whose labels are the numbers of the target sentences.

    `subset` thus draws pairs, and `permute_labels` misaligns a share of them.

    Args:
      num_pairs: of the split.
      seed: of the curation.
      chain: of the functions that `CURATION` names.
      first: position of the first pair in the stored split, on which random numbers depend.

    Raises:
      ValueError: a function of the chain has no meaning for sentence pairs.
    """
    check_curation(chain)
    targets = np.arange(num_pairs, dtype=np.int32)
    ids = first + targets
    for link in chain:
        ids, targets = link(seed, ids, targets, num_pairs)
    return Training(ids - first, targets)


@dataclasses.dataclass(frozen=True)
class Text:
    """The pipeline over packed sentence pairs.

    Attributes:
      text: words of the sentences.
      training: pairs of split "train".
      pairs: sentences of each split, as they are stored.
      length: tokens of a row, at which longer pairs are left out of training; a split that is
        evaluated has longer rows where it has longer pairs.
      seed: of the order of the rows.
      packing_seed: of what is packed with what in training.
      batch_size: rows of a batch.
    """

    text: PreparedText
    training: Training
    pairs: Mapping[str, Pairs]
    length: int
    seed: int
    packing_seed: int
    batch_size: int

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.text.target_words

    @property
    def sizes(self) -> dict[str, int]:
        return {split: len(packed.target) for split, packed in self.arrays.items()}

    @property
    def label_forms(self) -> dict[str, LabelForm]:
        return dict.fromkeys(self.arrays, "one")

    @functools.cached_property
    def class_counts(self) -> Float[np.ndarray, "k"]:
        counts = np.bincount(self.clean_labels["train"], minlength=len(self.class_names))
        return counts.astype(np.float32)

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """See dataset.description; tokens are the examples. `pairs` counts sentence pairs."""
        num_stored = len(self.text.source["train"].lengths)
        num_chosen = len(self.training.rows)
        return {
            "class_names": list(self.class_names),
            "num_examples": {split: len(ids) for split, ids in self.example_ids.items()},
            "num_rows": self.sizes,
            "fingerprint": self._fingerprint(),
            "class_counts": self.class_counts.astype(int).tolist(),
            "num_source_words": len(self.text.source_words),
            "pairs": {
                "stored": num_stored,
                "dropped": num_stored - num_chosen,
                "misaligned": int(np.sum(self.training.rows != self.training.targets)),
                "too_long": num_chosen - len(self._short.rows),
            },
        }

    def _fingerprint(self) -> str:
        """Of the sentences and of the pairs in training; what is packed with what is no part."""
        digest = hashlib.sha256(self.text.fingerprint.encode())
        for rows in self._short:
            digest.update(np.ascontiguousarray(rows))
        return digest.hexdigest()

    @functools.cached_property
    def example_ids(self) -> dict[str, np.ndarray]:
        """Ids of the tokens by split, in the order of the rows."""
        return {split: x.ids[x.target_segments > 0] for split, x in self.arrays.items()}

    @functools.cached_property
    def clean_labels(self) -> dict[str, np.ndarray]:
        """The reference words; of a misaligned pair no token has another, clean label."""
        return {split: x.target[x.target_segments > 0] for split, x in self.arrays.items()}

    @property
    def dataset(self) -> Dataset:
        """Without splits, as rows of sentences are no examples."""
        return Dataset({}, self.class_names)

    @property
    def chain(self) -> tuple[()]:
        return ()

    @property
    def own_chains(self) -> dict[str, Any]:
        return {}

    @functools.cached_property
    def arrays(self) -> dict[str, Packed]:
        return {split: self._packed(split) for split in self.text.source}

    @functools.cached_property
    def _short(self) -> Training:
        """The pairs of training that fit into a row."""
        lengths = self._lengths("train", self.training)
        fits = np.flatnonzero(np.max(lengths, axis=0) <= self.length)
        if not fits.size:
            raise ValueError(
                f"row_length is {self.length}, but the shortest pair has"
                f" {np.min(np.max(lengths, axis=0))} tokens; set config.data.row_length to more."
            )
        return Training(self.training.rows[fits], self.training.targets[fits])

    def _packed(self, split: str) -> Packed:
        if split == "train":
            pairs, length, seed = self._short, self.length, self.packing_seed
        else:
            every = np.arange(len(self.text.source[split].lengths), dtype=np.int32)
            pairs, seed = Training(every, every), 0
            longest = int(np.max(self._lengths(split, pairs)))
            length = max(self.length, -(-longest // _MULTIPLE) * _MULTIPLE)
        source, target = self.text.source[split].split(), self.text.target[split].split()
        rows = packing.rows(*self._lengths(split, pairs), length, seed)
        return packing.packed(
            rows,
            [source[row] for row in pairs.rows],
            [target[row] for row in pairs.targets],
            self.pairs[split].first + pairs.rows,
            length,
            words.PAD,
        )

    def _lengths(self, split: str, pairs: Training) -> Int[np.ndarray, "2 n"]:
        """Tokens of source and target of each pair."""
        of_side: list[Sentences] = [self.text.source[split], self.text.target[split]]
        lengths = np.stack([side.lengths[rows] for side, rows in zip(of_side, pairs)])
        if split != "train" and lengths.max() > MAX_TOKENS:
            raise ValueError(
                f"split {split!r} has a sentence of {lengths.max():,} tokens, but a sentence may"
                f" have {MAX_TOKENS:,}; split or remove it."
            )
        if (number := self.pairs[split].first + len(of_side[0].lengths)) > _MAX_SENTENCES:
            raise ValueError(
                f"split {split!r} ends with the pair {number:,} of the files, but may not go beyond"
                f" {_MAX_SENTENCES:,}; set config.data.splits or config.data.max_examples."
            )
        return lengths

    @property
    def occurrences(self) -> int:
        return 1

    @property
    def steps_per_epoch(self) -> int:
        return resident.steps_per_epoch(self.sizes["train"], self.batch_size)

    def training_feeds(
        self, epoch: int, start: int, slots: Slots, selected: Selected | None = None
    ) -> Iterator[Feed]:
        if selected is not None:
            raise ValueError("the text pipeline cannot select examples.")
        order = resident.order(self.seed, epoch, self.sizes["train"])
        every = resident.feeds(order, self.batch_size, epoch, start)
        return (resident.at_slots(feed, slots) for feed in every)

    def feeds(self, split: str, slots: Slots) -> Iterator[Feed]:
        every = resident.feeds(np.arange(self.sizes[split]), self.batch_size)
        return (resident.at_slots(feed, slots) for feed in every)

    def example(self, split: str, training: bool) -> Feed:
        return next(resident.feeds(np.zeros(self.batch_size, np.int32), self.batch_size))

    def training_batch(self, key: PRNGKeyArray, arrays: Packed, feed: Feed) -> Batch:
        return self.batch(key, arrays, feed)

    def batch(
        self, key: PRNGKeyArray, arrays: Packed, feed: Feed, chain_of: str | None = None
    ) -> Batch:
        rows = tree.map(lambda x: jnp.asarray(x)[feed.rows], arrays)
        is_token = rows.target_segments > 0
        is_first = is_token & (rows.ids % MAX_TOKENS == 0)
        previous = jnp.where(is_first, words.END, jnp.roll(rows.target, 1, axis=1))
        return Batch(
            inputs=SentencePairs(rows.source, rows.source_segments, previous, rows.target_segments),
            labels=rows.target,
            weights=jnp.asarray(feed.weights)[:, None] * is_token,
            ids=rows.ids,
            extras={},
        )

    def left_out(self) -> dict[str, list[int]]:
        return {}

    def leave_out(self, ids: Mapping[str, Sequence[int]]) -> None:
        """Does nothing, as all sentences are read before training."""
