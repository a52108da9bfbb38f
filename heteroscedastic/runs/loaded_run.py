"""Reading a finished run: its files alone, or the model, the data and a checkpoint."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from heteroscedastic import files
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.models import heads
from heteroscedastic.runs import assembly, run_record
from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training.state import TrainState


class SavedRun(NamedTuple):
    """The JSON files of a finished run. Reading them builds no model and reads no data."""

    directory: files.Path
    config: dict[str, Any]
    results: dict[str, Any]
    dataset: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedRun:
    """A finished run with its model, its data and the state of one checkpoint."""

    directory: files.Path
    run: Run
    results: dict[str, Any]
    dataset: dict[str, Any]
    state: TrainState
    # What by_example.features computed, by split. A changed copy of the run starts without.
    computed: dict[str, Float[np.ndarray, "n d"]] = dataclasses.field(
        init=False, default_factory=dict, repr=False
    )

    @property
    def variance_scale(self) -> float:
        """The factor from variances of latents to variances of utilities.

        Latents are in units of the temperature, so it is the squared temperature.
        """
        return assembly.temperature(self.run, self.state) ** 2


def read(directory: str | files.Path) -> SavedRun:
    """Reads config.json, results.json and dataset.json of a run.

    Raises:
      FileNotFoundError: the directory holds no complete run.
      ValueError: a file is damaged, was changed, belongs to another run or was written by an
        incompatible version.
    """
    path = files.as_path(directory)
    files.reach(path)
    if not (path / "results.json").exists():
        cause = (
            "its training is not finished, as results.json is missing"
            if (path / "config.json").exists()
            else "results.json and config.json are missing"
        )
        raise FileNotFoundError(
            f"{path} holds no complete run: {cause}. Finish the training:"
            f" python main.py --config=CONFIG --workdir={path}"
        )
    return SavedRun(path, **run_record.read(path)._asdict())


def held_out_evaluation(saved_run: SavedRun, evaluation: str) -> str | None:
    """The evaluation to fit a temperature on: that of the same checkpoint on the validation split.

    None if the run has no such evaluation, or the evaluation is itself of that split.
    """
    evals, validation = saved_run.config["evals"], saved_run.config.get("validation")
    split = validation["split"] if validation else "valid"
    checkpoint = evals.get(evaluation, {}).get("checkpoint", "last")
    if evals.get(evaluation, {}).get("split") == split:
        return None
    return next(
        (
            name
            for name, settings in evals.items()
            if (settings["split"], settings.get("checkpoint", "last")) == (split, checkpoint)
        ),
        None,
    )


def build(saved_run: SavedRun, data_dir: str | None = None) -> Run:
    """Builds the model and reads the data of a run.

    Raises:
      FileNotFoundError: the data set is missing.
      ValueError: the data differs from the data of the run, or this version does not support the
        config.
    """
    try:
        run = assembly.build(saved_run.config, data_dir)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        cause = error if isinstance(error, ValueError) else repr(error)
        raise ValueError(
            f"{saved_run.directory / 'config.json'} cannot be built by this version: {cause}"
        ) from error
    current, recorded = run.pipeline.description, saved_run.dataset
    # Before `examples_fingerprint` existed, `fingerprint` covered the examples without class names.
    key = "fingerprint" if "examples_fingerprint" in recorded else "examples_fingerprint"
    if current.get(key, current["fingerprint"]) != recorded.get("fingerprint"):
        raise ValueError(
            f"{saved_run.directory} used data that differs from the data in the current data"
            " directory; set --data_dir to the data directory of that run"
            + (
                " and install its versions of sacremoses and subword-nmt."
                if run.task.name == "translation"
                else "."
            )
        )
    return run


# Raised when the data, the version or the checkpoint that a run needs is not available here.
UNAVAILABLE = (FileNotFoundError, ModuleNotFoundError, ValueError, CheckpointError)


def clean_labels_by_id(
    saved_run: SavedRun, evaluation: str, data_dir: str | None = None
) -> dict[int, Any]:
    """The label or list of labels of each example of an evaluation, before known label noise.

    Raises:
      FileNotFoundError, ModuleNotFoundError, ValueError: the data of the run is not available.
    """
    split = saved_run.config["evals"][evaluation]["split"]
    pipeline = build(saved_run, data_dir).pipeline
    return dict(
        zip(pipeline.example_ids[split].tolist(), pipeline.clean_labels[split], strict=True)
    )


def clean_labels(
    run: Run, split: str, ids: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]:
    """The labels of the examples with these ids, before known label noise."""
    split_ids = run.pipeline.example_ids[split]
    order = np.argsort(split_ids)
    positions = order[np.searchsorted(split_ids, ids, sorter=order)]
    return run.pipeline.clean_labels[split][positions]


def load(
    directory: str | files.Path, checkpoint: str = "last", data_dir: str | None = None
) -> LoadedRun:
    """Loads a run with the state of its last or its best checkpoint.

    Args:
      directory: of the run.
      checkpoint: "last" or "best".
      data_dir: the directory of the data sets.

    Raises:
      FileNotFoundError: the directory holds no complete run.
      ValueError: the data differs from the data of the run, or it has no such checkpoint.
      CheckpointError: the checkpoint is missing or cannot be read.
    """
    if checkpoint not in ("last", "best"):
        raise ValueError(f"checkpoint is {checkpoint!r}; choose 'last' or 'best'.")
    saved_run = read(directory)
    path, results = saved_run.directory, saved_run.results
    run = build(saved_run, data_dir)
    step = results["best_step"] if checkpoint == "best" else results["step"]
    if step is None:
        raise ValueError(
            f"{path} has no best checkpoint because it had no validation; choose the last"
            " checkpoint."
        )
    with Checkpoints(path / "checkpoints", results.get("owner"), read_only=True) as checkpoints:
        state, _ = checkpoints.restore(step, jax.tree.map(_on_one_device, run.shapes))
    return LoadedRun(saved_run.directory, run, results, saved_run.dataset, state)


def with_pipeline(saved_run: SavedRun, pipeline: Pipeline) -> LoadedRun:
    """Loads a run with its last state in numpy, and another pipeline in place of its own.

    Raises:
      ValueError: this version does not support the config, or not with this data.
      CheckpointError: the checkpoint is missing or cannot be read.
    """
    config = {**saved_run.config, "evals": {}, "validation": None}
    for name in ("prioritization", "score", "selection"):  # they may not suit the other examples
        config.pop(name, None)
    layout = {"microbatches": 1, "parameters": "replicated", "class_shards": 1}
    config["training"] = {**config["training"], **layout, "profile_steps": None}
    run, results = assembly.build(config, pipeline=pipeline), saved_run.results
    directory = saved_run.directory / "checkpoints"
    with Checkpoints(directory, results.get("owner"), read_only=True) as checkpoints:
        state = checkpoints.restore_arrays(results["step"])
    return LoadedRun(saved_run.directory, run, results, saved_run.dataset, state)


def load_evaluated(
    saved_run: SavedRun, evaluation: str, data_dir: str | None = None
) -> tuple[LoadedRun, str]:
    """Loads a run with the checkpoint of an evaluation; returns it and the evaluation's split.

    Raises:
      FileNotFoundError, ModuleNotFoundError, ValueError: the data of the run is not available.
      CheckpointError: the checkpoint is not available.
    """
    settings = saved_run.config["evals"][evaluation]
    checkpoint = settings.get("checkpoint", "last")
    return load(saved_run.directory, checkpoint, data_dir), settings["split"]


def has_noise(config: dict[str, Any]) -> bool:
    """Whether the head of a run has a covariance."""
    return heads.has_noise(config["head"]["name"])


def split_data(loaded_run: LoadedRun, split: str) -> Split:
    """The examples of a split of a run that has one prediction for each.

    Raises:
      ValueError: the run has no such split, or its task predicts tokens or regions of an example.
    """
    task = loaded_run.run.task
    if task.rows == "region":
        raise ValueError(
            f"this analysis requires one prediction per example, but the task {task.name!r} has one"
            " per region; read the metrics in results.json, or predictions/*.json."
        )
    return examples(loaded_run.run, split)


def examples(run: Run, split: str) -> Split:
    """The examples of a split of a run, which a stream reads into memory.

    Raises:
      ValueError: see `check_split`; or a stream has two canvases.
    """
    check_split(run, split)
    return run.dataset.splits[split]


def check_split(run: Run, split: str) -> None:
    """Checks that an analysis can read the examples of a split of a run, without reading them.

    Raises:
      ValueError: the run has no such split, or its examples are tokens.
    """
    if run.task.name == "translation":
        raise ValueError(
            "the run is of the task 'translation', whose examples are tokens, which this analysis"
            " does not read; use heteroscedastic by_token."
        )
    splits = run.pipeline.sizes
    if split not in splits:
        raise ValueError(
            f"the run has no split {split!r}; its splits are {', '.join(sorted(splits))}."
        )


def single_label_data(loaded_run: LoadedRun, split: str) -> Split:
    """The examples of a split of a run that has one label per example.

    Raises:
      ValueError: the run has no such split, its examples are tokens, or its link is the sigmoid.
    """
    if loaded_run.run.task.link == "sigmoid":  # before images are read
        raise ValueError(
            "this analysis requires one label per example and a softmax; this run predicts each"
            " class independently with a sigmoid."
        )
    return split_data(loaded_run, split)


def positions_of_id(data: Split, split: str, example_id: int) -> Int[np.ndarray, "1"]:
    """The position of an example in a split.

    Raises:
      ValueError: the split has no such example.
    """
    positions = np.flatnonzero(data.ids == example_id)
    if not len(positions):
        raise ValueError(
            f"the split {split!r} has no example with id {example_id}; it has {len(data.ids)} ids"
            f" between {data.ids.min()} and {data.ids.max()}, listed as `ids` in"
            " predictions/*.npz."
        )
    return positions


def _on_one_device(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The array on the first device, whatever its sharding in the run."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
