"""The covariance of the utilities averaged over a split: exact, for any number of classes.

What makes utilities vary together is affine in the features x, so with r = (x, 1) and weights W of
which the last row is the bias the average needs of the split only M = E[r r'], (D+1)^2 numbers:

    sum_r W_r' M W_r,    or    (W_v' M W_v) o (V V')    for shared loadings V.

The standard deviations are not affine: of them the mean of d(x)^2 is taken, one number a class. The
K x K matrix is never made; `rows` gives rows of it. All but d(x) itself is float64 on the host.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from heteroscedastic.models import heads

_BYTES = 2**27  # of one array that is made on the way


class Terms(NamedTuple):
    """What the averaged covariance of the noise is made of; None leaves a term out."""

    moment: Float[np.ndarray, "e e"]  # E[r r']
    own: Float[np.ndarray, "n"]  # E[d^2]
    factor_loadings: heads.Affine | None  # W_r
    factor_scale: heads.Affine | None  # W_v, with shared_loadings
    shared_loadings: Float[np.ndarray, "n q"] | None  # V
    scale_diag: (
        heads.Affine | None
    )  # with features, where d is one more factor (edward2), and E[d d'] its term
    features: Float[np.ndarray, "m d"] | None


class Average(NamedTuple):
    """The averaged covariance S of the utilities, in squared units of them."""

    variance: Float[np.ndarray, "k"]  # S_ii
    own: Float[np.ndarray, "k"]  # the part of it that the head's diagonal adds
    means: Float[np.ndarray, "k"]  # mean over j of S_ij
    terms: Terms
    noise: Float[np.ndarray, "n n"] | None  # covariance of the noise, with readout
    readout: Float[np.ndarray, "n k"] | None


def of(
    head: heads.Head,
    params: Mapping[str, Any],
    features: Iterable[Float[np.ndarray, "_ d"]],
) -> Average:
    """The average over the examples that have these features.

    Args:
      head: any of them. One without noise has an average of 0.
      params: of the head.
      features: of the examples, in parts; read once, and kept for an `edward2` head alone.

    Raises:
      ValueError: there are no features.
    """
    noise = jax.tree.map(np.asarray, head.noise_parameters(params))
    width = int(noise.num_entries)
    moment, own, kept, num_examples = 0.0, np.zeros(width), [], 0
    for part in features:
        part = np.asarray(part, np.float32)
        extended = np.pad(part.astype(np.float64), ((0, 0), (0, 1)), constant_values=1)
        moment += extended.T @ extended
        num_examples += len(part)
        if noise.scale_diag is not None:
            own += np.square(_deviations(noise.scale_diag, part, slice(None))).sum(axis=0)
        if noise.scale_is_factor:
            kept.append(part)
    if not num_examples:
        raise ValueError("there are no features, so there is nothing to average.")
    terms = Terms(
        moment=moment / num_examples,
        own=own / num_examples,
        factor_loadings=noise.factor_loadings,
        factor_scale=noise.factor_scale,
        shared_loadings=None
        if noise.shared_loadings is None
        else np.asarray(noise.shared_loadings, np.float64),
        scale_diag=noise.scale_diag if noise.scale_is_factor else None,
        features=np.concatenate(kept) if noise.scale_is_factor else None,
    )
    kernel = noise.readout
    if kernel is None:
        return Average(_variance(terms), terms.own, _means(terms), terms, None, None)
    alone = terms._replace(factor_loadings=None, factor_scale=None)
    full, diagonal = (
        np.concatenate([_rows(t, _all(s), 0) for s in _strips(t, width)]) for t in (terms, alone)
    )
    variance, own = (_quadratic(matrix, kernel) for matrix in (full, diagonal))
    means = (full @ kernel.mean(axis=1, dtype=np.float64)) @ kernel
    return Average(variance, own, means, terms, full, kernel)


def rows(
    average: Average, classes: Int[np.ndarray, "c"], start: int = 0
) -> Float[np.ndarray, "c m"]:
    """The rows of these classes, from the column `start` on."""
    if average.readout is None:
        return _rows(average.terms, classes, start)
    left = average.readout[:, classes].T @ average.noise
    found = np.empty((len(classes), len(average.variance) - start))
    for cols in _blocks(start, len(average.variance), len(left[0])):
        found[:, cols.start - start : cols.stop - start] = left @ average.readout[:, cols]
    return found


def strips(average: Average) -> Iterator[slice]:
    """The classes in parts, of which `rows` takes a bounded memory."""
    return _strips(average.terms, len(average.variance))


def _strips(terms: Terms, num_classes: int) -> Iterator[slice]:
    return _blocks(0, num_classes, max(num_classes, _numbers(terms)))


def _blocks(start: int, stop: int, numbers: int) -> Iterator[slice]:
    """Parts of so many classes, each of so many float64 numbers, as fill the bytes."""
    size = max(1, _BYTES // (8 * numbers))
    return (slice(first, min(first + size, stop)) for first in range(start, stop, size))


def _numbers(terms: Terms) -> int:
    """What a class takes in a block of columns."""
    num_factors = 1 if terms.factor_loadings is None else terms.factor_loadings.bias.shape[-1]
    return len(terms.moment) * num_factors


def _all(part: slice) -> Int[np.ndarray, "c"]:
    return np.arange(part.start, part.stop)


def _weights(layer: heads.Affine, classes: slice | np.ndarray) -> Float[np.ndarray, "e c *r"]:
    """W of some classes."""
    return np.concatenate([layer.kernel[:, classes], layer.bias[None, classes]], dtype=np.float64)


def _deviations(
    layer: heads.Affine, features: np.ndarray, classes: slice | np.ndarray
) -> Float[np.ndarray, "b c"]:
    affine = features @ layer.kernel[:, classes] + layer.bias[classes]
    return np.asarray(heads.standard_deviations(affine), np.float64)


def _rows(terms: Terms, classes: np.ndarray, start: int) -> Float[np.ndarray, "c m"]:
    found = np.zeros((len(classes), len(terms.own) - start))
    full, scale, shared = terms.factor_loadings, terms.factor_scale, terms.shared_loadings
    if full is not None:
        left = np.tensordot(_weights(full, classes), terms.moment, (0, 0))  # [c, r, e]
        for cols in _blocks(start, len(terms.own), _numbers(terms)):
            block = np.tensordot(left, _weights(full, cols), ((1, 2), (2, 0)))
            found[:, cols.start - start : cols.stop - start] += block
    if scale is not None:
        left = _weights(scale, classes).T @ terms.moment
        for cols in _blocks(start, len(terms.own), len(terms.moment)):
            block = (left @ _weights(scale, cols)) * (shared[classes] @ shared[cols].T)
            found[:, cols.start - start : cols.stop - start] += block
    if terms.features is None:
        inside = np.flatnonzero(classes >= start)
        found[inside, classes[inside] - start] += terms.own[classes[inside]]
        return found
    for features in _parts_of(terms):
        deviations = _deviations(terms.scale_diag, features, slice(None))
        found += deviations[:, classes].T @ deviations[:, start:] / len(terms.features)
    return found


def _variance(terms: Terms) -> Float[np.ndarray, "n"]:
    found = terms.own.copy()
    for cols in _blocks(0, len(found), _numbers(terms)):
        if terms.factor_loadings is not None:
            weights = _weights(terms.factor_loadings, cols)
            left = np.tensordot(terms.moment, weights, (1, 0))
            found[cols] += np.einsum("ecr,ecr->c", left, weights)
        if terms.factor_scale is not None:
            sizes = np.square(terms.shared_loadings[cols]).sum(axis=1)
            found[cols] += _quadratic(terms.moment, _weights(terms.factor_scale, cols)) * sizes
    return found


def _means(terms: Terms) -> Float[np.ndarray, "n"]:
    """The mean of each row: what each utility shares with the mean of all."""
    width, full, scale, shared = (
        len(terms.own),
        terms.factor_loadings,
        terms.factor_scale,
        terms.shared_loadings,
    )
    found = np.zeros(width)
    if full is not None:
        of_all = heads.Affine(*(x.mean(axis=-2, dtype=np.float64, keepdims=True) for x in full))
        left = terms.moment @ _weights(of_all, slice(None))[:, 0]
        for cols in _blocks(0, width, _numbers(terms)):
            found[cols] += np.tensordot(_weights(full, cols), left, ((0, 2), (0, 1)))
    if scale is not None:
        blocks = list(_blocks(0, width, len(terms.moment)))
        left = terms.moment @ sum(_weights(scale, cols) @ shared[cols] for cols in blocks) / width
        for cols in blocks:
            found[cols] += np.sum((_weights(scale, cols).T @ left) * shared[cols], axis=1)
    if terms.features is None:
        return found + terms.own / width
    for features in _parts_of(terms):
        deviations = _deviations(terms.scale_diag, features, slice(None))
        found += deviations.mean(axis=1) @ deviations / len(terms.features)
    return found


def _parts_of(terms: Terms) -> Iterator[np.ndarray]:
    return (terms.features[part] for part in _blocks(0, len(terms.features), len(terms.own)))


def _quadratic(
    matrix: Float[np.ndarray, "n n"], columns: Float[np.ndarray, "n c"]
) -> Float[np.ndarray, "c"]:
    """c' matrix c of each column."""
    found = np.empty(columns.shape[1])
    for part in _blocks(0, len(found), len(matrix)):
        found[part] = np.einsum("nc,nc->c", matrix @ columns[:, part], columns[:, part])
    return found
