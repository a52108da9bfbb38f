"""A finished run, as its files tell it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from heteroscedastic import files
from heteroscedastic.data import resident
from heteroscedastic.data.dataset import Split
from heteroscedastic.models import heads
from heteroscedastic.runs import assembly, run_record
from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training.state import TrainState


class Told(NamedTuple):
    """What the small files of a finished run say; nothing is built or trained to read them."""

    directory: files.Path
    config: dict[str, Any]
    results: dict[str, Any]
    dataset: dict[str, Any]


class Finished(NamedTuple):
    """What a run left behind."""

    run: Run
    results: dict[str, Any]
    dataset: dict[str, Any]
    state: TrainState


def read(directory: str | files.Path) -> Told:
    """What the small files of a run say.

    Raises:
      FileNotFoundError: the directory holds no complete run.
      ValueError: a file is damaged, was changed, belongs to another run, or is of a version that
        wrote other things.
    """
    path = files.as_path(directory)
    files.reach(path)
    if not (path / "results.json").exists():
        begun = (
            "its training is not finished"
            if (path / "config.json").exists()
            else "and config.json too"
        )
        raise FileNotFoundError(
            f"{path} holds no complete run: results.json is missing, {begun}."
            f" Train it to the end: python main.py --config=CONFIG --workdir={path}"
        )
    record = run_record.read(path)
    if not record.results["evals"]:
        raise ValueError(
            f"{path} has no evaluations to read: its config.evals is empty; give a run that has"
            " some."
        )
    return Told(path, **record._asdict())


def held_out(told: Told, on: str) -> str | None:
    """The evaluation whose predictions a temperature for `on` is fitted on: of the held-out split,
    by the same weights.

    None where the run has no such evaluation.
    """
    evals, validation = told.config["evals"], told.config.get("validation")
    split = validation["split"] if validation else "valid"
    checkpoint = evals.get(on, {}).get("checkpoint", "last")
    return next(
        (
            n
            for n, e in evals.items()
            if (e["split"], e.get("checkpoint", "last")) == (split, checkpoint)
        ),
        None,
    )


def build(told: Told, data_dir: str | None = None) -> Run:
    """The run itself, with the data that it saw.

    Raises:
      FileNotFoundError: the data is not found.
      ValueError: the data is not what the run saw, or its config is of another version.
    """
    try:
        run = assembly.build(told.config, data_dir)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        told_as = error if isinstance(error, ValueError) else f"{error!r} of config.json"
        raise ValueError(
            f"{told.directory / 'config.json'} cannot be built by this version: {told_as}"
        ) from error
    now, then = run.pipeline.description, told.dataset
    kind = (
        "fingerprint" if "examples_fingerprint" in then else "examples_fingerprint"
    )  # without names, as it was then
    if now.get(kind, now["fingerprint"]) != then.get("fingerprint"):
        raise ValueError(
            f"{told.directory} saw other data than is found now; give the --data_dir of that run."
        )
    return run


# What building or loading a run raises where its data, its version or its checkpoint is not here.
NOT_HERE = (FileNotFoundError, ModuleNotFoundError, ValueError, CheckpointError)


def clean_labels(told: Told, evaluation: str, data_dir: str | None = None) -> dict[int, Any]:
    """The label, or list of them, that an example of an evaluation has before any noise that is
    known, by its id.

    Raises:
      FileNotFoundError, ModuleNotFoundError, ValueError: the data that the run saw is not here.
    """
    split = told.config["evals"][evaluation]["split"]
    pipeline = build(told, data_dir).pipeline
    return dict(zip(pipeline.kept[split].tolist(), pipeline.clean_labels[split], strict=True))


def clean_labels_of(
    run: Run, split: str, ids: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
    """The labels of these examples of a split, before any noise that is known."""
    kept = run.pipeline.kept[split]
    rising = np.argsort(kept)
    return run.pipeline.clean_labels[split][rising[np.searchsorted(kept, ids, sorter=rising)]]


def load(
    directory: str | files.Path, checkpoint: str = "last", data_dir: str | None = None
) -> Finished:
    """The run in a directory, with the state of its last or its best checkpoint.

    Raises:
      FileNotFoundError: the directory holds no complete run.
      ValueError: the data is not what the run saw.
      CheckpointError: the checkpoint is missing, or cannot be read.
    """
    told = read(directory)
    path, results = told.directory, told.results
    run = build(told, data_dir)
    step = results["best_step"] if checkpoint == "best" else results["step"]
    if step is None:
        raise ValueError(f"{path} has no best checkpoint, as it had no validation.")
    with Checkpoints(path / "checkpoints", results.get("owner"), read_only=True) as checkpoints:
        state, _ = checkpoints.restore(step, jax.tree.map(_on_one_device, jax.eval_shape(run.init)))
    return Finished(run, results, told.dataset, state)


def evaluated(told: Told, evaluation: str, data_dir: str | None = None) -> tuple[Finished, str]:
    """The run with the state that was evaluated, and the split that it was evaluated on.

    Raises:
      FileNotFoundError, ModuleNotFoundError, ValueError: the data that the run saw is not here.
      CheckpointError: nor is the checkpoint.
    """
    settings = told.config["evals"][evaluation]
    return load(told.directory, settings.get("checkpoint", "last"), data_dir), settings["split"]


def has_noise(config: dict[str, Any]) -> bool:
    """Whether the head of a run has a covariance at all."""
    return heads.has_noise(config["head"]["name"])


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
      ValueError: it has no such split, or the run answers yes or no for each class.
    """
    if found.run.task.link == "sigmoid":  # before images are read
        raise ValueError(
            "this is for one label an example, under softmax; this run answers yes or no for each"
            " class."
        )
    return data(found, split)


def by_example(
    found: Finished,
    split: Split,
    read: Callable,
    rows: Int[np.ndarray, "m"] | None = None,
    then: Callable[[Any], Any] = lambda part: part,
) -> Any:
    """What `read` makes of the latents of examples of a split, which are not augmented.

    Args:
      found: the run.
      split: of the run.
      read: (key, latent, batch) -> any tree of values by example. Compiled.
      rows: places in the split; all of them, in order, if not given.
      then: of such a tree of a batch, in numpy: what is kept of it.

    Returns:
      The tree in numpy, an entry an example.
    """
    run, state = found.run, found.state

    @jax.jit
    def values(state, on_device, feed, key):
        latent, batch = run.latents(state.params, state.model_state, on_device, feed)
        return read(key, latent, batch)

    on_device, key, parts = (
        jax.device_put(split),
        assembly.key_for(run.config["seed"], "analysis"),
        [],
    )
    for i, feed in enumerate(
        resident.feeds(np.arange(len(split.ids)) if rows is None else rows, run.steps.batch_size)
    ):
        part = values(state, on_device, feed, jax.random.fold_in(key, i))
        parts.append(
            then(jax.tree.map(lambda x, present=feed.weights > 0: np.asarray(x)[present], part))
        )
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _on_one_device(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Wherever the run had it."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
