"""Generator matrices of digital nets whose columns combine well; sampling.py uses them.

In a digital net of 2**m points, the binary digits of point i in column j are C_j i (mod 2); a shift
adds random digits. Pairs of columns differ in quality: an average of a function of two columns can
have up to 2**(m - 1) times the variance that independent points have, and a shift cannot reduce it.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt32
from scipy import special

_NUM_RANDOM, _MAX_COLUMNS = 2048, 64
_MAX_TEST_DIGITS = 13
# Functions of two normals on which a pair of columns is tested: a covariance, and a softmax of two
# classes at falling temperatures, down to the argmax.
_TEST_FUNCTIONS = (
    lambda a, b: a * b,
    lambda a, b: special.expit(2 * (a - b)),
    lambda a, b: special.expit(8 * (a - b)),
    np.maximum,
)


@functools.cache
def columns(digits: int) -> UInt32[np.ndarray, "c digits"]:
    """Generator matrices of which no pair has a larger error than independent points.

    The candidates are Sobol's columns, then random nonsingular ones. A candidate is accepted if,
    together with each column accepted before it, no function in `_TEST_FUNCTIONS` has more variance
    over random shifts than with independent points.

    Args:
      digits: m, log2 of the number of points; above 13 only the first 2**13 points are tested.

    Returns:
      The columns of the matrices as 32-bit fractions; c is 10 for 32 points, 31 for 128, and 64 for
      1,024 or more.
    """
    candidates = np.concatenate([_sobol(digits), _random(digits)])
    points = _cells(candidates[:, :_MAX_TEST_DIGITS])
    tables = [_autocorrelation(function) for function in _TEST_FUNCTIONS]
    accepted = [0]
    for j in range(1, len(points)):
        if len(accepted) < _MAX_COLUMNS and all(
            _variance_ratios(table, points[accepted], points[j]).max() <= 1 for table in tables
        ):
            accepted.append(j)
    return candidates[accepted]


def _sobol(digits: int) -> UInt32[np.ndarray, "c digits"]:
    """The columns of SciPy's Sobol sequence, with the direction numbers of Joe and Kuo (2008).

    Row j of the file has the first 32 generators of column j. SciPy has the same numbers, in a
    module that takes a second to import.
    """
    numbers = np.load(Path(__file__).with_name("sobol.npy"), allow_pickle=False)
    return numbers[:, :digits]


def _random(digits: int) -> UInt32[np.ndarray, "c digits"]:
    """Products of unit triangular matrices, followed by random digits."""
    bits = np.random.RandomState(0).randint(0, 2, (_NUM_RANDOM, 32 + digits, digits))
    lower, upper = bits[:, :digits], bits[:, digits : 2 * digits]
    one = np.eye(digits, dtype=int)
    matrices = np.concatenate(
        [(np.triu(upper, 1) + one) @ (np.tril(lower, -1) + one) % 2, bits[:, 2 * digits :]], axis=1
    )
    powers = 2 ** np.arange(31, -1, -1, dtype=np.uint64)
    return (matrices.astype(np.uint64) * powers[:, None]).sum(axis=1).astype(np.uint32)


_CELL_DIGITS = 6


def _cells(generators: UInt32[np.ndarray, "c digits"]) -> UInt32[np.ndarray, "c points"]:
    """The first 6 digits of every point: its cell among 64."""
    points = np.zeros((len(generators), 1), np.uint32)
    for column in generators.T:
        points = np.concatenate([points, points ^ column[:, None]], axis=1)
    return points >> (32 - _CELL_DIGITS)


def _variance_ratios(
    table: Float[np.ndarray, "cells cells"],
    accepted: UInt32[np.ndarray, "c points"],
    column: UInt32[np.ndarray, "points"],
) -> Float[np.ndarray, "c"]:
    """Variance with shifted points relative to independent points, for each pair with `column`."""
    return table[accepted, column[None]].sum(axis=1)


def _autocorrelation(function: Callable) -> Float[np.ndarray, "cells cells"]:
    """r(x, y) = E[f(u, v) f(u + x, v + y)] / E[f^2] for digital shifts x, y and centred f.

    The average of f over N shifted points has variance sum_d r(C_i d, C_j d) E[f^2] / N. Within
    each of the 64 x 64 cells, the values of f are treated as independent.
    """
    size, within = 2**_CELL_DIGITS, 16
    normals = special.ndtri((np.arange(size * within) + 0.5) / (size * within))
    values = function(normals[:, None], normals)
    cells = values.reshape(size, within, size, within).mean(axis=(1, 3))
    cells -= cells.mean()
    spectrum = _walsh(_walsh(cells).T).T / size**2
    correlation = _walsh(_walsh(np.square(spectrum)).T).T / values.var()
    correlation[0, 0] = 1.0
    return correlation


def _walsh(values: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n m"]:
    """The unscaled Walsh-Hadamard transform along the first axis."""
    for i in range(len(values).bit_length() - 1):
        pairs = values.reshape(-1, 2, 2**i, *values.shape[1:])
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(
            values.shape
        )
    return values
