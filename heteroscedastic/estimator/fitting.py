"""Fits with early stopping, and the search of the temperature."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from heteroscedastic.data import resident
from heteroscedastic.estimator import programs
from heteroscedastic.estimator.programs import Epoch, Examples, Numbers, Spec
from heteroscedastic.training.state import TrainState

_MIN_HELD_OUT = 10  # with fewer examples there is no early stopping


class Arrays(NamedTuple):
    """Examples in NumPy."""

    inputs: Float[np.ndarray, "n d"]
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]
    weights: Float[np.ndarray, "n"]  # > 0

    def take(self, rows: np.ndarray) -> "Arrays":
        """The examples of these rows."""
        return Arrays(*(x[rows] for x in self))


class Stopping(NamedTuple):
    """When a fit stops."""

    max_epochs: int
    held_out_fraction: float
    patience: int  # epochs without improvement on the held-out examples


class Fit(NamedTuple):
    """A fit with one temperature."""

    state: TrainState  # of the best epoch, or of the last one without held-out examples
    temperature: float
    losses: list[float]  # mean training loss of each epoch
    held_out_losses: list[float]  # after each epoch; nan without held-out examples
    best_held_out_loss: float
    held_out_brier: float  # of the state; nan without held-out examples


def best_fit(
    spec: Spec,
    seed: int,
    arrays: Arrays,
    numbers: Numbers,
    temperatures: Sequence[float],
    stopping: Stopping,
) -> Fit:
    """The fit whose temperature has the smallest loss of the held-out examples.

    Args:
      spec: static settings.
      seed: of the held-out examples, initial weights, order and noise.
      arrays: examples, of which a part is held out.
      numbers: further settings; temperature and decay_steps are set here.
      temperatures: candidates; the first one is used if no examples are held out.
      stopping: when a fit stops.

    Raises:
      ValueError: all examples are held out, the training loss is not finite, or that of the
        held-out examples is never finite.
    """
    num_held_out = round(stopping.held_out_fraction * len(arrays.inputs))
    num_held_out = num_held_out if num_held_out >= _MIN_HELD_OUT else 0
    if num_held_out == len(arrays.inputs):
        raise ValueError(
            f"validation_fraction {stopping.held_out_fraction} of {num_held_out} examples leaves"
            " none to train on; choose a smaller one."
        )
    rows = resident.order(seed, 2**31, len(arrays.inputs))
    held_out, train = (arrays.take(x) for x in np.split(rows, [num_held_out]))
    data, held_out_data = (programs.examples(*part) for part in (train, held_out))
    fits = (
        _fit(
            spec,
            seed,
            data,
            held_out_data,
            len(train.inputs),
            numbers._replace(temperature=t),
            stopping,
        )
        for t in (temperatures if num_held_out else temperatures[:1])
    )
    return min(fits, key=lambda fit: fit.best_held_out_loss)


def one_epoch(
    spec: Spec, seed: int, state: TrainState | None, arrays: Arrays, numbers: Numbers, epoch: int
) -> Epoch:
    """Trains for one epoch from a state; None starts from initial weights."""
    data, nothing = (programs.examples(*x) for x in (arrays, arrays.take(np.zeros(0, int))))
    key = jax.random.key(seed)
    if state is None:
        state = programs.initial_state(spec, key, data.inputs, numbers)
    order = resident.order(seed, epoch, len(arrays.inputs))
    return _checked(programs.run_epoch(spec, key, state, data, nothing, order, numbers))


def _fit(
    spec: Spec,
    seed: int,
    data: Examples,
    held_out: Examples,
    num_examples: int,
    numbers: Numbers,
    stopping: Stopping,
) -> Fit:
    steps_per_epoch = resident.steps_per_epoch(num_examples, spec.batch_size)
    numbers = numbers._replace(decay_steps=float(steps_per_epoch * stopping.max_epochs))
    key = jax.random.key(seed)
    state = best_state = programs.initial_state(spec, key, data.inputs, numbers)
    best_loss, best_epoch, losses, held_out_losses = float("inf"), 0, [], []
    has_held_out = bool(held_out.weights.any())
    for epoch in range(stopping.max_epochs):
        order = resident.order(seed, epoch, num_examples)
        result = _checked(programs.run_epoch(spec, key, state, data, held_out, order, numbers))
        state = result.state
        losses.append(float(result.loss))
        held_out_losses.append(float(result.held_out_loss))
        if not has_held_out or held_out_losses[-1] < best_loss:  # false for nan
            best_state, best_loss, best_epoch = state, held_out_losses[-1], epoch
        if epoch - best_epoch >= stopping.patience:
            break
    if best_loss == float("inf"):
        raise ValueError(
            f"the loss of the held-out examples is {held_out_losses[-1]} after {len(losses)} epochs"
            " and was never finite; use a smaller learning_rate, or standardize=True."
        )
    held_out_brier = float(programs.brier(spec, best_state.params, held_out, numbers))
    return Fit(
        best_state, float(numbers.temperature), losses, held_out_losses, best_loss, held_out_brier
    )


def _checked(epoch: Epoch) -> Epoch:
    if not np.isfinite(epoch.loss):
        raise ValueError(
            f"the training loss is {float(epoch.loss)} after {int(epoch.state.step)} steps; use a"
            " smaller learning_rate, or standardize=True."
        )
    return epoch
