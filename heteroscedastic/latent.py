"""The Gaussian over class utilities that every head returns, its samples and its moments."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from heteroscedastic import sampling

_HIGHEST = jax.lax.Precision.HIGHEST


class LatentGaussian(NamedTuple):
    """A Gaussian over the utilities of k classes.

    The utilities are u = loc + noise, or u = loc + noise @ readout, where

        noise = scale_diag * e + factor_loadings @ e_r + factor_scale * (shared_loadings @ e_q)

    and all entries of e, e_r and e_q are independent standard normals. A field that is None omits
    its term; with `loc` alone there is no noise.

    `shared_loadings` and `readout` have no batch axes: do not slice, map or shard them along the
    batch; `map_batch` maps the other fields.
    """

    loc: Float[Array, "*b k"]  # finite, or -inf for a class of probability 0
    scale_diag: Float[Array, "*b n"] | None = None  # standard deviation, > 0; n = k without readout
    factor_loadings: Float[Array, "*b n r"] | None = None
    factor_scale: Float[Array, "*b n"] | None = None  # v(x), with shared_loadings
    shared_loadings: Float[Array, "n q"] | None = None  # V
    readout: Float[Array, "n k"] | None = None  # None is the identity


class Noise(NamedTuple):
    """Standard-normal points for the terms of a latent; None for a term that it does not have."""

    diag: Float[Array, "s *b n"] | None
    factors: Float[Array, "s *b r"] | None
    shared: Float[Array, "s *b q"] | None


NoiseSource = Callable[[Int[Array, "s"]], Noise]


def check(latent: LatentGaussian) -> LatentGaussian:
    """Checks the shapes and `loc` of a latent, and returns the latent in float32 or float64.

    All fields get the precision of the most precise one.

    Raises:
      ValueError: a field has the wrong shape, or an entry of `loc` is +inf or nan. Under `jit`
        values are unknown; there such an entry makes the log-probabilities of its example nan.
    """
    if jnp.ndim(latent.loc) < 1:
        raise ValueError(f"latent.loc needs a class axis, but has shape {jnp.shape(latent.loc)}.")
    *batch, num_classes = latent.loc.shape
    width = num_classes if latent.readout is None else latent.readout.shape[0]
    _shared(latent)  # raises where one is missing
    expected = {
        "scale_diag": (*batch, width),
        "factor_loadings": (*batch, width, None),
        "factor_scale": (*batch, width),
        "shared_loadings": (width, None),
        "readout": (width, num_classes),
    }
    for name, shape in expected.items():
        value = getattr(latent, name)
        if value is None:
            continue
        actual = jnp.shape(value)
        fits = len(actual) == len(shape) and all(e in (None, a) for e, a in zip(shape, actual))
        if not fits:
            text = ", ".join("any" if e is None else str(e) for e in shape)
            raise ValueError(
                f"latent.{name} has shape {actual}, but with loc of shape {latent.loc.shape}"
                f" it must have shape ({text})."
            )
    if _is_known(latent.loc) and not np.all(np.asarray(latent.loc) < np.inf):
        raise ValueError(
            "latent.loc holds +inf or nan, but must be finite, or -inf for a class of"
            " probability 0."
        )
    # At least float32, in which sums over classes are exact.
    dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(latent)), jnp.float32)
    return jax.tree.map(lambda x: x if x.dtype == dtype else jnp.asarray(x, dtype), latent)


def _is_known(value: ArrayLike) -> bool:
    """Whether the value can be read: it is not traced, and this host holds all of it."""
    return not isinstance(value, jax.core.Tracer) and getattr(value, "is_fully_addressable", True)


def has_noise(latent: LatentGaussian) -> bool:
    """Whether the latent has any noise term."""
    return any(
        x is not None for x in (latent.scale_diag, latent.factor_loadings, latent.factor_scale)
    )


def has_independent_noise(latent: LatentGaussian) -> bool:
    """Whether the latent has noise, and that of each utility is independent of the others."""
    correlated = latent.factor_loadings, latent.factor_scale, latent.readout
    return latent.scale_diag is not None and all(x is None for x in correlated)


def map_batch(fn: Callable[[Array], Array], latent: LatentGaussian) -> LatentGaussian:
    """The latent with `fn` applied to the fields that have batch axes."""
    batched = ("loc", "scale_diag", "factor_loadings", "factor_scale")
    fields = {name: getattr(latent, name) for name in batched}
    return latent._replace(**{name: fn(x) for name, x in fields.items() if x is not None})


def temper(latent: LatentGaussian, temperature: float | Float[ArrayLike, ""]) -> LatentGaussian:
    """The utilities divided by the temperature: covariance(temper(l, t)) = covariance(l) / t**2.

    Raises:
      ValueError: the temperature is not one finite number > 0. Under `jit` its value is unknown and
        is not checked.
    """
    is_one = jnp.ndim(temperature) == 0
    if not is_one or (_is_known(temperature) and not 0 < np.asarray(temperature) < np.inf):
        raise ValueError(f"temperature is {temperature}, but must be a finite number > 0.")

    def divided(values):
        # Integers may be a latent of another source; each float keeps its type.
        is_float = jnp.issubdtype(values.dtype, jnp.floating)
        return (values / temperature).astype(values.dtype if is_float else jnp.float32)

    return map_batch(divided, latent)


def mask_padding_classes(
    latent: LatentGaussian, num_classes: int | Int[Array, ""]
) -> LatentGaussian:
    """The latent with probability 0 (loc = -inf) for the classes from number `num_classes` on."""
    is_class = jnp.arange(latent.loc.shape[-1]) < num_classes
    return latent._replace(loc=jnp.where(is_class, latent.loc, -jnp.inf))


def noise_source(
    key: PRNGKeyArray | None, latent: LatentGaussian, num_samples: int, points: str = "independent"
) -> NoiseSource:
    """A function from sample numbers (0 to num_samples - 1) to their noise.

    Sample i depends only on the key, the likeliest classes of the latent, and i. Samples can
    therefore be drawn in any grouping, and drawn again, with the same result.

    Args:
      key: PRNG key; consumed. Each example gets its own points. None gives fixed points, the same
        for every example.
      latent: determines which normals get the best points: those of the factors and of the
        likeliest classes.
      num_samples: total number of samples, 1 to 2**24; a power of two for Sobol points.
      points: "independent", "antithetic" or "sobol".

    Raises:
      ValueError: num_samples or points is out of range.
    """
    sampler, shared = sampling.sampler(points), key is None
    num_samples = sampling.check_num_points(num_samples)
    keys = jax.random.split(jax.random.key(0) if key is None else key, 3)
    sources = [
        None if ranks is None else sampler(term_key, num_samples, ranks, shared)
        for term_key, ranks in zip(keys, _ranks(latent))
    ]
    return lambda indices: Noise(
        *(None if source is None else source(indices) for source in sources)
    )


def _ranks(latent: LatentGaussian) -> Noise:
    """The rank of each normal, see `sampling.ranks`."""
    num_factors = 0 if latent.factor_loadings is None else latent.factor_loadings.shape[-1]
    num_shared = 0 if latent.shared_loadings is None else latent.shared_loadings.shape[-1]
    influence = None
    if latent.scale_diag is not None:
        influence = (
            latent.loc
            if latent.readout is None
            else latent.scale_diag * jnp.linalg.norm(latent.readout, axis=-1)
        )
    diag, factors = sampling.ranks(influence, num_factors + num_shared, latent.loc.shape[:-1])
    return Noise(
        diag,
        factors[..., :num_factors] if num_factors else None,
        factors[..., num_factors:] if num_shared else None,
    )


def utilities(latent: LatentGaussian, noise: Noise) -> Float[Array, "s *b k"]:
    """The utilities for these standard-normal points; [1, *b, k] for a latent without noise."""
    total = jnp.zeros((1,) * (latent.loc.ndim + 1), latent.loc.dtype)
    if noise.diag is not None:
        assert latent.scale_diag is not None  # the noise is of this latent
        total = total + latent.scale_diag * noise.diag
    if noise.factors is not None:
        total = total + jnp.einsum("...nr,s...r->s...n", latent.factor_loadings, noise.factors)
    if noise.shared is not None:
        shared = _shared(latent)
        assert shared is not None
        scale, loadings = shared
        total = total + scale * (noise.shared @ loadings.T)
    if latent.readout is not None and has_noise(latent):
        total = total @ latent.readout
    return latent.loc + total


def values_per_sample(latent: LatentGaussian) -> int:
    """Values of the largest array that a sample needs: its utilities, or the normals of a term."""
    *batch, width = latent.loc.shape
    widths = [width, 0 if latent.readout is None else latent.readout.shape[0]]
    loadings = latent.factor_loadings, latent.shared_loadings
    widths += [x.shape[-1] for x in loadings if x is not None]
    return math.prod(batch) * max(widths)


def sample(
    key: PRNGKeyArray | None, latent: LatentGaussian, num_samples: int, points: str = "independent"
) -> Float[Array, "s *b k"]:
    """Samples of the utilities.

    The arguments are those of `noise_source`. The independent noise e ~ N(0, I) has one number per
    sample, example and class.

    Source: Collier et al. (2021), arXiv:2105.10305, section 2 and Algorithm 1. There one draw
    serves the entire batch; here each example has its own.
    """
    return _sample(num_samples, points, key, check(latent))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sample(num_samples, points, key, latent):
    """Compiled, as each call outside of `jit` would compile the loops of its points again."""
    source = noise_source(key, latent, num_samples, points)
    samples = utilities(latent, source(jnp.arange(num_samples)))
    return jnp.broadcast_to(samples, (num_samples, *latent.loc.shape))


def covariance(latent: LatentGaussian) -> Float[Array, "*b k k"]:
    """Covariance of the utilities, diag(d^2) + V V' (section 2), in squared units of utility."""
    scale_diag, loadings = terms(check(latent))
    outer = jnp.einsum("...ir,...jr->...ij", loadings, loadings, precision=_HIGHEST)
    return outer + _diagonal(jnp.square(scale_diag))


def covariance_entries(
    latent: LatentGaussian, rows: Int[Array, "p"], cols: Int[Array, "p"]
) -> Float[Array, "*b p"]:
    """The entries (rows[i], cols[i]) of the covariance; the full matrix is not computed."""
    scale_diag, loadings = terms(check(latent), jnp.concatenate([rows, cols]))
    p = rows.shape[0]
    own = jnp.where(rows == cols, jnp.square(scale_diag[..., :p]), 0.0)
    return own + jnp.sum(loadings[..., :p, :] * loadings[..., p:, :], axis=-1)


@jax.default_matmul_precision("highest")
def covariance_times(latent: LatentGaussian, vectors: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """The product of each example's covariance with its own vector, without the full matrix.

    The product with the unit vector of a class is the row of that class: its covariances with all
    classes.
    """
    latent = check(latent)
    readout = latent.readout
    inner = vectors if readout is None else vectors @ readout.T
    total = jnp.zeros_like(inner)
    if latent.scale_diag is not None:
        total += jnp.square(latent.scale_diag) * inner
    if latent.factor_loadings is not None:
        mixed = jnp.einsum("...nr,...n->...r", latent.factor_loadings, inner)
        total += jnp.einsum("...nr,...r->...n", latent.factor_loadings, mixed)
    if (shared := _shared(latent)) is not None:
        scale, loadings = shared
        total += scale * (((scale * inner) @ loadings) @ loadings.T)
    return total if readout is None else total @ readout


def variance(latent: LatentGaussian) -> Float[Array, "*b k"]:
    """Variance of each utility: the diagonal of the covariance, without the full matrix."""
    latent = check(latent)
    readout = latent.readout
    total = jnp.zeros_like(latent.loc)
    if latent.scale_diag is not None:
        own = jnp.square(latent.scale_diag)
        total += (
            own if readout is None else jnp.matmul(own, jnp.square(readout), precision=_HIGHEST)
        )
    if (shared := _shared(latent)) is not None and readout is None:
        scale, loadings = shared
        total += jnp.square(scale) * jnp.sum(jnp.square(loadings), axis=-1)
        latent = latent._replace(factor_scale=None, shared_loadings=None)
    for loadings in all_loadings(latent):
        if readout is not None:
            loadings = jnp.einsum("...nr,nk->...kr", loadings, readout, precision=_HIGHEST)
        total += jnp.sum(jnp.square(loadings), axis=-1)
    return total


def difference_variance(latent: LatentGaussian) -> Float[Array, "*b k k"]:
    """Variance of u_i - u_j, which is S_ii + S_jj - 2 S_ij.

    A softmax depends on the covariance S only through these differences. Noise common to all
    classes cancels before it is squared, so it costs no precision.
    """
    scale_diag, loadings = terms(check(latent))
    centred = loadings - jnp.mean(loadings, axis=-2, keepdims=True)
    outer = jnp.einsum("...ir,...jr->...ij", centred, centred, precision=_HIGHEST)
    own = jnp.square(scale_diag) + jnp.diagonal(outer, axis1=-2, axis2=-1)
    total = own[..., :, None] + own[..., None, :] - 2 * outer
    off_diagonal = 1 - jnp.eye(latent.loc.shape[-1], dtype=total.dtype)
    return jnp.maximum(total, 0.0) * off_diagonal


def difference_variance_entries(
    latent: LatentGaussian, rows: Int[Array, "p"], cols: Int[Array, "p"]
) -> Float[Array, "*b p"]:
    """The entries (rows[i], cols[i]) of `difference_variance`, without the full matrix."""
    scale_diag, loadings = terms(check(latent), jnp.concatenate([rows, cols]))
    own, p = jnp.square(scale_diag), rows.shape[0]
    correlated = jnp.sum(jnp.square(loadings[..., :p, :] - loadings[..., p:, :]), axis=-1)
    return jnp.where(rows == cols, 0.0, own[..., :p] + own[..., p:] + correlated)


@jax.default_matmul_precision("highest")
def variance_from_mean(
    latent: LatentGaussian, weights: Float[Array, "*b k"]
) -> Float[Array, "*b k"]:
    """Variance of u_k - sum_j w_j u_j, for weights that sum to one, without the full matrix.

    Noise common to all classes cancels before it is squared.
    """
    readout = latent.readout
    if readout is not None:  # a softmax does not depend on noise common to all classes
        readout = readout - jnp.mean(readout, axis=-1, keepdims=True)
    noise_weights = weights if readout is None else weights @ readout.T

    def centred_variance(loadings, mean):
        if readout is not None:
            loadings = jnp.einsum("...nm,nk->...km", loadings, readout)
        return jnp.sum(jnp.square(loadings - mean[..., None, :]), axis=-1)

    total = jnp.zeros_like(latent.loc)
    if latent.scale_diag is not None:
        own = jnp.square(latent.scale_diag)
        of_mean = jnp.sum(own * jnp.square(noise_weights), axis=-1, keepdims=True)
        if readout is None:
            total += own * (1 - 2 * weights) + of_mean
        else:
            total += own @ jnp.square(readout) - 2 * (own * noise_weights) @ readout + of_mean
    if latent.factor_loadings is not None:
        mean = jnp.einsum("...nr,...n->...r", latent.factor_loadings, noise_weights)
        total += centred_variance(latent.factor_loadings, mean)
    if latent.factor_scale is not None and latent.shared_loadings is not None:
        if readout is None:
            total += _shared_variance(latent.factor_scale, latent.shared_loadings, weights)
        else:
            mean = (noise_weights * latent.factor_scale) @ latent.shared_loadings
            loadings = latent.factor_scale[..., None] * latent.shared_loadings
            total += centred_variance(loadings, mean)
    return total


def _shared_variance(
    scale: Float[Array, "*b k"], loadings: Float[Array, "k q"], weights: Float[Array, "*b k"]
) -> Float[Array, "*b k"]:
    """|s_k V_k - m|^2 for m = sum_j w_j s_j V_j, of shared factors, in the memory of `scale`.

    With V_k = c + r_k around the mean row c, the difference is s_k r_k + (s_k - sum_j w_j s_j) c
    less the weighted mean of s_j r_j. Its square is expanded in these parts, none of which has
    noise common to all classes.
    """
    centre = jnp.mean(loadings, axis=0)
    rest = loadings - centre
    deviation = scale - jnp.sum(weights * scale, axis=-1, keepdims=True)
    mean = (weights * scale) @ rest
    total = jnp.square(scale) * jnp.sum(jnp.square(rest), axis=-1)
    total += jnp.square(deviation) * jnp.sum(jnp.square(centre))
    total += jnp.sum(jnp.square(mean), axis=-1, keepdims=True)
    total += 2 * scale * (deviation * (rest @ centre) - mean @ rest.T)
    return jnp.maximum(total - 2 * deviation * (mean @ centre)[..., None], 0.0)


def _diagonal(values: Float[Array, "*b k"]) -> Float[Array, "*b k k"]:
    return values[..., :, None] * jnp.eye(values.shape[-1], dtype=values.dtype)


def terms(
    latent: LatentGaussian, classes: Int[Array, "c"] | None = None
) -> tuple[Float[Array, "*b c"], Float[Array, "*b c m"]]:
    """(d, A) with covariance diag(d^2) + A A', for all classes or the given ones.

    A readout also mixes the independent noise, which then becomes further columns of A.
    """
    batch, num_classes = latent.loc.shape[:-1], latent.loc.shape[-1]
    if latent.readout is None:
        classes = jnp.arange(num_classes) if classes is None else classes
        latent = map_batch(
            lambda x: x[..., classes], latent._replace(factor_loadings=None)
        )._replace(
            factor_loadings=None
            if latent.factor_loadings is None
            else latent.factor_loadings[..., classes, :],
            shared_loadings=None
            if latent.shared_loadings is None
            else latent.shared_loadings[classes],
        )
    width = latent.loc.shape[-1] if latent.readout is None else latent.readout.shape[0]
    zeros = jnp.zeros((*batch, width), latent.loc.dtype)
    scale_diag = zeros if latent.scale_diag is None else latent.scale_diag
    loadings = [jnp.zeros((*batch, width, 0), latent.loc.dtype), *all_loadings(latent)]
    if latent.readout is None:
        return scale_diag, jnp.concatenate(loadings, axis=-1)
    readout = latent.readout if classes is None else latent.readout[:, classes]
    own = scale_diag[..., None, :] * readout.T
    mixed = jnp.einsum(
        "...nm,nk->...km", jnp.concatenate(loadings, axis=-1), readout, precision=_HIGHEST
    )
    return jnp.zeros((*batch, readout.shape[-1]), latent.loc.dtype), jnp.concatenate(
        [own, mixed], axis=-1
    )


def all_loadings(latent: LatentGaussian) -> list[Float[Array, "*b n r"]]:
    """The loadings of each kind of factor, before the readout."""
    loadings = [] if latent.factor_loadings is None else [latent.factor_loadings]
    if (shared := _shared(latent)) is not None:
        scale, shared_loadings = shared
        loadings.append(scale[..., None] * shared_loadings)
    return loadings


def _shared(latent: LatentGaussian) -> tuple[Float[Array, "..."], Float[Array, "..."]] | None:
    """The scale and the loadings of the shared factors, of shapes that `check` checks.

    Raises:
      ValueError: the latent has one without the other.
    """
    scale, loadings = latent.factor_scale, latent.shared_loadings
    if (scale is None) != (loadings is None):
        raise ValueError(
            "latent.factor_scale and latent.shared_loadings come together; set both or neither."
        )
    return None if scale is None or loadings is None else (scale, loadings)
