"""Predictives that need no samples.

Under the sigmoid a label's probability depends on its own marginal alone, u ~ N(m, v) with
v = s^2, so that E[sigmoid(u)] is the limit of the paper's Monte-Carlo estimate (Eq. 5). For u < 0
the logistic function is x q(x), where x = e^u and q(x) = 1 / (1 + x); for u > 0 it is
1 - x q(x) with x = e^-u. With q a polynomial on [0, 1],

    p = sum_k q_k A_{k+1} + P(u > 0) - sum_k q_k B_{k+1},
    A_j = E[e^{ju}; u < 0] = exp(-a^2 / 2) erfcx((a + js) / sqrt 2) / 2,   a = m / s,

and B_j is A_j at -m. The derivatives are of the same moments,

    dp/dm = E[sigmoid'(u)] = sum_k c_k (A_{k+1} + B_{k+1}),    c(x) = 1 / (1 + x)^2,
    dp/dv = E[sigmoid''(u)] / 2 = sum_k r_k (A_{k+1} - B_{k+1}) / 2,    r(x) = (1 - x) / (1 + x)^3,

the second by Stein's lemma; neither divides by s, so both hold down to s = 0.

The second derivatives of p are of the next moments: by m twice E[sigmoid''], by m and v
E[sigmoid''']/2, by v twice E[sigmoid'''']/4. In those of the log-odds terms nearly cancel where s
is small, and the errors of the polynomials and of float32 would be all that is left. So these
moments are sums over nodes of u, and so is p beside them.
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
    """The utilities themselves, for a latent without noise; softmax or sigmoid may follow.

    Args:
      key: ignored.
      latent: `loc` alone.

    Raises:
      ValueError: the latent has noise, which this would drop without a word.
    """
    if latent_lib.has_noise(latent_lib.check(latent)):
        raise ValueError(
            "predictive 'deterministic' was given a latent with noise; use 'softmax' or"
            " 'sigmoid', or the head 'Deterministic'."
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
    """Log-odds of E[sigmoid(u)], one for each of several labels, in closed form.

    Within 1e-4 nats of the exact log p and log(1 - p) for |loc| <= 60 and standard deviations up to
    60, in float32, and finite to 1e4. First derivatives are within 1e-3 of their value; second ones
    within 1 % where they exceed 1e-3. Correlations between labels do not change the probability of
    one.

    Args:
      key: ignored.
      latent: parameters of the utilities u.
      num_samples: ignored as the key is, so that a config goes from `sigmoid_sampled` to this by
        the name alone.
      points: likewise.

    Returns:
      Log-odds in nats.

    Source: the limit of Collier et al. (2021), arXiv:2105.10305, Eq. 5; derived above.
    """
    latent = latent_lib.check(latent)
    if not latent_lib.has_noise(latent):
        return latent.loc
    return _log_odds(latent.loc, latent_lib.variance(latent))


_DEGREE = 6
_LEAST_SCALE = 1e-6  # in nats, where the sigmoid is a line
_ROOT_HALF = 0.5**0.5  # of Python, as numpy's would be of 64 bits


def _power_series(fn, low, high, degree):
    return [
        float(c)
        for c in Chebyshev.interpolate(fn, degree, [low, high]).convert(kind=Polynomial).coef
    ]


def _weighted(fn, power):
    """Coefficients of fn(x) / (1 + x)^power on [0, 1]; for fn = 1 = power the best in relative
    error, 9e-6.
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
    """exp(x^2) erfc(x) for x >= 0, within 1e-6 of its value."""
    t = 1 - 2 * _CENTRE / (x + _CENTRE)
    return jnp.polyval(jnp.asarray(_ERFCX[::-1], x.dtype), t) / (1 + 2 * x)


def _moments(loc, variance):
    """For loc <= 0 log p, and E[sigmoid'] and E[sigmoid''] over p; sums relative to their leading
    term.
    """
    scale = jnp.maximum(jnp.sqrt(variance), _LEAST_SCALE)
    a = loc / scale
    near = a + scale >= 0  # whether exp(-a^2 / 2) leads, else exp(loc + variance / 2)
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
    """The log-odds and its derivatives, by loc and by variance."""
    log_p, slope, curvature = _moments(-jnp.abs(loc), variance)
    side = jnp.where(loc > 0, -1.0, 1.0)  # by symmetry, the odds of the less likely answer
    p = jnp.exp(log_p)
    found = side * (log_p - jnp.log1p(-p)), slope / (1 - p), 0.5 * side * curvature / (1 - p)
    without_noise = loc, 1.0, -0.5 * jnp.tanh(0.5 * loc)
    return tuple(jnp.where(variance == 0, exact, x) for exact, x in zip(without_noise, found))


@_log_odds_and_slopes.defjvp
def _log_odds_and_slopes_jvp(primals, tangents):
    value, by_loc, by_variance = _log_odds_and_slopes(*primals)
    by_loc_twice, by_both, by_variance_twice = _curvatures(*primals)
    return (value, by_loc, by_variance), (
        by_loc * tangents[0] + by_variance * tangents[1],
        by_loc_twice * tangents[0] + by_both * tangents[1],
        by_both * tangents[0] + by_variance_twice * tangents[1],
    )


_NODES = np.linspace(
    -7, 7, 141
)  # in deviations, up to _WIDEST nats; the slope of the sigmoid is below e^-|u|
_WIDEST = 8.0


def _curvatures(loc, variance):
    """The second derivatives of the log-odds: by loc twice, by loc and variance, by variance twice.

    With r_n = E[sigmoid^(n)] / p and q = 1 - p these are r_2 / q - r_1^2 (q - p) / q^2, and
    likewise the others.
    """
    mean = -jnp.abs(loc)
    side = jnp.where(loc > 0, -1.0, 1.0)
    scale = jnp.sqrt(jnp.maximum(variance, _LEAST_SCALE**2))
    # The weight sigmoid(u) of a node moves their centre to mean + variance, but not beyond 0.
    step = jnp.minimum(scale, _WIDEST) / scale
    z = jnp.minimum(scale, -mean / scale) + step * np.asarray(_NODES, loc.dtype).reshape(
        -1, *(1,) * loc.ndim
    )
    u = mean + scale * z
    log_weight = jax.nn.log_sigmoid(u) - 0.5 * jnp.square(z)
    top = jnp.max(log_weight, axis=0)
    weight = jnp.exp(log_weight - top)
    top += jnp.log(step * float((_NODES[1] - _NODES[0]) / np.sqrt(2 * np.pi)))
    total = jnp.where(
        scale <= _WIDEST, jnp.sum(weight, axis=0), jnp.exp(_moments(mean, variance)[0] - top)
    )
    up, slope = jax.nn.sigmoid(u), jax.nn.sigmoid(u) * jax.nn.sigmoid(-u)
    down, bend = 1 - up, 1 - 2 * up

    def relative(values):
        return jnp.sum(weight * values, axis=0) / total

    first, second = relative(down), relative(down * bend)
    third, fourth = relative(down * (1 - 6 * slope)), relative(down * bend * (1 - 12 * slope))
    p = jnp.exp(top) * total
    q, odds = 1 - p, (1 - 2 * p) / jnp.square(1 - p)
    return (
        side * (second / q - odds * jnp.square(first)),
        0.5 * (third / q - odds * first * second),
        0.25 * side * (fourth / q - odds * jnp.square(second)),
    )
