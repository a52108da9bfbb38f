"""A digest of every bit of a checkpoint, of which TensorStore keeps no checksum."""

import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic.training.state import TrainState


def digest(state: TrainState, told: dict[str, Any]) -> str:
    """Of all values and all bits, wherever the arrays lie."""
    leaves = jax.tree.leaves(state)
    sums = jax.device_get(_sums_of_bits(leaves))
    arrays = [[str(x.dtype), list(x.shape), int(s)] for x, s in zip(leaves, sums)]
    return hashlib.sha256(json.dumps([told, arrays], sort_keys=True).encode()).hexdigest()


@jax.jit
def _sums_of_bits(leaves: list[jax.Array]) -> list[jax.Array]:
    """A sum modulo 2**32 an array; with odd weights, so that no change of one element leaves it as it was.

    Integers add up to the same in any order, so to the same on any number of devices.
    """

    def sum_of(x):
        x = x.astype(jnp.uint8) if x.dtype == bool else x
        words = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}")).astype(jnp.uint32)
        strides = np.cumprod((1, *words.shape[:0:-1]))[::-1]
        axes = range(words.ndim)
        place = sum(jax.lax.broadcasted_iota(jnp.uint32, words.shape, i) * np.uint32(strides[i]) for i in axes)
        return jnp.sum(words * (2 * place + 1), dtype=jnp.uint32)

    return [sum_of(x) for x in leaves]
