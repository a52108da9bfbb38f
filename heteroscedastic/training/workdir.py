"""The files of a run: claimed by its config, written whole, read by whoever comes after."""

import contextlib
import fcntl
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heteroscedastic import files
from heteroscedastic.training import hosts


class WorkdirError(ValueError):
    """The directory holds something that this run must not touch."""


@contextlib.contextmanager
def claimed(workdir: Path, config: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """The directory is this run's own, and no other process's, while the context lasts.

    Yields:
      The results, if the directory holds this very run and it is complete; else None.

    Raises:
      WorkdirError: the directory holds a run of another config, or no run but other files, or
        another process is at work on it.
    """
    with contextlib.ExitStack() as stack:

        def claim():
            _check_ours(workdir, config)
            if (workdir / "results.json").exists():
                return files.read_json(workdir / "results.json")
            stack.enter_context(_locked(workdir))
            _check_ours(workdir, config)  # again, now that nobody else can change it
            if not (workdir / "config.json").exists():
                files.write_json(workdir / "config.json", config)
            return None

        yield hosts.from_first(claim)


def _check_ours(workdir: Path, config: dict[str, Any]) -> None:
    path = workdir / "config.json"
    if path.exists():
        found, config = files.read_json(path), json.loads(json.dumps(config))
        if found != config:
            raise WorkdirError(
                f"{workdir} holds a run of another config; give another --workdir or remove it."
                f" The difference (theirs -> yours):\n{difference(found, config)}"
            )
    elif workdir.exists() and any(not p.name.startswith(".") for p in workdir.iterdir()):
        raise WorkdirError(f"{workdir} holds files but no config.json, so no run; give another --workdir.")


@contextlib.contextmanager
def _locked(workdir: Path) -> Iterator[None]:
    """Held by one process at a time; let go when it ends, however it ends."""
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkdirError(
                f"another process is at work on {workdir}; wait for it or stop it, or give another --workdir."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def claim_data(workdir: Path, description: dict[str, Any]) -> None:
    """Records the data of a run.

    Raises:
      WorkdirError: the run was begun on other data.
    """
    path = workdir / "dataset.json"
    if path.exists():
        found = files.read_json(path)
        if found["fingerprint"] != description["fingerprint"]:
            raise WorkdirError(
                f"{workdir} was begun on other data ({found['num_examples']}, fingerprint"
                f" {found['fingerprint'][:12]}; now {description['num_examples']},"
                f" {description['fingerprint'][:12]}); give another --workdir or the old data."
            )
    else:
        files.write_json(path, description)


def difference(theirs: Any, ours: Any, at: str = "config") -> str:
    """Where two trees of JSON values differ, a line each."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(set(theirs) | set(ours))
        absent = "(absent)"
        parts = [difference(theirs.get(k, absent), ours.get(k, absent), f"{at}.{k}") for k in keys]
        return "\n".join(p for p in parts if p)
    return "" if theirs == ours else f"  {at}: {json.dumps(theirs)} -> {json.dumps(ours)}"


class Writer:
    """Metrics by step: a JSON line each, and TensorBoard events where TensorFlow is installed.

    Of several hosts the first one writes.
    """

    def __init__(self, workdir: Path, step: int):
        """Drops the lines after `step`, which a continued run writes again (events it only adds)."""
        self._events = None
        self._path = workdir / "metrics.jsonl"
        if not hosts.is_first():
            return
        if self._path.exists():
            kept = [line for line in _whole_lines(self._path) if json.loads(line)["step"] <= step]
            files.write_whole(self._path, lambda file: file.writelines(line.encode() for line in kept))
        # clu.metric_writers imports TensorFlow, and tensorboard, which may come without each other.
        if all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
            import tensorflow as tf
            from clu import metric_writers

            tf.config.set_visible_devices([], "GPU")  # they are JAX's
            self._events = metric_writers.SummaryWriter(str(workdir))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds a line, in the hands of the operating system when this returns."""
        if not hosts.is_first():
            return
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self._events:
            self._events.write_scalars(step, values)
            self._events.flush()


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file, less a last one cut off by a kill."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
