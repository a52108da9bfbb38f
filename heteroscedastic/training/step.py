"""One step of training, one of evaluation; both written for one device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import losses
from heteroscedastic.batch import Batch
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.training.state import TrainState


class StepSums(NamedTuple):
    """Sums of a step of training."""

    loss: Float[Array, ""]  # sum of the losses of those present, without class weights or penalty
    gradient_norm: Float[Array, ""]  # before any clipping, times the number present
    metrics: Any  # of metrics.py


class Values(NamedTuple):
    """Of each example of a step; rows of weight 0 stand for none."""

    ids: Int[Array, "b"]
    weights: Float[Array, "b"]
    losses: Float[Array, "b"]


class Predictions(NamedTuple):
    """Of each example of an evaluation; rows of weight 0 stand for none."""

    ids: Int[Array, "b"]
    weights: Float[Array, "b"]
    labels: Int[Array, "b"] | Int[Array, "b m"]
    logits: Float[Array, "b k"]


def train_step(
    state: TrainState,
    batch: Batch,
    key: PRNGKeyArray,
    *,
    objective: Callable,
    optimizer: optax.GradientTransformation,
    metric: Callable,
) -> tuple[TrainState, StepSums, Values]:
    """The next state, sums over the batch, and values of each example."""
    value_and_grad = jax.value_and_grad(objective, has_aux=True)
    (_, outputs), grads = value_and_grad(state.params, state.model_state, batch, key)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    state = TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        model_state=outputs.model_state,
        opt_state=opt_state,
        scores=state.scores,
    )
    sums = StepSums(
        loss=losses.weighted_sum(outputs.losses, batch.weights),
        gradient_norm=optax.global_norm(grads) * jnp.sum(batch.weights),
        metrics=metric(outputs.logits, batch.labels, batch.weights),
    )
    return state, sums, Values(batch.ids, batch.weights, outputs.losses)


def eval_step(
    latent: LatentGaussian, batch: Batch, key: PRNGKeyArray, *, predictive: Callable, metric: Callable
) -> tuple[Any, Predictions]:
    """Sums over the batch, and the prediction of each example."""
    logits = predictive(key, latent)
    sums = metric(logits, batch.labels, batch.weights)
    return sums, Predictions(batch.ids, batch.weights, batch.labels, logits)
