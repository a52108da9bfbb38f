"""Pairs of classes that a heteroscedastic model confuses, from its latents."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.outputs import calibration

_NUM_SAMPLES = 128
_VALUES = 2**22  # entries of the covariances of a chunk of examples


class ClassPair(NamedTuple):
    """Averages over examples of the covariance S of the utilities of two classes."""

    first: str
    second: str
    seen: float  # mean of p_i p_j var(u_i - u_j), the part of the noise that changes predictions
    covariance: float  # mean of S_ij
    correlation: float  # mean S_ij over the root of the product of the mean variances


class PairSums(NamedTuple):
    """Sums over examples for all pairs of classes."""

    seen: Float[Array, "k k"] | Float[np.ndarray, "k k"]
    covariance: Float[Array, "k k"] | Float[np.ndarray, "k k"]


def confused_pairs(
    latent: LatentGaussian,
    class_names: Sequence[str],
    *,
    num_pairs: int = 10,
    log_probs: Float[np.ndarray, "n k"] | None = None,
) -> list[ClassPair]:
    """The pairs of classes whose noise changes the predictions most, in descending order.

    Noise shared by all classes does not change a softmax, and a covariance between improbable
    classes has no effect; `seen` accounts for both. It is the measure of the same name in
    `python -m heteroscedastic.analysis.covariance`.

    Args:
      latent: Gaussian over the utilities of n examples, [n, k].
      class_names: name of each class.
      num_pairs: largest number of pairs to return.
      log_probs: log E[softmax(u)] of the examples, in nats, up to a constant of each example;
        computed from the latent if not given. The covariance is in the units of the latent.

    Raises:
      ValueError: the latent has no noise or no example, or is invalid, the shapes do not match, or
        an output is not a log-probability.
    """
    latent = latent_lib.check(latent)
    if latent.loc.ndim != 2 or len(class_names) != latent.loc.shape[1]:
        raise ValueError(
            f"latent.loc has shape {latent.loc.shape}, but must be [n, {len(class_names)}] for"
            f" {len(class_names)} class names."
        )
    if not latent_lib.has_noise(latent):
        raise ValueError(
            "the latent has no noise, so it has no confused pairs; use a head with noise, such as"
            " 'LowRank'."
        )
    if num_pairs < 1:
        raise ValueError(f"num_pairs is {num_pairs}, but must be >= 1.")
    if not len(latent.loc):
        raise ValueError("the latent is empty; give at least one example.")
    if log_probs is not None and np.shape(log_probs) != latent.loc.shape:
        raise ValueError(
            f"log_probs has shape {np.shape(log_probs)}, but must have that of latent.loc,"
            f" {latent.loc.shape}."
        )
    if log_probs is not None:
        anything = np.zeros(len(latent.loc), int)  # labels, on which pairs do not depend
        log_probs = special.log_softmax(calibration.checked_outputs(anything, log_probs)[1], -1)
    means = jax.tree.map(lambda x: x / len(latent.loc), _pair_sums(latent, log_probs))
    deviation = np.sqrt(np.diagonal(means.covariance))
    product = deviation[:, None] * deviation
    correlation = np.divide(means.covariance, product, out=0 * product, where=product > 0)
    rows, cols = np.triu_indices(len(class_names), 1)
    order = np.argsort(-means.seen[rows, cols].astype(np.float32), kind="stable")[:num_pairs]
    return [
        ClassPair(
            first=str(class_names[i]),
            second=str(class_names[j]),
            seen=float(means.seen[i, j]),
            covariance=float(means.covariance[i, j]),
            correlation=float(correlation[i, j]),
        )
        for i, j in zip(rows[order], cols[order])
    ]


def _pair_sums(latent: LatentGaussian, log_probs: np.ndarray | None) -> PairSums:
    num_examples, num_classes = latent.loc.shape
    # With a readout, its width is that of the loadings of an example.
    width = num_classes if latent.readout is None else max(latent.readout.shape)
    if latent.factor_loadings is not None:
        width += latent.factor_loadings.shape[-1]
    chunk = max(1, min(num_examples, _VALUES // (num_classes * width)))
    total = PairSums(np.zeros((num_classes, num_classes)), np.zeros((num_classes, num_classes)))
    for start in range(0, num_examples, chunk):
        rows = slice(start, start + chunk)
        part = latent_lib.map_batch(functools.partial(_rows, rows), latent)
        sums = _sums(part, None if log_probs is None else jnp.asarray(log_probs[rows]))
        total = jax.tree.map(lambda a, b: a + np.asarray(b, np.float64), total, sums)
    return total


def _rows(rows: slice, values: Array) -> Array:
    return jnp.asarray(values[rows])


@jax.jit
def _sums(latent: LatentGaussian, log_probs: Float[Array, "n k"] | None) -> PairSums:
    if log_probs is None:
        log_probs = predictive.softmax(None, latent, num_samples=_NUM_SAMPLES, points="sobol")
    probs = jnp.exp(log_probs)
    both = probs[:, :, None] * probs[:, None, :]
    return PairSums(
        seen=jnp.sum(both * latent_lib.difference_variance(latent), axis=0),
        covariance=jnp.sum(latent_lib.covariance(latent), axis=0),
    )
