"""Losses: (logits, targets, class_counts) -> one number per example.

Only `weighted_sum` and `weighted_mean` reduce over examples.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from heteroscedastic.bind import check_number
from heteroscedastic.links import suits

__all__ = [  # choices of config.loss
    "cross_entropy",
    "focal",
    "generalized_cross_entropy",
    "logit_adjusted",
    "sigmoid_cross_entropy",
]


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


@suits("softmax")
def focal(
    logits: Float[Array, "*b k"],
    targets: Float[Array, "*b k"],
    class_counts: Float[Array, "k"] | None = None,
    *,
    gamma: float,
) -> Float[Array, "*b"]:
    """Focal loss -sum_k t_k (1 - p_k)^gamma log p_k, in nats, with p = softmax(logits).

    Examples that the model classifies well have less influence than under `cross_entropy`. The
    source has sigmoid probabilities, and one class of target 1.

    Args:
      logits: log-probabilities up to a constant per example.
      targets: a distribution over the classes.
      class_counts: ignored.
      gamma: in [0, 1e4]; 0 is `cross_entropy`.

    Source: Lin et al. (2017), arXiv:1708.02002, Eq. 4.
    """
    check_number("gamma", gamma, at_least=0, at_most=1e4)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    factors = jnp.exp(gamma * _log_complement(log_probs))
    return -jnp.sum(targets * factors * jnp.where(targets == 0, 0.0, log_probs), axis=-1)


@suits("softmax")
def generalized_cross_entropy(
    logits: Float[Array, "*b k"],
    targets: Float[Array, "*b k"],
    class_counts: Float[Array, "k"] | None = None,
    *,
    q: float = 0.7,
) -> Float[Array, "*b"]:
    """Generalized cross-entropy sum_k t_k (1 - p_k^q) / q, with p = softmax(logits).

    The loss is at most 1 / q, so a wrong label has a bounded influence.

    Args:
      logits: log-probabilities up to a constant per example.
      targets: a distribution over the classes.
      class_counts: ignored.
      q: in [1e-30, 1]; the limit 0 is `cross_entropy`, and 1 is the mean absolute error up to a
        factor of 2.

    Source: Zhang and Sabuncu (2018), arXiv:1805.07836, Eq. 6.
    """
    check_number("q", q, at_least=1e-30, at_most=1)  # float32 holds 1 / q
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.sum(targets * jnp.expm1(q * log_probs) / q, axis=-1)


@suits("softmax", class_counts=True)
def logit_adjusted(
    logits: Float[Array, "*b k"],
    targets: Float[Array, "*b k"],
    class_counts: Float[Array, "k"],
    *,
    strength: float = 1.0,
) -> Float[Array, "*b"]:
    """Cross-entropy of logits + strength * log(prior), in nats.

    The prior is the share of each class in training. At strength 1 this is the balanced softmax,
    and the logits, to which evaluations add no prior, learn the posterior under equally frequent
    classes.

    Args:
      logits: log-probabilities up to a constant per example.
      targets: a distribution over the classes.
      class_counts: training examples per class. A class without examples counts as one example, so
        that the loss is finite and the model learns that the class is improbable.
      strength: in [0, 1e4]; 0 is `cross_entropy`.

    Source: Menon et al. (2021), arXiv:2007.07314, Eq. 10; Ren et al. (2020), arXiv:2007.10740, for
    the balanced softmax.
    """
    check_number("strength", strength, at_least=0, at_most=1e4)
    # Up to a constant, which the softmax ignores.
    log_prior = jnp.log(jnp.maximum(class_counts, 1))
    return cross_entropy(logits + strength * log_prior, targets)


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


def divergence(logits: Float[Array, "*b k"], targets: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """Kullback-Leibler divergence of softmax(logits) from the targets, in nats.

    It is the cross-entropy above the entropy of the targets, which no prediction can go below.
    """
    entropies = -jnp.sum(jax.scipy.special.xlogy(targets, targets), axis=-1)
    return cross_entropy(logits, targets) - entropies


def weighted_sum(values: Float[Array, "*b"], weights: Float[Array, "*b"]) -> Float[Array, ""]:
    """sum(w l); a value of weight 0 is absent and may be nan or infinite."""
    present = weights != 0
    return jnp.sum(weights * jnp.where(present, values, 0.0))


def weighted_mean(values: Float[Array, "*b"], weights: Float[Array, "*b"]) -> Float[Array, ""]:
    """sum(w l) / sum(w); 0 if all weights are 0."""
    mass = jnp.sum(weights)
    return weighted_sum(values, weights) / jnp.where(mass == 0, 1.0, mass)


def _log_complement(log_probs: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """log(1 - p_k), at least the lowest finite number.

    The largest probability may round to 1, so its complement is the sum of the other probabilities.
    """
    lowest = jnp.finfo(log_probs.dtype).min
    is_largest = jnp.arange(log_probs.shape[-1]) == jnp.argmax(log_probs, axis=-1, keepdims=True)
    others = jnp.where(is_largest, lowest, log_probs)
    of_largest = jax.nn.logsumexp(others, axis=-1, keepdims=True)
    return jnp.where(is_largest, of_largest, jnp.log1p(-jnp.exp(others)))
