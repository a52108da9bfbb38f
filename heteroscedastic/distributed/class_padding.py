"""A class axis that several devices divide: at work it is longer than the classes, by some that
never are.

They are in no checkpoint, so that a run continues on any number of devices, and is read on one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from heteroscedastic.training.state import TrainState


class ClassAxis(NamedTuple):
    """The class axis of every array of a state."""

    axes: TrainState  # which axis it is, -1 where an array has none
    num_classes: int
    num_places: int  # at work, a multiple of the shards


def find(
    init_of: Callable[[int], Callable[[], TrainState]], num_classes: int, num_shards: int
) -> ClassAxis | None:
    """The class axes of the states that a model has for a number of classes; None where they are
    not cut.

    Args:
      init_of: number of classes -> a state's init, of which the shapes alone are looked at.
      num_classes: of the data.
      num_shards: devices that the class axis is cut over.
    """
    if num_shards == 1:
        return None
    shapes, longer = (jax.eval_shape(init_of(n)) for n in (num_classes, num_classes + 1))

    def differs(one, other):
        found = [i for i, (a, b) in enumerate(zip(one.shape, other.shape)) if a != b]
        return found[0] if found else -1

    return ClassAxis(
        jax.tree.map(differs, shapes, longer), num_classes, places(num_classes, num_shards)
    )


def places(num_classes: int, num_shards: int) -> int:
    """The least multiple of the shards that all classes fit in."""
    return -(-num_classes // num_shards) * num_shards


def padded(found: ClassAxis | None, state: TrainState) -> TrainState:
    """The state at work: zeros stand where there are no classes, and stay, as nothing moves them."""
    if found is None or found.num_places == found.num_classes:
        return state
    missing = found.num_places - found.num_classes

    def pad(x, axis):
        return (
            x if axis < 0 else jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)])
        )

    return jax.tree.map(pad, state, found.axes)


def trimmed(found: ClassAxis | None, state: TrainState) -> TrainState:
    """The state as it is saved."""
    if found is None or found.num_places == found.num_classes:
        return state

    def trim(x, axis):
        return x if axis < 0 else jax.lax.slice_in_dim(x, 0, found.num_classes, axis=axis)

    return jax.tree.map(trim, state, found.axes)
