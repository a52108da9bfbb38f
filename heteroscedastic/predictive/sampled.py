"""Monte-Carlo averages of the softmax and the sigmoid, in log space and in constant memory.

The gradient draws the samples again, by a rule of its own for reverse mode (`jax.grad`, `jax.vjp`).
JAX has no forward mode beside such a rule: `jax.jvp`, `jax.jacfwd` and `jax.hessian` raise a
TypeError. In their place take `jax.jacrev(jax.jacrev(f))`, or for log-odds the closed form
`sigmoid`, which supports both modes.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic import sampling
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits

# Utilities drawn at a time. Four MB of float32 stay in a CPU's cache, where the streamed form
# is then faster than the direct one (benchmarks/predictive.py).
_CHUNK_VALUES = 2**20


@suits("softmax")
def softmax(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    *,
    num_samples: int,
    points: str = "independent",
    chunk_size: int | None = None,
) -> Float[Array, "*b k"]:
    """Log of the Monte-Carlo average of softmax(u).

    The average is taken in log space, so a class that no sample favours keeps a finite
    log-probability and a useful gradient; no probability is clipped. Samples are drawn in
    chunks and drawn again for the gradient, so memory does not grow with their number.

    Args:
      key: consumed; None for fixed points, the same for every example, so that a prediction depends
        on its input alone.
      latent: parameters of the utilities u.
      num_samples: samples per example, 1 to 2**24; a power of two for Sobol points.
      points: "independent" as in the paper, "antithetic" or "sobol", see sampling.py.
      chunk_size: samples held at a time; results depend on it by rounding alone.

    Returns:
      Log-probabilities in nats.

    Source: Collier et al. (2021), arXiv:2105.10305, Eq. 3 with the temperature taken by
    `latent.temper`.
    """
    return _log_mean_exp(jax.nn.log_softmax, key, latent, num_samples, points, chunk_size)


@suits("sigmoid")
def sigmoid_sampled(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    *,
    num_samples: int,
    points: str = "independent",
    chunk_size: int | None = None,
) -> Float[Array, "*b k"]:
    """Log-odds of the Monte-Carlo average of sigmoid(u).

    E[sigmoid(u)] and E[sigmoid(-u)] are both averaged in log space, so neither tail is a
    difference of numbers near one.

    Args:
      key: consumed; None for fixed points, the same for every example, so that a prediction depends
        on its input alone.
      latent: parameters of the utilities u.
      num_samples: samples per example, 1 to 2**24; a power of two for Sobol points.
      points: "independent" as in the paper, "antithetic" or "sobol", see sampling.py.
      chunk_size: samples held at a time; results depend on it by rounding alone.

    Returns:
      Log-odds in nats.

    Source: Collier et al. (2021), arXiv:2105.10305, Eq. 5.
    """
    log_probs = _log_mean_exp(_log_sigmoids, key, latent, num_samples, points, chunk_size)
    return log_probs[0] - log_probs[1]


def _log_sigmoids(utilities: Float[Array, "*b k"]) -> Float[Array, "*b 2 k"]:
    return jnp.stack([jax.nn.log_sigmoid(utilities), jax.nn.log_sigmoid(-utilities)], axis=-2)


def _log_mean_exp(
    log_link: Callable[[Array], Array],
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    num_samples: int,
    points: str,
    chunk_size: int | None,
) -> Float[Array, "..."]:
    """log((1/S) sum_s exp(log_link(u_s))), for one number a class or, leading, two."""
    sampling.check_num_points(num_samples)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}, but must be a whole number >= 1.")
    latent = latent_lib.check(latent)
    if not latent_lib.has_noise(latent):
        num_samples, points = 1, "independent"
    if chunk_size is None:
        chunk_size = max(1, _CHUNK_VALUES // max(1, latent.loc.size))
    averaged = _streamed(log_link, num_samples, points, min(chunk_size, num_samples), key, latent)
    return jnp.moveaxis(averaged, -2, 0) if averaged.ndim > latent.loc.ndim else averaged


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _streamed(log_link, num_samples, points, chunk_size, key, latent):
    return _forward(log_link, num_samples, points, chunk_size, key, latent)[0]


def _forward(log_link, num_samples, points, chunk_size, key, latent):
    draw = latent_lib.draw(key, latent, num_samples, points)

    def body(carry, indices):
        top, total = carry
        values = log_link(latent_lib.utilities(latent, draw(indices)))
        new_top = jnp.maximum(top, jnp.max(values, axis=0))
        # A class of loc -inf has no probability: -inf - 0 rather than -inf - (-inf).
        shift = jnp.where(jnp.isneginf(new_top), 0.0, new_top)
        total = total * jnp.exp(top - shift) + jnp.sum(jnp.exp(values - shift), axis=0)
        return new_top, total

    shape = jax.eval_shape(log_link, latent.loc)
    start = jnp.full(shape.shape, -jnp.inf, shape.dtype), jnp.zeros(shape.shape, shape.dtype)
    top, total = _over_chunks(body, start, num_samples, chunk_size)
    averaged = top + jnp.log(total) - jnp.log(num_samples)
    return averaged, (key, latent, averaged)


def _backward(log_link, num_samples, points, chunk_size, residuals, cotangent):
    """d log mean_s exp(l_s) = sum_s w_s d l_s, where w_s = exp(l_s) / sum_s exp(l_s).

    The weights sum to one over the samples, so the gradient is sound however small the
    probability is.
    """
    key, latent, averaged = residuals
    draw = latent_lib.draw(key, latent, num_samples, points)

    def body(total, indices):
        noise = draw(indices)
        values, pull = jax.vjp(lambda x: log_link(latent_lib.utilities(x, noise)), latent)
        safe = jnp.where(jnp.isneginf(averaged), 0.0, averaged)
        weights = jnp.exp(values - safe) / num_samples
        (gradient,) = pull(cotangent * weights)
        return jax.tree.map(jnp.add, total, gradient)

    zeros = jax.tree.map(jnp.zeros_like, latent)
    return None, _over_chunks(body, zeros, num_samples, chunk_size)


_streamed.defvjp(_forward, _backward)


def _over_chunks(body, carry, num_samples, chunk_size):
    """`body` over the numbers 0 to num_samples - 1, chunk_size of them at a time."""
    num_chunks, rest = divmod(num_samples, chunk_size)
    chunk = jnp.arange(chunk_size)
    if num_chunks == 1:
        carry = body(carry, chunk)
    elif num_chunks > 1:
        carry, _ = jax.lax.scan(
            lambda carry, i: (body(carry, i * chunk_size + chunk), None),
            carry,
            jnp.arange(num_chunks),
        )
    return body(carry, num_chunks * chunk_size + jnp.arange(rest)) if rest else carry
