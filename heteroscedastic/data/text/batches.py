"""Batches of single sentences, for a decoder that makes their translations."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from heteroscedastic.data.text import words

_SHORTEST = 16  # tokens of a row; longer rows have twice as many, and so on


class SourceBatch(NamedTuple):
    """Sentences of similar length."""

    rows: Int[np.ndarray, "b"]  # of the sentences; a batch that is not full repeats its first
    source: Int[np.ndarray, "b s"]  # words, then padding


def source_batches(
    sentences: Sequence[Int[np.ndarray, "_"]], batch_size: int
) -> Iterator[SourceBatch]:
    """Batches of all sentences, sorted by length, whose rows have few lengths.

    Args:
      sentences: words of each.
      batch_size: sentences of every batch.
    """
    lengths = np.array([len(sentence) for sentence in sentences])
    doublings = np.maximum(0, np.ceil(np.log2(lengths / _SHORTEST))).astype(int)
    for number in np.unique(doublings):
        chosen = np.flatnonzero(doublings == number)
        chosen = chosen[np.argsort(lengths[chosen], kind="stable")]
        for start in range(0, len(chosen), batch_size):
            rows = chosen[start : start + batch_size]
            rows = np.pad(rows, (0, batch_size - len(rows)), constant_values=rows[0])
            source = np.full((batch_size, _SHORTEST * 2**number), words.PAD, np.int32)
            for slot, row in enumerate(rows):
                source[slot, : lengths[row]] = sentences[row]
            yield SourceBatch(rows, source)
