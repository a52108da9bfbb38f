"""Splits of a stream that are read into memory on first access, if they fit."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, Shaped

from heteroscedastic.batch import Batch
from heteroscedastic.data.dataset import Split

_MAX_BYTES = 2**35


class LazySplits(Mapping):
    """Splits by name; each is read on first access and cached."""

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


def check_size(where: str, num_examples: int, image: Shaped[np.ndarray, "h w c"]) -> None:
    """Raises a ValueError if so many images of this shape and type exceed the limit on memory."""
    num_bytes = num_examples * math.prod(image.shape) * image.itemsize
    if num_bytes > _MAX_BYTES:
        raise ValueError(
            f"{where}: {num_examples:,} images of {' x '.join(map(str, image.shape))} need"
            f" {num_bytes / 2**30:,.0f} GiB, but at most {_MAX_BYTES >> 30} GiB are read into"
            " memory; name a smaller split, such as a slice."
        )


def split_from_feeds(feeds: Iterable[Batch], ids: Int[np.ndarray, "n"]) -> Split:
    """Collects feeds into one split, in the order of ids, without absent examples.

    Args:
      feeds: batches that hold every example once.
      ids: increasing ids of all examples.
    """
    split, is_present = None, np.zeros(len(ids), bool)
    for feed in feeds:
        present = feed.weights > 0
        rows = np.searchsorted(ids, feed.ids[present])
        part = Split(feed.inputs, feed.labels, feed.ids, feed.extras)
        if split is None:  # filled in place, as two copies of a large split may not fit
            split = jax.tree.map(lambda x: np.empty((len(ids), *x.shape[1:]), x.dtype), part)
            split.ids[:] = ids
        for array, values in zip(jax.tree.leaves(split), jax.tree.leaves(part)):
            array[rows] = values[present]
        is_present[rows] = True
    return split if is_present.all() else split.take(np.flatnonzero(is_present))
