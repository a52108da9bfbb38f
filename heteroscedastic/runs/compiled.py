"""The compiled programs of a run, for the devices of a placement."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import errors
from jax.sharding import NamedSharding

from heteroscedastic.distributed import class_padding
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs import cached_maps, translation, warm_start
from heteroscedastic.runs.assembly import Run
from heteroscedastic.tasks.task import NUM_LARGEST
from heteroscedastic.training.state import TrainState

_STATIC = ("answers", "chain_of", "num_largest")  # arguments of Run.eval_step


class Programs(NamedTuple):
    """Functions that the loop calls; a state on devices may have padding classes."""

    template: TrainState  # shapes and shardings of a saved state
    start: Callable  # root key, initial arrays -> state on devices
    padded: Callable  # saved state -> state on devices
    trimmed: Callable  # state on devices -> saved state
    train_step: Callable  # see train_step
    eval_step: Callable  # see Run
    score_step: Callable  # see Run
    hypotheses: Callable  # see translation


def programs(run: Run, placement: Placement) -> Programs:
    """The programs of a run, each compiled at its first call."""
    pad, trim = (
        functools.partial(f, run.class_axis) for f in (class_padding.padded, class_padding.trimmed)
    )
    init = jax.jit(run.init)  # within another function it keeps its trace
    saved_sharding, padded_sharding = (
        placement.of_state(x, run.class_axis) for x in (run.shapes, jax.eval_shape(pad, run.shapes))
    )
    is_changed = saved_sharding != padded_sharding
    return Programs(
        template=jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            run.shapes,
            saved_sharding,
        ),
        start=jax.jit(
            lambda root, arrays: pad(warm_start.applied(init(root), arrays)),
            out_shardings=padded_sharding,
        ),
        padded=jax.jit(pad, out_shardings=padded_sharding) if is_changed else pad,
        trimmed=jax.jit(trim, out_shardings=saved_sharding) if is_changed else trim,
        # On a CPU a checkpoint may share memory with the state, so its buffers are not donated.
        train_step=train_step(
            run, placement, padded_sharding, donates=jax.default_backend() != "cpu"
        ),
        eval_step=jax.jit(
            run.eval_step, out_shardings=placement.replicated, static_argnames=_STATIC
        ),
        score_step=score_step(run, placement),
        hypotheses=translation.program(run, out_shardings=placement.replicated),
    )


def train_step(run: Run, placement: Placement, sharding: TrainState, donates: bool) -> Any:
    """The jitted training step: (state on devices, split, feed, root) -> state, sums, values.

    Args:
      run: the run of the step.
      placement: placement of the arrays of the run.
      sharding: sharding of each leaf of the state on devices.
      donates: whether the new state reuses the memory of the old one.
    """
    shardings = sharding, placement.replicated, None
    return jax.jit(run.train_step, donate_argnums=(0,) if donates else (), out_shardings=shardings)


def score_step(run: Run, placement: Placement) -> Any:
    """The jitted scores of a batch; see Run."""
    return jax.jit(run.score_step, out_shardings=placement.replicated)


def shapes(run: Run, placement: Placement | None) -> tuple[TrainState, Any, Any, Any]:
    """The shapes of the arguments of a training step, and their shardings with a placement."""
    split, feed = _data_shapes(run, "train", placement, training=True)
    return _state_shapes(run, placement), split, feed, _placed(run.root_key)


def check_shapes(run: Run, placement: Placement | None = None) -> TrainState:
    """The shapes of the saved state, after tracing a step of training and of each evaluation.

    With a placement, the programs of these steps for it are not traced again.
    """
    cached_maps.check(run)
    state, *others = shapes(run, placement)
    jax.eval_shape(run.train_step, state, *others)
    eval_step, key = jax.jit(run.eval_step, static_argnames=_STATIC), jax.random.key(0)
    validation = [run.config["validation"]] if run.config["validation"] else []
    evals = {
        (settings["split"], *static(run, settings).items())
        for settings in [*run.config["evals"].values(), *validation]
    }
    for split, *settings in sorted(evals, key=str):
        data = _data_shapes(run, split, placement, training=False)
        try:
            eval_step.eval_shape(state.params, state.model_state, *data, key, **dict(settings))
        except errors.ScopeParamShapeError as error:
            raise ValueError(
                f"examples of split {split!r} do not fit the parameters, whose shapes follow from"
                " the training examples; the chains of config.data.train and of the split must give"
                f" examples of one shape. Flax: {str(error).partition(' (https')[0]}"
            ) from None
    return run.shapes


def static(run: Run, evaluation: dict[str, Any]) -> dict[str, Any]:
    """The static arguments of `Run.eval_step` for an entry of config.evals, or for validation."""
    values = (
        evaluation.get("answers"),
        run.chain_of(evaluation["split"]),
        evaluation.get("num_largest", NUM_LARGEST),
    )
    return dict(zip(_STATIC, values, strict=True))


def _state_shapes(run: Run, placement: Placement | None) -> TrainState:
    """The shapes of the state on devices."""
    pad = functools.partial(class_padding.padded, run.class_axis)
    state = jax.eval_shape(pad, run.shapes)
    if placement is None:
        return state
    return jax.tree.map(_placed, state, placement.of_state(state, run.class_axis))


def _data_shapes(
    run: Run, split: str, placement: Placement | None, *, training: bool
) -> tuple[Any, Any]:
    """The shapes of a split's arrays and of the feed of a whole batch."""
    feed = run.pipeline.example(split, training=training)
    arrays = run.pipeline.arrays[split]
    if placement is None:
        return jax.tree.map(_placed, arrays), feed
    return (
        jax.tree.map(lambda x: _placed(x, placement.replicated), arrays),
        jax.tree.map(lambda x: _placed(x, placement.cut if x.ndim else placement.replicated), feed),
    )


def _placed(x: Any, sharding: NamedSharding | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
