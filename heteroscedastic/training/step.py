"""One step of training, one of evaluation; both written for one device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import losses
from heteroscedastic.batch import Batch
from heteroscedastic.training import microbatches
from heteroscedastic.training.objective import Outputs, Score
from heteroscedastic.training.state import TrainState


class StepSums(NamedTuple):
    """Sums of a step of training."""

    loss: Float[Array, ""]  # sum of the losses of those present, without class weights or penalty
    gradient_norm: Float[Array, ""]  # before any clipping, times the number present
    # Sum of the divergences of the predictions from the targets; None if it is not recorded.
    divergence: Float[Array, ""] | None
    metrics: Any  # of metrics.py
    score: Float[Array, ""] | None = None  # sum of the scores; None if they are not computed


class Values(NamedTuple):
    """Of each example of a step; rows of weight 0 stand for none."""

    ids: Int[Array, "*b"]
    weights: Float[Array, "*b"]
    losses: Float[Array, "*b"]
    scores: Float[Array, "*b"] | None = None  # of score.py


class Predictions(NamedTuple):
    """Of each example of an evaluation; rows of weight 0 stand for none.

    Labels of yes/no answers are lists, of which one label an example makes lists of one. Above
    2,000 classes only the largest logits are kept, and what determines the loss of the labels.
    """

    ids: Int[Array, "*b"]
    weights: Float[Array, "*b"]
    labels: Int[Array, "*b"] | Int[Array, "*b m"] | None  # None where there are right ones instead
    logits: Float[Array, "*b c"]  # of every class, or the largest, falling
    right_labels: Int[Array, "*b m"] | None = None  # lists of which one is right
    classes: Int[Array, "*b c"] | None = None  # whose logits they are; None is every one, in order
    label_logits: Float[Array, "*b"] | Float[Array, "*b m"] | None = (
        None  # the labels' own, nan at padding
    )
    # Of all classes log sum exp under softmax; of yes/no answers sum log(1 + exp), the loss of an
    # example without labels. Less the labels' logits either is the loss of an example.
    log_normalizer: Float[Array, "*b"] | None = None
    extras: dict[str, Array] = {}  # that config.data.extras names, and the objectness of boxes


def train_step(
    state: TrainState,
    feed: Any,
    key: PRNGKeyArray,
    *,
    objective: Callable,
    optimizer: optax.GradientTransformation,
    metric: Callable[[Outputs, Batch], Any],
    batch_of: Callable[[Any], Batch] = lambda feed: feed,
    num_microbatches: int = 1,
    records_divergence: bool = False,
    score: Score | None = None,
    full_length: int | None = None,
) -> tuple[TrainState, StepSums, Values]:
    """The next state, sums over the batch, and values of each example.

    Args:
      state: the last one.
      feed: of the whole batch.
      key: of the latent's noise.
      objective: (params, model_state, batch, key) -> loss, outputs.
      optimizer: of the parameters.
      metric: (outputs, batch) -> sums; the outputs hold the targets.
      batch_of: feed -> batch, of the examples of a part of a feed too.
      num_microbatches: parts that the batch is cut into and that follow each other, see
        microbatches.py.
      records_divergence: whether to sum `losses.divergence`, which requires softmax.
      score: (key, latent, logits, labels) -> scores; None computes none.
      full_length: steps of an epoch of all examples. The learning rate of a state with scores
        follows the epochs that have passed.
    """

    def part(feed, key):
        batch = batch_of(feed)
        value_and_grad = jax.value_and_grad(objective, has_aux=True)
        (_, outputs), gradient = value_and_grad(state.params, state.model_state, batch, key)
        sums = microbatches.Sums(
            weight=jnp.sum(batch.weights),
            loss=losses.weighted_sum(outputs.losses, batch.weights),
            divergence=(
                losses.weighted_sum(
                    losses.divergence(outputs.logits, outputs.targets), batch.weights
                )
                if records_divergence
                else None
            ),
            metrics=metric(outputs, batch),
        )
        values = Values(batch.ids, batch.weights, outputs.losses)
        if score is not None:
            scores = score(key, outputs.latent, outputs.logits, batch.labels)
            values = values._replace(scores=scores)
        return microbatches.Part(gradient, outputs.model_state, outputs.mass, sums), values

    whole, values = microbatches.whole(part, feed, key, num_microbatches)
    progress = {}
    if state.scores is not None:
        progress["schedule_step"] = state.scores.full_step(state.step, full_length)
    updates, opt_state = optimizer.update(whole.gradient, state.opt_state, state.params, **progress)
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
        divergence=whole.sums.divergence,
        metrics=whole.sums.metrics,
        score=None if score is None else losses.weighted_sum(values.scores, values.weights),
    )
    return state, sums, values


def eval_step(
    latent: Any,
    batch: Batch,
    key: PRNGKeyArray,
    *,
    predictive: Callable[[PRNGKeyArray, Any], Any],
    metric: Callable[[Any, Batch], Any],
    record: Callable[[Any, Batch], Any],
) -> tuple[Any, Any]:
    """Sums over the batch, and the prediction of each example.

    Args:
      latent: what the model returns, such as the latent of the examples.
      batch: their labels and weights.
      key: of the latent's noise.
      predictive: (key, latent) -> logits, or what stands for them (`tasks.task.Task.predicted`).
      metric: (logits, batch) -> sums.
      record: (logits, batch) -> what is kept of each example.
    """
    logits = predictive(key, latent)
    return metric(logits, batch), record(logits, batch)
