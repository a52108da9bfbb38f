"""The order in which a stream reads a split, in numbers alone.

The kept positions of a stored split are cut into lanes, contiguous and of one length but for one
example. Of a global batch each lane fills an equal part: of B places and L lanes, lane l fills the
places from l B / L up to (l + 1) B / L. Hosts hold contiguous parts of the batch, so a host that
holds a whole number of lanes reads these and no others, and the batch is the same whatever the
number of hosts.

In training a lane has an order of its own in every epoch: its pieces of files are permuted, and
what they hold one after the other is shuffled within windows, which are read whole. All of it
follows from seed, epoch and lane, so that the ids of any step are known without reading.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

Ids = Int[np.ndarray, "_"]  # positions in the stored split


class Reading(NamedTuple):
    """What is read of one lane, from some example of an epoch on."""

    file: Int[np.ndarray, "runs"]  # of the split
    skip: Int[np.ndarray, "runs"]  # records of the file before the run
    take: Int[np.ndarray, "runs"]  # records of the run, of which only kept ones count
    first: Int[np.ndarray, "runs"]  # position in the stored split of its first record
    shuffled: Int[np.ndarray, "m"]  # the kept records in order, as places in their window
    drop: int  # of them, that come before the example
    ids: Ids  # of what is left


def cut(kept: Ids, num_lanes: int) -> list[Ids]:
    """The lanes of a split, each a contiguous part of its kept positions."""
    return np.array_split(kept, num_lanes)


def reading(
    lane: Ids,
    shard_lengths: tuple[int, ...],
    start: int,
    window: int,
    draws: np.random.Generator | None,
) -> Reading:
    """How a lane is read from its example `start` on.

    Args:
      lane: rising positions in the stored split.
      shard_lengths: records of each file of the split.
      start: examples of the epoch that are passed over.
      window: records that are shuffled together.
      draws: of this epoch and lane; None reads in the order of the files.
    """
    bounds = np.cumsum([0, *shard_lengths])
    low, high = (
        (np.searchsorted(bounds, place, side="right") for place in (lane[0], lane[-1]))
        if len(lane)
        else (0, 0)
    )
    pieces = np.split(lane, np.searchsorted(lane, bounds[low:high]))
    order = np.arange(len(lane))
    if draws is not None:
        pieces = [pieces[i] for i in draws.permutation(len(pieces))]
        order = np.lexsort((draws.random(len(lane)), order // window))
    start = min(start, len(lane))
    opened = (
        start // window * window
    )  # the window that holds the example is read, and those after it
    ids = np.concatenate(pieces)[order][start:]
    runs = _after(pieces, opened)
    first, last = (np.array([run[end] for run in runs], np.int64) for end in (0, -1))
    file = np.searchsorted(bounds, first, side="right") - 1
    return Reading(
        file=file,
        skip=first - bounds[file],
        take=last - first + 1,
        first=first,
        shuffled=order[opened:] % window,
        drop=start - opened,
        ids=ids,
    )


def _after(pieces: list[Ids], number: int) -> list[Ids]:
    """What is left of pieces once so many examples are passed over."""
    left = []
    for piece in pieces:
        if number < len(piece):
            left.append(piece[number:])
        number = max(0, number - len(piece))
    return left


def draws(seed: int, epoch: int, lane: int) -> np.random.Generator:
    """The random numbers of a lane in an epoch."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, lane])))
