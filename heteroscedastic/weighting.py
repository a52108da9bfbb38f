"""Weights of the examples in the loss: (targets, class_counts) -> one weight per example.

For soft or mixed targets the weight is the expected weight of the class. Weights have mean 1 over
the examples of `class_counts`, so they do not change the effective learning rate.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from heteroscedastic.links import suits

__all__ = ["equal", "inverse_frequency"]  # what config.weighting may name


@suits()
def equal(targets: Float[Array, "*b k"], class_counts: Float[Array, "k"]) -> Float[Array, "*b"]:
    """Weight 1 for each example."""
    return jnp.ones(targets.shape[:-1], targets.dtype)


@suits(labels=("one",))
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
    return targets @ weights
