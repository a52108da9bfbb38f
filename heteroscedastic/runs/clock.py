"""How a run spends its time."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from heteroscedastic.distributed import hosts

_ACTIVITIES = ("start", "input", "evaluation", "checkpoints", "scores")
# Training is input-bound if it spends more than this share of its time waiting for data.
_INPUT_BOUND = 0.1


class Clock:
    """Seconds of a run by activity, summed over its processes, of which each resumed the last.

    `start` is the time before the first step: reading, restoring, compiling. `input` is the time in
    which the devices are idle because the next batch is not ready. `evaluation` includes
    validation. `checkpoints` is the time spent waiting for checkpoints to be written. `scores`
    is the time of scoring and choosing examples between epochs. `steps`, the rest, is the time of
    training steps.
    """

    def __init__(self, start_time: float, state: dict[str, Any] | None = None):
        """Starts the clock, or continues it from a checkpoint.

        Time between the checkpoint and the end of the process that saved it is not counted.

        Args:
          start_time: start of this process, on time.monotonic().
          state: state of the clock in the checkpoint.
        """
        state = state or {}
        self._seconds = {name: state.get(name, 0.0) for name in _ACTIVITIES}
        # Start of the run on time.monotonic(), as if all its processes had run without pauses.
        self._start_time = start_time - state.get("seconds", 0.0)
        # Start of the first process on time.time().
        self._first_start = state.get("began_at", time.time() - (time.monotonic() - start_time))
        # Start of this process, minus the seconds counted so far; None after its first step.
        self._start_offset: float | None = start_time - sum(self._seconds.values())
        self._interval = self._totals()
        others = sum(seconds for name, seconds in self._seconds.items() if name != "input")
        self._former_training = state.get("seconds", 0.0) - others
        # Step and seconds of training at the last call of `rate`.
        self._last_rate: tuple[int, float] | None = None

    def end_start(self, step: int) -> None:
        """Ends the activity `start` at the first step of a process; later calls do nothing."""
        if self._start_offset is not None:
            self._seconds["start"] += (
                time.monotonic() - self._start_offset - sum(self._seconds.values())
            )
            self._start_offset = None
            self.begin_interval()
            self._last_rate = step, self._interval["training"]

    def state(self) -> dict[str, Any]:
        """The state of the clock for a checkpoint."""
        return {**self._seconds, "seconds": self.seconds(), "began_at": self._first_start}

    def seconds(self) -> float:
        """Seconds of all processes, excluding work that was lost and repeated."""
        return time.monotonic() - self._start_time

    def training(self) -> float:
        """Seconds of training steps and their input, without the start of this process."""
        is_starting = self._start_offset is not None
        return self._former_training if is_starting else self._totals()["training"]

    def seconds_of(self, activity: str) -> float:
        """Seconds of an activity."""
        return self._seconds[activity]

    def rate(self, step: int) -> float | None:
        """Training steps per second since the last call or the first step; None without steps."""
        training = self._totals()["training"]
        last_step, last_training = self._last_rate or (step, training)
        self._last_rate = step, training
        if step <= last_step or training <= last_training:
            return None
        return (step - last_step) / (training - last_training)

    @contextlib.contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """A context whose duration is added to the activity."""
        start_time = time.monotonic()
        try:
            yield
        finally:
            self._seconds[activity] += time.monotonic() - start_time

    def timed_feeds(self, feeds: Iterator[Any], is_idle: Callable[[], bool]) -> Iterator[Any]:
        """The feeds; the wait for a feed counts as input if the devices are idle at its end."""
        while True:
            start_time = time.monotonic()
            feed = next(feeds, None)
            if feed is None:
                return
            if is_idle():
                self._seconds["input"] += time.monotonic() - start_time
            yield feed

    def begin_interval(self) -> None:
        """Starts the interval that `bound` describes."""
        self._interval = self._totals()

    def bound(self) -> str:
        """Text that says whether input or computation limited the steps of the interval.

        All hosts call this. Each adopts the longest wait of any host, as the devices of all hosts
        wait for the slowest one.
        """
        before, after = self._interval, self._totals()
        (wait,) = hosts.largest(after["input"] - before["input"])
        self._seconds["input"] = before["input"] + wait
        training = after["training"] - before["training"]
        share = min(1.0, wait / training) if training > 0 else 0.0
        return (
            f"{'input' if share > _INPUT_BOUND else 'compute'}-bound ({share:.0%} waiting for data)"
        )

    def _totals(self) -> dict[str, float]:
        """Seconds of input, and of training with the wait for input."""
        others = sum(seconds for name, seconds in self._seconds.items() if name != "input")
        return {"input": self._seconds["input"], "training": self.seconds() - others}

    def goodput(self) -> dict[str, float]:
        """Seconds by activity, and the share of training steps in the total.

        Returns:
          The seconds of each activity; `wall`, seconds since the run first began, including
          interruptions and repeated work; `share`, the part of `wall` in training steps; `lost`,
          seconds of interruptions and of work that was repeated.
        """
        elapsed, wall = self.seconds(), max(time.time() - self._first_start, self.seconds())
        steps = elapsed - sum(self._seconds.values())
        return {
            "share": steps / wall,
            "wall": wall,
            "steps": steps,
            **self._seconds,
            "lost": wall - elapsed,
        }
