"""The files of a run: claimed by its config, written whole, read by whoever comes after."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from heteroscedastic import files


class WorkdirError(ValueError):
    """The directory holds something that this run must not touch."""


def claim(workdir: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """Makes the directory this run's own.

    Returns:
      The results, if the directory holds this very run and it is complete; else None.

    Raises:
      WorkdirError: the directory holds a run of another config, or no run but other files.
    """
    path = workdir / "config.json"
    config = json.loads(json.dumps(config))
    if path.exists():
        found = files.read_json(path)
        if found != config:
            raise WorkdirError(
                f"{workdir} holds a run of another config; give another --workdir or remove it."
                f" The difference (theirs -> yours):\n{difference(found, config)}"
            )
    elif workdir.exists() and any(not p.name.startswith(".") for p in workdir.iterdir()):
        raise WorkdirError(f"{workdir} holds files but no config.json, so no run; give another --workdir.")
    else:
        files.write_json(path, config)
    return files.read_json(workdir / "results.json") if (workdir / "results.json").exists() else None


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
    """Metrics by step: a JSON line each, and TensorBoard events where TensorFlow is installed."""

    def __init__(self, workdir: Path, step: int):
        """Drops what was written after `step`, which a continued run writes again."""
        self._path = workdir / "metrics.jsonl"
        if self._path.exists():
            kept = [line for line in _whole_lines(self._path) if json.loads(line)["step"] <= step]
            files.write_whole(self._path, lambda file: file.writelines(line.encode() for line in kept))
        self._events = None
        # clu.metric_writers imports TensorFlow, and tensorboard, which may come without each other.
        if all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
            import tensorflow as tf
            from clu import metric_writers

            tf.config.set_visible_devices([], "GPU")  # they are JAX's
            self._events = metric_writers.SummaryWriter(str(workdir))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds a line, on disk when this returns."""
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self._events:
            self._events.write_scalars(step, values)
            self._events.flush()


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file, less a last one cut off by a kill."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
