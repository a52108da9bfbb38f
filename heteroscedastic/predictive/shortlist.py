"""The averaged softmax over the likeliest classes of each example, with the others as one lump.

Few of many classes have any probability. Only their utilities, and the utility of the lump, are
sampled: the lump stands for the log of sum_j exp(u_j) over all other classes j. Its mean is taken
from the bound

    E[log sum_j exp(u_j)] <= min_{0 < t <= 1} (1 / t) log sum_j exp(t m_j + t^2 v_j / 2),

of means m and variances v: for t <= 1 the sum of exp(t u_j) is at least the t-th power of the sum
of exp(u_j), and the log of an average is at least the average of the log. At t = 1 the bound is the
log of E[sum_j exp(u_j)], which strong noise makes far too large: at v = 36 it is the average over
events that no sample contains. For many independent classes the best t makes the bound tight at any
noise (the random energy model of Derrida 1981, Phys. Rev. B 24, 2613, with t its temperature).

At the best t the terms of the sum are the shares of the classes in the lump. Their weighted mean
gives the lump its correlated noise, so noise common to all classes cancels as in the full softmax,
and v_j is the variance of what class j adds to that mean. A lump of one class is that class.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic.bind import check_number
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits
from heteroscedastic.predictive.sampled import softmax

_NUM_PASSES = 2  # shares and variances depend on each other; a third pass changes little
_SMALLEST_POWER = 1 / 64
_NUM_HALVINGS = 5  # of the range of log t, which leaves 7 % of t to Newton's method


@suits("softmax")
def shortlist(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    *,
    num_classes: int = 32,
    num_samples: int,
    points: str = "independent",
    chunk_size: int | None = None,
) -> Float[Array, "*b k"]:
    """Log of the Monte Carlo average of softmax(u), with samples of the likeliest classes alone.

    Time and memory of the samples do not depend on the number of classes K. It equals `softmax` in
    the limit of samples for K <= num_classes + 1. Otherwise the error grows with the probability of
    the lump and with the noise; docs/results/cost.md has measurements. Supports reverse mode only.

    Args:
      key: PRNG key; consumed. None uses fixed points, the same for every example.
      latent: Gaussian over the utilities u.
      num_classes: classes per example whose utilities are sampled, at least 1.
      num_samples: samples per example, 1 to 2**24; a power of two for Sobol points.
      points: "independent", "antithetic" or "sobol"; see sampling.py.
      chunk_size: samples in memory at a time; results do not depend on it, up to rounding. The
        default counts the examples of `latent` and not those of a `vmap` around this function;
        there, pass a smaller number.

    Returns:
      Log-probabilities in nats; they sum to one.

    Raises:
      ValueError: a setting is out of range, or the latent is invalid.
      TypeError: the function is differentiated in forward mode.

    Source: ours.
    """
    check_number("num_classes", num_classes, integer=True, at_least=1, below=2**20)
    latent = latent_lib.check(latent)
    average = functools.partial(
        softmax, key, num_samples=num_samples, points=points, chunk_size=chunk_size
    )
    if num_classes < latent.loc.shape[-1] and latent_lib.has_noise(latent):
        top = _likeliest(latent, num_classes)
        others = jnp.put_along_axis(latent.loc, top, -jnp.inf, axis=-1, inplace=False)
        lump = _lump(latent, others, _NUM_PASSES)
        log_probs = average(_with_lump(latent, top, lump))
        others = log_probs[..., -1:] + lump.log_shares
        return jnp.put_along_axis(others, top, log_probs[..., :-1], axis=-1, inplace=False)
    return average(latent)


def _likeliest(latent: LatentGaussian, num_classes: int) -> Int[Array, "*b m"]:
    """The classes with the largest shares, if all classes were in the lump."""
    latent = jax.lax.stop_gradient(latent)
    lump = _lump(latent, latent.loc, num_passes=1)
    return jax.lax.top_k(lump.log_shares, num_classes)[1]


class _Lump(NamedTuple):
    loc: Float[Array, "*b"]  # mean of its utility
    log_shares: Float[Array, "*b k"]  # of the classes in the lump
    shares: Float[Array, "*b k"]


def _lump(latent: LatentGaussian, loc: Float[Array, "*b k"], num_passes: int) -> _Lump:
    """The lump of all classes whose `loc` is not -inf, with the noise of `latent`."""
    is_empty = jnp.all(jnp.isneginf(loc), axis=-1, keepdims=True)
    loc = jnp.where(is_empty, 0.0, loc)
    shares = jax.nn.softmax(loc, axis=-1)
    for _ in range(num_passes):
        variance = _added_variance(latent, shares)
        power = _best_power(loc, variance)
        exponents = _exponents(power, loc, variance)
        log_shares = jax.nn.log_softmax(exponents, axis=-1)
        shares = jnp.exp(log_shares)
    mean = jax.nn.logsumexp(exponents, axis=-1, keepdims=True) / power
    return _Lump(jnp.where(is_empty, -jnp.inf, mean)[..., 0], log_shares, shares)


def _added_variance(latent: LatentGaussian, shares: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """Variance that each class adds to the weighted mean of the utilities; 0 for a share of 1."""
    if latent.readout is not None or latent.scale_diag is None:
        return latent_lib.variance_from_mean(latent, shares)
    factors = latent_lib.variance_from_mean(latent._replace(scale_diag=None), shares)
    return factors + jnp.square(latent.scale_diag) * (1 - shares)


def _exponents(
    power: Float[Array, "*b 1"], loc: Float[Array, "*b k"], variance: Float[Array, "*b k"]
) -> Float[Array, "*b k"]:
    """t m + t^2 v / 2; -inf where `loc` is."""
    is_class = jnp.logical_not(jnp.isneginf(loc))
    values = power * jnp.where(is_class, loc, 0.0) + jnp.square(power) * variance / 2
    return jnp.where(is_class, values, -jnp.inf)


@jax.jit  # as each call outside of `jit` would compile the loop again
def _best_power(loc: Float[Array, "*b k"], variance: Float[Array, "*b k"]) -> Float[Array, "*b 1"]:
    """The t of the least bound: by bisection of log t, then steps of Newton's method.

    With the mean E over the shares and the exponents e_j(t) = t m_j + t^2 v_j / 2, the derivative
    of the bound has the sign of g(t) = t E[e'] - log sum_j exp(e_j), which increases:
    g'(t) = t (Var[e'] + E[v]). The last step gives the result its gradient, by the implicit
    function theorem.
    """
    is_class = jnp.logical_not(jnp.isneginf(loc))

    def slope(power, loc, variance):
        """g(t) and its derivative."""
        exponents = _exponents(power, loc, variance)
        shares = jax.nn.softmax(exponents, axis=-1)

        def mean(x):
            return jnp.sum(jnp.where(is_class, shares * x, 0.0), axis=-1, keepdims=True)

        change = jnp.where(is_class, loc, 0.0) + power * variance
        centre = mean(change)
        total = jax.nn.logsumexp(exponents, axis=-1, keepdims=True)
        return power * centre - total, power * (mean(jnp.square(change - centre) + variance))

    fixed = jax.lax.stop_gradient((loc, variance))

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        is_above = slope(jnp.exp(middle), *fixed)[0] > 0
        return jnp.where(is_above, low, middle), jnp.where(is_above, middle, high)

    def stepped(power, loc, variance):
        value = slope(power, loc, variance)[0]
        step = value / jnp.maximum(slope(power, *fixed)[1], 1e-30)
        return power - jnp.clip(step, -power / 4, power / 4)

    low = jnp.full_like(loc[..., :1], jnp.log(_SMALLEST_POWER))
    low, high = jax.lax.fori_loop(0, _NUM_HALVINGS, halve, (low, jnp.zeros_like(low)))
    root = stepped(stepped(jnp.exp((low + high) / 2), *fixed), *fixed)
    is_one = slope(jnp.ones_like(root), *fixed)[0] <= 0
    return jnp.where(is_one, 1.0, stepped(root, loc, variance))


def _with_lump(latent: LatentGaussian, top: Int[Array, "*b m"], lump: _Lump) -> LatentGaussian:
    """The latent of the classes `top` and, as the last class, of the lump."""
    shares = lump.shares

    def select(values, mean):
        chosen = jnp.take_along_axis(values, top, axis=-1)
        return jnp.concatenate([chosen, mean[..., None]], axis=-1)

    few = LatentGaussian(select(latent.loc, lump.loc))
    if latent.readout is not None:
        rows = jnp.concatenate(
            [latent.readout.T[top], (shares @ latent.readout.T)[..., None, :]], axis=-2
        )
        columns = [] if latent.scale_diag is None else [rows * latent.scale_diag[..., None, :]]
        columns += [rows @ loadings for loadings in latent_lib.all_loadings(latent)]
        return few._replace(factor_loadings=jnp.concatenate(columns, axis=-1))
    if latent.scale_diag is not None:
        of_lump = jnp.sqrt(jnp.sum(jnp.square(shares * latent.scale_diag), axis=-1))
        few = few._replace(scale_diag=select(latent.scale_diag, of_lump))
    parts = []
    if latent.factor_loadings is not None:
        chosen = jnp.take_along_axis(latent.factor_loadings, top[..., None], axis=-2)
        of_lump = jnp.einsum("...k,...kr->...r", shares, latent.factor_loadings)
        parts.append(jnp.concatenate([chosen, of_lump[..., None, :]], axis=-2))
    if latent.factor_scale is not None and latent.shared_loadings is not None:
        # Loadings of all classes of all examples would be far larger than the latent.
        scale = jnp.take_along_axis(latent.factor_scale, top, axis=-1)[..., None]
        of_lump = (shares * latent.factor_scale) @ latent.shared_loadings
        parts.append(
            jnp.concatenate([scale * latent.shared_loadings[top], of_lump[..., None, :]], axis=-2)
        )
    return few._replace(factor_loadings=jnp.concatenate(parts, axis=-1)) if parts else few
