"""The Gaussian over class utilities that every head puts out, and its moments."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from heteroscedastic import sampling

_HIGHEST = jax.lax.Precision.HIGHEST
_LIKELY = 32  # classes of an example whose own normals get the best points


class LatentGaussian(NamedTuple):
    """Utilities u = loc + noise, or loc + noise @ readout, where
    noise = scale_diag * e + factor_loadings @ e_r + factor_scale * (shared_loadings @ e_q)
    and every entry of e, e_r and e_q is an independent standard normal.

    A field that is None leaves its term out; loc alone is a latent without noise.
    `shared_loadings` and `readout` have no batch axes: they are not to be cut, mapped or
    sharded as if they had them, see `map_batch`.
    """

    loc: Float[Array, "*b k"]  # finite, or -inf for a class that never is
    scale_diag: Float[Array, "*b n"] | None = (
        None  # standard deviation, > 0; n = k, or the readout's width
    )
    factor_loadings: Float[Array, "*b n r"] | None = None
    factor_scale: Float[Array, "*b n"] | None = None  # v(x), with shared_loadings
    shared_loadings: Float[Array, "n q"] | None = None  # V
    readout: Float[Array, "n k"] | None = None  # None is the identity


class Noise(NamedTuple):
    """Standard-normal points for the terms of a latent; None where it has no such term."""

    diag: Float[Array, "s *b n"] | None
    factors: Float[Array, "s *b r"] | None
    shared: Float[Array, "s *b q"] | None


def check(latent: LatentGaussian) -> LatentGaussian:
    """The latent itself, once its shapes agree and every loc has a meaning.

    Raises:
      ValueError: names the field, its shape and the shape that was expected; or a loc is +inf or
        nan. Within `jit`, where values are not known, such a loc makes the example's
        log-probabilities nan.
    """
    if jnp.ndim(latent.loc) < 1:
        raise ValueError(f"latent.loc needs a class axis, but has shape {jnp.shape(latent.loc)}.")
    *batch, num_classes = latent.loc.shape
    width = num_classes if latent.readout is None else latent.readout.shape[0]
    if (latent.factor_scale is None) != (latent.shared_loadings is None):
        raise ValueError(
            "latent.factor_scale and latent.shared_loadings come together or not at all."
        )
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
        found = jnp.shape(value)
        fits = len(found) == len(shape) and all(e in (None, f) for e, f in zip(shape, found))
        if not fits:
            text = ", ".join("any" if e is None else str(e) for e in shape)
            raise ValueError(
                f"latent.{name} has shape {found}, but with loc of shape {latent.loc.shape}"
                f" it must have shape ({text})."
            )
    if _is_known(latent.loc) and not np.all(np.asarray(latent.loc) < np.inf):
        raise ValueError(
            "latent.loc holds +inf or nan, but must be finite, or -inf for a class that never is."
        )
    return latent


def _is_known(value: ArrayLike) -> bool:
    """Whether the value can be read: it is not traced, and no other host holds a part of it."""
    return not isinstance(value, jax.core.Tracer) and getattr(value, "is_fully_addressable", True)


def has_noise(latent: LatentGaussian) -> bool:
    """Whether any term of the latent is random."""
    return any(
        x is not None for x in (latent.scale_diag, latent.factor_loadings, latent.factor_scale)
    )


def map_batch(fn: Callable[[Array], Array], latent: LatentGaussian) -> LatentGaussian:
    """The latent with `fn` applied to those fields that have batch axes."""
    batched = ("loc", "scale_diag", "factor_loadings", "factor_scale")
    fields = {name: getattr(latent, name) for name in batched}
    return latent._replace(**{name: fn(x) for name, x in fields.items() if x is not None})


def temper(latent: LatentGaussian, temperature: float | Float[ArrayLike, ""]) -> LatentGaussian:
    """The utilities in units of the temperature: covariance(temper(l, t)) = covariance(l) / t**2.

    Raises:
      ValueError: a temperature that is no finite number > 0, where its value is known (outside of
        `jit`).
    """
    if _is_known(temperature) and not (np.ndim(temperature) == 0 and 0 < temperature < np.inf):
        raise ValueError(f"temperature is {temperature}, but must be a finite number > 0.")
    return map_batch(lambda x: (x / temperature).astype(x.dtype), latent)


def without_classes_from(num_classes: int, latent: LatentGaussian) -> LatentGaussian:
    """The latent whose classes from this number on only make room: with a loc of -inf they have no
    probability.
    """
    there = jnp.arange(latent.loc.shape[-1]) < num_classes
    return latent._replace(loc=jnp.where(there, latent.loc, -jnp.inf))


def draw(
    key: PRNGKeyArray | None, latent: LatentGaussian, num_samples: int, points: str = "independent"
) -> Callable[[Int[Array, "s"]], Noise]:
    """Where the points of samples come from: their numbers, below num_samples -> Noise.

    Sample i depends on the key, the latent's likeliest classes and i alone, so samples can be drawn
    in any grouping, and again, with the same result.

    Args:
      key: consumed; every example has points of its own. None is for fixed points, the same for
        every example.
      latent: the best points go to the factors and the likeliest classes.
      num_samples: in all, 1 to 2**24; a power of two for Sobol points.
      points: "independent", "antithetic" or "sobol".
    """
    kind, shared = sampling.named(points), key is None
    num_samples = sampling.check_num_points(num_samples)
    keys = jax.random.split(jax.random.key(0) if shared else key, 3)
    sources = [
        None if ranks is None else kind(one, num_samples, ranks, shared)
        for one, ranks in zip(keys, _ranks(latent))
    ]
    return lambda indices: Noise(
        *(None if source is None else source(indices) for source in sources)
    )


def _ranks(latent: LatentGaussian) -> Noise:
    """How much depends on each normal, 0 the most: 16 factors, 16 likely classes, other factors, 16
    more classes.
    """
    batch = latent.loc.shape[:-1]
    num_factors = 0 if latent.factor_loadings is None else latent.factor_loadings.shape[-1]
    num_shared = 0 if latent.shared_loadings is None else latent.shared_loadings.shape[-1]
    num_all, half = num_factors + num_shared, _LIKELY // 2
    factors = np.arange(num_all)
    factors = np.where(factors < half, factors, factors + half)
    likely = np.arange(_LIKELY) + np.where(np.arange(_LIKELY) < half, min(num_all, half), num_all)
    diag = None
    if latent.scale_diag is not None:
        weight = (
            latent.loc
            if latent.readout is None
            else latent.scale_diag * jnp.linalg.norm(latent.readout, axis=-1)
        )
        diag = sampling.ranked(jax.lax.stop_gradient(weight), likely[: weight.shape[-1]])

    def for_each(ranks):
        return (
            jnp.broadcast_to(jnp.asarray(ranks, jnp.int32), (*batch, len(ranks)))
            if len(ranks)
            else None
        )

    return Noise(diag, for_each(factors[:num_factors]), for_each(factors[num_factors:]))


def utilities(latent: LatentGaussian, noise: Noise) -> Float[Array, "s *b k"]:
    """The utilities that these points stand for; without noise, [1, *b, k]."""
    total = jnp.zeros((1,) * (latent.loc.ndim + 1), latent.loc.dtype)
    if noise.diag is not None:
        total = total + latent.scale_diag * noise.diag
    if noise.factors is not None:
        total = total + jnp.einsum("...nr,s...r->s...n", latent.factor_loadings, noise.factors)
    if noise.shared is not None:
        total = total + latent.factor_scale * (noise.shared @ latent.shared_loadings.T)
    if latent.readout is not None and has_noise(latent):
        total = total @ latent.readout
    return latent.loc + total


def sample(
    key: PRNGKeyArray | None, latent: LatentGaussian, num_samples: int, points: str = "independent"
) -> Float[Array, "s *b k"]:
    """Samples of the utilities.

    Noise is drawn per class: e ~ N(0, I), one number for each class, example and sample. Arguments
    are those of `draw`.

    Source: Collier et al. (2021), arXiv:2105.10305, section 2 and Algorithm 1, where one
    draw serves the whole batch; here every example has its own.
    """
    latent = check(latent)
    drawn = utilities(latent, draw(key, latent, num_samples, points)(jnp.arange(num_samples)))
    return jnp.broadcast_to(drawn, (num_samples, *latent.loc.shape))


def covariance(latent: LatentGaussian) -> Float[Array, "*b k k"]:
    """Covariance of the utilities, diag(d^2) + V V' (section 2), in squared units of them."""
    scale_diag, loadings = _terms(check(latent))
    outer = jnp.einsum("...ir,...jr->...ij", loadings, loadings, precision=_HIGHEST)
    return outer + _diagonal(jnp.square(scale_diag))


def covariance_entries(
    latent: LatentGaussian, rows: Int[Array, "p"], cols: Int[Array, "p"]
) -> Float[Array, "*b p"]:
    """The entries (rows[i], cols[i]) of the covariance, without the matrix."""
    scale_diag, loadings = _terms(check(latent), jnp.concatenate([rows, cols]))
    p = rows.shape[0]
    own = jnp.where(rows == cols, jnp.square(scale_diag[..., :p]), 0.0)
    return own + jnp.sum(loadings[..., :p, :] * loadings[..., p:, :], axis=-1)


@jax.default_matmul_precision("highest")
def covariance_times(latent: LatentGaussian, vectors: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """The covariance of each example times a vector of its own, without the matrix.

    Of the unit vector of a class this is the class's row: its covariances with every class.
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
    if latent.factor_scale is not None:
        mixed = (latent.factor_scale * inner) @ latent.shared_loadings
        total += latent.factor_scale * (mixed @ latent.shared_loadings.T)
    return total if readout is None else total @ readout


def variance(latent: LatentGaussian) -> Float[Array, "*b k"]:
    """Diagonal of the covariance, without the matrix."""
    latent = check(latent)
    readout = latent.readout
    total = jnp.zeros_like(latent.loc)
    if latent.scale_diag is not None:
        own = jnp.square(latent.scale_diag)
        total += (
            own if readout is None else jnp.matmul(own, jnp.square(readout), precision=_HIGHEST)
        )
    if latent.factor_scale is not None and readout is None:
        total += jnp.square(latent.factor_scale) * jnp.sum(
            jnp.square(latent.shared_loadings), axis=-1
        )
        latent = latent._replace(factor_scale=None)
    for loadings in _loadings(latent):
        if readout is not None:
            loadings = jnp.einsum("...nr,nk->...kr", loadings, readout, precision=_HIGHEST)
        total += jnp.sum(jnp.square(loadings), axis=-1)
    return total


def difference_variance(latent: LatentGaussian) -> Float[Array, "*b k k"]:
    """Variance of u_i - u_j, which is S_ii + S_jj - 2 S_ij: what a softmax can see.

    Noise common to all classes cancels before it is squared, so it costs no precision.
    """
    scale_diag, loadings = _terms(check(latent))
    centred = loadings - jnp.mean(loadings, axis=-2, keepdims=True)
    outer = jnp.einsum("...ir,...jr->...ij", centred, centred, precision=_HIGHEST)
    own = jnp.square(scale_diag) + jnp.diagonal(outer, axis1=-2, axis2=-1)
    total = own[..., :, None] + own[..., None, :] - 2 * outer
    off_diagonal = 1 - jnp.eye(latent.loc.shape[-1], dtype=total.dtype)
    return jnp.maximum(total, 0.0) * off_diagonal


def difference_variance_entries(
    latent: LatentGaussian, rows: Int[Array, "p"], cols: Int[Array, "p"]
) -> Float[Array, "*b p"]:
    """The entries (rows[i], cols[i]) of `difference_variance`, without the matrix."""
    scale_diag, loadings = _terms(check(latent), jnp.concatenate([rows, cols]))
    own, p = jnp.square(scale_diag), rows.shape[0]
    apart = jnp.sum(jnp.square(loadings[..., :p, :] - loadings[..., p:, :]), axis=-1)
    return jnp.where(rows == cols, 0.0, own[..., :p] + own[..., p:] + apart)


def _diagonal(values: Float[Array, "*b k"]) -> Float[Array, "*b k k"]:
    return values[..., :, None] * jnp.eye(values.shape[-1], dtype=values.dtype)


def _terms(
    latent: LatentGaussian, classes: Int[Array, "c"] | None = None
) -> tuple[Float[Array, "*b c"], Float[Array, "*b c m"]]:
    """(d, A) with covariance diag(d^2) + A A', for all classes or for chosen ones.

    A readout mixes the independent noise too, which then is one more set of factors.
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
    loadings = [jnp.zeros((*batch, width, 0), latent.loc.dtype), *_loadings(latent)]
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


def _loadings(latent: LatentGaussian) -> list[Float[Array, "*b n r"]]:
    """The factors of each kind, before the readout."""
    found = [] if latent.factor_loadings is None else [latent.factor_loadings]
    if latent.factor_scale is not None:
        found.append(latent.factor_scale[..., None] * latent.shared_loadings)
    return found
