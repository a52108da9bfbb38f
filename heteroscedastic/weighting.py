"""How much an example counts: (targets, class_counts) -> one weight an example.

Under mixed targets it is the expected weight of the class. Weights have mean one over the
training set they were counted on, so they do not change the learning rate.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from heteroscedastic.links import suits

__all__ = ["equal", "inverse_frequency"]  # what config.weighting may name


@suits()
def equal(targets: Float[Array, "*b k"], class_counts: Float[Array, "k"]) -> Float[Array, "*b"]:
    """Every example counts one."""
    return jnp.ones(targets.shape[:-1], targets.dtype)


@suits(labels=("one",))
def inverse_frequency(
    targets: Float[Array, "*b k"], class_counts: Float[Array, "k"]
) -> Float[Array, "*b"]:
    """Every class counts the same in all: the weight of class c is N / (K n_c), over the K classes
    present.
    """
    present = class_counts > 0
    share = jnp.sum(class_counts) / jnp.maximum(jnp.sum(present), 1)
    weights = jnp.where(present, share / jnp.where(present, class_counts, 1.0), 0.0)
    return targets @ weights
