"""Progress of a run in its log: a line every few seconds, and a table for each evaluation."""

import time
from collections.abc import Mapping

from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.clock import Clock
from heteroscedastic.training.epochs import Epoch

_SECONDS_BETWEEN_LINES = 10.0
_COLUMNS = 3  # metrics side by side in a table


class Progress:
    """Rate and remaining time of a run.

    The rate is that of training since the previous line, without compilation, evaluations and
    checkpoints. The remaining time includes the remaining evaluations after the second evaluation,
    as the first one also compiles.
    """

    def __init__(self, run: Run, clock: Clock):
        self._run, self._clock = run, clock
        self._printed_at = time.monotonic()
        self._rate: float | None = None
        self._num_evaluations, self._seconds_per_example = 0, 0.0

    def restart(self) -> None:
        """Starts the time until the next line is due."""
        self._printed_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time for the next line."""
        return time.monotonic() - self._printed_at > _SECONDS_BETWEEN_LINES

    def line(self, step: int, epoch: Epoch) -> str:
        """Step, epoch, rate and remaining time; the next rate is measured from here."""
        self.restart()
        self._rate = self._clock.rate(step) or self._rate
        steps = self._run.steps
        line = f"step {step:,}/{steps.total:,}  epoch {epoch.passed(step):.1f}"
        if not self._rate:
            return line
        training_seconds = (steps.total - step) / self._rate
        evaluation_seconds = self._num_examples_left(step, epoch) * self._seconds_per_example
        minutes, seconds = divmod(round(training_seconds + evaluation_seconds), 60)
        hours, minutes = divmod(minutes, 60)
        rate = f"{self._rate * steps.batch_size:,.0f} examples/s"
        return f"{line}  {rate}  {hours}:{minutes:02}:{seconds:02} left"

    def evaluated(self, split: str, seconds: float) -> None:
        """Records the duration of an evaluation, except the first, which also compiles."""
        self._num_evaluations += 1
        if self._num_evaluations > 1:
            self._seconds_per_example = seconds / max(1, self._run.pipeline.sizes[split])

    def _num_examples_left(self, step: int, epoch: Epoch) -> int:
        """Number of examples that remain to be evaluated; counts each evaluation of an example."""
        config, steps, sizes = self._run.config, self._run.steps, self._run.pipeline.sizes
        number = sum(sizes[settings["split"]] for settings in config["evals"].values())
        if config["validation"] and step < steps.total:
            length = steps.per_checkpoint
            intervals = -(-steps.total_full // length) - epoch.num_full(step, length)
            number += intervals * sizes[config["validation"]["split"]]
        return number


def table(title: str, values: Mapping[str, float]) -> str:
    """Metrics under a title, aligned, a few in each row."""
    width = max(map(len, values), default=0)
    cells = [f"{name:<{width}} {value:>9.4f}" for name, value in values.items()]
    rows = ["   ".join(cells[i : i + _COLUMNS]) for i in range(0, len(cells), _COLUMNS)]
    return "\n  ".join([title, *rows])
