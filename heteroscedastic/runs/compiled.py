"""The compiled programs of a run, for the devices of a placement."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from heteroscedastic.distributed import class_padding
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs import warm_start
from heteroscedastic.runs.assembly import Run
from heteroscedastic.training.state import TrainState


class Programs(NamedTuple):
    """Functions that the loop calls; a state on devices may have padding classes."""

    template: TrainState  # shapes and shardings of a saved state
    start: Callable  # arrays to start from -> state on devices
    at_work: Callable  # saved state -> state on devices
    as_saved: Callable  # state on devices -> saved state
    train_step: Callable  # see train_step
    eval_step: Callable  # see Run


def programs(run: Run, placement: Placement) -> Programs:
    """The programs of a run, each compiled at its first call."""
    pad, trim = (
        functools.partial(f, run.class_axis) for f in (class_padding.padded, class_padding.trimmed)
    )
    saved = jax.eval_shape(run.init)
    as_saved, at_work = (
        placement.of_state(x, run.class_axis) for x in (saved, jax.eval_shape(pad, saved))
    )
    is_changed = as_saved != at_work
    return Programs(
        template=jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), saved, as_saved
        ),
        start=jax.jit(
            lambda arrays: pad(warm_start.applied(run.init(), arrays)), out_shardings=at_work
        ),
        at_work=jax.jit(pad, out_shardings=at_work) if is_changed else pad,
        as_saved=jax.jit(trim, out_shardings=as_saved) if is_changed else trim,
        # A CPU checkpoint may share memory with the state, so there its buffers are not reused.
        train_step=train_step(run, placement, at_work, donates=jax.default_backend() != "cpu"),
        eval_step=jax.jit(
            run.eval_step, out_shardings=placement.replicated, static_argnames="answers"
        ),
    )


def train_step(run: Run, placement: Placement, at_work: TrainState, donates: bool) -> Any:
    """The jitted training step: (state on devices, split, feed) -> state, sums, values.

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

    pad = functools.partial(class_padding.padded, run.class_axis)
    state = jax.eval_shape(pad, jax.eval_shape(run.init))
    whole = functools.partial(placed, sharding=placement.replicated)
    feed = run.pipeline.example("train", training=True)
    return (
        jax.tree.map(placed, state, placement.of_state(state, run.class_axis)),
        jax.tree.map(whole, run.pipeline.arrays["train"]),
        jax.tree.map(lambda x: placed(x, placement.cut) if x.ndim else whole(x), feed),
    )
