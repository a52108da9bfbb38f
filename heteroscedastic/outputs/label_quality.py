"""Labels that are likely wrong, from the outputs of any model.

issues = label_issues(labels, log_probs)  # log-probabilities, best out of fold
issues.rows[:10]  # positions of the ten most suspicious labels
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import ArrayLike
from scipy import special

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.outputs import calibration


class Scores(NamedTuple):
    """Scores of how likely each label is wrong: larger is more suspicious; the scales differ."""

    noise_free: Float[Array, "n"]  # -log softmax(loc) of the label, in nats
    probability: Float[Array, "n"]  # -log E[softmax(u)] of the label, in nats
    margin: Float[Array, "n"]  # largest probability of another class minus the label's
    # Largest loc_c - loc_label over classes c, in standard deviations of u_c - u_label, where each
    # utility includes the Gumbel noise of a softmax.
    standardised: Float[Array, "n"]


class LabelIssues(NamedTuple):
    """Labels with their scores, the most suspicious first."""

    rows: Int[np.ndarray, "n"]  # positions in the arguments
    labels: Shaped[np.ndarray, "n"]  # as given
    suggestions: Shaped[np.ndarray, "n"]  # the likeliest class other than the label
    scores: Float[np.ndarray, "n"]  # in nats; larger is more suspicious


def label_issues(
    labels: ArrayLike,
    log_probs: ArrayLike,
    latent: LatentGaussian | None = None,
) -> LabelIssues:
    """Ranks labels by how likely they are wrong.

    The score is -log softmax(loc) of the label, from the utilities without their noise; see
    docs/results/label_errors.md for how it compares. Without a latent it is the negative
    log-probability of the label. A model that has seen a label has partly memorised it, so the
    outputs should be out of fold, or of a model that stopped early.

    Args:
      labels: class of each example, integers [n] from 0 to k - 1.
      log_probs: log-probability of each class, [n, k], in nats; logits of a softmax also work.
      latent: Gaussian over the utilities of each example, such as the latent of
        `HeteroscedasticDense`.

    Raises:
      ValueError: the shapes do not match, a label is not a class, or an output is not a
        log-probability.
    """
    labels, log_probs = calibration.checked_outputs(labels, log_probs)
    utilities = log_probs if latent is None else _loc(latent, log_probs.shape)
    own = labels[:, None]
    scores = -np.take_along_axis(special.log_softmax(utilities, axis=-1), own, axis=-1)[:, 0]
    others = np.maximum(utilities, np.finfo(utilities.dtype).min)  # above the label itself
    np.put_along_axis(others, own, -np.inf, axis=-1)
    rows = np.argsort(-scores, kind="stable")
    return LabelIssues(rows, labels[rows], np.argmax(others, axis=-1)[rows], scores[rows])


def class_quality(
    labels: Int[np.ndarray, "n"], scores: Float[np.ndarray, "n"], num_classes: int
) -> Float[np.ndarray, "k"]:
    """The mean probability that a model gives to the labels of each class.

    A class with a small value has many labels that the model contradicts.

    Args:
      labels: class of each example.
      scores: negative log-probability of each label in nats, such as `Scores.noise_free`.
      num_classes: k.

    Returns:
      Numbers in [0, 1]; nan for a class without labels.
    """
    counts = np.bincount(labels, minlength=num_classes)
    total = np.bincount(labels, np.exp(-np.asarray(scores, np.float64)), minlength=num_classes)
    return np.divide(total, counts, out=np.full(num_classes, np.nan), where=counts > 0)


def scores(
    latent: LatentGaussian, log_probs: Float[Array, "n k"], labels: Int[Array, "n"]
) -> tuple[Scores, Int[Array, "n"]]:
    """All scores of the labels, and the class other than the label with the largest loc.

    Args:
      latent: Gaussian over the utilities.
      log_probs: log E[softmax(u)], in nats.
      labels: class of each example.
    """
    own = jax.nn.one_hot(labels, latent.loc.shape[-1])

    def label_entries(values):
        return jnp.take_along_axis(values, labels[:, None], axis=-1)

    def other_entries(values):
        return jnp.where(own > 0, -jnp.inf, values)

    variances, row = latent_lib.variance(latent), latent_lib.covariance_times(latent, own)
    # A softmax is the argmax of utilities with independent standard Gumbel noise, of variance
    # pi^2 / 6 each.
    variance = jnp.maximum(variances + label_entries(variances) - 2 * row, 0.0) + jnp.pi**2 / 3
    distance = (latent.loc - label_entries(latent.loc)) / jnp.sqrt(variance)
    probs = jnp.exp(log_probs)
    values = Scores(
        noise_free=-label_entries(jax.nn.log_softmax(latent.loc, axis=-1))[:, 0],
        probability=-label_entries(log_probs)[:, 0],
        margin=jnp.max(other_entries(probs), axis=-1) - label_entries(probs)[:, 0],
        standardised=jnp.max(other_entries(distance), axis=-1),
    )
    loc = jnp.maximum(latent.loc, jnp.finfo(latent.loc.dtype).min)  # above the label itself
    return values, jnp.argmax(other_entries(loc), axis=-1)


def _loc(latent: LatentGaussian, shape: tuple[int, ...]) -> Float[np.ndarray, "n k"]:
    loc = np.asarray(latent_lib.check(latent).loc, np.float64)
    if loc.shape != shape:
        raise ValueError(
            f"latent.loc has shape {loc.shape}, but log_probs have shape {shape}; give the latent"
            " of the same examples and classes."
        )
    return loc
