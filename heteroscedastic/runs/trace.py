"""Profiles a few steps, for the profiler of TensorBoard or for Perfetto."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax

from heteroscedastic import files
from heteroscedastic.distributed import hosts


class Trace:
    """Traces steps `first` to `last` of a run on its first host, and writes them to profile/.

    A process that starts between these steps traces the remaining ones.
    """

    def __init__(self, steps: tuple[int, int] | None, directory: files.Path, step: int):
        """Sets the steps to trace.

        Args:
          steps: `first` and `last`; None traces nothing.
          directory: directory of the run.
          step: the last step before this process.
        """
        self._first, self._last = steps or (0, 0)
        self._out = directory / "profile"
        self._local: str | None = None
        if steps and step >= self._last and not self._out.exists():
            hosts.log(
                f"steps {self._first} to {self._last} are not traced, as this process resumes after"
                f" step {step}."
            )

    def before(self, step: int, state: Any) -> None:
        """Starts the trace before its first step, once all steps in flight have finished."""
        if self._first <= step <= self._last and not self._local and hosts.is_first():
            jax.block_until_ready(state)
            self._first, self._local = step, tempfile.mkdtemp(prefix="profile-")
            jax.profiler.start_trace(self._local)

    def after(self, step: int, state: Any) -> None:
        """Ends the trace after its last step."""
        if step == self._last and self._local:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            for path in sorted(Path(self._local).rglob("*")):
                if path.is_file():
                    _copy(path, self._out / path.relative_to(self._local).as_posix())
            shutil.rmtree(self._local)
            self._local = None
            hosts.log(
                f"steps {self._first} to {self._last} are traced: tensorboard --logdir={self._out}"
            )


def _copy(path: Path, target: files.Path) -> None:
    content = path.read_bytes()
    files.write_atomically(target, lambda file: file.write(content))
