"""Steps in flight: dispatched to the device, whose results are not read yet.

A few steps are dispatched ahead, so that the device never waits for the host. Results are read in
order; a step whose loss is not finite ends the run before the next checkpoint.
"""

import collections
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from heteroscedastic.user_errors import UserError

_MAX_STEPS = 8
_MAX_SECONDS = 2.0  # of all steps in flight: a notice of preemption leaves half a minute


class NotFiniteError(UserError, ArithmeticError):
    """The loss or its gradient is nan or infinite."""


def finite(step: int, sums: Any) -> Any:
    """The sums of a step, after a check that loss and gradient are finite.

    Raises:
      NotFiniteError: one of them is not; names the step.
    """
    for name, value in (("loss", sums.loss), ("gradient", sums.gradient_norm)):
        if not np.isfinite(value):
            raise NotFiniteError(
                f"the {name} is {float(value)} at step {step}; the last good checkpoint stays."
                " Lower the learning rate, or set optimizer.clip_norm."
            )
    return sums


class StepsInFlight:
    """The steps in flight of a run, in order."""

    def __init__(self, alone: bool):
        """Starts with no step.

        A single process keeps one step in flight until it knows how long a step takes. Several
        processes always keep the same number, so that none ends the run for a loss that is not
        finite before the others read it; they agree on when to stop, see preemption.py.
        """
        self._steps: collections.deque = collections.deque()
        self._alone, self._limit = alone, 1 if alone else _MAX_STEPS
        self._finished_at = time.monotonic()

    def add(self, step: int, sums: Any) -> None:
        """Adds a dispatched step and its future sums."""
        self._steps.append((step, sums))

    def is_idle(self) -> bool:
        """Whether the device has no step left to compute."""
        return not self._steps or self._steps[-1][1].loss.is_ready()

    def done(self, everything: bool) -> Iterator[tuple[int, Any]]:
        """Waits for the oldest steps, and yields each when it is finished.

        Args:
          everything: whether to wait for all steps, or only until few enough are in flight.
        """
        while len(self._steps) > (0 if everything else self._limit):
            step, sums = self._steps.popleft()
            sums.loss.block_until_ready()
            since, self._finished_at = self._finished_at, time.monotonic()
            if self._alone:
                seconds = max(self._finished_at - since, 1e-3)
                self._limit = max(1, min(_MAX_STEPS, int(_MAX_SECONDS / seconds)))
            yield step, sums
