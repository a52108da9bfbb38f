"""What a task gives to a run."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray

from heteroscedastic.batch import Batch
from heteroscedastic.links import LabelForm, Link
from heteroscedastic.training.objective import Outputs, Predictive
from heteroscedastic.training.step import Predictions

Answers = Literal["any"] | None  # of an evaluation: "any" label of a list is right (ReaL)

_MAX_CLASSES = 2000
NUM_LARGEST = 100  # logits kept of each example of more classes


@runtime_checkable
class Task(Protocol):
    """The kind of question that is asked of an input; `config.task` names it.

    A task has a module of its own. A new loss, weighting or predictive declares its link
    (`links.suits`) and changes no task; a new task changes no other.
    """

    name: str
    link: Link
    labels: LabelForm  # of what a row of logits is of
    stored_labels: LabelForm  # of an example of the data
    rows: Literal["example", "region"]  # what a row of logits is of
    extras: tuple[str, ...]  # that config.data.extras must name
    modules: tuple[str, ...]  # sections of the config whose modules make the model
    validation_metrics: tuple[str, ...]  # that validation may choose a checkpoint by

    # (the modules of `modules`) -> the model: (inputs, present, train) -> latent, with a method
    # `features`
    model: Callable[..., nn.Module]

    # (params, model_state, batch, key, *, model, smoothing, weighting, predictive, loss,
    # class_counts, mixing) -> loss, Outputs
    objective: Callable[..., tuple[Float[Array, ""], Outputs]]

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model takes beside inputs and present, by keyword."""
        ...

    def predicted(self, predictive: Predictive, key: PRNGKeyArray, latent: Any) -> Any:
        """The logits of an evaluation, or what stands for them, from what the model returns."""
        ...

    def training_sums(self, outputs: Outputs, batch: Batch) -> Any:
        """Sums over a batch of training; their field `weight` is the number of examples.

        The outputs hold the targets.
        """
        ...

    def evaluation_sums(self, logits: Any, batch: Batch, answers: Answers) -> Any:
        """Sums over a batch of an evaluation."""
        ...

    def means(self, sums: Any) -> dict[str, float]:
        """The metrics by name, from sums over all examples."""
        ...

    def predictions(
        self, logits: Any, batch: Batch, answers: Answers, num_largest: int = NUM_LARGEST
    ) -> Any:
        """The record of each example of an evaluation, as predictions/NAME.npz holds it."""
        ...

    def extra_results(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Metrics of a whole evaluation that no sums over batches give, such as AP."""
        ...

    def document(self, predictions: Mapping[str, np.ndarray], data_name: str) -> Any:
        """What predictions/NAME.json holds of this data set; None writes no such file."""
        ...


def check_parts(task: Task, parts: Mapping[str, Callable]) -> None:
    """Checks that predictive, smoothing, loss and weighting suit the task.

    Args:
      task: of the config.
      parts: functions by section of the config; each declares what it suits (`links.suits`).

    Raises:
      ValueError: names the section, what its function suits and what the task is.
    """
    for section, function in parts.items():
        name = function.__name__
        if not hasattr(function, "suits"):
            raise ValueError(
                f"config.{section} names {name!r}, which does not declare its link; decorate it"
                " with heteroscedastic.links.suits."
            )
        links = function.suits.links
        if task.link not in links:
            raise ValueError(
                f"config.{section} {name!r} is of the link {' or '.join(links)}, but config.task"
                f" {task.name!r} has the link {task.link}; change one of the two."
            )
        if task.labels not in function.suits.labels:
            raise ValueError(
                f"config.{section} {name!r} needs one label per example, but config.task"
                f" {task.name!r} has lists of labels; change one of the two."
            )


def bounded(
    predictions: Predictions,
    log_normalizer: Callable[[Float[Array, "*b k"]], Float[Array, "*b"]],
    num_largest: int = NUM_LARGEST,
) -> Predictions:
    """The predictions, above 2,000 classes with the largest logits of each example alone.

    It runs on the device, so that the predictions of a split fit into memory.

    Args:
      predictions: with the logits of every class.
      log_normalizer: minus which the labels' logits are the negative loss of an example.
      num_largest: logits that are kept of each example; all, if there are no more.
    """
    labels, logits = predictions.labels, predictions.logits
    if logits.shape[-1] <= max(_MAX_CLASSES, num_largest):
        return predictions
    in_lists = labels.ndim > predictions.weights.ndim
    lists = labels if in_lists else labels[..., None]
    own = jnp.take_along_axis(logits, jnp.maximum(lists, 0), axis=-1)
    own = jnp.where(lists >= 0, own, jnp.nan)
    largest, classes = jax.lax.top_k(logits, num_largest)  # of equal logits the first
    return predictions._replace(
        logits=largest,
        classes=classes.astype(jnp.int32),
        label_logits=own if in_lists else own[..., 0],
        log_normalizer=log_normalizer(logits),
    )
