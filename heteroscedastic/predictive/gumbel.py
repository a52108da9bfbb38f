"""The distribution of x = a Gaussian of mean 0 and standard deviation d, plus a Gumbel variable.

With F its distribution function, xi = -log(-log F) is smooth and grows without bound on both sides:
it is x itself for d = 0, x - d^2/2 far to the right, and nearly quadratic in x on both sides of 0
for large d. From xi and its derivative follow, without cancellation,

    log F = -e^-xi,    1 - F = 1 - exp(-e^-xi),    f / F = xi' e^-xi.

As a function of x, xi is one of three polynomials: left of `middle`, up to `far`, and beyond. Their
coefficients are piecewise polynomials in d, fitted to quadrature in float64. The error of xi is
about 1e-5 where F > e^-60 and 1 - F > e^-13, and about 1e-2 as far as 1 - F = e^-80. Beyond the
range of the fit, xi is continued by its tangent.
"""

import functools
import itertools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev
from scipy import special

_DEGREE = 12  # of the polynomials in x
_SCALE_DEGREE = 9  # of their coefficients, in each interval of d
_SCALES = (0.0, 0.25, 1.0, 3.0, 7.0, 20.0)  # where the intervals of d begin; the last has no end
_LOWEST, _FAR, _HIGHEST = 130.0, 13.0, 80.0  # -log F, or -log(1 - F), at the ends of the pieces
_BENDS = 0.6, 1.2, 0.6  # of the left, the middle and the far piece; a small one bends much
_MIN_XI = -30.0  # log F = -1e13; a lower value would overflow in float32


def reach(level: Any, scale: Any, module: ModuleType = jnp) -> Any:
    """About where 1 - F = e^-level: level for d = 0, sqrt(2 level) d for large d."""
    return module.sqrt(level**2 + 2 * level * scale**2)


def depth(level: float, scale: Any, module: ModuleType = jnp) -> Any:
    """About how far left of 0 log F = -level: log(level) for d = 0, sqrt(2 level) d for large d."""
    return module.sqrt(float(np.log(level)) ** 2 + 2 * level * scale**2)


def coefficients(scale: Float[Array, "*b k"]) -> Float[Array, "3 p *b k"]:
    """The coefficients of the three polynomials for each standard deviation d."""
    positions = [scale / _SCALES[1]]
    for low, high in itertools.pairwise(_SCALES[1:]):
        positions.append(jnp.log(jnp.maximum(scale, low) / low) / float(np.log(high / low)))
    positions.append(1 - _SCALES[-1] / jnp.maximum(scale, _SCALES[-1]))

    def pick(values):
        """The value of the interval of each d."""
        result = values[0]
        for low, value in zip(_SCALES[1:], values[1:]):
            result = jnp.where(scale >= low, value, result)
        return result

    argument = 2 * pick(positions) - 1

    def coefficient(table):
        """A Chebyshev series in each interval, by Clenshaw's rule."""
        current, previous = jnp.zeros_like(scale), jnp.zeros_like(scale)
        for k in range(_SCALE_DEGREE, 0, -1):
            current, previous = pick(table[:, k]) + 2 * argument * current - previous, current
        return pick(table[:, 0]) + argument * current - previous

    values = jax.lax.map(coefficient, jnp.asarray(_tables(), scale.dtype))
    return values.reshape(3, _DEGREE + 1, *scale.shape)


def xi_and_derivatives(
    x: Float[Array, "*n"],
    scale: Float[Array, "*b k"],
    coefficients: Float[Array, "3 p *b k"],
    order: int,
) -> list[Float[Array, "*n"]]:
    """The function xi and its derivatives by x up to this order, 1 to 3.

    Args:
      x: utilities minus their mean; any leading axes before those of `scale`.
      scale: standard deviations d, >= 0.
      coefficients: `coefficients(scale)`.
      order: of the highest derivative.
    """
    lowest, middle, far, highest = _edges(scale, jnp)
    is_left, is_far = x < middle, x > far

    def pick(left, central, right):
        return jnp.where(is_left, left, jnp.where(is_far, right, central))

    start, width = pick(middle, middle, far), pick(lowest - middle, far - middle, highest - far)
    position = (x - start) / width
    is_beyond = position > 1
    inverse = 1 / (jnp.minimum(position, 1.0) + pick(*_BENDS))
    growth = pick(*(2 * bend * (1 + bend) for bend in _BENDS))
    argument = pick(*(1 + 2 * bend for bend in _BENDS)) - growth * inverse
    # Horner's rule for the polynomial and its derivatives, each divided by a factorial.
    terms = [jnp.zeros_like(x) for _ in range(order + 1)]
    for power in reversed(range(_DEGREE + 1)):
        for k in range(order, 0, -1):
            terms[k] = terms[k] * argument + terms[k - 1]
        terms[0] = terms[0] * argument + pick(*coefficients[:, power])
    rate = inverse / width
    first = growth * inverse * rate  # derivatives of `argument`
    second, third = -2 * rate * first, 6 * jnp.square(rate) * first
    excess = jnp.where(is_beyond, (position - 1) * width, 0.0)
    slope = terms[1] * first
    results = [jnp.maximum(terms[0] + slope * excess, _MIN_XI), slope]
    if order > 1:
        curvature = 2 * terms[2] * jnp.square(first) + terms[1] * second
        results.append(jnp.where(is_beyond, 0.0, curvature))
    if order > 2:
        change = 6 * terms[3] * first**3 + 6 * terms[2] * first * second + terms[1] * third
        results.append(jnp.where(is_beyond, 0.0, change))
    return results


def _edges(scale, module):
    """The ends of the pieces: lowest, middle, far, highest."""
    return (
        -depth(_LOWEST, scale, module),
        1 + scale,
        reach(_FAR, scale, module),
        reach(_HIGHEST, scale, module),
    )


@functools.cache
def _tables() -> np.ndarray:
    """The Chebyshev series in d: [piece and power, interval of d, degree]."""
    argument, position = chebyshev.chebpts1(_DEGREE + 1), chebyshev.chebpts1(_SCALE_DEGREE + 1)
    blocks = []
    for i, low in enumerate(_SCALES):
        fraction = (1 + position) / 2
        if i == 0:
            scales = _SCALES[1] * fraction
        elif i == len(_SCALES) - 1:
            scales = low / (1 - fraction)
        else:
            scales = low * (_SCALES[i + 1] / low) ** fraction
        powers = [_powers(argument, scale) for scale in scales]
        blocks.append(chebyshev.chebfit(position, np.stack(powers), _SCALE_DEGREE).T)
    return np.stack(blocks, axis=1)


def _powers(argument, scale):
    """The coefficients of the three polynomials for one d, from Chebyshev interpolation."""
    lowest, middle, far, highest = _edges(scale, np)
    powers = []
    for start, end, bend in zip((middle, middle, far), (lowest, far, highest), _BENDS):
        position = bend * (1 + argument) / (1 + 2 * bend - argument)
        values = _xi(start + (end - start) * position, scale)
        powers.append(chebyshev.cheb2poly(chebyshev.chebfit(argument, values, _DEGREE)))
    return np.concatenate(powers)


def _xi(x, scale):
    """The function xi by the trapezoid rule: over the Gaussian for d < 1, else over the Gumbel."""
    x = x[:, None]
    if scale < 1:
        normal = np.arange(-20, 20.1, 0.2)
        log_weight = -0.5 * normal**2 + np.log(0.2 / np.sqrt(2 * np.pi))
        rate = np.exp(np.clip(scale * normal - x, -700, 700))
        log_cdf, log_survival = -rate, np.log(-np.expm1(-rate))
    else:
        # Far to the right the Gumbel variable exceeds x - d^2, a tilt of the Gaussian by d.
        end = x.max() - scale**2 + 10 * scale if x.max() > scale**2 / 4 else 0.0
        gumbel = np.arange(-6, 80 + max(0.0, end), 0.2)
        log_weight = -gumbel - np.exp(-gumbel) + np.log(0.2)
        log_cdf = special.log_ndtr((x - gumbel) / scale)
        log_survival = special.log_ndtr((gumbel - x) / scale)
    below, above = (special.logsumexp(log_weight + t, axis=1) for t in (log_cdf, log_survival))
    is_right = above < -1
    safe = np.where(is_right, above, -1.0)
    right = np.where(safe < -30, -safe, -np.log(-np.log1p(-np.exp(np.maximum(safe, -30)))))
    return np.where(is_right, right, -np.log(np.where(is_right, 1.0, -below)))
