"""E[softmax(u)] of independent utilities in float64, by adaptive Gauss-Legendre quadrature."""

import itertools

import numpy as np
from scipy import special

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_MAX_PANELS = 400


def log_tails(x, scale):
    """The log of distribution and density of a Gaussian plus a Gumbel variable."""
    x = np.asarray(x, np.float64)[:, None]
    if scale < 1:
        normal = np.arange(-14, 14.1, 0.2)
        log_weight = -0.5 * normal**2 + np.log(0.2 / np.sqrt(2 * np.pi))
        centred = x - scale * normal
        rate = np.exp(np.clip(-centred, -700, 700))
        terms = -rate, -centred - rate
    else:
        # Far to the right the Gumbel variable may exceed x - d^2.
        end = 50 + max(0.0, x.max() - scale**2 + 8 * scale if x.max() > scale**2 / 4 else 0.0)
        gumbel = np.arange(-5, end, 0.25)
        log_weight = -gumbel - np.exp(-gumbel) + np.log(0.25)
        standard = (x - gumbel) / scale
        density = -0.5 * standard**2 - np.log(scale * np.sqrt(2 * np.pi))
        terms = special.log_ndtr(standard), density
    return [special.logsumexp(log_weight + term, axis=1) for term in terms]


def log_probs(loc, scale, counts=None, tolerance=1e-7):
    """Log-probability of a class of each kind.

    Args:
      loc: mean of the utilities of each kind of class.
      scale: standard deviations.
      counts: number of classes of each kind; None is one.
      tolerance: error of each integral, in nats.
    """
    loc, scale = np.asarray(loc, np.float64), np.asarray(scale, np.float64)
    counts = np.ones(len(loc)) if counts is None else np.asarray(counts)

    def panel(low, high):
        s = (low + high + (high - low) * _NODES) / 2
        cdf, density = zip(*(log_tails(s - m, d) for m, d in zip(loc, scale)))
        cdf, density = np.stack(cdf), np.stack(density)
        values = counts @ cdf - cdf + density
        return special.logsumexp(values + np.log(_WEIGHTS * (high - low) / 2), axis=1)

    low = np.max(loc - 5 - 14 * scale)
    high = np.max(loc + 40 + np.minimum(scale**2 / 2, 8 * scale))
    edges = np.linspace(low, high, 13)
    waiting = [(a, b, panel(a, b)) for a, b in itertools.pairwise(edges)]
    accepted = []
    while waiting and len(accepted) + len(waiting) < _MAX_PANELS:
        best = np.max([value for *_, value in waiting + accepted], axis=0)
        a, b, value = waiting.pop()
        halves = [(a, (a + b) / 2), ((a + b) / 2, b)]
        values = [panel(*half) for half in halves]
        both = np.logaddexp(*values)
        if np.all((np.abs(both - value) < tolerance) | (both < best - 25)):
            accepted.append((a, b, both))
        else:
            waiting += [(*half, v) for half, v in zip(halves, values)]
    assert not waiting, "the quadrature does not converge"
    return special.logsumexp([value for *_, value in accepted], axis=0)
