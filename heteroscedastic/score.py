"""Scores of examples for their selection: (key, latent, logits, labels) -> one number per example.

A large score marks an example of which the model is uncertain, or that it predicts badly.
`config.score` names a function.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic import losses, sampling
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits

__all__ = [  # choices of config.score
    "entropy",
    "expected_entropy",
    "gradient_norm",
    "latent_information",
    "loss",
    "margin",
]


@suits("softmax", labels=("one",))
def entropy(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    logits: Float[Array, "*b k"],
    labels: Int[Array, "*b"],
) -> Float[Array, "*b"]:
    """Entropy of the predicted distribution, from 0 to log K nats.

    Args:
      key: ignored.
      latent: ignored.
      logits: log-probabilities up to a constant per example.
      labels: ignored.

    Source: Tata et al. (2022), arXiv:2210.06592, who divide by log K, which changes no order.
    """
    return _entropy(logits)


@suits("softmax", labels=("one",))
def margin(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    logits: Float[Array, "*b k"],
    labels: Int[Array, "*b"],
) -> Float[Array, "*b"]:
    """One minus the margin, the difference of the two largest probabilities; in [0, 1].

    Args:
      key: ignored.
      latent: ignored.
      logits: log-probabilities up to a constant per example.
      labels: ignored.
    """
    if logits.shape[-1] == 1:  # certain, and without a second probability
        return jnp.zeros(logits.shape[:-1], logits.dtype)
    largest, _ = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), 2)
    return 1 - (largest[..., 0] - largest[..., 1])


@suits("softmax", labels=("one",))
def loss(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    logits: Float[Array, "*b k"],
    labels: Int[Array, "*b"],
) -> Float[Array, "*b"]:
    """Cross-entropy of the label in nats, whatever the loss and the smoothing of training are.

    Args:
      key: ignored.
      latent: ignored.
      logits: log-probabilities up to a constant per example.
      labels: of the examples; of a mixed example that of its own image.
    """
    return losses.cross_entropy(logits, _one_hot(labels, logits))


@suits("softmax", labels=("one",))
def gradient_norm(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    logits: Float[Array, "*b k"],
    labels: Int[Array, "*b"],
) -> Float[Array, "*b"]:
    """Euclidean norm of p - y, the gradient of the cross-entropy by the logits; at most sqrt(2).

    Args:
      key: ignored.
      latent: ignored.
      logits: log-probabilities up to a constant per example.
      labels: of the examples; of a mixed example that of its own image.

    Source: EL2N of Paul et al. (2021), arXiv:2107.07075, Definition 2.2, of a single model.
    """
    return jnp.linalg.norm(jax.nn.softmax(logits, axis=-1) - _one_hot(labels, logits), axis=-1)


@suits("softmax", labels=("one",))
def expected_entropy(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    logits: Float[Array, "*b k"],
    labels: Int[Array, "*b"],
    *,
    num_samples: int,
    points: str = "independent",
) -> Float[Array, "*b"]:
    """Mean entropy of softmax(u) over samples of the utilities u, in nats.

    What remains of the entropy when the noise of the utilities is known. Memory does not grow with
    num_samples.

    Args:
      key: of the samples, which are those of a predictive with the same key and settings; None uses
        fixed points.
      latent: Gaussian over the utilities.
      logits: ignored.
      labels: ignored.
      num_samples: per example, 1 to 2**24; a power of two for Sobol points.
      points: "independent", "antithetic" or "sobol"; see sampling.py.

    Raises:
      ValueError: a setting is out of range, or the latent is invalid.
    """
    sampling.check_num_points(num_samples)
    sampling.sampler(points)
    latent = latent_lib.check(latent)
    if not latent_lib.has_noise(latent):
        num_samples, points = 1, "independent"
    source = latent_lib.noise_source(key, latent, num_samples, points)
    chunk_size = min(sampling.chunk_size(latent_lib.values_per_sample(latent)), num_samples)

    def body(total, indices):
        return total + jnp.sum(_entropy(latent_lib.utilities(latent, source(indices))), axis=0)

    start = jnp.zeros(latent.loc.shape[:-1], latent.loc.dtype)
    return sampling.over_chunks(body, start, num_samples, chunk_size) / num_samples


@suits("softmax", labels=("one",))
def latent_information(
    key: PRNGKeyArray | None,
    latent: LatentGaussian,
    logits: Float[Array, "*b k"],
    labels: Int[Array, "*b"],
    *,
    num_samples: int,
    points: str = "independent",
) -> Float[Array, "*b"]:
    """`entropy` minus `expected_entropy`: information of the utilities about the label, in nats.

    It is 0 without noise. It is >= 0 if the logits are the mean of the same samples; with another
    predictive the difference may be negative.

    Args:
      key: see `expected_entropy`.
      latent: Gaussian over the utilities.
      logits: log-probabilities up to a constant per example.
      labels: ignored.
      num_samples: see `expected_entropy`.
      points: see `expected_entropy`.
    """
    expected = expected_entropy(key, latent, logits, labels, num_samples=num_samples, points=points)
    return _entropy(logits) - expected


def _entropy(logits: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.sum(jnp.where(jnp.isneginf(log_probs), 0.0, jnp.exp(log_probs) * log_probs), -1)


def _one_hot(labels: Int[Array, "*b"], logits: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    return jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
