"""Checkpoints on disk: the last ones and the best one, each whole or not there."""

import logging
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from heteroscedastic.training import hosts
from heteroscedastic.training.state import TrainState

_NUM_LAST = 2  # so that one is whole should the other be damaged


class CheckpointError(RuntimeError):
    """A checkpoint that is needed cannot be read."""


class Checkpoints:
    """The checkpoints of a run.

    A checkpoint is a state and a small dictionary beside it. Kept are the last two and the
    best. Writing goes on in the background; a half-written checkpoint has another name and is
    never read.
    """

    def __init__(self, directory: Path):
        self._kept = _LastAndBest()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._kept, cleanup_tmp_directories=True, enable_async_checkpointing=True
        )
        self._directory = directory
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options)

    def save(self, state: TrainState, told: dict[str, Any], best_step: int | None = None) -> None:
        """Saves under the state's step.

        Args:
          state: the arrays.
          told: JSON values.
          best_step: the step to keep for being the best, this one or one saved before.
        """
        self._kept.best_step = best_step
        self._manager.save(
            int(state.step),
            # A copy, as it is written in the background.
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), told=ocp.args.JsonSave(dict(told))),
            force=True,
        )

    def last(self, template: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The last whole checkpoint, or None where none was ever saved.

        Later ones that cannot be read are told in a warning and moved to a directory beside, so
        that nothing is lost and the run can write them again.

        Raises:
          CheckpointError: there are checkpoints, and none can be read; they stay where they are.
        """
        damaged: list[tuple[int, CheckpointError]] = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                found = self.at(step, template)
            except CheckpointError as error:
                damaged.append((step, error))
                continue
            for later, error in damaged:
                logging.warning("%s; it now lies in %s.", error, self._set_aside(later))
            return found
        if damaged:
            raise CheckpointError(
                f"none of the {len(damaged)} checkpoints in {self._directory} can be read; the first error is:"
                f" {damaged[0][1]}. Mend or move that directory; without it the same command begins again."
            )
        return None

    def _set_aside(self, step: int) -> Path:
        aside = self._directory.parent / "checkpoints_damaged" / str(step)
        aside.parent.mkdir(exist_ok=True)
        while aside.exists():
            aside = aside.with_name(f"{aside.name}_again")
        (self._directory / str(step)).rename(aside)
        self._manager.reload()
        return aside

    def at(self, step: int, template: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The checkpoint of a step.

        Raises:
          CheckpointError: it is missing or damaged.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), told=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=args)
        except Exception as error:  # whatever a damaged file makes Orbax raise
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"checkpoint of step {step} cannot be read ({told})") from error
        return restored["state"], restored["told"]

    def wait(self) -> None:
        """Returns once what was saved is on disk."""
        self._manager.wait_until_finished()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        """Waits for what is being written, and lets go of the directory."""
        if kind and issubclass(kind, hosts.HostError | jax.errors.JaxRuntimeError) and jax.process_count() > 1:
            return  # another host is lost, and closing would wait for it
        self._manager.close()


class _LastAndBest:
    """Orbax's PreservationPolicy: the last two steps, and the one that the run calls its best.

    The run knows its best step from the checkpoint that it continued from. Orbax's own ranking
    forgets the scores of what was saved before it was opened.
    """

    best_step: int | None = None

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        last = sorted(c.step for c in checkpoints)[-_NUM_LAST:]
        return [c.step in last or c.step == self.best_step for c in checkpoints]
