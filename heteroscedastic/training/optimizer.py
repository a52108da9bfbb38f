"""Optimizers: (schedule, settings) -> gradient transformation."""

import fnmatch
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import optax

from heteroscedastic.bind import check_number
from heteroscedastic.models import heads

# Choices of config.optimizer.
__all__ = ["adam", "adamw", "sgd"]


def sgd(
    schedule: Callable,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    l2: float = 0.0,
    covariance_l2: float | None = None,
    decay_normalization: bool = False,
    decay_biases: bool = True,
    clip_norm: float | None = None,
    fixed: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """Stochastic gradient descent with momentum.

    The penalty is l2 * sum(w^2), so its gradient is 2 l2 w (reading X4), over kernels and
    biases of convolutions and dense layers, and of normalisation layers with
    `decay_normalization`. A learned temperature has none, as it would pull the temperature to the
    middle of its bounds. The penalty is added before the gradient is clipped, as a term of the
    loss would be; the reported loss leaves it out.

    Args:
      schedule: step -> learning rate.
      momentum: in [0, 1).
      nesterov: whether the momentum looks ahead.
      l2: in [0, 1e4].
      covariance_l2: in place of l2 for the parameters that map to the low-rank covariance;
        None is l2 for them too.
      decay_normalization: whether l2 applies to scale and bias of normalisation layers.
      decay_biases: whether the penalties apply to biases of convolutions and dense layers.
      clip_norm: largest global norm of the gradient; None does not clip.
      fixed: parameters that keep their initial values: the first words of their paths, such as
        "backbone/stem", in which * is any text, as in "backbone/stage1_*"; or "normalization" for
        scale and bias of all normalisation layers. They have no part in the gradient, so in what
        is clipped; see `without_gradient`.

    Raises:
      ValueError: from `init`, no parameter is of an entry of `fixed`.
    """
    covariance_l2 = l2 if covariance_l2 is None else covariance_l2
    check_number("momentum", momentum, at_least=0, below=1)
    check_number("l2", l2, at_least=0, at_most=1e4)
    check_number("covariance_l2", covariance_l2, at_least=0, at_most=1e4)
    if clip_norm is not None:
        check_number("clip_norm", clip_norm, above=0)
    penalised = ("penalised", "normalisation") if decay_normalization else ("penalised",)

    def decayed(weight, groups):
        def mask(params):
            kept = _in_groups(params, groups)
            return kept if decay_biases else jax.tree.map(operator.and_, kept, _kernels(params))

        return optax.add_decayed_weights(2 * weight, mask)

    mask = functools.partial(is_fixed, fixed)
    return optax.chain(
        decayed(l2, penalised),
        decayed(covariance_l2, ("covariance",)),
        # Not optax.identity() without them: its state would make earlier checkpoints unreadable.
        *([optax.masked(optax.set_to_zero(), mask)] if fixed else []),
        optax.identity() if clip_norm is None else optax.clip_by_global_norm(float(clip_norm)),
        optax.trace(momentum, nesterov) if momentum else optax.identity(),
        _scale_by_learning_rate(schedule),
    )


def adamw(
    schedule: Callable,
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay.

    The decay applies to kernels and biases of convolutions and dense layers, and to the covariance;
    scale and bias of normalisation layers and a learned temperature have none.

    Args:
      schedule: step -> learning rate.
      b1: decay of the mean of the gradient, in [0, 1); usually 0.9.
      b2: decay of the mean of its square, in [0, 1); usually 0.999.
      eps: added to the root of that mean, > 0; usually 1e-8.
      weight_decay: fraction of a weight that a step subtracts, times the learning rate; in
        [0, 1e4].

    Source: Loshchilov and Hutter (2019), arXiv:1711.05101, Algorithm 2.
    """
    return _adam(
        schedule, b1, b2, eps, weight_decay, lambda p: _in_groups(p, ("penalised", "covariance"))
    )


def adam(
    schedule: Callable,
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> optax.GradientTransformation:
    """`adamw` whose decay applies to all parameters: the Adam of fairseq."""
    return _adam(schedule, b1, b2, eps, weight_decay, None)


def _adam(
    schedule: Callable,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    is_decayed: Callable[[Any], Any] | None,
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay of the parameters that a tree of truth values names."""
    check_number("b1", b1, at_least=0, below=1)
    check_number("b2", b2, at_least=0, below=1)
    check_number("eps", eps, above=0)
    check_number("weight_decay", weight_decay, at_least=0, at_most=1e4)
    return optax.chain(
        optax.scale_by_adam(b1, b2, eps),
        optax.add_decayed_weights(weight_decay, is_decayed),
        _scale_by_learning_rate(schedule),
    )


def _scale_by_learning_rate(schedule: Callable) -> optax.GradientTransformationExtraArgs:
    """optax's, whose rate is that of another step if `update` is given a `schedule_step`."""
    plain = optax.scale_by_learning_rate(schedule)

    def update(updates, state, params=None, *, schedule_step=None, **_):
        if schedule_step is None:
            return plain.update(updates, state, params)
        updates, _ = plain.update(updates, state._replace(count=schedule_step), params)
        return updates, state._replace(count=optax.safe_increment(state.count))

    return optax.GradientTransformationExtraArgs(plain.init, update)


def _kernels(params: Any) -> Any:
    """Whether each leaf is anything but a bias."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "bias", params)


def without_gradient(fixed: tuple[str, ...], params: Any) -> Any:
    """The parameters as constants where they are `fixed`, so that no step computes their gradient.

    Args:
      fixed: as for `sgd`.
      params: tree of parameters.

    Raises:
      ValueError: no parameter is of an entry of `fixed`.
    """
    return jax.tree.map(
        lambda x, constant: jax.lax.stop_gradient(x) if constant else x,
        params,
        is_fixed(fixed, params),
    )


def is_fixed(entries: tuple[str, ...], params: Any) -> Any:
    """Whether each leaf is of one of the entries.

    Args:
      entries: `fixed` of `sgd`.
      params: tree of parameters.

    Raises:
      ValueError: no parameter is of an entry.
    """
    by_entry = {entry: jax.tree.leaves(is_of_entry(entry, params)) for entry in entries}
    if unused := [entry for entry, found in by_entry.items() if not any(found)]:
        first = _paths(params)[0].rpartition("/")[0]
        raise ValueError(
            f"optimizer.fixed has {unused[0]!r}, but no parameter has a path that starts so; choose"
            f" 'normalization' or a path such as {first!r}."
        )
    leaves, treedef = jax.tree.flatten(params)
    constant = [any(found) for found in zip([False] * len(leaves), *by_entry.values())]
    return jax.tree_util.tree_unflatten(treedef, constant)


def is_of_entry(entry: str, params: Any) -> Any:
    """Whether each leaf is of one entry of `fixed` of `sgd`."""
    if entry == "normalization":
        return _in_groups(params, ("normalisation",))
    patterns = (entry, f"{entry}/*")
    found = [any(fnmatch.fnmatchcase(path, p) for p in patterns) for path in _paths(params)]
    return jax.tree_util.tree_unflatten(jax.tree.structure(params), found)


def _paths(params: Any) -> list[str]:
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return ["/".join(str(k.key) for k in path) for path, _ in flat]


def _in_groups(params: Any, groups: tuple[str, ...]) -> Any:
    """Whether each leaf is in one of the groups.

    The groups are "covariance", "normalisation", "temperature", and "penalised" for the others.
    """
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    paths = ["/".join(str(k.key) for k in path) for path, _ in flat]
    scaled, shifted, multiplied = (
        {p.removesuffix(f"/{name}") for p in paths if p.endswith(f"/{name}")}
        for name in ("scale", "bias", "kernel")
    )
    normalised = scaled | (shifted - multiplied)  # a normalisation may have a shift alone

    def of(path):
        if heads.is_covariance_parameter(path):
            return "covariance"
        if heads.is_temperature(path):
            return "temperature"
        module, _, _ = path.rpartition("/")
        return "normalisation" if module in normalised else "penalised"

    return jax.tree_util.tree_unflatten(treedef, [of(p) in groups for p in paths])
