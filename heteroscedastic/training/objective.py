"""The sentence of the design as one function: parameters and a batch become a loss."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import losses
from heteroscedastic.batch import Batch
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.mixing import Mixed

_DROPOUT, _MIXING = zlib.crc32(b"dropout"), zlib.crc32(b"mixing")
Predictive = Callable[[PRNGKeyArray, LatentGaussian], Float[Array, "*b k"]]
Smoothing = Callable[[Batch, int], Float[Array, "*b k"]]
Mixing = Callable[[PRNGKeyArray, Any, Float[Array, "*b k"], Float[Array, "*b"]], Mixed]
Weighting = Callable[[Float[Array, "*b k"], Float[Array, "k"]], Float[Array, "*b"]]
Score = Callable[
    [PRNGKeyArray, LatentGaussian, Float[Array, "*b k"], Int[Array, "*b"]], Float[Array, "*b"]
]
Loss = Callable[[Float[Array, "*b k"], Float[Array, "*b k"], Float[Array, "k"]], Float[Array, "*b"]]


class Outputs(NamedTuple):
    """Intermediate values of a batch."""

    model_state: Any
    targets: Float[Array, "*b k"]  # mixed, if examples are
    latent: LatentGaussian
    logits: Float[Array, "*b k"]
    losses: Float[Array, "*b"]
    mass: Float[Array, ""]  # sum(w), class weights included


def objective(
    params: Any,
    model_state: Any,
    batch: Batch,
    key: PRNGKeyArray,
    *,
    model: nn.Module,
    smoothing: Smoothing,
    weighting: Weighting,
    predictive: Predictive,
    loss: Loss,
    class_counts: Float[Array, "k"],
    mixing: Mixing | None = None,
) -> tuple[Float[Array, ""], Outputs]:
    """Weighted mean of the losses of a batch, sum(w l) / sum(w).

    Args:
      params: of the model.
      model_state: its batch statistics.
      batch: its weights are multiplied with those of `weighting`.
      key: of the latent's noise; those of dropout and mixing follow from it.
      model: (inputs, present, train) -> latent.
      smoothing: (batch, num_classes) -> targets.
      weighting: (targets, class_counts) -> weights.
      predictive: (key, latent) -> logits.
      loss: (logits, targets, class_counts) -> losses.
      class_counts: of the labels in training, one for each of the K classes.
      mixing: (key, inputs, targets, weights) -> the same three; None mixes nothing.
    """
    inputs, targets, weights = batch.inputs, smoothing(batch, len(class_counts)), batch.weights
    if mixing is not None:
        inputs, targets, weights = mixing(
            jax.random.fold_in(key, _MIXING), inputs, targets, weights
        )
    latent, updated = model.apply(
        {"params": params, **model_state},
        inputs,
        weights > 0,
        train=True,
        mutable=list(model_state),
        rngs={"dropout": jax.random.fold_in(key, _DROPOUT)},
    )
    logits = predictive(key, latent)
    values = loss(logits, targets, class_counts)
    weights = weights * weighting(targets, class_counts)
    outputs = Outputs(updated, targets, latent, logits, values, jnp.sum(weights))
    return losses.weighted_mean(values, weights), outputs
