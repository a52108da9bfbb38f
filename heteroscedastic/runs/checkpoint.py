"""Checkpoints on disk: the last ones and the best one, each whole or not there."""

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

_NUM_LAST = 2  # so that one is whole should the other be damaged
# What training/loop.py saves beside the arrays, where no digest tells that it is whole.
_FORM = {"best_step": int, "best_score": int | float, "clock": dict, "sums": list, "metrics": list}


class CheckpointError(UserError, RuntimeError):
    """A checkpoint that is needed cannot be read, or one could not be written."""


class Checkpoints:
    """The checkpoints of a run.

    A checkpoint is a state and a small dictionary beside it. Kept are the last two and the
    best. Writing goes on in the background; a half-written checkpoint has another name, is
    never read, and goes when the directory is opened to write again. A digest of every bit is saved
    beside the arrays, of which TensorStore keeps no checksum.
    """

    def __init__(self, directory: files.Path, owner: str | None = None, read_only: bool = False):
        """Opens the directory.

        Args:
          directory: of the checkpoints alone.
          owner: whose they are; those of another owner are not read. None reads anybody's.
          read_only: leaves everything as it is, also what a run under way has half written.

        Raises:
          CheckpointError: there is no directory, and it is for reading alone.
        """
        if read_only and not directory.is_dir():
            raise CheckpointError(
                f"{directory} is missing, and with it the checkpoints; bring it back, or run again."
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

    def save(self, state: TrainState, told: dict[str, Any], best_step: int | None = None) -> None:
        """Saves under the state's step.

        Args:
          state: the arrays.
          told: JSON values.
          best_step: the step to keep for being the best, this one or one saved before.

        Raises:
          CheckpointError: this one, or the one before, could not be written.
        """
        self.wait()
        self._preservation.policies, self._saved = _policies(best_step), int(state.step)
        told = {**told, "owner": self._owner}  # a copy, as it is written in the background
        told["digest"] = provenance.digest_of_state(state, told)
        with self._writing():
            self._manager.save(
                self._saved,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), told=ocp.args.JsonSave(told)
                ),
                force=True,
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of the disk, as Python or TensorStore tells it
            remedy = "those before it stay, and once that is mended the same command continues from them."
            if _inode(self._directory) != self._inode:
                remedy = removed(self._directory.parent)
            raise CheckpointError(
                f"checkpoint of step {self._saved} could not be written ({_first_line(error)});"
                f" {remedy}"
            ) from error

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
                aside = hosts.from_first(functools.partial(self._set_aside, later))
                logging.warning("%s; it now lies in %s.", error, aside)
            if damaged:
                self._manager.reload()
            return found
        if damaged:
            raise CheckpointError(
                f"none of the {len(damaged)} checkpoints in {self._directory} can be read; the"
                " first error is:"
                f" {damaged[0][1]}. Mend or move that directory; without it the same command"
                " begins again."
            )
        return None

    def told(self) -> dict[str, Any]:
        """What is saved beside the last checkpoint, unchecked and without its arrays; empty where
        there is none.
        """

        def read():
            for step in sorted(self._manager.all_steps(), reverse=True):
                try:
                    return json.loads(
                        (self._directory / str(step) / "told" / "metadata").read_text()
                    )
                except (OSError, ValueError):  # `last` reports the damage
                    continue
            return {}

        found = hosts.from_first(read)
        return found if isinstance(found, dict) else {}

    def _set_aside(self, step: int) -> str:
        aside = self._directory.parent / "checkpoints_damaged" / str(step)
        while aside.exists():
            aside = aside.with_name(f"{aside.name}_again")
        files.move(self._directory / str(step), aside)
        return str(aside)

    def at(self, step: int, template: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The checkpoint of a step.

        Raises:
          CheckpointError: it is missing, damaged, of another model or of another run; on all hosts
            where it is so on one, which is asked before they need each other again.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract), told=ocp.args.JsonRestore()
        )
        restored = self._agreed(step, lambda: self._manager.restore(step, args=args))
        state, told = restored["state"], restored["told"]
        self._agreed(step, lambda: self._check_form(step, state, abstract))
        self._agreed(step, lambda: self._check_bits(state, told))
        return state, {
            name: value for name, value in told.items() if name not in ("owner", "digest")
        }

    def whole(self, step: int) -> TrainState:
        """The checkpoint of a step as numpy arrays, of whatever model and devices it is; every host
        reads all of it.

        Raises:
          CheckpointError: it is missing or damaged, on all hosts where it is so on one.
        """
        directory = self._directory / str(step)

        def read():
            reader = ocp.PyTreeCheckpointHandler()
            form = reader.metadata(directory / "state").tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), form)
            found = reader.restore(
                directory / "state", args=ocp.args.PyTreeRestore(restore_args=as_numpy)
            )
            reader.close()
            return TrainState(**found), json.loads((directory / "told" / "metadata").read_text())

        state, told = self._agreed(step, read)
        self._agreed(step, lambda: self._check_bits(state, told))
        return state

    def _agreed(self, step: int, read: Callable[[], Any]) -> Any:
        """What `read` returns, unless it fails on any host."""
        found, error = None, None
        try:
            found = read()
        except Exception as raised:  # whatever a damaged file makes Orbax raise
            error = raised
        if hosts.any_says(error is not None):
            reason = _first_line(error) if error else "another host cannot read it"
            raise CheckpointError(
                f"checkpoint of step {step} cannot be read ({reason}; it lies in {self._directory})"
            ) from error
        return found

    def _check_form(self, step: int, state: TrainState, abstract: TrainState) -> None:
        """What Orbax lets pass: another dtype, an absent branch, another name."""
        if _form(state) != _form(abstract):
            raise ValueError("its arrays are those of another model")
        if int(state.step) != step:
            raise ValueError(f"it is that of step {int(state.step)}")

    def _check_bits(self, state: TrainState, told: dict[str, Any]) -> None:
        """And flipped bits, or another run."""
        if not {"owner", "digest"} & set(
            told
        ):  # saved before there were any; one flipped bit spoils one name
            if wrong := [
                name
                for name, kinds in _FORM.items()
                if not isinstance(told.get(name), kinds | None)
            ]:
                raise ValueError(f"beside its arrays, {', '.join(wrong)} is damaged")
            return
        if told.get("digest") != provenance.digest_of_state(
            state, {k: v for k, v in told.items() if k != "digest"}
        ):
            raise ValueError("its bits are not those that were saved")
        if self._owner is not None and told["owner"] not in (None, self._owner):
            raise ValueError("it belongs to another run")

    def wait(self) -> None:
        """Returns once what was saved is on disk.

        Raises:
          CheckpointError: it could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        """Waits for what is being written, and lets go of the directory."""
        lost = (hosts.HostError, CheckpointError, jax.errors.JaxRuntimeError)
        if kind and issubclass(kind, lost) and jax.process_count() > 1:
            return  # another host is lost, or this one will be, and closing would wait for it
        try:
            with self._writing():
                self._manager.close()  # one failed write may be told several times, here too
        except CheckpointError as error:
            if kind is None:
                raise
            logging.warning("%s", error)  # beside what is raised already


def removed(workdir: files.Path) -> str:
    """What to do where the directory of a run is no longer the one in which it was begun."""
    return (
        f"{workdir} was removed or renamed while its run was at work. If it was renamed, the same"
        " command with its new"
        " name as --workdir continues from the last checkpoint; if it was removed, the same"
        " command begins again, once"
        f" nothing is left of {workdir}."
    )


def _inode(directory: files.Path) -> int | None:
    """Number by which a directory is known whatever its name; None where there is none, or in a
    bucket.
    """
    is_known = not files.in_bucket(directory) and directory.exists()
    return directory.stat().st_ino if is_known else None


def owners(directory: files.Path) -> set[str]:
    """The owners of the checkpoints in a directory, as far as they can be read."""
    return {
        told["owner"] for told in map(_told, directory.glob("*/told/metadata")) if told.get("owner")
    }


def saved_lines(directory: files.Path, step: int) -> list[str]:
    """The lines of metrics.jsonl that the checkpoint of a step has; none where it cannot be read."""
    return list(_told(directory / str(step) / "told" / "metadata").get("metrics") or ())


def _told(path: files.Path) -> dict[str, Any]:
    try:
        found = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _policies(best_step: int | None) -> list[Any]:
    """Orbax's policies that preserve the last checkpoints and that of the best step."""
    # Not BestN with best_fn: it reads the scores of all checkpoints when the manager is made, so
    # one damaged file of scores would make every checkpoint unreadable, and it would delete the
    # best checkpoint of a run that began before scores had files of their own.
    return [
        checkpoint_managers.LatestN(_NUM_LAST),
        checkpoint_managers.CustomSteps([best_step]),
    ]


def _form(tree: Any) -> Any:
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
