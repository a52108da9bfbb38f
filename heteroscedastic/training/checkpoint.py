"""Checkpoints on disk: the last ones and the best one, each whole or not there."""

import contextlib
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from heteroscedastic import files
from heteroscedastic.training import hosts
from heteroscedastic.training.state import TrainState
from heteroscedastic.user_errors import UserError

_NUM_LAST = 2  # so that one is whole should the other be damaged


class CheckpointError(UserError, RuntimeError):
    """A checkpoint that is needed cannot be read, or one could not be written."""


class Checkpoints:
    """The checkpoints of a run.

    A checkpoint is a state and a small dictionary beside it. Kept are the last two and the
    best. Writing goes on in the background; a half-written checkpoint has another name, is
    never read, and goes when the directory is opened to write again. A digest of every bit is saved beside
    the arrays, of which TensorStore keeps no checksum.
    """

    def __init__(self, directory: files.Place, owner: str | None = None, read_only: bool = False):
        """Opens the directory.

        Args:
          directory: of the checkpoints alone.
          owner: whose they are; those of another owner are not read. None reads anybody's.
          read_only: leaves everything as it is, also what a run under way has half written.

        Raises:
          CheckpointError: there is no directory, and it is for reading alone.
        """
        if read_only and not directory.is_dir():
            raise CheckpointError(f"{directory} is missing, and with it the checkpoints; bring it back, or run again.")
        self._owner = owner
        self._saved: int | None = None
        self._kept = _LastAndBest()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._kept,
            create=not read_only,
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=True,
        )
        self._directory = files.absolute(directory)
        self._manager = ocp.CheckpointManager(self._directory, options=options)

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
        self._kept.best_step, self._saved = best_step, int(state.step)
        told = {**told, "owner": self._owner}  # a copy, as it is written in the background
        told["digest"] = _digest(state, told)
        with self._writing():
            self._manager.save(
                self._saved,
                args=ocp.args.Composite(state=ocp.args.StandardSave(state), told=ocp.args.JsonSave(told)),
                force=True,
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of the disk, as Python or TensorStore tells it
            raise CheckpointError(
                f"checkpoint of step {self._saved} could not be written ({_first_line(error)}); those before it stay,"
                " and once that is mended the same command continues from them."
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
                f"none of the {len(damaged)} checkpoints in {self._directory} can be read; the first error is:"
                f" {damaged[0][1]}. Mend or move that directory; without it the same command begins again."
            )
        return None

    def told(self) -> dict[str, Any]:
        """What is saved beside the last checkpoint, unchecked and without its arrays; empty where there is none."""

        def read():
            for step in sorted(self._manager.all_steps(), reverse=True):
                try:
                    return json.loads((self._directory / str(step) / "told" / "metadata").read_text())
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
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), told=ocp.args.JsonRestore())
        restored = self._agreed(step, lambda: self._manager.restore(step, args=args))
        state, told = restored["state"], restored["told"]
        self._agreed(step, lambda: self._check_form(step, state, abstract))
        self._agreed(step, lambda: self._check_bits(state, told))
        return state, {name: value for name, value in told.items() if name not in ("owner", "digest")}

    def whole(self, step: int) -> TrainState:
        """The checkpoint of a step as numpy arrays, of whatever model and devices it is; every host reads all of it.

        Raises:
          CheckpointError: it is missing or damaged, on all hosts where it is so on one.
        """
        directory = self._directory / str(step)

        def read():
            reader = ocp.PyTreeCheckpointHandler()
            form = reader.metadata(directory / "state").tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), form)
            found = reader.restore(directory / "state", args=ocp.args.PyTreeRestore(restore_args=as_numpy))
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
            raise CheckpointError(f"checkpoint of step {step} cannot be read ({reason})") from error
        return found

    def _check_form(self, step: int, state: TrainState, abstract: TrainState) -> None:
        """What Orbax lets pass: another dtype, an absent branch, another name."""
        if _form(state) != _form(abstract):
            raise ValueError("its arrays are those of another model")
        if int(state.step) != step:
            raise ValueError(f"it is that of step {int(state.step)}")

    def _check_bits(self, state: TrainState, told: dict[str, Any]) -> None:
        """And flipped bits, or another run."""
        if not {"owner", "digest"} & set(told):  # saved before there were any; one flipped bit spoils one name
            return
        if told.get("digest") != _digest(state, {k: v for k, v in told.items() if k != "digest"}):
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


class _LastAndBest:
    """Orbax's PreservationPolicy: the last two steps, and the one that the run calls its best.

    The run knows its best step from the checkpoint that it continued from. Orbax's own ranking
    forgets the scores of what was saved before it was opened.
    """

    best_step: int | None = None

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        last = sorted(c.step for c in checkpoints)[-_NUM_LAST:]
        return [c.step in last or c.step == self.best_step for c in checkpoints]


def _digest(state: TrainState, told: dict[str, Any]) -> str:
    """Of all values and all bits, wherever the arrays lie."""
    leaves = jax.tree.leaves(state)
    sums = jax.device_get(_sums_of_bits(leaves))
    arrays = [[str(x.dtype), list(x.shape), int(s)] for x, s in zip(leaves, sums)]
    return hashlib.sha256(json.dumps([told, arrays], sort_keys=True).encode()).hexdigest()


@jax.jit
def _sums_of_bits(leaves: list[jax.Array]) -> list[jax.Array]:
    """A sum modulo 2**32 an array; with odd weights, so that no change of one element leaves it as it was.

    Integers add up to the same in any order, so to the same on any number of devices.
    """

    def sum_of(x):
        x = x.astype(jnp.uint8) if x.dtype == bool else x
        words = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}")).astype(jnp.uint32)
        strides = np.cumprod((1, *words.shape[:0:-1]))[::-1]
        axes = range(words.ndim)
        place = sum(jax.lax.broadcasted_iota(jnp.uint32, words.shape, i) * np.uint32(strides[i]) for i in axes)
        return jnp.sum(words * (2 * place + 1), dtype=jnp.uint32)

    return [sum_of(x) for x in leaves]


def _form(tree: Any) -> Any:
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
