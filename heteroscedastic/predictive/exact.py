"""The averaged softmax of independent utilities, by one integral and without samples.

softmax(u)_c is the probability that class c has the largest of the values u_j + g_j, with
independent Gumbel variables g_j. With independent utilities the values are independent too, so

    E[softmax(u)]_c = integral of f_c(s) prod_{j != c} F_j(s) ds
                    = integral of h_c(s) exp(sum_j log F_j(s)) ds,    h_c = f_c / F_c,

where F_j and f_j are distribution and density of N(loc_j, d_j^2) plus a Gumbel variable
(gumbel.py). One sum over the classes at each node s serves all classes.

The logarithm of each integrand is concave. The nodes s are an exponential function of evenly
spaced points. The trapezoid rule then converges exponentially, and the steps grow to the right,
where only classes of large d still vary. Each example has its own nodes. They begin where the
product of all F_j is negligible even for the rarest class, and end where each f_c is negligible.

Derivatives are the same integral of derivatives. By the heat equation, dF/dd = d F'', so only
derivatives by s are needed.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic import sampling
from heteroscedastic.bind import check_number
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits
from heteroscedastic.predictive import gumbel


@suits("softmax")
def softmax_exact(
    key: PRNGKeyArray | None, latent: LatentGaussian, *, num_nodes: int = 32
) -> Float[Array, "*b k"]:
    """Log of E[softmax(u)] for independent utilities, without samples.

    With 32 nodes, |loc| <= 60 and standard deviations from 1e-3 to 60, the tests hold the error to
    1e-4 nats for probabilities above 1e-6 and to 1e-2 nats down to 1e-12, and gradients to 1 %;
    there are rare cases beyond, of a few thousandths of a nat. Smaller probabilities are finite.
    Forward mode, reverse mode and second derivatives by `loc` are supported; second derivatives
    that involve `scale_diag` are not accurate. Memory does not grow with the number of nodes.

    An example whose standard deviations differ too much for this many nodes uses twice as many; a
    batch with such an example takes up to twice the time. An example does not affect the nodes of
    the others.

    Args:
      key: ignored.
      latent: Gaussian over the utilities u, with `scale_diag` only or without noise.
      num_nodes: nodes of the integral, 16 to 1024; 24 are accurate to about 1e-3 nats.

    Returns:
      Log-probabilities in nats; they sum to one.

    Raises:
      ValueError: num_nodes is out of range, the latent is invalid, or its utilities are correlated.

    Source: ours.
    """
    check_number("num_nodes", num_nodes, integer=True, at_least=16, at_most=1024)
    latent = latent_lib.check(latent)
    if not latent_lib.has_noise(latent):
        return jax.nn.log_softmax(latent.loc)
    if latent.scale_diag is None or not latent_lib.has_independent_noise(latent):
        correlated = ("factor_loadings", "factor_scale", "readout")
        name = next(name for name in correlated if getattr(latent, name) is not None)
        raise ValueError(
            f"predictive 'softmax_exact' needs independent utilities, but latent.{name} makes them"
            " correlated; use the predictive 'softmax', or the head 'Diagonal'."
        )
    return _normalised(num_nodes, latent.loc, latent.scale_diag)


@functools.partial(jax.jit, static_argnums=0)
def _normalised(num_nodes, loc, scale):
    """Log-probabilities that sum to one; compiled, as calls outside of `jit` would be slow."""
    is_possible = loc > -jnp.inf
    top = jax.lax.stop_gradient(jnp.max(loc, axis=-1, keepdims=True))
    # A class of probability 0 must not take part at any node; they begin above -5 - 15.5 max d.
    widest = jnp.max(jnp.where(is_possible, scale, 0.0), axis=-1, keepdims=True)
    below = _FAR_BELOW + 16 * jax.lax.stop_gradient(widest)
    loc = jnp.where(is_possible, loc - top, -below)
    scale = jnp.where(is_possible, scale, 1.0)
    grid = _grid(*jax.lax.stop_gradient((loc, scale)), is_possible, num_nodes)
    log_probs = _log_probs(num_nodes, loc, scale, grid)
    return jax.nn.log_softmax(jnp.where(is_possible, log_probs, -jnp.inf))


_FAR_BELOW = 1e4  # nats
_LEFT_MARGIN, _RIGHT_MARGIN = 15.0, 12.0  # nats beyond which an integrand is negligible
_MAX_RARITY = 105.0  # nats; the nodes need not resolve rarer classes
_LEFT_RARITY = 30.0  # nats; the same for classes left of all nodes
_NEWTON_STEPS = 5
# Candidates for the growth of the step from one node to the next, and the largest accurate one.
_GROWTHS = np.array([1e-3, 0.01, 0.02, 0.03, 0.04, 0.055, 0.07, 0.09, 0.115, 0.15, 0.2])
_MAX_GROWTH = 0.15
_NUM_ARRAYS = 4  # per node, example and class, in memory at a time
_MAX_STEP = 0.75  # times the width of the sum of log F, where the sum is -1


class _Grid(NamedTuple):
    """Nodes start + step (e^(growth (i + 1/2)) - 1) / growth for i < num_nodes, per example."""

    start: Float[Array, "*b 1"]
    step: Float[Array, "*b 1"]
    growth: Float[Array, "*b 1"]
    num_nodes: Int[Array, "*b 1"]


def _grid(loc, scale, is_possible, num_nodes):
    """The nodes of each example. They are constants: the integral does not depend on them."""
    coefficients = gumbel.coefficients(scale)

    def total(s):
        """log(-sum_j log F_j), minus its slope, and xi of each class."""
        xi, slope = gumbel.xi_and_derivatives(s - loc, scale, coefficients, 1)
        least = jnp.min(xi, axis=-1, keepdims=True)
        weight = jnp.exp(least - xi)
        weights = jnp.sum(weight, axis=-1, keepdims=True)
        steepness = jnp.sum(weight * slope, axis=-1, keepdims=True) / weights
        return jnp.log(weights) - least, steepness, xi

    def root(level, low, high):
        """Where sum_j log F_j = -level, by Newton's rule within a bracket."""

        def newton(_, bracket):
            low, high, s = bracket
            value, steepness, _ = total(s)
            excess = value - jnp.log(level)
            low, high = jnp.where(excess > 0, s, low), jnp.where(excess > 0, high, s)
            s = s + excess / steepness
            return low, high, jnp.where((s >= low) & (s <= high), s, 0.5 * (low + high))

        return jax.lax.fori_loop(0, _NEWTON_STEPS, newton, (low, high, high))[2]

    def largest(values):
        return jnp.max(values, axis=-1, keepdims=True)

    level = _MAX_RARITY + _LEFT_MARGIN
    low = largest(loc - gumbel.depth(level, scale))
    # Each of n classes with 1 - F <= 1 / (e n) adds so little that sum_j log F_j >= -1.
    num_possible = jnp.sum(is_possible, axis=-1, keepdims=True).astype(loc.dtype)
    high = largest(loc + gumbel.reach(1 + jnp.log(num_possible), scale))
    upper = root(1.0, low, high)
    _, steepness, xi = total(upper)
    lower = root(8.0, low, upper)
    # p_c >= e^-t (1 - F_c(s)) where sum_j log F_j(s) = -t: a class is at most this rare.
    rarity = jnp.minimum(xi + 1, total(lower)[2] + 8)
    rarest = jnp.clip(largest(jnp.where(is_possible, rarity, 0.0)), 1.0, _MAX_RARITY)
    start = root(rarest + _LEFT_MARGIN, low, lower)
    beyond = largest(loc + gumbel.reach(_RIGHT_MARGIN + jnp.clip(xi, 0, 40), scale))
    length = jnp.maximum(beyond, upper + 1) - start

    # The step that resolves a class: its characteristic function at 2 pi / step is e^-14.
    width = 0.35 + jnp.sqrt(0.124 + 1.41 * jnp.square(scale))
    # A class left of all nodes has its integrand at the first ones, unless it is too rare to count.
    distance = jnp.maximum(loc - start, 0.0)
    is_resolved = is_possible & ((loc > start) | (rarity < _LEFT_RARITY))
    growth = jnp.asarray(_GROWTHS, loc.dtype).reshape(-1, *(1,) * loc.ndim)

    def fit(num_nodes):
        """The grid of this many nodes with the best growth, and how much too coarse it is."""
        step = length * growth / jnp.expm1(growth * num_nodes)
        coarseness = largest(jnp.where(is_resolved, (step + growth * distance) / width, 0.0))
        at_upper = (step + growth * (upper - start)) * steepness / _MAX_STEP
        coarseness = jnp.maximum(jnp.maximum(coarseness, at_upper), growth / _MAX_GROWTH)
        best = jnp.argmin(coarseness, axis=0, keepdims=True)
        step, chosen, coarseness = (
            jnp.take_along_axis(x, best, axis=0)[0]
            for x in (step, jnp.broadcast_to(growth, step.shape), coarseness)
        )
        return _Grid(start, step, chosen, jnp.full(step.shape, num_nodes)), coarseness

    grid, coarseness = fit(num_nodes)
    finer, _ = fit(2 * num_nodes)
    return jax.tree.map(lambda a, b: jnp.where(coarseness > 1, b, a), grid, finer)


def _over_nodes(body, carry, num_nodes, grid):
    """Applies `body` to chunks of nodes; to the second half only if an example uses it."""
    num_values = _NUM_ARRAYS * jax.tree.leaves(carry)[0].size
    size = min(num_nodes, sampling.chunk_size(num_values))

    def over(carry, first):
        return sampling.over_chunks(
            lambda carry, indices: body(carry, first + indices), carry, num_nodes, size
        )

    return jax.lax.cond(
        jnp.any(grid.num_nodes > num_nodes),
        lambda carry: over(carry, num_nodes),
        lambda carry: carry,
        over(carry, 0),
    )


def _log_integrand(indices, loc, scale, grid, coefficients, order):
    """Log of the integrand times the weight of the node; -log F, and derivatives of xi."""
    i = indices.astype(loc.dtype).reshape(-1, *(1,) * loc.ndim)
    position = grid.growth * (i + 0.5)
    s = grid.start + grid.step * jnp.expm1(position) / grid.growth
    xi, *slopes = gumbel.xi_and_derivatives(s - loc, scale, coefficients, order)
    rate = jnp.exp(-xi)
    log_weight = jnp.where(i < grid.num_nodes, jnp.log(grid.step) + position, -jnp.inf)
    values = log_weight - jnp.sum(rate, axis=-1, keepdims=True) + jnp.log(slopes[0]) - xi
    return values, rate, slopes


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_probs(num_nodes, loc, scale, grid):
    """The logarithm of the integral, before normalisation."""
    coefficients = gumbel.coefficients(scale)

    def body(carry, indices):
        top, total = carry
        values, *_ = _log_integrand(indices, loc, scale, grid, coefficients, 1)
        new_top = jnp.maximum(top, jnp.max(values, axis=0))
        total = total * jnp.exp(top - new_top) + jnp.sum(jnp.exp(values - new_top), axis=0)
        return new_top, total

    start = jnp.full_like(loc, -1e30), jnp.zeros_like(loc)  # finite, so that differences are
    top, total = _over_nodes(body, start, num_nodes, grid)
    return top + jnp.log(total)


@_log_probs.defjvp
def _log_probs_jvp(num_nodes, primals, tangents):
    loc, scale, grid = primals
    log_probs = _log_probs(num_nodes, *primals)

    # Without `checkpoint` reverse mode would store what it needs of every node.
    @jax.checkpoint
    def tangent(loc, scale, log_probs, loc_tangent, scale_tangent):
        coefficients = gumbel.coefficients(scale)

        @jax.checkpoint
        def body(total, indices):
            values, rate, (slope, curvature, change) = _log_integrand(
                indices, loc, scale, grid, coefficients, 3
            )
            weight = jnp.exp(values - log_probs)
            # Derivatives of xi and of log xi' by d, from dF/dd = d F''.
            square = jnp.square(slope)
            by_scale = scale * (rate * square + curvature - square)
            slope_by_scale = scale * (
                rate * (2 * curvature - square) - 2 * curvature + change / slope
            )
            product = jnp.sum(
                rate * (by_scale * scale_tangent - slope * loc_tangent), axis=-1, keepdims=True
            )
            own = (slope - curvature / slope) * loc_tangent
            own += (slope_by_scale - by_scale) * scale_tangent
            return total + jnp.sum(weight * (product + own), axis=0)

        return _over_nodes(body, jnp.zeros_like(loc), num_nodes, grid)

    return log_probs, tangent(loc, scale, log_probs, *tangents[:2])
