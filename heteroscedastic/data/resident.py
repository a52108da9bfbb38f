"""The pipeline of a data set that fits: put on the device once, as uint8; the rest is jax.

The host sends the rows of a step; gathering and augmentation happen inside it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic.batch import Batch
from heteroscedastic.data.dataset import Split


class Feed(NamedTuple):
    """What the host says of a step."""

    rows: Int[np.ndarray, "b"] | Int[Array, "b"]  # places in the split
    weights: Float[np.ndarray, "b"] | Float[Array, "b"]  # 0 for padding
    epoch: Int[np.ndarray, ""] | Int[Array, ""]


def order(seed: int, epoch: int, num_examples: int) -> Int[np.ndarray, "n"]:
    """The order of an epoch, from seed and epoch alone."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_examples)


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Steps that see every example once, the last one padded."""
    return -(-num_examples // batch_size)


def feeds(rows: Int[np.ndarray, "n"], batch_size: int, epoch: int = 0, start: int = 0) -> Iterator[Feed]:
    """Rows in this order, a step each from step `start` on; the last is padded, never dropped."""
    for first in range(start * batch_size, len(rows), batch_size):
        chosen = rows[first : first + batch_size]
        padding = batch_size - len(chosen)
        yield Feed(
            rows=np.pad(chosen, (0, padding)).astype(np.int32),
            weights=np.pad(np.ones(len(chosen), np.float32), (0, padding)),
            epoch=np.int32(epoch),
        )


def batch(key: PRNGKeyArray, split: Split, feed: Feed, *, chain: Sequence[Callable]) -> Batch:
    """The examples of a feed, augmented.

    The randomness of an example follows from the key, the epoch, its id and the place of the
    operation in the chain, whatever the batch around it.
    """
    chosen = jax.tree.map(lambda x: x[feed.rows], split)

    def augmented(image, example_id):
        own = jax.random.fold_in(jax.random.fold_in(key, feed.epoch), example_id)
        for place, op in enumerate(chain):
            image = op(jax.random.fold_in(own, place), image)
        return image

    return Batch(
        inputs=jax.vmap(augmented)(chosen.inputs, chosen.ids),
        labels=chosen.labels,
        weights=jnp.asarray(feed.weights),
        ids=chosen.ids,
        extras=chosen.extras,
    )
