"""Padding of the class axis, so that several devices can divide it.

Checkpoints hold no padding classes: a run continues on any number of devices, and is read on one.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from heteroscedastic.training.state import TrainState


class ClassAxis(NamedTuple):
    """The class axis of every array of a state."""

    axes: TrainState  # index of the class axis, -1 where an array has none
    num_classes: int
    padded_num_classes: int  # classes with padding, a multiple of the shards


def class_axis(
    head: Any,
    optimizer: optax.GradientTransformation,
    shapes: TrainState,
    num_shards: int,
) -> ClassAxis:
    """The class axes of a state, as the head declares them for its parameters.

    Args:
      head: a head of models/heads.py.
      optimizer: of the state; its state has the class axes of the parameters.
      shapes: of the state as it is saved.
      num_shards: devices that divide the class axis, at least two.
    """
    declared = head.class_axes()

    def none(tree):
        return jax.tree.map(lambda _: -1, tree)

    def axis(name, leaf):
        return leaf.ndim + declared[name] if name in declared else -1

    of_head = {
        name: jax.tree.map(functools.partial(axis, name), tree)
        for name, tree in shapes.params["head"].items()
    }
    params = none(shapes.params) | {"head": of_head}
    opt_state = optax.tree_map_params(
        optimizer, lambda _, own: own, shapes.opt_state, params, transform_non_params=lambda _: -1
    )
    axes = none(shapes)._replace(params=params, opt_state=opt_state)
    return ClassAxis(axes, head.num_classes, padded_num_classes(head.num_classes, num_shards))


def padded_num_classes(num_classes: int, num_shards: int) -> int:
    """Number of classes with padding: the least multiple of the shards that fits all classes."""
    return -(-num_classes // num_shards) * num_shards


def padded(classes: ClassAxis | None, state: TrainState) -> TrainState:
    """A state with padding classes; their entries are zero, and training leaves them so."""
    if classes is None or classes.padded_num_classes == classes.num_classes:
        return state
    missing = classes.padded_num_classes - classes.num_classes

    def pad(x, axis):
        if axis < 0:
            return x
        return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)])

    return jax.tree.map(pad, state, classes.axes)


def trimmed(classes: ClassAxis | None, state: TrainState) -> TrainState:
    """A state without padding classes, as it is saved."""
    if classes is None or classes.padded_num_classes == classes.num_classes:
        return state

    def trim(x, axis):
        return x if axis < 0 else jax.lax.slice_in_dim(x, 0, classes.num_classes, axis=axis)

    return jax.tree.map(trim, state, classes.axes)
