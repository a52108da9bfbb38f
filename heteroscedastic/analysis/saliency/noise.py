"""Which places add to the noise of a pair of classes, or of a label.

The map explains F = var(u_i - u_j), all that a softmax depends on of the noise of classes i and j,
or under a sigmoid F = var(u_k) of a label k, in squared units of the utilities. Both are the
variance of a contrast of utilities, with signs (1, -1) or (1). Its noise is

    contrast of the diagonal + sum over m factors of (b + J' f)_m e_m, e_m standard normals,

where f are the features, the mean of the maps over the places. The loadings of the factors are
affine in f for every head, so their part of F, |b + J' f|^2, has an exact map: with g_p what place
p adds to the loadings and m the mean of g_p, place p has

    <g_p, 2 b + m> / hw,

which is negative where the place reduces the variance. The standard deviations of the diagonal are
not affine, so their part is `attribution.integrated`. Each part adds up over the places to its
variance less its variance at f = 0.

Only the rows of the head that belong to the contrast are computed, so memory does not grow with the
number of classes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.saliency import attribution
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import Link
from heteroscedastic.models import heads
from heteroscedastic.models.heads import Affine, NoiseParameters


class NoiseMaps(NamedTuple):
    """What each place adds to a variance, in squared units of the utilities.

    In a head with `edward2` the diagonal is one more factor with positive loadings; here it counts
    as the diagonal.
    """

    diagonal: Float[Array, "b h w"]
    factors: Float[Array, "b h w"]
    variance: Float[Array, "b"]
    variance_at_zero: Float[Array, "b"]  # of features 0, which no place explains


@jax.default_matmul_precision("highest")
def noise_maps(
    maps: Float[Array, "b h w d"],
    parameters: NoiseParameters,
    classes: Int[Array, "b c"],
    num_points: int = attribution.NUM_POINTS,
) -> NoiseMaps:
    """The maps of var(u_i - u_j) for pairs of classes, or of var(u_k) for single classes.

    Args:
      maps: features of each place.
      parameters: `Head.noise_parameters`.
      classes: two per example, or one.
      num_points: of the quadrature of the diagonal.

    Raises:
      ValueError: the head has no noise, or there are neither one nor two classes per example.
    """
    if parameters.scale_diag is None:
        raise ValueError(
            "the head has no noise, so there is nothing to explain; use a head other than"
            " Deterministic."
        )
    signs = _signs(classes.shape[-1])
    features = jnp.mean(maps, axis=(1, 2))
    layer = jax.vmap(lambda c: _factor_layer(parameters, c, signs))(classes)
    mean = jnp.einsum("bd,bdm->bm", features, layer.kernel)
    slopes = jnp.einsum("bdm,bm->bd", layer.kernel, 2 * layer.bias + mean)
    factors = jnp.einsum("bhwd,bd->bhw", maps, slopes) / (maps.shape[1] * maps.shape[2])

    def diagonal_variance(features):
        return jax.vmap(lambda f, c: _diagonal_variance(parameters, f, c, signs))(features, classes)

    of_factors = [jnp.sum(jnp.square(x), axis=-1) for x in (layer.bias + mean, layer.bias)]
    zeros = jnp.zeros_like(features)
    return NoiseMaps(
        diagonal=attribution.integrated(maps, diagonal_variance, num_points),
        factors=factors,
        variance=of_factors[0] + diagonal_variance(features),
        variance_at_zero=of_factors[1] + diagonal_variance(zeros),
    )


def default_classes(
    latent: LatentGaussian, probs: Float[Array, "b k"], link: Link = "softmax"
) -> Int[Array, "b c"]:
    """The classes whose noise changes the prediction of each example most.

    Under a softmax a pair: the likeliest class i, and the class j of the largest
    p_i p_j var(u_i - u_j). Under a sigmoid the label of the largest p (1 - p) var(u).

    Args:
      latent: of the head.
      probs: of each class.
      link: "softmax" or "sigmoid".

    Raises:
      ValueError: a softmax has fewer than two classes.
    """
    if link == "sigmoid":
        return jnp.argmax(visible_variance(latent, probs), axis=-1)[:, None]
    variance = latent_lib.variance(latent)
    num_classes = probs.shape[-1]
    if num_classes < 2:
        raise ValueError(f"a pair requires two or more classes, but there are {num_classes}.")
    first = jnp.argmax(probs, axis=-1)
    is_first = jax.nn.one_hot(first, num_classes, dtype=variance.dtype)
    covariance = latent_lib.covariance_times(latent, is_first)
    own = jnp.sum(is_first * variance, axis=-1, keepdims=True)
    difference = jnp.maximum(own + variance - 2 * covariance, 0.0)
    seen = jnp.where(is_first > 0, -1.0, probs * difference)
    return jnp.stack([first, jnp.argmax(seen, axis=-1)], axis=-1)


def visible_variance(latent: LatentGaussian, probs: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """p (1 - p) var(u) of each label: how far its noise changes the prediction of a sigmoid."""
    return probs * (1 - probs) * latent_lib.variance(latent)


def _signs(num_classes: int) -> Float[Array, "c"]:
    if num_classes not in (1, 2):
        raise ValueError(
            f"there are {num_classes} classes per example; give two for the variance of a"
            " difference, or one for that of a label."
        )
    return jnp.array([1.0, -1.0][:num_classes])


def _factor_layer(
    parameters: NoiseParameters, classes: Int[Array, "c"], signs: Float[Array, "c"]
) -> Affine:
    """The map from features to the loadings of the contrast, one per factor."""
    full, scale, shared = (
        parameters.factor_loadings,
        parameters.factor_scale,
        parameters.shared_loadings,
    )
    if parameters.readout is None:  # the entries of the noise are the classes
        entries, weights = classes, signs
    else:
        entries, weights = slice(None), parameters.readout[:, classes] @ signs
    assert parameters.scale_diag is not None  # the head has noise
    num_features = parameters.scale_diag.kernel.shape[0]
    kernels, biases = [jnp.zeros((num_features, 0))], [jnp.zeros(0)]
    if full is not None:
        kernels.append(jnp.einsum("dnr,n->dr", full.kernel[:, entries], weights))
        biases.append(weights @ full.bias[entries])
    if scale is not None and shared is not None:
        loadings = weights[:, None] * shared[entries]
        kernels.append(scale.kernel[:, entries] @ loadings)
        biases.append(scale.bias[entries] @ loadings)
    return Affine(jnp.concatenate(kernels, axis=-1), jnp.concatenate(biases, axis=-1))


def _diagonal_variance(
    parameters: NoiseParameters,
    features: Float[Array, "d"],
    classes: Int[Array, "c"],
    signs: Float[Array, "c"],
) -> Float[Array, ""]:
    """The variance that the contrast has of the diagonal of the head."""
    layer = parameters.scale_diag
    assert layer is not None  # the head has noise
    if parameters.readout is not None:
        kernel, bias = layer
        weights = parameters.readout[:, classes] @ signs
    else:
        kernel, bias = layer.kernel[:, classes], layer.bias[classes]
        # The difference of a class with itself has no noise.
        weights = jnp.where(classes[0] == classes[-1], jnp.sum(signs), signs)
    deviations = weights * heads.standard_deviations(features @ kernel + bias)
    if parameters.scale_is_factor:
        return jnp.square(jnp.sum(deviations))
    return jnp.sum(jnp.square(deviations))
