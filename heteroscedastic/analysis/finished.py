"""A finished run, as its files tell it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from heteroscedastic import files
from heteroscedastic.data import resident
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


def with_one_label(found: Finished, split: str) -> Split:
    """One of the splits that a run has.

    Raises:
      ValueError: it has no such split, or its examples have several labels.
    """
    chosen = data(found, split)
    if chosen.labels.ndim != 1:
        raise ValueError("this is for one label an example, under softmax; this data set has lists of labels.")
    return chosen


def by_example(found: Finished, split: Split, read: Callable, rows: Int[np.ndarray, "m"] | None = None) -> Any:
    """What `read` makes of the latents of examples of a split, which are not augmented.

    Args:
      found: the run.
      split: of the run.
      read: (key, latent, batch) -> any tree of values by example. Compiled.
      rows: places in the split; all of them, in order, if not given.

    Returns:
      The tree in numpy, an entry an example.
    """
    run, state = found.run, found.state

    @jax.jit
    def values(state, on_device, feed, key):
        latent, batch = run.latents(state.params, state.model_state, on_device, feed)
        return read(key, latent, batch)

    on_device, key, parts = jax.device_put(split), assembly.key_for(run.config["seed"], "analysis"), []
    for i, feed in enumerate(resident.feeds(np.arange(len(split.ids)) if rows is None else rows, run.batch_size)):
        part = values(state, on_device, feed, jax.random.fold_in(key, i))
        parts.append(jax.tree.map(lambda x, present=feed.weights > 0: np.asarray(x)[present], part))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _on_one_device(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Wherever the run had it."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
