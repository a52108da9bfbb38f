"""The training step of a run, for the devices of a placement: what runs, and the shapes that it is compiled for."""

import functools
from typing import Any

import jax

from heteroscedastic.training import class_axis
from heteroscedastic.training.assembly import Run
from heteroscedastic.training.placement import Placement
from heteroscedastic.training.state import TrainState


def train_step(run: Run, placement: Placement, at_work: TrainState, donates: bool) -> Any:
    """(state at work, arrays of the split, feed) -> state, sums, values; jitted.

    Args:
      run: its step.
      placement: of its arrays.
      at_work: the shardings of its state.
      donates: whether the new state takes the memory of the old one.
    """
    shardings = at_work, placement.replicated, None
    return jax.jit(run.train_step, donate_argnums=(0,) if donates else (), out_shardings=shardings)


def shapes(run: Run, placement: Placement) -> tuple[TrainState, Any, Any]:
    """What a training step takes, as shapes with their shardings."""

    def placed(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    pad = functools.partial(class_axis.padded, run.class_axis)
    state = jax.eval_shape(pad, jax.eval_shape(run.init))
    whole = functools.partial(placed, sharding=placement.replicated)
    feed = run.pipeline.example("train", training=True)
    return (
        jax.tree.map(placed, state, placement.of_state(state, run.class_axis)),
        jax.tree.map(whole, run.pipeline.arrays["train"]),
        jax.tree.map(lambda x: placed(x, placement.cut) if x.ndim else whole(x), feed),
    )
