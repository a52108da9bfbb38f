"""How the steps of a run lie in its epochs, which need not be of equal length."""

import bisect
import itertools
from typing import NamedTuple


class Epochs(NamedTuple):
    """Steps of each epoch: those of the first ones, then a constant."""

    rest: int  # steps of every epoch after the first ones; at least 1
    first: tuple[int, ...] = ()

    def num_steps(self, epoch: int) -> int:
        """Steps of one epoch."""
        return self.first[epoch] if epoch < len(self.first) else self.rest

    def position(self, step: int) -> tuple[int, int]:
        """The epoch of the step that follows `step` steps, and its index in that epoch."""
        ends = list(itertools.accumulate(self.first))
        if not ends or step >= ends[-1]:
            before = ends[-1] if ends else 0
            epoch, start = divmod(step - before, self.rest)
            return len(ends) + epoch, start
        epoch = bisect.bisect_right(ends, step)
        return epoch, step - (ends[epoch - 1] if epoch else 0)

    def passed(self, step: int) -> float:
        """Epochs that `step` steps make, with the fraction of the last one."""
        before = sum(self.first)
        if step >= before:
            return len(self.first) + (step - before) / self.rest
        epoch, start = self.position(step)
        return epoch + start / self.first[epoch]
