"""What a run prints about itself: a line now and then, and a table for each evaluation."""

import time
from collections.abc import Mapping

from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.clock import Clock

_SECONDS_BETWEEN_LINES = 10.0
_COLUMNS = 3  # metrics side by side in a table


class Progress:
    """Rate and time left of a run.

    Both are of the interval since the line before: training alone, without compilation, evaluations
    and checkpoints. To the time left the evaluations still to come are added once the time of one
    is known without its compilation.
    """

    def __init__(self, run: Run, clock: Clock):
        self._run, self._clock = run, clock
        self._printed_at = time.monotonic()
        self._rate: float | None = None
        self._num_evaluations, self._seconds_per_example = 0, 0.0

    def restart(self) -> None:
        """The next line is due as if one were printed now."""
        self._printed_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether the last line was long ago."""
        return time.monotonic() - self._printed_at > _SECONDS_BETWEEN_LINES

    def line(self, step: int) -> str:
        """Where the run is; begins the next interval."""
        self.restart()
        self._rate = self._clock.rate(step) or self._rate
        steps = self._run.steps
        line = f"step {step:,}/{steps.total:,}  epoch {steps.epochs.passed(step):.1f}"
        if not self._rate:
            return line
        left = (self._run.steps.total - step) / self._rate + self._num_examples_left(
            step
        ) * self._seconds_per_example
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        rate = f"{self._rate * steps.batch_size:,.0f} examples/s"
        return f"{line}  {rate}  {hours}:{minutes:02}:{seconds:02} left"

    def evaluated(self, split: str, seconds: float) -> None:
        """An evaluation is done; the first one of a process also compiles."""
        self._num_evaluations += 1
        if self._num_evaluations > 1:
            self._seconds_per_example = seconds / max(1, self._run.pipeline.sizes[split])

    def _num_examples_left(self, step: int) -> int:
        """How many examples are still to be evaluated, each time counted."""
        run, sizes = self._run, self._run.pipeline.sizes
        number = sum(sizes[settings["split"]] for settings in run.config["evals"].values())
        if run.config["validation"]:
            intervals = (
                -(-run.steps.total // run.steps.per_checkpoint) - step // run.steps.per_checkpoint
            )
            number += (intervals if step < run.steps.total else 0) * sizes[
                run.config["validation"]["split"]
            ]
        return number


def table(title: str, values: Mapping[str, float]) -> str:
    """Metrics under a title, aligned, a few in each row."""
    width = max(map(len, values), default=0)
    cells = [f"{name:<{width}} {value:>9.4f}" for name, value in values.items()]
    rows = ["   ".join(cells[i : i + _COLUMNS]) for i in range(0, len(cells), _COLUMNS)]
    return "\n  ".join([title, *rows])
