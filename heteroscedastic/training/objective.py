"""The sentence of the design as one function: parameters and a batch become a loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray

from heteroscedastic import losses
from heteroscedastic.batch import Batch


class Outputs(NamedTuple):
    """What a loss knows of each example."""

    model_state: Any
    logits: Float[Array, "b k"]
    losses: Float[Array, "b"]
    mass: Float[Array, ""]  # sum(w), class weights included


def objective(
    params: Any,
    model_state: Any,
    batch: Batch,
    key: PRNGKeyArray,
    *,
    model: nn.Module,
    smoothing: Callable,
    weighting: Callable,
    predictive: Callable,
    loss: Callable,
    class_counts: Float[Array, "k"],
) -> tuple[Float[Array, ""], Outputs]:
    """Weighted mean of the losses of a batch, sum(w l) / sum(w).

    Args:
      params: of the model.
      model_state: its batch statistics.
      batch: its weights are multiplied with those of `weighting`.
      key: of the latent's noise.
      model: (inputs, present, train) -> latent.
      smoothing: (batch, num_classes) -> targets.
      weighting: (targets, class_counts) -> weights.
      predictive: (key, latent) -> logits.
      loss: (logits, targets) -> losses.
      class_counts: of the labels in training.
    """
    latent, updated = model.apply(
        {"params": params, **model_state},
        batch.inputs,
        batch.weights > 0,
        train=True,
        mutable=list(model_state),
    )
    logits = predictive(key, latent)
    targets = smoothing(batch, logits.shape[-1])
    values = loss(logits, targets)
    weights = batch.weights * weighting(targets, class_counts)
    return losses.weighted_mean(values, weights), Outputs(updated, logits, values, jnp.sum(weights))
