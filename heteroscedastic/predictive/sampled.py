"""Monte Carlo averages of the softmax and the sigmoid, in log space and in constant memory.

The gradient draws the samples again, by a custom rule for reverse mode (`jax.grad`, `jax.vjp`). JAX
has no forward mode for such a function: `jax.jvp` and `jax.jacfwd` raise a TypeError, whose message
is JAX's own if they differentiate a function compiled by `jax.jit`. Second derivatives are
supported, by `jax.hessian` or by reverse mode twice. `mean_field`, `taylor` and, for log-odds,
`sigmoid` support both modes.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic import sampling
from heteroscedastic.bind import check_number
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits


@suits("softmax")
def softmax(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    *,
    num_samples: int,
    points: str = "independent",
    chunk_size: int | None = None,
) -> Float[Array, "*b k"]:
    """Log of the Monte Carlo average of softmax(u).

    Averages in log space, so a class that no sample favours keeps a finite log-probability and a
    useful gradient. No probability is clipped. Samples are drawn in chunks, and drawn again for the
    gradient, so memory does not grow with their number. Supports reverse mode only.

    Args:
      key: PRNG key; consumed. None uses fixed points, the same for every example, so that a
        prediction depends only on its input.
      latent: Gaussian over the utilities u.
      num_samples: samples per example, 1 to 2**24; a power of two for Sobol points.
      points: "independent" as in the paper, "antithetic" or "sobol"; see sampling.py.
      chunk_size: samples in memory at a time; results do not depend on it, up to rounding. The
        default counts the examples of `latent` and not those of a `vmap` around this function;
        there, pass a smaller number.

    Returns:
      Log-probabilities in nats.

    Raises:
      ValueError: a setting is out of range, or the latent is invalid.
      TypeError: the function is differentiated in forward mode.

    Source: Collier et al. (2021), arXiv:2105.10305, Eq. 3, with the temperature in `latent.temper`.
    """
    return _log_mean_exp(
        "softmax", jax.nn.log_softmax, key, latent, num_samples, points, chunk_size
    )


@suits("sigmoid")
def sigmoid_sampled(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    *,
    num_samples: int,
    points: str = "independent",
    chunk_size: int | None = None,
) -> Float[Array, "*b k"]:
    """Log-odds of the Monte Carlo average of sigmoid(u).

    Averages both sigmoid(u) and sigmoid(-u) in log space, so neither tail is a difference of
    numbers near one. Memory does not grow with num_samples. Supports reverse mode only.

    Args:
      key: PRNG key; consumed. None uses fixed points, the same for every example, so that a
        prediction depends only on its input.
      latent: Gaussian over the utilities u.
      num_samples: samples per example, 1 to 2**24; a power of two for Sobol points.
      points: "independent" as in the paper, "antithetic" or "sobol"; see sampling.py.
      chunk_size: samples in memory at a time; results do not depend on it, up to rounding. The
        default counts the examples of `latent` and not those of a `vmap` around this function;
        there, pass a smaller number.

    Returns:
      Log-odds in nats.

    Raises:
      ValueError: a setting is out of range, or the latent is invalid.
      TypeError: the function is differentiated in forward mode.

    Source: Collier et al. (2021), arXiv:2105.10305, Eq. 5.
    """
    log_probs = _log_mean_exp(
        "sigmoid_sampled", _log_sigmoids, key, latent, num_samples, points, chunk_size
    )
    return log_probs[0] - log_probs[1]


def _log_sigmoids(utilities: Float[Array, "*b k"]) -> Float[Array, "*b 2 k"]:
    return jnp.stack([jax.nn.log_sigmoid(utilities), jax.nn.log_sigmoid(-utilities)], axis=-2)


_FORWARD_MODE = {"softmax": "mean_field or taylor", "sigmoid_sampled": "sigmoid"}


def _log_mean_exp(
    name: str,
    log_link: Callable[[Array], Array],
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    num_samples: int,
    points: str,
    chunk_size: int | None,
) -> Float[Array, "..."]:
    """log((1/S) sum_s exp(log_link(u_s))); what log_link returns per class is the leading axis."""
    num_samples = sampling.check_num_points(num_samples)
    if chunk_size is not None:
        check_number("chunk_size", chunk_size, integer=True, at_least=1)
    sampling.sampler(points)
    latent = latent_lib.check(latent)
    if not latent_lib.has_noise(latent):
        num_samples, points = 1, "independent"
    if chunk_size is None:
        chunk_size = sampling.chunk_size(latent_lib.values_per_sample(latent))
    settings = log_link, num_samples, points, min(chunk_size, num_samples)
    try:
        averaged = _compiled(*settings, key, latent)
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise TypeError(
            f"predictive.{name} supports reverse mode only; use jax.grad, jax.vjp or jax.jacrev, or"
            f" predictive.{_FORWARD_MODE[name]} in forward mode."
        ) from None
    return jnp.moveaxis(averaged, -2, 0) if averaged.ndim > latent.loc.ndim else averaged


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _chunked(log_link, num_samples, points, chunk_size, key, latent):
    return _forward(log_link, num_samples, points, chunk_size, key, latent)[0]


def _forward(log_link, num_samples, points, chunk_size, key, latent):
    source = latent_lib.noise_source(key, latent, num_samples, points)

    def log_probs(indices):
        return log_link(latent_lib.utilities(latent, source(indices)))

    def body(carry, indices):
        top, total = carry
        values = log_probs(indices)
        # The result does not depend on the shift, but the derivative of a maximum is nan where the
        # compiler rounds it otherwise than the values that it is compared with.
        new_top = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(values, axis=0)))
        # For a class of loc -inf: -inf - 0 instead of -inf - (-inf), which is nan.
        shift = jnp.where(jnp.isneginf(new_top), 0.0, new_top)
        total = total * jnp.exp(top - shift) + jnp.sum(jnp.exp(values - shift), axis=0)
        return new_top, total

    # Divided over devices as the samples are.
    like = jax.eval_shape(lambda: log_probs(jnp.arange(1))[0])
    start = jnp.full_like(like, -jnp.inf), jnp.zeros_like(like)
    top, total = sampling.over_chunks(body, start, num_samples, chunk_size)
    # The derivative of log(0) would be infinite, and that of the whole nan.
    total = jnp.where(jnp.isneginf(top), 1.0, total)
    averaged = top + jnp.log(total) - jnp.log(num_samples)
    return averaged, (key, latent, averaged)


def _backward(log_link, num_samples, points, chunk_size, residuals, cotangent):
    """d log mean_s exp(l_s) = sum_s w_s d l_s, where w_s = exp(l_s) / sum_s exp(l_s).

    The weights sum to one over the samples, so the gradient is accurate for any probability,
    however small.
    """
    key, latent, averaged = residuals
    source = latent_lib.noise_source(key, latent, num_samples, points)

    def body(total, indices):
        noise = source(indices)
        values, pull = jax.vjp(lambda x: log_link(latent_lib.utilities(x, noise)), latent)
        safe = jnp.where(jnp.isneginf(averaged), 0.0, averaged)
        weights = jnp.exp(values - safe) / num_samples
        (gradient,) = pull(cotangent * weights)
        return jax.tree.map(jnp.add, total, gradient)

    zeros = jax.tree.map(jnp.zeros_like, latent)
    return None, sampling.over_chunks(body, zeros, num_samples, chunk_size)


_chunked.defvjp(_forward, _backward)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _compiled(log_link, num_samples, points, chunk_size, key, latent):
    """Compiled, as each call outside of `jit` would compile its loops again, and keep them."""
    return _chunked(log_link, num_samples, points, chunk_size, key, latent)
