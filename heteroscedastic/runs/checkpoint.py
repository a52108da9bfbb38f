"""Checkpoints of a run on a disk or in a bucket: the last two and the best."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint import checkpoint_managers

from heteroscedastic import files
from heteroscedastic.distributed import hosts
from heteroscedastic.runs import provenance
from heteroscedastic.training.state import TrainState
from heteroscedastic.user_errors import UserError

_NUM_LAST = 2  # so that one remains if the other is damaged
# Types of the metadata of versions without digests.
_TYPES = {"best_step": int, "best_score": int | float, "clock": dict, "sums": list, "metrics": list}


class CheckpointError(UserError, RuntimeError):
    """A checkpoint that is required cannot be read, or one could not be written."""


class Checkpoints:
    """The checkpoints of a run.

    A checkpoint is a state and its metadata, a small dictionary. The last two and the best are
    preserved. Checkpoints are written in the background. An incomplete one has a temporary name, is
    never read, and is removed when the directory is next opened for writing. The metadata hold a
    digest of every bit of the state, as TensorStore has no checksum of it.
    """

    def __init__(self, directory: files.Path, owner: str | None = None, read_only: bool = False):
        """Opens the directory.

        Args:
          directory: directory that holds only the checkpoints.
          owner: identifier of the run, see provenance.owner; checkpoints of another owner are not
            read. None reads checkpoints of any owner.
          read_only: whether to change no files, not even incomplete ones, which a run may be
            writing.

        Raises:
          CheckpointError: the directory is missing, and read_only is set.
        """
        if read_only and not directory.is_dir():
            raise CheckpointError(
                f"{directory} is missing, and with it the checkpoints; restore it, or repeat the"
                " run."
            )
        self._owner = owner
        self._saved: int | None = None
        self._preservation = checkpoint_managers.AnyPreservationPolicy(_policies(None))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._preservation,
            create=not read_only,
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=True,
        )
        self._directory = files.absolute(directory)
        self._manager = ocp.CheckpointManager(self._directory, options=options)
        self._inode = _inode(self._directory)

    def save(
        self, state: TrainState, metadata: dict[str, Any], best_step: int | None = None
    ) -> None:
        """Saves a checkpoint under the step of the state.

        Args:
          state: state of the run.
          metadata: JSON values.
          best_step: step of the best checkpoint, this one or an earlier one, to be preserved.

        Raises:
          CheckpointError: this checkpoint or the previous one could not be written.
        """
        self.wait()
        self._preservation.policies, self._saved = _policies(best_step), int(state.step)
        metadata = {**metadata, "owner": self._owner}  # a copy, as it is written in the background
        metadata["digest"] = provenance.digest_of_state(state, metadata)
        with self._writing():
            self._manager.save(
                self._saved,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), told=ocp.args.JsonSave(metadata)
                ),
                force=True,
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Python and TensorStore raise many types
            remedy = (
                "earlier checkpoints are intact; fix the cause, and the same command resumes from"
                " the last of them."
            )
            if _inode(self._directory) != self._inode:
                remedy = removal_message(self._directory.parent)
            raise CheckpointError(
                f"checkpoint of step {self._saved} could not be written ({_first_line(error)});"
                f" {remedy}"
            ) from error

    def last(self, template: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The last checkpoint that can be read, or None if there are no checkpoints.

        Later checkpoints, which cannot be read, are moved to the directory checkpoints_damaged with
        a warning, so that nothing is lost and the run can write them again.

        Raises:
          CheckpointError: there are checkpoints but none can be read; none is moved.
        """
        damaged: list[tuple[int, CheckpointError]] = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                restored = self.restore(step, template)
            except CheckpointError as error:
                damaged.append((step, error))
                continue
            for later, error in damaged:
                aside = hosts.from_first(functools.partial(self._set_aside, later))
                logging.warning("%s; it is now in %s.", error, aside)
            if damaged:
                self._manager.reload()
            return restored
        if damaged:
            raise CheckpointError(
                f"none of the {len(damaged)} checkpoints in {self._directory} can be read; the"
                f" error of the last one is: {damaged[0][1]}. Repair the directory, or move it away"
                " to start the run again from step 0."
            )
        return None

    def metadata(self) -> dict[str, Any]:
        """The metadata of the last checkpoint, unchecked; empty if there are no checkpoints."""

        def read():
            for step in sorted(self._manager.all_steps(), reverse=True):
                try:
                    return json.loads(
                        (self._directory / str(step) / "told" / "metadata").read_text()
                    )
                except (OSError, ValueError):  # damage, which `last` reports
                    continue
            return {}

        metadata = hosts.from_first(read)
        return metadata if isinstance(metadata, dict) else {}

    def _set_aside(self, step: int) -> str:
        aside = self._directory.parent / "checkpoints_damaged" / str(step)
        while aside.exists():
            aside = aside.with_name(f"{aside.name}_again")
        files.move(self._directory / str(step), aside)
        return str(aside)

    def restore(self, step: int, template: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The state and metadata of the checkpoint of a step.

        Raises:
          CheckpointError: on all hosts, if the checkpoint is missing, damaged, of another model or
            of another run on one of them.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract), told=ocp.args.JsonRestore()
        )
        restored = self._agreed(step, lambda: self._manager.restore(step, args=args))
        state, metadata = restored["state"], restored["told"]
        self._agreed(step, lambda: self._check_form(step, state, abstract))
        self._agreed(step, lambda: self._check_bits(state, metadata))
        own = ("owner", "digest")
        return state, {name: value for name, value in metadata.items() if name not in own}

    def restore_arrays(self, step: int) -> TrainState:
        """The state of a checkpoint as numpy arrays, of any model; every host reads all of it.

        Raises:
          CheckpointError: on all hosts, if the checkpoint is missing or damaged on one of them.
        """
        directory = self._directory / str(step)

        def read():
            reader = ocp.PyTreeCheckpointHandler()
            form = reader.metadata(directory / "state").tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), form)
            fields = reader.restore(
                directory / "state", args=ocp.args.PyTreeRestore(restore_args=as_numpy)
            )
            reader.close()
            return TrainState(**fields), json.loads((directory / "told" / "metadata").read_text())

        state, metadata = self._agreed(step, read)
        self._agreed(step, lambda: self._check_bits(state, metadata))
        return state

    def _agreed(self, step: int, read: Callable[[], Any]) -> Any:
        """The value of `read`; an error on all hosts if it fails on one."""
        value, error = None, None
        try:
            value = read()
        except Exception as raised:  # a damaged file makes Orbax raise many types
            error = raised
        if hosts.any_says(error is not None):
            reason = _first_line(error) if error else "another host cannot read it"
            raise CheckpointError(
                f"checkpoint of step {step} in {self._directory} cannot be read ({reason})"
            ) from error
        return value

    def _check_form(self, step: int, state: TrainState, abstract: TrainState) -> None:
        """Raises for faults that Orbax accepts: other dtypes, missing arrays, another step."""
        if _form(state) != _form(abstract):
            raise ValueError("its arrays belong to another model")
        if int(state.step) != step:
            raise ValueError(f"it holds the state of step {int(state.step)}")

    def _check_bits(self, state: TrainState, metadata: dict[str, Any]) -> None:
        """Raises a ValueError if a bit was changed, or if another run saved the checkpoint."""
        # Earlier versions saved neither owner nor digest. One missing name alone means that a bit
        # of the name was changed.
        if not {"owner", "digest"} & set(metadata):
            if damaged := [
                name
                for name, types in _TYPES.items()
                if not isinstance(metadata.get(name), types | None)
            ]:
                raise ValueError(f"{', '.join(damaged)} in its metadata is damaged")
            return
        content = {k: v for k, v in metadata.items() if k != "digest"}
        if metadata.get("digest") != provenance.digest_of_state(state, content):
            raise ValueError("its bits differ from those that were saved")
        if self._owner is not None and metadata["owner"] not in (None, self._owner):
            raise ValueError("it belongs to another run")

    def wait(self) -> None:
        """Waits until the saved checkpoint is on disk.

        Raises:
          CheckpointError: it could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        """Waits until the saved checkpoint is on disk, and closes the directory."""
        lost = (hosts.HostError, CheckpointError, jax.errors.JaxRuntimeError)
        if kind and issubclass(kind, lost) and jax.process_count() > 1:
            return  # a host is lost, or soon will be, and closing would wait for it
        try:
            with self._writing():
                self._manager.close()  # may raise the error of a failed write again
        except CheckpointError as error:
            if kind is None:
                raise
            logging.warning("%s", error)  # another error is being raised already


def removal_message(workdir: files.Path) -> str:
    """The error message for a directory that was removed or renamed during its run."""
    return (
        f"{workdir} was removed or renamed during its run. If it was renamed, repeat the command"
        " with its new name as --workdir to resume from the last checkpoint. If it was removed,"
        f" remove what is left of {workdir}, and the same command starts the run again."
    )


def _inode(directory: files.Path) -> int | None:
    """Number of a directory, which a rename does not change; None in a bucket or if missing."""
    has_inode = not files.in_bucket(directory) and directory.exists()
    return directory.stat().st_ino if has_inode else None


def owners(directory: files.Path) -> set[str]:
    """The owners of the checkpoints in a directory whose metadata can be read."""
    every = map(_read_metadata, directory.glob("*/told/metadata"))
    return {metadata["owner"] for metadata in every if metadata.get("owner")}


def saved_lines(directory: files.Path, step: int) -> list[str]:
    """The lines of metrics.jsonl in the checkpoint of a step; none if it cannot be read."""
    return list(_read_metadata(directory / str(step) / "told" / "metadata").get("metrics") or ())


def _read_metadata(path: files.Path) -> dict[str, Any]:
    try:
        metadata = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _policies(best_step: int | None) -> list[Any]:
    """Orbax's policies that preserve the last checkpoints and the best one."""
    # Not BestN with best_fn: it reads the scores of all checkpoints when the manager is created, so
    # one damaged file of scores would make every checkpoint unreadable. It would also delete the
    # best checkpoint of a run of an earlier version, which has no files of scores.
    return [
        checkpoint_managers.LatestN(_NUM_LAST),
        checkpoint_managers.CustomSteps([best_step]),
    ]


def _form(tree: Any) -> Any:
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
