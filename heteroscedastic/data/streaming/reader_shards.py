"""The order in which a stream reads a split, computed without reading it.

The positions of a split are divided into reader shards: contiguous parts whose lengths differ by at
most one example. Each of L shards fills an equal part of a global batch of B slots: shard l fills
slots l B / L to (l + 1) B / L - 1. A host holds a contiguous part of the batch. If that part
consists of complete shards, the host reads these shards and no others, and a batch is the same for
any number of hosts.

In training, each shard has its own order in every epoch: the pieces of files that it spans are
permuted, and their examples are shuffled within windows. The order follows from seed, epoch and
shard alone, so the ids of any step are known without reading.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

Ids = Int[np.ndarray, "_"]  # positions in the stored split


class ReadPlan(NamedTuple):
    """The records to read from one shard, beginning at some example of an epoch.

    A segment is a contiguous range of records of one file.
    """

    file: Int[np.ndarray, "segments"]  # number of the file in the split
    skip: Int[np.ndarray, "segments"]  # records of the file before the segment
    take: Int[np.ndarray, "segments"]  # records of the segment, including filtered ones
    first: Int[np.ndarray, "segments"]  # position in the stored split of the first record
    window_order: Int[np.ndarray, "m"]  # index within its window of each example, in output order
    drop: int  # examples of the first window that come before the start
    ids: Ids  # ids of the remaining examples, in output order


def shards(ids: Ids, num_shards: int) -> list[Ids]:
    """Divides the ids of a split into contiguous shards."""
    return np.array_split(ids, num_shards)


def read_plan(
    shard: Ids,
    file_lengths: tuple[int, ...],
    start: int,
    window: int,
    generator: np.random.Generator | None,
) -> ReadPlan:
    """Plans the reading of a shard from its example `start` on.

    Args:
      shard: increasing positions in the stored split.
      file_lengths: number of records in each file of the split.
      start: examples of the epoch to skip.
      window: examples that are shuffled together.
      generator: random numbers of this epoch and shard; None reads in the order of the files.
    """
    bounds = np.cumsum([0, *file_lengths])
    low, high = (
        (np.searchsorted(bounds, position, side="right") for position in (shard[0], shard[-1]))
        if len(shard)
        else (0, 0)
    )
    pieces = np.split(shard, np.searchsorted(shard, bounds[low:high]))
    order = np.arange(len(shard))
    if generator is not None:
        pieces = [pieces[i] for i in generator.permutation(len(pieces))]
        order = np.lexsort((generator.random(len(shard)), order // window))
    start = min(start, len(shard))
    window_start = start // window * window  # reading begins with the window that holds `start`
    ids = np.concatenate(pieces)[order][start:]
    segments = _without_first(pieces, window_start)
    first, last = (np.array([segment[end] for segment in segments], np.int64) for end in (0, -1))
    file = np.searchsorted(bounds, first, side="right") - 1
    return ReadPlan(
        file=file,
        skip=first - bounds[file],
        take=last - first + 1,
        first=first,
        window_order=order[window_start:] % window,
        drop=start - window_start,
        ids=ids,
    )


def _without_first(pieces: list[Ids], count: int) -> list[Ids]:
    """The pieces without their first `count` examples."""
    rest = []
    for piece in pieces:
        if count < len(piece):
            rest.append(piece[count:])
        count = max(0, count - len(piece))
    return rest


def generator(seed: int, epoch: int, shard: int) -> np.random.Generator:
    """Random numbers of a shard in an epoch."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, shard])))
