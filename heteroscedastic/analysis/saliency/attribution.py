"""Maps of places from the features before pooling: [b, h, w, d] -> [b, h, w].

A backbone averages its maps A over the h x w places into features f, and everything that follows
is a function S of f. The backbone therefore runs once, and each method only evaluates S, the head
and a scalar of its latent (scalars.py), on [b, d]. No array of [b, h, w, k] is made.

g is the gradient of S with respect to f. The gradient with respect to every place of A is g / hw.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from heteroscedastic.models import heads

# What is explained: S, one number per example, which depends on the features of that example alone.
Function = Callable[[Float[Array, "b d"]], Float[Array, "b"]]
NUM_POINTS = 8  # of the quadrature


def cam(
    maps: Float[Array, "b h w d"], utilities: heads.Affine, classes: Int[Array, "b *m"]
) -> Float[Array, "b h w"]:
    """Class activation map: its mean over the places plus the bias is the utility of the class.

    Args:
      maps: A.
      utilities: `Head.utilities_parameters`, which fails for a head with a hidden layer.
      classes: one per example, or a list padded with -1, of which it is the sum.

    Source: Zhou et al. (2016), arXiv:1512.04150, Eq. 2.
    """
    classes = classes.reshape(len(classes), -1)
    kernels = jnp.where(classes < 0, 0.0, utilities.kernel[:, jnp.maximum(classes, 0)])
    return jnp.einsum("bhwd,dbm->bhw", maps, kernels)


def grad_cam(maps: Float[Array, "b h w d"], function: Function) -> Float[Array, "b h w"]:
    """Grad-CAM: relu(sum_d a_d A_d), a_d the mean over the places of dS/dA_d.

    For a utility it is the positive part of `cam`, divided by the number of places and by the
    temperature, if S is not in units of the utilities.

    Source: Selvaraju et al. (2017), arXiv:1610.02391, Eq. 1 and 2.
    """
    weights = example_gradient(function, _features(maps)) / _num_places(maps)
    return jax.nn.relu(jnp.einsum("bhwd,bd->bhw", maps, weights))


def grad_cam_pp(maps: Float[Array, "b h w d"], function: Function) -> Float[Array, "b h w"]:
    """Grad-CAM++: relu(sum_d w_d A_d), w_d = sum_ij alpha_ijd relu(g_ijd), g = dS/dA, where

        alpha_ijd = g_ijd^2 / (2 g_ijd^2 + (sum_ab A_abd) g_ijd^3), or 0 if the denominator is 0.

    These are the derivatives of exp(S), where S is piecewise linear in A. This g is the same at all
    places, as S depends on A through the mean. The source does not fix S or the layer for figures
    of other papers (reading L16); here S is any scalar, and A are the last maps before the mean.

    Source: Chattopadhay et al. (2018), arXiv:1710.11063, Eq. 10, 11 and 19.
    """
    num_places = _num_places(maps)
    gradient = example_gradient(function, _features(maps)) / num_places
    total = jnp.sum(maps, axis=(1, 2))
    # g^2 cancels, so that a small g does not underflow.
    denominator = jnp.where(gradient == 0, 0.0, 2 + total * gradient)
    alpha = jnp.where(denominator == 0, 0.0, 1 / jnp.where(denominator == 0, 1.0, denominator))
    weights = num_places * alpha * jax.nn.relu(gradient)
    return jax.nn.relu(jnp.einsum("bhwd,bd->bhw", maps, weights))


def integrated(
    maps: Float[Array, "b h w d"], function: Function, num_points: int = NUM_POINTS
) -> Float[Array, "b h w"]:
    """Integrated gradients of the features, from 0, by place: A times the mean of g(t f) / hw.

    t runs from 0 to 1 over Gauss-Legendre points, one after the other. The sum over the places is
    S(f) - S(0), exactly where S is a polynomial of the features of degree up to 2 `num_points`, and
    else up to the error of the quadrature. For a utility it is `cam` divided by hw.

    Source: Sundararajan et al. (2017), arXiv:1703.01365, Eq. 1, with features in place of pixels.
    """
    features = _features(maps)
    weights = mean_gradient(
        lambda t: example_gradient(function, t * features), features, num_points
    )
    return jnp.einsum("bhwd,bd->bhw", maps, weights) / _num_places(maps)


def mean_gradient(
    gradient: Callable[[Float[Array, ""]], Float[Array, "*b"]],
    like: Float[Array, "*b"],
    num_points: int,
) -> Float[Array, "*b"]:
    """The integral of a gradient over t in [0, 1], by Gauss-Legendre points.

    Args:
      gradient: at t. One point is in memory at a time.
      like: an array of the shape and type of the gradient.
      num_points: 1 or more.

    Raises:
      ValueError: num_points < 1.
    """
    if num_points < 1:
        raise ValueError(f"num_points is {num_points}, but must be a whole number >= 1.")
    nodes, weights = np.polynomial.legendre.leggauss(num_points)
    points = jnp.asarray(np.stack([(nodes + 1) / 2, weights / 2], axis=-1), like.dtype)

    def add(total, point):
        t, weight = point
        return total + weight * gradient(t), None

    return jax.lax.scan(add, jnp.zeros_like(like), points)[0]


def example_gradient(function: Callable[[Array], Float[Array, "b"]], inputs: Array) -> Array:
    """The gradient of each example's number with respect to its own input."""
    return jax.grad(lambda x: jnp.sum(function(x)))(inputs)


def _features(maps: Float[Array, "b h w d"]) -> Float[Array, "b d"]:
    return jnp.mean(maps, axis=(1, 2))


def _num_places(maps: Float[Array, "b h w d"]) -> int:
    return maps.shape[1] * maps.shape[2]
