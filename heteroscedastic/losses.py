"""Losses: (logits, targets, class_counts) -> one number per example.

Only `weighted_sum` and `weighted_mean` reduce over examples.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from heteroscedastic.links import suits

__all__ = ["cross_entropy", "sigmoid_cross_entropy"]  # choices of config.loss


@suits("softmax")
def cross_entropy(
    logits: Float[Array, "*b k"],
    targets: Float[Array, "*b k"],
    class_counts: Float[Array, "k"] | None = None,
) -> Float[Array, "*b"]:
    """Softmax cross-entropy, in nats.

    Args:
      logits: log-probabilities up to a constant per example.
      targets: a distribution over the classes.
      class_counts: ignored; training examples per class, for losses that depend on them.
    """
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    # A class of target 0 adds nothing, even if its logit is -inf.
    return -jnp.sum(targets * jnp.where(targets == 0, 0.0, log_probs), axis=-1)


@suits("sigmoid")
def sigmoid_cross_entropy(
    logits: Float[Array, "*b k"],
    targets: Float[Array, "*b k"],
    class_counts: Float[Array, "k"] | None = None,
) -> Float[Array, "*b"]:
    """Sum over the classes of the binary cross-entropies, in nats.

    Args:
      logits: log-odds of each class.
      targets: the probability of each class, in [0, 1].
      class_counts: ignored; training examples per class, for losses that depend on them.
    """
    # An answer of target 0 adds nothing, even if its logit is infinite.
    positive = targets * jnp.where(targets == 0, 0.0, jax.nn.log_sigmoid(logits))
    negative = (1 - targets) * jnp.where(targets == 1, 0.0, jax.nn.log_sigmoid(-logits))
    return -jnp.sum(positive + negative, axis=-1)


def weighted_sum(values: Float[Array, "*b"], weights: Float[Array, "*b"]) -> Float[Array, ""]:
    """sum(w l); a value of weight 0 is absent and may be nan or infinite."""
    present = weights != 0
    return jnp.sum(weights * jnp.where(present, values, 0.0))


def weighted_mean(values: Float[Array, "*b"], weights: Float[Array, "*b"]) -> Float[Array, ""]:
    """sum(w l) / sum(w); 0 if all weights are 0."""
    mass = jnp.sum(weights)
    return weighted_sum(values, weights) / jnp.where(mass == 0, 1.0, mass)
