"""Approximations of E[softmax(u)] that draw no samples: its second-order expansion and a mean
field.

With s = softmax(loc) and Sigma the covariance of the utilities, the Hessian of s_k at loc is
s_k ((e_k - s)(e_k - s)' - diag(s) + s s') (Lemma C.1). Half its trace with Sigma is

    s_k t_k,   t_k = (q_k - sum_j s_j q_j) / 2,   q_k = Var(u_k - sum_j s_j u_j),

as diag(s) - s s' has the trace sum_j s_j q_j with Sigma. This is Eq. 9 for a diagonal Sigma, and
for a full one Eq. 13 with its (j, k) term doubled: the paper counts (j, k) and not (k, j) (reading
C3). No K x K matrix is made, and noise common to all classes cancels before it is squared.

Source: Collier et al. (2021), arXiv:2105.10305, Appendix C. The temperature, which it drops, is in
the units of the latent: temper(latent, tau) divides t by tau^2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits

_NEVER = -1e15  # log-probability of a class that is out of the question, finite for its gradient


@suits("softmax")
def taylor(
    key: PRNGKeyArray | None, latent: LatentGaussian, *, min_factor: float = 1e-2
) -> Float[Array, "*b k"]:
    """Log of the second-order expansion of E[softmax(u)], s_k (1 + t_k).

    The expansion sums to one, but with noise beyond about two units of utility single
    probabilities leave [0, 1]. So 1 + t is clipped from below, and the result divided by its
    sum; one above 1 comes with another below 0, so that is both ends. What is clipped is the
    factor and not the probability: a clipped class has no gradient through its own t, but keeps
    that of log s_k, however unlikely it is, and through the sum that of the others' t.

    With `cross_entropy` and a diagonal latent this is the loss of Table 8, -log of Eq. 9. Its Eq.
    10, log s_k + t_k, which takes log(1 + t) for t, is not built: it has no lower bound in the
    variances.

    Args:
      key: ignored.
      latent: parameters of the utilities u.
      min_factor: least 1 + t, in (0, 1); 1 / min_factor bounds the gradient of its log.

    Returns:
      Log-probabilities in nats; they sum to one.

    Raises:
      ValueError: min_factor is out of range.

    Source: Collier et al. (2021), arXiv:2105.10305, Eqs. 7, 9 and 13; the clip is ours.
    """
    if not 0 < min_factor < 1:
        raise ValueError(f"min_factor is {min_factor}, but must be in (0, 1).")
    log_probs = jax.nn.log_softmax(latent_lib.check(latent).loc, axis=-1)
    probs = jnp.exp(log_probs)
    spread = _variance_from_mean(latent, probs)
    correction = (spread - jnp.sum(probs * spread, axis=-1, keepdims=True)) / 2
    return jax.nn.log_softmax(log_probs + jnp.log(jnp.maximum(1 + correction, min_factor)), axis=-1)


@suits("softmax")
def mean_field(key: PRNGKeyArray | None, latent: LatentGaussian) -> Float[Array, "*b k"]:
    """Log of a mean-field approximation of E[softmax(u)], for evaluation without samples.

    The log-odds of a class against all others, u_k - log sum_{j != k} exp(u_j), are taken as
    Gaussian, with a mean m right to second order in the noise and a variance v right to first,
    and E[sigmoid] as sigmoid(m / sqrt(1 + v c(m'))), where c(x) = tanh(x / 2) / x and
    m' = m / sqrt(1 + v c(m)). The K results are divided by their sum.

    It agrees with E[softmax(u)] to second order in the noise, as `taylor` does, and stays in
    [0, 1] for any noise, unclipped. With two classes it is within 0.002, 0.012 and 0.04 of the
    integral when the deviation of u_1 - u_2 is 1, 3 and 10.

    README.md has its error against Monte Carlo (benchmarks/predictive.py). The authors
    below take one class against one other; against all others at once is nearer, and takes
    time and memory of K rather than K^2.

    Args:
      key: ignored.
      latent: parameters of the utilities u.

    Returns:
      Log-probabilities in nats; they sum to one.

    Source: ours, after Lu et al. (2020), arXiv:2006.07584.
    """
    log_probs = jnp.maximum(jax.nn.log_softmax(latent_lib.check(latent).loc, axis=-1), _NEVER)
    # 1 - s_k loses its digits for the likeliest class alone, which is seen from the others' mean.
    top = jnp.argmax(log_probs, axis=-1, keepdims=True) == jnp.arange(log_probs.shape[-1])
    log_others = jnp.where(top, _NEVER, log_probs)
    log_rest = jax.nn.logsumexp(log_others, axis=-1, keepdims=True)
    others, probs = jnp.exp(log_others - log_rest), jnp.exp(log_others)
    top_spread = _variance_from_mean(latent, others)
    spread = _variance_from_mean(latent, jnp.exp(log_probs))

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
    # The same to second order, but with strong noise it grows less than the variance does.
    mean = log_odds - jnp.log1p(jnp.maximum(growth, 0.0)) / 2
    shrunk = mean / jnp.sqrt(1 + variance * _slope(mean))
    return jax.nn.log_softmax(
        jax.nn.log_sigmoid(mean / jnp.sqrt(1 + variance * _slope(shrunk))), axis=-1
    )


def _slope(mean: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """tanh(m / 2) / m, which makes the approximation of E[sigmoid] right to second order in the
    noise.
    """
    near_zero = jnp.abs(mean) < 1e-3
    safe = jnp.where(near_zero, 1.0, mean)
    return jnp.where(near_zero, 0.5, jnp.tanh(safe / 2) / safe)


@jax.default_matmul_precision(
    "highest"
)  # as latent.covariance; differences of rounded products are noise
def _variance_from_mean(
    latent: LatentGaussian, weights: Float[Array, "*b k"]
) -> Float[Array, "*b k"]:
    """Variance of u_k - sum_j w_j u_j, for weights that sum to one."""
    readout = latent.readout
    if readout is not None:  # a softmax does not see what is common to all classes
        readout = readout - jnp.mean(readout, axis=-1, keepdims=True)
    weights_of_noise = weights if readout is None else weights @ readout.T

    def seen(loadings, of_mean):
        if readout is not None:
            loadings = jnp.einsum("...nm,nk->...km", loadings, readout)
        return jnp.sum(jnp.square(loadings - of_mean[..., None, :]), axis=-1)

    total = jnp.zeros_like(latent.loc)
    if latent.scale_diag is not None:
        own = jnp.square(latent.scale_diag)
        of_mean = jnp.sum(own * jnp.square(weights_of_noise), axis=-1, keepdims=True)
        if readout is None:
            total += own * (1 - 2 * weights) + of_mean
        else:
            total += own @ jnp.square(readout) - 2 * (own * weights_of_noise) @ readout + of_mean
    if latent.factor_loadings is not None:
        of_mean = jnp.einsum("...nr,...n->...r", latent.factor_loadings, weights_of_noise)
        total += seen(latent.factor_loadings, of_mean)
    if latent.shared_loadings is not None:
        of_mean = (weights_of_noise * latent.factor_scale) @ latent.shared_loadings
        total += seen(latent.factor_scale[..., None] * latent.shared_loadings, of_mean)
    return total
