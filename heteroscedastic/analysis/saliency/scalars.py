"""The numbers of a latent that a map explains: (latent) -> one number per example.

Each function takes the latent of a head, which is in units of the temperature. Those that report
utilities or their variances multiply it by the temperature first, so the result is in units of the
utilities themselves and does not depend on the temperature. Their other arguments are bound with
`functools.partial`.

Explain a utility, and not a log-probability, to see what speaks for a class: the gradient of a
log-probability subtracts the mean over the classes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian, Noise
from heteroscedastic.links import Link

Temperature = float | Float[ArrayLike, ""]
_BATCH_AXES = LatentGaussian(0, 0, 0, 0, None, None)


def utility(
    latent: LatentGaussian, classes: Int[Array, "b *m"], temperature: Temperature = 1.0
) -> Float[Array, "b"]:
    """The mean utility of one class per example, or the sum of those of a list of classes.

    Args:
      latent: of the head.
      classes: of each example; a list is padded with -1.
      temperature: of the head.
    """
    return temperature * _entries(latent.loc, classes)


def utility_difference(
    latent: LatentGaussian, pairs: Int[Array, "b 2"], temperature: Temperature = 1.0
) -> Float[Array, "b"]:
    """The mean utility of the first class minus that of the second, u_i - u_j."""
    first, second = (_entries(latent.loc, pairs[:, i]) for i in (0, 1))
    return temperature * (first - second)


def log_prob(
    latent: LatentGaussian, classes: Int[Array, "b *m"], noise: Noise, link: Link = "softmax"
) -> Float[Array, "b"]:
    """Log of the probability of a class: E[softmax(u)] or E[sigmoid(u)] over fixed points.

    Args:
      latent: of the head.
      classes: of each example; of a list, padded with -1, the sum.
      noise: `fixed_noise`; memory grows with the number of its points.
      link: "softmax" or "sigmoid".
    """
    utilities = latent_lib.utilities(latent, noise)
    log_link = jax.nn.log_softmax if link == "softmax" else jax.nn.log_sigmoid
    log_probs = log_link(utilities)
    listed = classes.reshape(len(classes), -1)
    chosen = jnp.take_along_axis(log_probs, jnp.maximum(listed, 0)[None], axis=-1)
    means = jax.nn.logsumexp(chosen, axis=0) - jnp.log(len(chosen))
    return jnp.sum(jnp.where(listed < 0, 0.0, means), axis=-1)


def pair_variance(
    latent: LatentGaussian, pairs: Int[Array, "b 2"], temperature: Temperature = 1.0
) -> Float[Array, "b"]:
    """The variance of u_i - u_j, all that a softmax depends on of the noise of two classes."""

    def of_example(latent, pair):
        return latent_lib.difference_variance_entries(latent, pair[:1], pair[1:])[0]

    variances = jax.vmap(of_example, in_axes=(_BATCH_AXES, 0))(latent, pairs)
    return temperature**2 * variances


def label_variance(
    latent: LatentGaussian, classes: Int[Array, "b"], temperature: Temperature = 1.0
) -> Float[Array, "b"]:
    """The variance of the utility of one class per example, for a sigmoid."""

    def of_example(latent, label):
        return latent_lib.covariance_entries(latent, label[None], label[None])[0]

    variances = jax.vmap(of_example, in_axes=(_BATCH_AXES, 0))(latent, classes)
    return temperature**2 * variances


def mutual_information(
    latent: LatentGaussian, noise: Noise, link: Link = "softmax"
) -> Float[Array, "b"]:
    """The mutual information of label and noise at fixed points, in nats.

    It is `ensembles.EntropySplit.mutual` of the points, as a function that can be differentiated.
    Under a sigmoid it is summed over the classes.

    Args:
      latent: of the head; `loc` is finite.
      noise: `fixed_noise`; memory grows with the number of its points.
      link: "softmax" or "sigmoid".
    """
    log_probs, mean = _log_probs(latent, noise, link)
    divergence = jnp.sum(jnp.exp(log_probs) * (log_probs - mean), axis=(-2, -1))
    return jnp.mean(divergence, axis=0)


def entropy(latent: LatentGaussian, noise: Noise, link: Link = "softmax") -> Float[Array, "b"]:
    """The entropy of the prediction at fixed points, in nats; see `mutual_information`.

    It is `ensembles.EntropySplit.total`, and does not tell noise from classes that look alike.
    """
    _, mean = _log_probs(latent, noise, link)
    return -jnp.sum(jnp.exp(mean) * mean, axis=(-2, -1))


def fixed_noise(latent: LatentGaussian, num_samples: int, points: str = "sobol") -> Noise:
    """Standard-normal points for `latent.utilities`, the same for every example.

    Which class gets which point depends on the likeliest classes of the latent, so points that are
    drawn anew would jump along a path of latents. Draw them once, and use them on the whole path.

    Args:
      latent: of the examples themselves; with `num_samples` points of this kind.
      num_samples: a power of two for Sobol points.
      points: "independent", "antithetic" or "sobol".
    """
    latent = jax.lax.stop_gradient(latent)
    source = latent_lib.noise_source(None, latent, num_samples, points)
    return source(jnp.arange(num_samples))


def _log_probs(latent, noise, link):
    """Log-probabilities of outcomes at each point [s, b, k or 1, outcomes], and of their mean."""
    utilities = latent_lib.utilities(latent, noise)
    if link == "sigmoid":
        log_probs = jnp.stack([jax.nn.log_sigmoid(x) for x in (utilities, -utilities)], axis=-1)
    else:
        log_probs = jax.nn.log_softmax(utilities)[..., None, :]
    return log_probs, jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(log_probs))


def _entries(values: Float[Array, "b k"], classes: Int[Array, "b *m"]) -> Float[Array, "b"]:
    """The value of each example's class, or the sum of those of its list, padded with -1."""
    classes = classes.reshape(len(classes), -1)
    chosen = jnp.take_along_axis(values, jnp.maximum(classes, 0), axis=-1)
    return jnp.sum(jnp.where(classes < 0, 0.0, chosen), axis=-1)
