"""Weights of the examples in the loss: (targets, class_counts) -> one weight per example.

For soft or mixed targets the weight is the expected weight of the class. Weights have mean 1 over
the examples of `class_counts`, so they do not change the effective learning rate.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from heteroscedastic.bind import check_number
from heteroscedastic.links import suits

__all__ = ["effective_number", "equal", "inverse_frequency"]  # choices of config.weighting


@suits()
def equal(targets: Float[Array, "*b k"], class_counts: Float[Array, "k"]) -> Float[Array, "*b"]:
    """Weight 1 for each example."""
    return jnp.ones(targets.shape[:-1], targets.dtype)


@suits(labels=("one",), class_counts=True)
def inverse_frequency(
    targets: Float[Array, "*b k"], class_counts: Float[Array, "k"]
) -> Float[Array, "*b"]:
    """Weight N / (K n_c) for class c, so that all classes have the same total weight.

    N is the number of examples, n_c the number of examples of class c, and K the number of classes
    with n_c > 0. A class without examples has weight 0.
    """
    present = class_counts > 0
    class_total = jnp.sum(class_counts) / jnp.maximum(jnp.sum(present), 1)
    weights = jnp.where(present, class_total / jnp.where(present, class_counts, 1.0), 0.0)
    # A product of matrices would be rounded more on accelerators.
    return jnp.sum(targets * weights, axis=-1)


@suits(labels=("one",), class_counts=True)
def effective_number(
    targets: Float[Array, "*b k"], class_counts: Float[Array, "k"], *, beta: float
) -> Float[Array, "*b"]:
    """Weight proportional to (1 - beta) / (1 - beta^n_c) for class c: class-balanced weights.

    n_c is the number of examples of class c; (1 - beta^n_c) / (1 - beta) is their effective number.
    A class without examples has weight 0. The paper scales the weights to a sum of K, which is the
    same loss, as the loss is sum(w l) / sum(w).

    Args:
      targets: a distribution over the classes.
      class_counts: training examples per class.
      beta: in [0, 1); 0 is `equal`, and the limit 1 is `inverse_frequency`.

    Source: Cui et al. (2019), arXiv:1901.05555, section 4.
    """
    check_number("beta", beta, at_least=0, below=1)
    log_beta = math.log(beta) if beta else -math.inf
    present = class_counts > 0
    weights = jnp.where(present, -1 / jnp.expm1(jnp.where(present, class_counts, 1) * log_beta), 0)
    mean = jnp.sum(class_counts * weights) / jnp.maximum(jnp.sum(class_counts), 1)
    return jnp.sum(targets * (weights / jnp.where(mean == 0, 1, mean)), axis=-1)
