"""Packing of sentence pairs: several whole pairs in a row of fixed length.

Row n of source and target holds the same pairs. Segments number the pairs of a row from 1, in both
sides alike; 0 is padding.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

_NUM_OPEN = 64  # rows that the next pair may go into
MAX_TOKENS = 1024  # of a sentence; the id of a token is MAX_TOKENS * sentence + position


class Packed(NamedTuple):
    """Rows of sentence pairs."""

    source: Int[np.ndarray, "n s"]
    source_segments: Int[np.ndarray, "n s"]
    target: Int[np.ndarray, "n t"]
    target_segments: Int[np.ndarray, "n t"]
    ids: Int[np.ndarray, "n t"]  # of the target's tokens; -1 is padding


def rows(
    source_lengths: Int[np.ndarray, "n"],
    target_lengths: Int[np.ndarray, "n"],
    length: int,
    seed: int,
) -> list[list[int]]:
    """The pairs of each row, none of whose sides is longer than `length`.

    Pairs come in a random order. Each goes into the open row that it leaves the least space in;
    where it fits in none, the fullest of 64 open rows gives way to a new one.

    Args:
      source_lengths: tokens of each source sentence, at most `length`.
      target_lengths: the same of the target.
      length: of a row.
      seed: of the order.

    Raises:
      ValueError: a sentence is longer than a row.
    """
    lengths = np.stack([source_lengths, target_lengths], axis=1)
    if lengths.size and lengths.max() > length:
        raise ValueError(f"a sentence has {lengths.max()} tokens, but a row has {length}.")
    packed: list[list[int]] = []
    space = np.zeros((0, 2), int)  # left in the open rows
    open_rows: list[int] = []  # their numbers
    for pair in np.random.Generator(np.random.Philox(key=seed)).permutation(len(lengths)).tolist():
        left = space - lengths[pair]
        waste = np.where((left >= 0).all(axis=1), left.sum(axis=1), 2 * length)
        best = int(waste.argmin()) if waste.size else 0
        if not waste.size or waste[best] == 2 * length:
            if len(open_rows) == _NUM_OPEN:
                fullest = int(space.sum(axis=1).argmin())
                space = np.delete(space, fullest, axis=0)
                del open_rows[fullest]
            best = len(open_rows)
            open_rows.append(len(packed))
            space = np.concatenate([space, [[length, length]]])
            packed.append([])
        packed[open_rows[best]].append(pair)
        space[best] -= lengths[pair]
    return packed


def packed(
    chosen: Sequence[Sequence[int]],
    source: Sequence[Int[np.ndarray, "_"]],
    target: Sequence[Int[np.ndarray, "_"]],
    sentence_ids: Int[np.ndarray, "n"],
    length: int,
    padding: int,
) -> Packed:
    """The arrays of packed rows.

    Args:
      chosen: the pairs of each row.
      source: tokens of each source sentence.
      target: tokens of each target sentence.
      sentence_ids: by pair, unique.
      length: of a row.
      padding: token of what remains of a row.
    """
    shape = (len(chosen), length)
    sides = np.full((2, *shape), padding, np.int32)
    segments = np.zeros((2, *shape), np.int32)
    ids = np.full(shape, -1, np.int32)
    for row, pairs in enumerate(chosen):
        starts = [0, 0]
        for segment, pair in enumerate(pairs, start=1):
            for side, tokens in enumerate((source[pair], target[pair])):
                place = slice(starts[side], starts[side] + len(tokens))
                sides[side, row, place], segments[side, row, place] = tokens, segment
                if side:
                    ids[row, place] = MAX_TOKENS * sentence_ids[pair] + np.arange(len(tokens))
                starts[side] += len(tokens)
    return Packed(sides[0], segments[0], sides[1], segments[1], ids)
