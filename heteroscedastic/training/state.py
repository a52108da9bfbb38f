"""What training carries from step to step."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Scores(NamedTuple):
    """What prioritization knows of the n training examples, and its choice for the epoch.

    The fields are in alphabetical order, in which a checkpoint is read without a template.
    """

    epoch: Int[Array, ""]  # index of the epoch under way; -1 before the first
    num_steps: Int[Array, ""]  # of that epoch
    rows: Int[Array, "n"]  # chosen; padded with n
    start: Int[Array, ""]  # steps of the run before that epoch
    values: Float[Array, "n"]  # the last score of each example
    weights: Float[Array, "n"]  # of the rows

    def full_step(self, step: Int[Array, ""], full_length: int) -> Float[Array, ""]:
        """Progress of the run in full steps; see epochs.py."""
        ratio = full_length / self.num_steps
        return self.epoch * float(full_length) + (step - self.start) * ratio


class TrainState(NamedTuple):
    """Arrays only."""

    step: Int[Array, ""]  # steps taken
    params: Any
    model_state: Any  # batch statistics
    opt_state: Any
    scores: Scores | None = None  # None without prioritization


def no_scores(num_examples: int) -> Scores:
    """The scores before the first epoch."""
    number = jnp.zeros((), jnp.int32)
    rows = jnp.full(num_examples, num_examples, jnp.int32)
    zeros = jnp.zeros(num_examples, jnp.float32)
    return Scores(number - 1, number, rows, number, zeros, zeros)
