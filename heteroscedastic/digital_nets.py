"""Columns of digital nets that go well together: the generator matrices that sampling.py uses.

In a digital net of 2**m points, digits of point i in column j are C_j i over {0, 1}; a shift adds
random digits. Columns are unlike: an average of what depends on two of them can have up to the
variance of independent points times half their number, and no shift mends that.
"""

import functools
from collections.abc import Callable

import numpy as np
from scipy import special

_NUM_SOBOL, _NUM_RANDOM, _MOST = 512, 2048, 64
_JUDGED_DIGITS = 13
# What is averaged over two normals: a covariance, and two classes alone at temperatures that fall
# to the argmax's.
_JUDGES = (
    lambda a, b: a * b,
    lambda a, b: special.expit(2 * (a - b)),
    lambda a, b: special.expit(8 * (a - b)),
    np.maximum,
)


@functools.cache
def columns(digits: int) -> np.ndarray:
    """Generator matrices of columns no two of which err more than independent points do.

    Sobol's columns come first, then random nonsingular ones; each is taken if, beside every
    one taken before, none of `_JUDGES` has more variance over shifts than with independent points.

    Args:
      digits: m, log2 of the number of points; beyond 13 the first 2**13 of them are judged.

    Returns:
      [c, digits] columns of the matrices as 32-bit fractions; c is 10 for 32 points, 31 for 128,
      and 64 for 1,024 and more.
    """
    candidates = np.concatenate([_sobol(digits), _random(digits)])
    points = _cells(candidates[:, :_JUDGED_DIGITS])
    tables = [_autocorrelation(judge) for judge in _JUDGES]
    chosen = [0]
    for j in range(1, len(points)):
        if len(chosen) < _MOST and all(
            _ratios(table, points[chosen], points[j]).max() <= 1 for table in tables
        ):
            chosen.append(j)
    return candidates[chosen]


def _sobol(digits: int) -> np.ndarray:
    """Of SciPy's Sobol sequence, with the direction numbers of Joe and Kuo (2008)."""
    from scipy.stats import qmc  # takes a second to import

    engine, passed, found = (
        qmc.Sobol(_NUM_SOBOL, scramble=False, bits=32),
        0,
        [np.zeros((0, _NUM_SOBOL))],
    )
    for i in range(digits):
        number = 2 ** (i + 1) - 1  # whose Gray code has digit i alone
        engine.fast_forward(number - passed)
        found.append(engine.random(1))
        passed = number + 1
    return (np.concatenate(found).T * 2.0**32).astype(np.uint32)


def _random(digits: int) -> np.ndarray:
    """Products of triangular matrices of ones, above random digits."""
    bits = np.random.RandomState(0).randint(0, 2, (_NUM_RANDOM, 32 + digits, digits))
    lower, upper = bits[:, :digits], bits[:, digits : 2 * digits]
    one = np.eye(digits, dtype=int)
    matrices = np.concatenate(
        [(np.triu(upper, 1) + one) @ (np.tril(lower, -1) + one) % 2, bits[:, 2 * digits :]], axis=1
    )
    powers = 2 ** np.arange(31, -1, -1, dtype=np.uint64)
    return (matrices.astype(np.uint64) * powers[:, None]).sum(axis=1).astype(np.uint32)


_CELL_DIGITS = 6


def _cells(generators: np.ndarray) -> np.ndarray:
    """The first digits of every point, [c, points]."""
    found = np.zeros((len(generators), 1), np.uint32)
    for column in generators.T:
        found = np.concatenate([found, found ^ column[:, None]], axis=1)
    return found >> (32 - _CELL_DIGITS)


def _ratios(table: np.ndarray, chosen: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Variance with shifted points, of one column beside each of the chosen, over that with
    independent ones.
    """
    return table[chosen, column[None]].sum(axis=1)


def _autocorrelation(judge: Callable) -> np.ndarray:
    """r(x, y) = E[f(u, v) f(u + x, v + y)] / E[f^2] for digital shifts, f being centred.

    The mean over shifts of N points has variance sum_d r(C_i d, C_j d) E[f^2] / N. Within cells of
    64 by 64, f is taken to vary independently.
    """
    size, within = 2**_CELL_DIGITS, 16
    normals = special.ndtri((np.arange(size * within) + 0.5) / (size * within))
    values = judge(normals[:, None], normals)
    cells = values.reshape(size, within, size, within).mean(axis=(1, 3))
    cells -= cells.mean()
    spectrum = _walsh(_walsh(cells).T).T / size**2
    found = _walsh(_walsh(np.square(spectrum)).T).T / values.var()
    found[0, 0] = 1.0
    return found


def _walsh(values: np.ndarray) -> np.ndarray:
    """The Walsh-Hadamard transform of the first axis, not scaled."""
    for i in range(len(values).bit_length() - 1):
        pairs = values.reshape(-1, 2, 2**i, *values.shape[1:])
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(
            values.shape
        )
    return values
