"""Losses: (logits, targets, class_counts) -> one number per example.

Only `weighted_mean` reduces.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from heteroscedastic.links import suits

__all__ = ["cross_entropy", "sigmoid_cross_entropy"]  # what config.loss may name


@suits("softmax")
def cross_entropy(
    logits: Float[Array, "*b k"],
    targets: Float[Array, "*b k"],
    class_counts: Float[Array, "k"] | None = None,
) -> Float[Array, "*b"]:
    """Softmax cross-entropy against a distribution over classes, in nats."""
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    # A class without target counts nothing, whatever its logit, -inf included.
    return -jnp.sum(targets * jnp.where(targets == 0, 0.0, log_probs), axis=-1)


@suits("sigmoid")
def sigmoid_cross_entropy(
    logits: Float[Array, "*b k"],
    targets: Float[Array, "*b k"],
    class_counts: Float[Array, "k"] | None = None,
) -> Float[Array, "*b"]:
    """Sum over classes of the binary cross-entropies of log-odds, in nats."""
    # An answer without weight counts nothing, whatever its logit, an infinite one included.
    positive = targets * jnp.where(targets == 0, 0.0, jax.nn.log_sigmoid(logits))
    negative = (1 - targets) * jnp.where(targets == 1, 0.0, jax.nn.log_sigmoid(-logits))
    return -jnp.sum(positive + negative, axis=-1)


def weighted_sum(values: Float[Array, "*b"], weights: Float[Array, "*b"]) -> Float[Array, ""]:
    """sum(w l); a value of weight 0 is absent, even where it is not finite."""
    present = weights != 0
    return jnp.sum(weights * jnp.where(present, values, 0.0))


def weighted_mean(values: Float[Array, "*b"], weights: Float[Array, "*b"]) -> Float[Array, ""]:
    """sum(w l) / sum(w), and 0 where every example is absent."""
    mass = jnp.sum(weights)
    return weighted_sum(values, weights) / jnp.where(mass == 0, 1.0, mass)
