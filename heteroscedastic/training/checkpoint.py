"""Checkpoints on disk: the last ones and the best one, each whole or not there."""

import logging
import math
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from heteroscedastic.training.state import TrainState


class Checkpoints:
    """The checkpoints of a run.

    A checkpoint is a state and a small dictionary beside it. Kept are the last two, so that
    one is whole should the other be damaged, and the one of the highest score. Writing goes on
    in the background; a half-written checkpoint has another name and is never read.
    """

    def __init__(self, directory: Path):
        policy = checkpoint_managers.AnyPreservationPolicy(
            [
                checkpoint_managers.LatestN(n=2),
                checkpoint_managers.BestN(
                    get_metric_fn=lambda metrics: metrics["score"],
                    n=1,
                    keep_checkpoints_without_metrics=False,
                ),
            ]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, cleanup_tmp_directories=True, enable_async_checkpointing=True
        )
        self._directory = directory
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options)

    def save(self, state: TrainState, told: dict[str, Any], score: float | None = None) -> None:
        """Saves under the state's step.

        Args:
          state: the arrays.
          told: JSON values.
          score: higher is better; None or nan is never the best.
        """
        ranked = score is not None and not math.isnan(score)
        self._manager.save(
            int(state.step),
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), told=ocp.args.JsonSave(told)),
            metrics={"score": score} if ranked else None,
            force=True,
        )

    def last(self, template: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The last whole checkpoint, or None where there is none.

        One that cannot be read is told in a warning and moved to a directory beside, so that
        nothing is lost and the run can write it again.
        """
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                return self.at(step, template)
            except Exception as error:  # whatever a damaged file makes Orbax raise
                aside = self._set_aside(step)
                told = str(error).splitlines()[0] if str(error) else type(error).__name__
                logging.warning("checkpoint of step %d cannot be read (%s); it now lies in %s.", step, told, aside)
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
        """The checkpoint of a step."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract), told=ocp.args.JsonRestore()),
        )
        return restored["state"], restored["told"]

    def wait(self) -> None:
        """Returns once what was saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and lets go of the directory."""
        self._manager.close()
