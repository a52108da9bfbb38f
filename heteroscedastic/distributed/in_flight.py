"""Steps that were dispatched and not looked at: enough of them to keep a device busy, few enough to
stop in time.
"""

import collections
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from heteroscedastic.user_errors import UserError

_MOST = 8
_SECONDS = 2.0  # that they may take together: a notice of preemption leaves half a minute


class NotFiniteError(UserError, ArithmeticError):
    """The loss or its gradient stopped being a number."""


def finite(step: int, sums: Any) -> Any:
    """The sums of a step, once loss and gradient are known to be finite.

    Raises:
      NotFiniteError: one is not; names the step.
    """
    for name, value in (("loss", sums.loss), ("gradient", sums.gradient_norm)):
        if not np.isfinite(value):
            raise NotFiniteError(
                f"the {name} is {float(value)} at step {step}; the last good checkpoint stays."
                " Lower the"
                " learning rate, or set optimizer.clip_norm."
            )
    return sums


class UnderWay:
    """Of a run, the oldest first."""

    def __init__(self, alone: bool):
        """Of one process there is at first one step, until it is known how long it takes.

        Of several all look at a step after as many others, lest one that finds it not finite leaves
        before the rest; they agree on when to stop, see termination.py.
        """
        self._steps: collections.deque = collections.deque()
        self._alone, self._most, self._since = alone, 1 if alone else _MOST, time.monotonic()

    def add(self, step: int, sums: Any) -> None:
        """A step that was dispatched, and what it will have."""
        self._steps.append((step, sums))

    def is_idle(self) -> bool:
        """Whether the device has nothing to do."""
        return not self._steps or self._steps[-1][1].loss.is_ready()

    def done(self, everything: bool) -> Iterator[tuple[int, Any]]:
        """Waits for the oldest until few enough are left, or none, and gives each once it is done."""
        while len(self._steps) > (0 if everything else self._most):
            step, sums = self._steps.popleft()
            sums.loss.block_until_ready()
            since, self._since = self._since, time.monotonic()
            if self._alone:
                self._most = max(1, min(_MOST, int(_SECONDS / max(self._since - since, 1e-3))))
            yield step, sums
