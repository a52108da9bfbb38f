"""Approximations of E[softmax(u)] without samples: second-order expansion and mean field.

With s = softmax(loc) and Sigma the covariance of the utilities, the Hessian of s_k at loc is

    H_k = s_k ((e_k - s)(e_k - s)' - diag(s) + s s')    (Lemma C.1).

The second-order term of the expansion is

    tr(H_k Sigma) / 2 = s_k t_k,
    t_k = (q_k - sum_j s_j q_j) / 2,   q_k = Var(u_k - sum_j s_j u_j),

because tr((diag(s) - s s') Sigma) = sum_j s_j q_j. For a diagonal Sigma this is Eq. 9. For a full
Sigma it is Eq. 13 with the (j, k) term doubled: the paper counts (j, k) but not (k, j) (reading
C3). No K x K matrix is computed, and noise common to all classes cancels before it is squared.

Source: Collier et al. (2021), arXiv:2105.10305, Appendix C. The paper omits the temperature there;
here it is part of the latent: temper(latent, tau) divides t by tau^2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits

_MIN_LOG_PROB = -1e15  # for an impossible class; finite, so that its gradient is


@suits("softmax")
def taylor(
    key: PRNGKeyArray | None, latent: LatentGaussian, *, min_factor: float = 1e-2
) -> Float[Array, "*b k"]:
    """Log of the second-order expansion of E[softmax(u)], s_k (1 + t_k).

    The expansion sums to one, but for noise above about two units of utility some probabilities
    leave [0, 1]. Therefore 1 + t is clipped from below and the result divided by its sum. This
    handles both ends, as a probability above 1 implies another one below 0. The factor 1 + t is
    clipped rather than the probability: a clipped class has no gradient through its own t, but
    keeps the gradient of log s_k, and through the sum that of the other classes' t.

    With `cross_entropy` and a diagonal latent this is the loss of Table 8, -log of Eq. 9. Eq. 10 of
    the paper, log s_k + t_k, replaces log(1 + t) by t. It is not implemented because it has no
    lower bound in the variances.

    Args:
      key: ignored.
      latent: Gaussian over the utilities u.
      min_factor: smallest 1 + t, in (0, 1); 1 / min_factor bounds the gradient of its log.

    Returns:
      Log-probabilities in nats; they sum to one.

    Raises:
      ValueError: min_factor is out of range.

    Source: Collier et al. (2021), arXiv:2105.10305, Eqs. 7, 9 and 13; the clip is ours.
    """
    if not 0 < min_factor < 1:
        raise ValueError(f"min_factor is {min_factor}, but must be in (0, 1).")
    latent = latent_lib.check(latent)
    log_probs = jax.nn.log_softmax(latent.loc, axis=-1)
    probs = jnp.exp(log_probs)
    spread = latent_lib.variance_from_mean(latent, probs)
    correction = (spread - jnp.sum(probs * spread, axis=-1, keepdims=True)) / 2
    return jax.nn.log_softmax(log_probs + jnp.log(jnp.maximum(1 + correction, min_factor)), axis=-1)


@suits("softmax")
def mean_field(key: PRNGKeyArray | None, latent: LatentGaussian) -> Float[Array, "*b k"]:
    """Log of a mean-field approximation of E[softmax(u)], for evaluation without samples.

    The log-odds of a class against all others, u_k - log sum_{j != k} exp(u_j), are approximated by
    a Gaussian whose mean m is exact to second order in the noise and whose variance v is exact to
    first order. E[sigmoid] is approximated by

        sigmoid(m / sqrt(1 + v c(m'))),   c(x) = tanh(x / 2) / x,   m' = m / sqrt(1 + v c(m)),

    and the K results are divided by their sum.

    Like `taylor`, it is exact to second order in the noise; unlike `taylor`, it stays in [0, 1] for
    any noise without clipping. For two classes the error is at most 0.002, 0.012 and 0.04 when the
    standard deviation of u_1 - u_2 is 1, 3 and 10. benchmarks/predictive.py measures the error
    against Monte Carlo for many classes.

    Lu et al. compare one class with one other class. Comparing it with all others at once is more
    accurate, and needs time and memory proportional to K instead of K^2.

    Args:
      key: ignored.
      latent: Gaussian over the utilities u.

    Returns:
      Log-probabilities in nats; they sum to one.

    Source: ours, after Lu et al. (2020), arXiv:2006.07584.
    """
    latent = latent_lib.check(latent)
    log_probs = jnp.maximum(jax.nn.log_softmax(latent.loc, axis=-1), _MIN_LOG_PROB)
    # Only for the likeliest class does 1 - s_k lose precision; there, use the mean of the others.
    top = jnp.argmax(log_probs, axis=-1, keepdims=True) == jnp.arange(log_probs.shape[-1])
    log_others = jnp.where(top, _MIN_LOG_PROB, log_probs)
    log_rest = jax.nn.logsumexp(log_others, axis=-1, keepdims=True)
    others, probs = jnp.exp(log_others - log_rest), jnp.exp(log_others)
    top_spread = latent_lib.variance_from_mean(latent, others)
    spread = latent_lib.variance_from_mean(latent, jnp.exp(log_probs))

    rest = 1 - probs
    log_odds = log_probs - jnp.where(top, log_rest, jnp.log(rest))
    variance = jnp.where(top, top_spread, spread / rest**2)
    # Twice what noise adds to E[log sum_{j != k} exp(u_j)], to second order.
    mean_spread = jnp.sum(jnp.exp(log_probs) * spread, axis=-1, keepdims=True)
    growth = jnp.where(
        top,
        jnp.sum(others * top_spread, axis=-1, keepdims=True),
        (mean_spread * rest - probs * spread) / rest**2,
    )
    # Equal to growth / 2 to second order, but for strong noise it grows more slowly.
    mean = log_odds - jnp.log1p(jnp.maximum(growth, 0.0)) / 2
    shrunk = mean / jnp.sqrt(1 + variance * _slope(mean))
    return jax.nn.log_softmax(
        jax.nn.log_sigmoid(mean / jnp.sqrt(1 + variance * _slope(shrunk))), axis=-1
    )


def _slope(mean: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """tanh(m / 2) / m, which makes the approximation of E[sigmoid] exact to second order."""
    near_zero = jnp.abs(mean) < 1e-3
    safe = jnp.where(near_zero, 1.0, mean)
    return jnp.where(near_zero, 0.5, jnp.tanh(safe / 2) / safe)
