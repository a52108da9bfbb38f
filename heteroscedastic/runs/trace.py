"""A profile of a few steps: what the devices did when, for TensorBoard's profiler or Perfetto."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax

from heteroscedastic import files
from heteroscedastic.distributed import hosts


class Trace:
    """Traces steps `first` to `last` of a run on its first host; it lies in profile/ of the run.

    Of a process that began between them, those from there on.
    """

    def __init__(self, steps: tuple[int, int] | None, directory: files.Path, step: int):
        """None traces nothing.

        Args:
          steps: `first` and `last`.
          directory: of the run.
          step: that the process begins after.
        """
        self._first, self._last = steps or (0, 0)
        self._out = directory / "profile"
        self._local: str | None = None
        if steps and step >= self._last and not self._out.exists():
            hosts.say(
                f"steps {self._first} to {self._last} were made before this process began, and are"
                " not traced."
            )

    def before(self, step: int, state: Any) -> None:
        """Begins where this is the first step to be traced; what is still under way before it is
        waited for.
        """
        if self._first <= step <= self._last and not self._local and hosts.is_first():
            jax.block_until_ready(state)
            self._first, self._local = step, tempfile.mkdtemp(prefix="profile-")
            jax.profiler.start_trace(self._local)

    def after(self, step: int, state: Any) -> None:
        """Ends where this was the last."""
        if step == self._last and self._local:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            for path in sorted(Path(self._local).rglob("*")):
                if path.is_file():
                    _copy(path, self._out / path.relative_to(self._local).as_posix())
            shutil.rmtree(self._local)
            self._local = None
            hosts.say(
                f"steps {self._first} to {self._last} are traced: tensorboard --logdir={self._out}"
            )


def _copy(path: Path, target: files.Path) -> None:
    content = path.read_bytes()
    files.write_atomically(target, lambda file: file.write(content))
