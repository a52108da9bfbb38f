"""Splits of a stream that somebody wants whole: read once asked for, and none that memory has no
room for.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from heteroscedastic.batch import Batch
from heteroscedastic.data.dataset import Split

_MOST_BYTES = 2**35


class InMemory(Mapping):
    """What is read of each split, once somebody asks for it."""

    def __init__(self, names: Mapping[str, Any], read: Callable[[str], Any]):
        self._names, self._read = names, functools.cache(read)

    def __getitem__(self, split: str) -> Any:
        if split not in self._names:
            raise KeyError(split)
        return self._read(split)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def check_room(where: str, num_examples: int, image: np.ndarray) -> None:
    """Raises a ValueError where so many images of this shape and type are more than may be held at
    once.
    """
    needed = num_examples * math.prod(image.shape) * image.itemsize
    if needed > _MOST_BYTES:
        raise ValueError(
            f"{where}: {num_examples:,} images of {' x '.join(map(str, image.shape))} are"
            f" {needed / 2**30:,.0f} GiB,"
            f" and more than {_MOST_BYTES >> 30} GiB are not read into memory; name a smaller"
            " split, such as a slice."
        )


def gathered(feeds: Iterable[Batch], kept: Int[np.ndarray, "n"]) -> Split:
    """Feeds as one split, in the order of ids, without what is absent.

    Args:
      feeds: that hold every example once.
      kept: their ids, rising.
    """
    inputs, labels, here = None, None, np.zeros(len(kept), bool)
    for feed in feeds:
        present = feed.weights > 0
        rows = np.searchsorted(kept, feed.ids[present])
        if inputs is None:  # filled in place, as two copies of a large split are too many
            inputs = np.empty((len(kept), *feed.inputs.shape[1:]), feed.inputs.dtype)
            labels = np.empty((len(kept), *feed.labels.shape[1:]), feed.labels.dtype)
            ids = kept.astype(feed.ids.dtype)
        inputs[rows], labels[rows], here[rows] = feed.inputs[present], feed.labels[present], True
    whole = Split(inputs, labels, ids)
    return whole if here.all() else whole.take(np.flatnonzero(here))
