"""The exact average of the covariance of the utilities over a split, for any number of classes.

The factor loadings are affine in the features x. Let r = (x, 1), and let W hold the weights with
the bias as the last row. The average of the factor part over a split depends on the data only
through the second moment M = E[r r'], which has (D+1)^2 entries:

    sum_r W_r' M W_r,    or    (W_v' M W_v) o (V V')    for shared loadings V.

The standard deviations d(x) of the diagonal are not affine; their contribution is the mean of
d(x)^2, one number per class. The K x K matrix is never stored; `covariance_rows` computes rows of
it. Everything except d(x) is float64 on the host.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from heteroscedastic.models import heads

_BYTES = 2**27  # largest intermediate array


class Terms(NamedTuple):
    """The terms of the averaged covariance of the noise; a term that is None does not occur."""

    moment: Float[np.ndarray, "e e"]  # E[r r']
    diagonal: Float[np.ndarray, "n"]  # E[d^2]
    factor_loadings: heads.Affine | None  # W_r
    factor_scale: heads.Affine | None  # W_v, with shared_loadings
    shared_loadings: Float[np.ndarray, "n q"] | None  # V
    # For edward2 heads, whose d is one more factor; its term is E[d d'], from the features.
    scale_diag: heads.Affine | None
    features: Float[np.ndarray, "m d"] | None


class Average(NamedTuple):
    """The averaged covariance S of the utilities, in squared units of the utilities."""

    variance: Float[np.ndarray, "k"]  # S_ii
    diagonal: Float[np.ndarray, "k"]  # the part of S_ii that comes from the head's diagonal
    means: Float[np.ndarray, "k"]  # mean over j of S_ij
    terms: Terms
    noise: Float[np.ndarray, "n n"] | None  # covariance of the noise, if there is a readout
    readout: Float[np.ndarray, "n k"] | None


def average_covariance(
    head: heads.Head,
    params: Mapping[str, Any],
    features: Iterable[Float[np.ndarray, "_ d"]],
) -> Average:
    """Averages the covariance of a head over examples.

    Args:
      head: any head; the average of a head without noise is 0.
      params: of the head.
      features: batches of the features of the examples. Read once, and stored only for an
        `edward2` head.

    Raises:
      ValueError: there are no features.
    """
    noise_parameters = jax.tree.map(np.asarray, head.noise_parameters(params))
    width = int(noise_parameters.num_entries)
    moment, diagonal, stored, num_examples = 0.0, np.zeros(width), [], 0
    for batch in features:
        batch = np.asarray(batch, np.float32)
        extended = np.pad(batch.astype(np.float64), ((0, 0), (0, 1)), constant_values=1)
        moment += extended.T @ extended
        num_examples += len(batch)
        if noise_parameters.scale_diag is not None:
            deviations = _deviations(noise_parameters.scale_diag, batch, slice(None))
            diagonal += np.square(deviations).sum(axis=0)
        if noise_parameters.scale_is_factor:
            stored.append(batch)
    if not num_examples:
        raise ValueError("there are no features to average over; give at least one batch.")
    terms = Terms(
        moment=moment / num_examples,
        diagonal=diagonal / num_examples,
        factor_loadings=noise_parameters.factor_loadings,
        factor_scale=noise_parameters.factor_scale,
        shared_loadings=None
        if noise_parameters.shared_loadings is None
        else np.asarray(noise_parameters.shared_loadings, np.float64),
        scale_diag=noise_parameters.scale_diag if noise_parameters.scale_is_factor else None,
        features=np.concatenate(stored) if noise_parameters.scale_is_factor else None,
    )
    kernel = noise_parameters.readout
    if kernel is None:
        return Average(_variance(terms), terms.diagonal, _means(terms), terms, None, None)
    without_factors = terms._replace(factor_loadings=None, factor_scale=None)
    noise, diagonal_noise = (
        np.concatenate([_rows(t, _class_range(s), 0) for s in _row_blocks(t, width)])
        for t in (terms, without_factors)
    )
    variance, diagonal = (_quadratic(matrix, kernel) for matrix in (noise, diagonal_noise))
    means = (noise @ kernel.mean(axis=1, dtype=np.float64)) @ kernel
    return Average(variance, diagonal, means, terms, noise, kernel)


def covariance_rows(
    average: Average, classes: Int[np.ndarray, "c"], start: int = 0
) -> Float[np.ndarray, "c m"]:
    """The rows of the averaged covariance for these classes, from column `start` on."""
    if average.readout is None:
        return _rows(average.terms, classes, start)
    left = average.readout[:, classes].T @ average.noise
    covariance = np.empty((len(classes), len(average.variance) - start))
    for cols in _blocks(start, len(average.variance), len(left[0])):
        covariance[:, cols.start - start : cols.stop - start] = left @ average.readout[:, cols]
    return covariance


def row_blocks(average: Average) -> Iterator[slice]:
    """Blocks of classes for which `covariance_rows` needs bounded memory."""
    return _row_blocks(average.terms, len(average.variance))


def _row_blocks(terms: Terms, num_classes: int) -> Iterator[slice]:
    return _blocks(0, num_classes, max(num_classes, _values_per_class(terms)))


def _blocks(start: int, stop: int, values_per_class: int) -> Iterator[slice]:
    """Blocks of classes whose float64 values fill at most _BYTES."""
    size = max(1, _BYTES // (8 * values_per_class))
    return (slice(first, min(first + size, stop)) for first in range(start, stop, size))


def _values_per_class(terms: Terms) -> int:
    """The number of values that one class adds to a block of columns."""
    num_factors = 1 if terms.factor_loadings is None else terms.factor_loadings.bias.shape[-1]
    return len(terms.moment) * num_factors


def _class_range(block: slice) -> Int[np.ndarray, "c"]:
    return np.arange(block.start, block.stop)


def _weights(layer: heads.Affine, classes: slice | np.ndarray) -> Float[np.ndarray, "e c *r"]:
    """The weights W of some classes, with the bias as the last row."""
    return np.concatenate([layer.kernel[:, classes], layer.bias[None, classes]], dtype=np.float64)


def _deviations(
    layer: heads.Affine, features: np.ndarray, classes: slice | np.ndarray
) -> Float[np.ndarray, "b c"]:
    affine = features @ layer.kernel[:, classes] + layer.bias[classes]
    return np.asarray(heads.standard_deviations(affine), np.float64)


def _rows(terms: Terms, classes: np.ndarray, start: int) -> Float[np.ndarray, "c m"]:
    covariance = np.zeros((len(classes), len(terms.diagonal) - start))
    full, scale, shared = terms.factor_loadings, terms.factor_scale, terms.shared_loadings
    if full is not None:
        left = np.tensordot(_weights(full, classes), terms.moment, (0, 0))  # [c, r, e]
        for cols in _blocks(start, len(terms.diagonal), _values_per_class(terms)):
            block = np.tensordot(left, _weights(full, cols), ((1, 2), (2, 0)))
            covariance[:, cols.start - start : cols.stop - start] += block
    if scale is not None:
        left = _weights(scale, classes).T @ terms.moment
        for cols in _blocks(start, len(terms.diagonal), len(terms.moment)):
            block = (left @ _weights(scale, cols)) * (shared[classes] @ shared[cols].T)
            covariance[:, cols.start - start : cols.stop - start] += block
    if terms.features is None:
        inside = np.flatnonzero(classes >= start)
        covariance[inside, classes[inside] - start] += terms.diagonal[classes[inside]]
        return covariance
    for features in _feature_batches(terms):
        deviations = _deviations(terms.scale_diag, features, slice(None))
        covariance += deviations[:, classes].T @ deviations[:, start:] / len(terms.features)
    return covariance


def _variance(terms: Terms) -> Float[np.ndarray, "n"]:
    variance = terms.diagonal.copy()
    for cols in _blocks(0, len(variance), _values_per_class(terms)):
        if terms.factor_loadings is not None:
            weights = _weights(terms.factor_loadings, cols)
            left = np.tensordot(terms.moment, weights, (1, 0))
            variance[cols] += np.einsum("ecr,ecr->c", left, weights)
        if terms.factor_scale is not None:
            sizes = np.square(terms.shared_loadings[cols]).sum(axis=1)
            variance[cols] += _quadratic(terms.moment, _weights(terms.factor_scale, cols)) * sizes
    return variance


def _means(terms: Terms) -> Float[np.ndarray, "n"]:
    """The mean of each row, which is the covariance of a utility with the mean of all utilities."""
    full, scale, shared = terms.factor_loadings, terms.factor_scale, terms.shared_loadings
    width = len(terms.diagonal)
    means = np.zeros(width)
    if full is not None:
        mean_layer = heads.Affine(*(x.mean(axis=-2, dtype=np.float64, keepdims=True) for x in full))
        left = terms.moment @ _weights(mean_layer, slice(None))[:, 0]
        for cols in _blocks(0, width, _values_per_class(terms)):
            means[cols] += np.tensordot(_weights(full, cols), left, ((0, 2), (0, 1)))
    if scale is not None:
        blocks = list(_blocks(0, width, len(terms.moment)))
        left = terms.moment @ sum(_weights(scale, cols) @ shared[cols] for cols in blocks) / width
        for cols in blocks:
            means[cols] += np.sum((_weights(scale, cols).T @ left) * shared[cols], axis=1)
    if terms.features is None:
        return means + terms.diagonal / width
    for features in _feature_batches(terms):
        deviations = _deviations(terms.scale_diag, features, slice(None))
        means += deviations.mean(axis=1) @ deviations / len(terms.features)
    return means


def _feature_batches(terms: Terms) -> Iterator[np.ndarray]:
    return (terms.features[rows] for rows in _blocks(0, len(terms.features), len(terms.diagonal)))


def _quadratic(
    matrix: Float[np.ndarray, "n n"], columns: Float[np.ndarray, "n c"]
) -> Float[np.ndarray, "c"]:
    """The quadratic form c' matrix c of each column c."""
    forms = np.empty(columns.shape[1])
    for part in _blocks(0, len(forms), len(matrix)):
        forms[part] = np.einsum("nc,nc->c", matrix @ columns[:, part], columns[:, part])
    return forms
