"""Predictives that need no samples.

Under a sigmoid the probability p of a label depends only on its marginal u ~ N(m, v), v = s^2.
E[sigmoid(u)] is the limit of the paper's Monte Carlo estimate (Eq. 5). For u < 0 the logistic
function is x q(x) with x = e^u and q(x) = 1 / (1 + x); for u > 0 it is 1 - x q(x) with x = e^-u.
With q approximated by a polynomial on [0, 1],

    p = sum_k q_k A_{k+1} + P(u > 0) - sum_k q_k B_{k+1},
    A_j = E[e^{ju}; u < 0] = exp(-a^2 / 2) erfcx((a + js) / sqrt 2) / 2,   a = m / s,

and B_j is A_j at -m. The first derivatives use the same moments:

    dp/dm = E[sigmoid'(u)] = sum_k c_k (A_{k+1} + B_{k+1}),    c(x) = 1 / (1 + x)^2,
    dp/dv = E[sigmoid''(u)] / 2 = sum_k r_k (A_{k+1} - B_{k+1}) / 2,    r(x) = (1 - x) / (1 + x)^3,

where the second is Stein's lemma. Neither divides by s, so both hold down to s = 0.

The second derivatives of p use the next moments:

    d^2p/dm^2 = E[sigmoid''],   d^2p/dm dv = E[sigmoid'''] / 2,   d^2p/dv^2 = E[sigmoid''''] / 4.

In the second derivatives of the log-odds, terms nearly cancel for small s, and only the errors of
the polynomials and of float32 would remain. These moments, and the p that they are divided by, are
therefore sums over quadrature nodes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.polynomial import Chebyshev, Polynomial
from scipy import special

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits


@suits()
def deterministic(key: PRNGKeyArray | None, latent: LatentGaussian) -> Float[Array, "*b k"]:
    """The utilities of a latent without noise, as logits for a softmax or a sigmoid.

    Args:
      key: ignored.
      latent: a latent without noise.

    Raises:
      ValueError: the latent has noise.
    """
    latent = latent_lib.check(latent)
    if latent_lib.has_noise(latent):
        raise ValueError(
            "predictive 'deterministic' ignores noise, but the latent has noise; use the predictive"
            " 'softmax' or 'sigmoid', or a head without noise."
        )
    return latent.loc


@suits("sigmoid")
def sigmoid(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    *,
    num_samples: int | None = None,
    points: str | None = None,
) -> Float[Array, "*b k"]:
    """Log-odds of E[sigmoid(u)] for each class, in closed form.

    For |loc| <= 60 and standard deviations up to 60, log p and log(1 - p) are exact to 1e-4 nats in
    float32; values are finite up to 1e4. The first derivative by `loc` has a relative error of at
    most 1e-3, that by the variance an absolute one of at most 5e-4: near loc = 0, where it
    vanishes, its sign may be wrong. Second derivatives have a relative error of at most 1e-2 where
    they exceed 1e-3. Correlations between classes do not change the probability of a class.

    Args:
      key: ignored.
      latent: Gaussian over the utilities u.
      num_samples: ignored, so that a config can replace `sigmoid_sampled` by changing only the
        name.
      points: ignored, for the same reason.

    Returns:
      Log-odds in nats.

    Source: the limit of Collier et al. (2021), arXiv:2105.10305, Eq. 5; derived in closed_form.py.
    """
    latent = latent_lib.check(latent)
    if not latent_lib.has_noise(latent):
        return latent.loc
    return _log_odds(latent.loc, latent_lib.variance(latent))


_DEGREE = 6
_MIN_SCALE = 1e-6  # in nats; within this distance the sigmoid is linear
_ROOT_HALF = 0.5**0.5  # a Python float, as a NumPy one would have 64 bits


def _power_series(fn, low, high, degree):
    return [
        float(c)
        for c in Chebyshev.interpolate(fn, degree, [low, high]).convert(kind=Polynomial).coef
    ]


def _weighted(fn, power):
    """Coefficients of fn(x) / (1 + x)^power on [0, 1].

    For fn = 1 and power = 1 the relative error is 9e-6, the smallest possible.
    """
    return _power_series(lambda x: fn(x) / (1 + x) ** power, 0, 1, _DEGREE)


_FIRST = _weighted(np.ones_like, 1)
_SLOPE = _weighted(np.ones_like, 2)
_CURVATURE = _weighted(lambda x: 1 - x, 3)
# erfcx(x) (1 + 2x) is smooth in (x - c) / (x + c) (Shepherd and Laframboise 1981).
_CENTRE = 2.0


def _smooth_erfcx(t):
    t = np.minimum(t, 1 - 1e-9)
    x = _CENTRE * (1 + t) / (1 - t)
    return special.erfcx(x) * (1 + 2 * x)


_ERFCX = _power_series(_smooth_erfcx, -1, 1, 12)


def _erfcx(x):
    """exp(x^2) erfc(x) for x >= 0, with a relative error of 1e-6."""
    t = 1 - 2 * _CENTRE / (x + _CENTRE)
    return jnp.polyval(jnp.asarray(_ERFCX[::-1], x.dtype), t) / (1 + 2 * x)


def _moments(loc, variance):
    """log p, E[sigmoid'] / p and E[sigmoid''] / p for loc <= 0.

    The sums are relative to their leading term, to avoid underflow.
    """
    scale = jnp.maximum(jnp.sqrt(variance), _MIN_SCALE)
    a = loc / scale
    # The leading term is exp(-a^2 / 2), or exp(loc + variance / 2) far from zero.
    near = a + scale >= 0
    leading = jnp.where(near, -0.5 * jnp.square(a), loc + 0.5 * jnp.square(scale))
    base = 0.5 * jnp.where(near, 1.0, jnp.exp(-0.5 * jnp.square(a + scale)))
    p = base * _erfcx(-a * _ROOT_HALF)
    slope = curvature = jnp.zeros_like(p)
    for k in range(_DEGREE + 1):
        j = k + 1
        x = (a + j * scale) * _ROOT_HALF
        tail = _erfcx(jnp.abs(x))
        relative = jnp.exp(k * (loc + 0.5 * (j + 1) * jnp.square(scale))) if k else 1.0
        below = jnp.where(
            x >= 0, base * tail, relative * (1 - 0.5 * jnp.exp(-jnp.square(x)) * tail)
        )
        above = base * _erfcx((j * scale - a) * _ROOT_HALF)
        p += _FIRST[k] * (below - above)
        slope += _SLOPE[k] * (below + above)
        curvature += _CURVATURE[k] * (below - above)
    return leading + jnp.log(p), slope / p, curvature / p


@jax.custom_jvp
def _log_odds(loc, variance):
    return _log_odds_and_slopes(loc, variance)[0]


@_log_odds.defjvp
def _log_odds_jvp(primals, tangents):
    value, by_loc, by_variance = _log_odds_and_slopes(*primals)
    return value, by_loc * tangents[0] + by_variance * tangents[1]


@jax.custom_jvp
def _log_odds_and_slopes(loc, variance):
    """The log-odds and its derivatives with respect to loc and variance."""
    log_p, slope, curvature = _moments(-jnp.abs(loc), variance)
    # By symmetry, the odds of the less likely answer suffice.
    sign = jnp.where(loc > 0, -1.0, 1.0)
    p = jnp.exp(log_p)
    with_noise = sign * (log_p - jnp.log1p(-p)), slope / (1 - p), 0.5 * sign * curvature / (1 - p)
    without_noise = loc, 1.0, -0.5 * jnp.tanh(0.5 * loc)
    return tuple(jnp.where(variance == 0, exact, x) for exact, x in zip(without_noise, with_noise))


@_log_odds_and_slopes.defjvp
def _log_odds_and_slopes_jvp(primals, tangents):
    value, by_loc, by_variance = _log_odds_and_slopes(*primals)
    by_loc_twice, by_both, by_variance_twice = _curvatures(*primals)
    return (value, by_loc, by_variance), (
        by_loc * tangents[0] + by_variance * tangents[1],
        by_loc_twice * tangents[0] + by_both * tangents[1],
        by_both * tangents[0] + by_variance_twice * tangents[1],
    )


# Nodes in standard deviations of at most _MAX_STEP_SCALE nats; further out the slope of the sigmoid
# is below e^-|u|.
_NODES = np.linspace(-7, 7, 141)
_MAX_STEP_SCALE = 8.0


def _curvatures(loc, variance):
    """The second derivatives of the log-odds: d^2/dloc^2, d^2/dloc dvariance, d^2/dvariance^2.

    With r_n = E[sigmoid^(n)] / p and q = 1 - p the first one is r_2 / q - r_1^2 (q - p) / q^2; the
    others have the same form. They vanish at an infinite loc, which the nodes cannot stand.
    """
    is_finite = jnp.isfinite(loc)
    loc = jnp.where(is_finite, loc, 0.0)
    mean = -jnp.abs(loc)
    sign = jnp.where(loc > 0, -1.0, 1.0)
    scale = jnp.sqrt(jnp.maximum(variance, _MIN_SCALE**2))
    # The factor sigmoid(u) moves the centre of the weights to mean + variance, but not beyond 0.
    step = jnp.minimum(scale, _MAX_STEP_SCALE) / scale
    z = jnp.minimum(scale, -mean / scale) + step * np.asarray(_NODES, loc.dtype).reshape(
        -1, *(1,) * loc.ndim
    )
    u = mean + scale * z
    log_weight = jax.nn.log_sigmoid(u) - 0.5 * jnp.square(z)
    top = jnp.max(log_weight, axis=0)
    weight = jnp.exp(log_weight - top)
    top += jnp.log(step * float((_NODES[1] - _NODES[0]) / np.sqrt(2 * np.pi)))
    total = jnp.where(
        scale <= _MAX_STEP_SCALE,
        jnp.sum(weight, axis=0),
        jnp.exp(_moments(mean, variance)[0] - top),
    )
    up, slope = jax.nn.sigmoid(u), jax.nn.sigmoid(u) * jax.nn.sigmoid(-u)
    down, bend = 1 - up, 1 - 2 * up

    def relative(values):
        return jnp.sum(weight * values, axis=0) / total

    first, second = relative(down), relative(down * bend)
    third, fourth = relative(down * (1 - 6 * slope)), relative(down * bend * (1 - 12 * slope))
    p = jnp.exp(top) * total
    q, odds = 1 - p, (1 - 2 * p) / jnp.square(1 - p)
    values = (
        sign * (second / q - odds * jnp.square(first)),
        0.5 * (third / q - odds * first * second),
        0.25 * sign * (fourth / q - odds * jnp.square(second)),
    )
    return tuple(jnp.where(is_finite, value, 0.0) for value in values)
