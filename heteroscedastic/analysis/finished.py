"""A finished run, as its files tell it."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from heteroscedastic import files
from heteroscedastic.data.dataset import Split
from heteroscedastic.training import assembly
from heteroscedastic.training.assembly import Run
from heteroscedastic.training.checkpoint import Checkpoints
from heteroscedastic.training.state import TrainState


class Finished(NamedTuple):
    """What a run left behind."""

    run: Run
    results: dict[str, Any]
    dataset: dict[str, Any]
    state: TrainState


def load(directory: str | Path, checkpoint: str = "last", data_dir: str | None = None) -> Finished:
    """The run in a directory, with the state of its last or its best checkpoint.

    Raises:
      FileNotFoundError: the directory holds no complete run.
      ValueError: the data is not what the run saw.
    """
    path = Path(directory)
    if not (path / "results.json").exists():
        raise FileNotFoundError(f"{path} holds no complete run: results.json is missing. Run main.py on it again.")
    results, dataset = (files.read_json(path / f"{n}.json") for n in ("results", "dataset"))
    run = assembly.build(files.read_json(path / "config.json"), data_dir)
    if run.description["fingerprint"] != dataset["fingerprint"]:
        raise ValueError(f"{path} saw other data than is found now; give the --data_dir of that run.")
    step = results["best_step"] if checkpoint == "best" else results["step"]
    if step is None:
        raise ValueError(f"{path} has no best checkpoint, as it had no validation.")
    with Checkpoints(path / "checkpoints") as checkpoints:
        state, _ = checkpoints.at(step, jax.tree.map(_on_one_device, jax.eval_shape(run.init)))
    return Finished(run, results, dataset, state)


def data(found: Finished, split: str) -> Split:
    """One of the splits that a run has.

    Raises:
      ValueError: it has no such split.
    """
    splits = found.run.dataset.splits
    if split not in splits:
        raise ValueError(f"the run has no split {split!r}, but {', '.join(sorted(splits))}.")
    return splits[split]


def _on_one_device(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Wherever the run had it."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
