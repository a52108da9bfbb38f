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
from heteroscedastic.training import microbatches
from heteroscedastic.training.state import TrainState

_MAX_CLASSES = 2000
_NUM_KEPT = 100


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
    """Of each example of an evaluation; rows of weight 0 stand for none.

    Labels of yes/no answers are lists, of which one label an example makes lists of one. Above
    2,000 classes only the 100 largest logits are kept, and what tells the loss of the labels.
    """

    ids: Int[Array, "b"]
    weights: Float[Array, "b"]
    labels: Int[Array, "b"] | Int[Array, "b m"] | None  # None where there are right ones instead
    logits: Float[Array, "b c"]  # of every class, or the largest, falling
    right_labels: Int[Array, "b m"] | None = None  # lists of what is right, under a softmax
    classes: Int[Array, "b c"] | None = None  # whose logits they are; None is every one, in order
    label_logits: Float[Array, "b"] | Float[Array, "b m"] | None = (
        None  # the labels' own, nan at padding
    )
    # Of all classes log sum exp under softmax; of yes/no answers sum log(1 + exp), the loss of an
    # example without labels. Less the labels' logits either is the loss of an example.
    log_normalizer: Float[Array, "b"] | None = None


def train_step(
    state: TrainState,
    feed: Any,
    key: PRNGKeyArray,
    *,
    objective: Callable,
    optimizer: optax.GradientTransformation,
    metric: Callable,
    batch_of: Callable[[Any], Batch] = lambda feed: feed,
    num_microbatches: int = 1,
) -> tuple[TrainState, StepSums, Values]:
    """The next state, sums over the batch, and values of each example.

    Args:
      state: the last one.
      feed: of the whole batch.
      key: of the latent's noise.
      objective: (params, model_state, batch, key) -> loss, outputs.
      optimizer: of the parameters.
      metric: (logits, labels, weights) -> sums.
      batch_of: feed -> batch, of the examples of a part of a feed too.
      num_microbatches: parts that the batch is cut into and that follow each other, see
        microbatches.py.
    """

    def part(feed, key):
        batch = batch_of(feed)
        value_and_grad = jax.value_and_grad(objective, has_aux=True)
        (_, outputs), gradient = value_and_grad(state.params, state.model_state, batch, key)
        sums = microbatches.Sums(
            weight=jnp.sum(batch.weights),
            loss=losses.weighted_sum(outputs.losses, batch.weights),
            metrics=metric(outputs.logits, batch.labels, batch.weights),
        )
        values = Values(batch.ids, batch.weights, outputs.losses)
        return microbatches.Part(gradient, outputs.model_state, outputs.mass, sums), values

    whole, values = microbatches.whole(part, feed, key, num_microbatches)
    updates, opt_state = optimizer.update(whole.gradient, state.opt_state, state.params)
    state = TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        model_state=whole.model_state,
        opt_state=opt_state,
        scores=state.scores,
    )
    sums = StepSums(
        loss=whole.sums.loss,
        gradient_norm=optax.global_norm(whole.gradient) * whole.sums.weight,
        metrics=whole.sums.metrics,
    )
    return state, sums, values


def eval_step(
    latent: LatentGaussian,
    batch: Batch,
    key: PRNGKeyArray,
    *,
    predictive: Callable,
    metric: Callable,
    yes_no: bool,
) -> tuple[Any, Predictions]:
    """Sums over the batch, and the prediction of each example; `yes_no` where the logits are
    log-odds.
    """
    logits = predictive(key, latent)
    sums = metric(logits, batch.labels, batch.weights)
    labels = batch.labels[:, None] if yes_no and batch.labels.ndim == 1 else batch.labels
    predictions = bounded(Predictions(batch.ids, batch.weights, labels, logits), yes_no)
    if labels.ndim == 2 and not yes_no:
        predictions = predictions._replace(labels=None, right_labels=labels)
    return sums, predictions


def bounded(predictions: Predictions, yes_no: bool) -> Predictions:
    """The predictions with no more of the logits than is kept; on the device, so that a split's fit
    in memory.
    """
    _, _, labels, logits, *_ = predictions
    if logits.shape[-1] <= _MAX_CLASSES:
        return predictions
    lists = labels if labels.ndim == 2 else labels[:, None]
    own = jnp.take_along_axis(logits, jnp.maximum(lists, 0), axis=-1)
    own = jnp.where(lists >= 0, own, jnp.nan)
    largest, classes = jax.lax.top_k(logits, _NUM_KEPT)  # of equal ones the first
    return predictions._replace(
        logits=largest,
        classes=classes.astype(jnp.int32),
        label_logits=own if labels.ndim == 2 else own[:, 0],
        log_normalizer=jnp.sum(jax.nn.softplus(logits), axis=-1)
        if yes_no
        else jax.nn.logsumexp(logits, axis=-1),
    )
