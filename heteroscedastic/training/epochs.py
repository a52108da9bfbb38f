"""The position of a run in its epochs, which need not be of equal length."""

from typing import NamedTuple


class Epoch(NamedTuple):
    """An epoch of a run.

    What follows the progress of a run, such as the learning rate and the interval between
    checkpoints, is stated in full steps: steps of a run whose every epoch is of full length. An
    epoch of n steps makes as many full steps as every other epoch, n of its steps after another.
    """

    index: int  # from 0; -1 before the first epoch
    start: int  # steps of the run before it
    num_steps: int
    full_length: int  # steps of an epoch of full length

    @property
    def end(self) -> int:
        """Steps of the run up to its end."""
        return self.start + self.num_steps

    def passed(self, step: int) -> float:
        """Epochs that `step` steps of the run make, with the fraction of this one."""
        return self._parts(step) / self.num_steps

    def num_full(self, step: int, length: int = 1) -> int:
        """How many times `length` full steps have been completed after `step` steps of the run."""
        return self._parts(step) * self.full_length // (self.num_steps * length)

    def _parts(self, step: int) -> int:
        """Progress of the run in steps of this epoch."""
        return self.index * self.num_steps + step - self.start


def equal(step: int, length: int) -> Epoch:
    """The epoch of the step that follows `step` steps, where all epochs have this length."""
    index = step // length
    return Epoch(index, index * length, length, length)
