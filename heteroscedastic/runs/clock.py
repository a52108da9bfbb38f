"""How a run spends its time."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from heteroscedastic.distributed import hosts

_COUNTED = ("start", "input", "evaluation", "checkpoints")
_INPUT_BOUND = 0.1  # share of the training time that is spent waiting for data


class Clock:
    """Seconds of a run by activity, summed over the processes that resumed it.

    `start` is the time before the first step: reading, restoring, compiling. `input` is the time in
    which the devices were idle because examples were missing. `checkpoints` is the time that the
    run waits for them. `steps`, of training, is the rest.
    """

    def __init__(self, since: float, state: dict[str, Any] | None = None):
        """Continues from a checkpoint; time that was lost after that checkpoint is not counted.

        Args:
          since: start of this process, on time.monotonic().
          state: state of the clock in the checkpoint.
        """
        state = state or {}
        self._seconds = {name: state.get(name, 0.0) for name in _COUNTED}
        self._began = since - state.get("seconds", 0.0)
        self._began_at = state.get("began_at", time.time() - (time.monotonic() - since))
        self._to_start: float | None = since - sum(self._seconds.values())
        self._interval = self._now()
        # Step and seconds of training at the last call of `rate`.
        self._rated: tuple[int, float] | None = None

    def starts(self, step: int) -> None:
        """Marks the first step; the time before it, unless counted otherwise, is the start."""
        if self._to_start is not None:
            self._seconds["start"] += (
                time.monotonic() - self._to_start - sum(self._seconds.values())
            )
            self._to_start = None
            self.begins_interval()
            self._rated = step, self._interval["training"]

    def state(self) -> dict[str, Any]:
        """The state of the clock for a checkpoint."""
        return {**self._seconds, "seconds": self.seconds(), "began_at": self._began_at}

    def seconds(self) -> float:
        """Seconds of all processes, without those that were lost."""
        return time.monotonic() - self._began

    def rate(self, step: int) -> float | None:
        """Training steps per second since the last call, or since the first step; None if none."""
        training = self._now()["training"]
        before, seconds_before = self._rated or (step, training)
        self._rated = step, training
        if step <= before or training <= seconds_before:
            return None
        return (step - before) / (training - seconds_before)

    @contextlib.contextmanager
    def counts(self, name: str) -> Iterator[None]:
        """A context whose duration is counted under the name."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began

    def waited_for(self, feeds: Iterator[Any], is_idle: Callable[[], bool]) -> Iterator[Any]:
        """The feeds; the wait for one counts as input if the devices are idle when it comes."""
        while True:
            began = time.monotonic()
            feed = next(feeds, None)
            if feed is None:
                return
            if is_idle():
                self._seconds["input"] += time.monotonic() - began
            yield feed

    def begins_interval(self) -> None:
        """Starts the interval that `bound` reports."""
        self._interval = self._now()

    def bound(self) -> str:
        """Whether input or computation limits the steps since the interval began.

        All hosts call this, and all take over the wait of the host that waited most, as the devices
        of the others waited for it.
        """
        before, after = self._interval, self._now()
        (waited,) = hosts.largest(after["input"] - before["input"])
        self._seconds["input"] = before["input"] + waited
        training = after["training"] - before["training"]
        share = min(1.0, waited / training) if training > 0 else 0.0
        return (
            f"{'input' if share > _INPUT_BOUND else 'compute'}-bound ({share:.0%} waiting for data)"
        )

    def _now(self) -> dict[str, float]:
        others = sum(seconds for name, seconds in self._seconds.items() if name != "input")
        return {"input": self._seconds["input"], "training": self.seconds() - others}

    def goodput(self) -> dict[str, float]:
        """Seconds by activity, and the share of training steps in all of them.

        Returns:
          `wall`: seconds since the run first began, with interruptions and repeated work. `share`:
          the part of them that training steps took. `lost`: seconds of interruptions and of work
          that was repeated.
        """
        elapsed, wall = self.seconds(), max(time.time() - self._began_at, self.seconds())
        steps = elapsed - sum(self._seconds.values())
        return {
            "share": steps / wall,
            "wall": wall,
            "steps": steps,
            **self._seconds,
            "lost": wall - elapsed,
        }
