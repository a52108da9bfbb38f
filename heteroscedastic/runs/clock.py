"""Where the time of a run goes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from heteroscedastic.distributed import hosts

_COUNTED = ("start", "input", "evaluation", "checkpoints")
_INPUT_BOUND = 0.1  # share of the time between evaluations


class Clock:
    """Seconds of a run, over all processes that made it one after another, by what they went into.

    `start` is what goes before the first step: reading, restoring, compiling. `input` is waiting
    for examples while the devices had nothing left to do. `evaluation` and `checkpoints` speak for
    themselves, of a checkpoint what the run waits for. What is left is `steps` of training.
    """

    def __init__(self, since: float, told: dict[str, Any] | None = None):
        """Goes on from what a checkpoint tells; the seconds since then that came to nothing are in
        none of it.

        Args:
          since: when this process began, on time.monotonic().
          told: by the clock of the process before.
        """
        told = told or {}
        self._seconds = {name: told.get(name, 0.0) for name in _COUNTED}
        self._began = since - told.get("seconds", 0.0)
        self._began_at = told.get("began_at", time.time() - (time.monotonic() - since))
        self._to_start: float | None = since - sum(self._seconds.values())
        self._interval = self._now()
        self._rated: tuple[int, float] | None = (
            None  # step and seconds of training, at the last `rate`
        )

    def starts(self, step: int) -> None:
        """The first step is under way: what went before it, and was nothing else, was the start."""
        if self._to_start is not None:
            self._seconds["start"] += (
                time.monotonic() - self._to_start - sum(self._seconds.values())
            )
            self._to_start = None
            self.begins_interval()
            self._rated = step, self._interval["training"]

    def told(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {**self._seconds, "seconds": self.seconds(), "began_at": self._began_at}

    def seconds(self) -> float:
        """Of all processes, without what came to nothing."""
        return time.monotonic() - self._began

    def rate(self, step: int) -> float | None:
        """Steps a second of training since this was asked last, or since the first step; None where
        there were none.
        """
        training = self._now()["training"]
        before, seconds_before = self._rated or (step, training)
        self._rated = step, training
        if step <= before or training <= seconds_before:
            return None
        return (step - before) / (training - seconds_before)

    @contextlib.contextmanager
    def counts(self, name: str) -> Iterator[None]:
        """The time that this lasts goes under the name."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began

    def waited_for(self, feeds: Iterator[Any], is_idle: Callable[[], bool]) -> Iterator[Any]:
        """The feeds; the time that one takes is counted where the devices are idle once it is
        there.
        """
        while True:
            began = time.monotonic()
            feed = next(feeds, None)
            if feed is None:
                return
            if is_idle():
                self._seconds["input"] += time.monotonic() - began
            yield feed

    def begins_interval(self) -> None:
        """From here on `bound` looks."""
        self._interval = self._now()

    def bound(self) -> str:
        """Whether input or computing holds up the steps since the interval began, on the host that
        waited most.

        The devices of the others waited for it. All hosts call this, and its wait is theirs from
        now on.
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
        """Seconds by what they went into, and the share of steps.

        Returns:
          `share`: of all the time since the run first began, with interruptions and with what had
          to be done
            again, which went into steps that count. `wall`: that time. `lost`: what was neither a
            process at work nor came to anything.
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
