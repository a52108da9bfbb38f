"""Optimizers: (schedule, settings) -> gradient transformation."""

import fnmatch
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

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
    penalties = {**dict.fromkeys(penalised, 2 * l2), "covariance": 2 * covariance_l2}

    def decays(params):
        """The weight of each leaf in its own gradient."""
        weights = {
            group: jax.tree.map(lambda kept, x=x: x if kept else 0.0, _in_groups(params, (group,)))
            for group, x in penalties.items()
        }
        total = jax.tree.map(lambda *each: sum(each), *weights.values())
        if decay_biases:
            return total
        return jax.tree.map(lambda x, kept: x if kept else 0.0, total, _kernels(params))

    # Parts of the chain of earlier versions, whose states are empty: with them, and with the state
    # of the momentum in its place, earlier checkpoints are readable.
    masked = optax.MaskedState(optax.EmptyState())
    former = [masked, masked, *([masked] if fixed else []), optax.EmptyState()]
    return optax.chain(
        *map(_no_change, former),
        _momentum(decays, functools.partial(is_fixed, fixed), clip_norm, momentum, nesterov),
        _scale_by_learning_rate(schedule),
    )


def _no_change(state: Any) -> optax.GradientTransformation:
    return optax.GradientTransformation(lambda _: state, lambda g, own, params=None: (g, own))


def _momentum(
    decays: Callable[[Any], Any],
    is_fixed: Callable[[Any], Any],
    clip_norm: float | None,
    momentum: float,
    nesterov: bool,
) -> optax.GradientTransformation:
    """Momentum of the gradient g + c w, clipped to a norm, with the state of optax.trace.

    A chain of optax's parts writes g + c w to memory, as both its norm and the momentum, or both
    the momentum and what looks ahead, are computed from it. Here no two of them share more than one
    operation, so that a compiler repeats it and reads the parameters instead. The squared norm is
    sum g^2 + 2 c sum g w + c^2 sum w^2.

    Args:
      decays: c of each leaf, of the parameters.
      is_fixed: whether each leaf has no gradient.
      clip_norm: None does not clip.
      momentum: 0 has no state.
      nesterov: whether the momentum looks ahead.
    """
    trace = optax.trace(momentum, nesterov) if momentum else optax.identity()

    def init(params):
        is_fixed(params)  # raises
        return trace.init(params)

    def update(gradients, state, params=None):
        constant = is_fixed(params)
        gradients = jax.tree.map(
            lambda g, zero: jnp.zeros_like(g) if zero else g, gradients, constant
        )
        weights = jax.tree.map(lambda c, zero: 0.0 if zero else c, decays(params), constant)
        scale = None
        if clip_norm is not None:
            norm = _penalised_norm(gradients, params, weights)
            scale = jnp.where(norm < clip_norm, 1.0, clip_norm / norm)

        def penalised(g, w, c, added=None):
            """g + c w, scaled, and what is added."""
            if scale is None:
                g = g if added is None else added + g
                return g + c * w if c else g
            g = (g + c * w if c else g) * scale
            return g if added is None else added + g

        if not momentum:
            return jax.tree.map(penalised, gradients, params, weights), state
        new = jax.tree.map(
            lambda g, w, c, old: penalised(g, w, c) + momentum * old,
            gradients,
            params,
            weights,
            state.trace,
        )
        updates = new
        if nesterov:
            ahead = jax.tree.map(lambda x: momentum * x, new)
            updates = jax.tree.map(penalised, gradients, params, weights, ahead)
        return updates, state._replace(trace=new)

    return optax.GradientTransformation(init, update)


def _penalised_norm(gradients: Any, params: Any, weights: Any) -> Float[Array, ""]:
    squares = jax.tree.map(
        lambda g, w, c: (
            jnp.sum(g * g) + c * (2 * jnp.sum(g * w) + c * jnp.sum(w * w)) if c else jnp.sum(g * g)
        ),
        gradients,
        params,
        weights,
    )
    return jnp.sqrt(jnp.maximum(sum(jax.tree.leaves(squares)), 0.0))


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
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    paths = ["/".join(str(k.key) for k in path) for path, _ in flat]
    normalised = jax.tree.leaves(_in_groups(params, ("normalisation",)))
    constant, unused = [False] * len(paths), []
    for entry in entries:
        found = (
            normalised
            if entry == "normalization"
            else [
                any(fnmatch.fnmatchcase(path, p) for p in (entry, f"{entry}/*")) for path in paths
            ]
        )
        constant = [a or b for a, b in zip(constant, found)]
        unused += [] if any(found) else [entry]
    if unused:
        raise ValueError(
            f"optimizer.fixed has {unused[0]!r}, but no parameter has a path that starts so; choose"
            f" 'normalization' or a path such as {paths[0].rpartition('/')[0]!r}."
        )
    return jax.tree_util.tree_unflatten(treedef, constant)


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
