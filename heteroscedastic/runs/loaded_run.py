"""Reading a finished run: its files alone, or the model, the data and a checkpoint."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from heteroscedastic import files
from heteroscedastic.batch import Batch
from heteroscedastic.data import resident
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.data.resident import Feed
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.models import heads
from heteroscedastic.runs import assembly, run_record
from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training import evaluate
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
    # What `features` computed, by split. A changed copy of the run starts without.
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
    record = run_record.read(path)
    if not record.results["evals"]:
        raise ValueError(
            f"{path} has no evaluations because its config.evals is empty; choose a run that has"
            " evaluations."
        )
    return SavedRun(path, **record._asdict())


def held_out_evaluation(saved_run: SavedRun, evaluation: str) -> str | None:
    """The evaluation to fit a temperature on: that of the same checkpoint on the validation split.

    None if the run has no such evaluation.
    """
    evals, validation = saved_run.config["evals"], saved_run.config.get("validation")
    split = validation["split"] if validation else "valid"
    checkpoint = evals.get(evaluation, {}).get("checkpoint", "last")
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
            " directory; set --data_dir to the data directory of that run."
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
      ValueError: the data differs from the data of the run.
      CheckpointError: the checkpoint is missing or cannot be read.
    """
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
    config["training"] = {**config["training"], **layout}
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
    """The examples of a split of a run.

    Raises:
      ValueError: the run has no such split, or its examples are tokens.
    """
    if run.task.name == "translation":
        raise ValueError(
            "the run is of the task 'translation', whose examples are tokens, which this analysis"
            " does not read; use heteroscedastic by_token."
        )
    splits = run.dataset.splits
    if split not in splits:
        raise ValueError(
            f"the run has no split {split!r}; its splits are {', '.join(sorted(splits))}."
        )
    return splits[split]


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


def features(
    loaded_run: LoadedRun, split: str, rows: Int[np.ndarray, "m"] | None = None
) -> Float[np.ndarray, "m d"]:
    """The features of the examples of a split, the input of the head, without augmentation.

    Those of an entire split are kept, as analyses of the latent read them again and again.

    Args:
      loaded_run: the run.
      split: of the run.
      rows: positions in the split; defaults to all of them, in order.

    Raises:
      ValueError: the run has no such split, or its task predicts tokens or regions of an example.
    """
    if (kept := loaded_run.computed.get(split)) is not None:
        return kept if rows is None else kept[rows]
    run = loaded_run.run

    @jax.jit
    def values(state, on_device, feed, key):
        arguments = (state.params, state.model_state, on_device, feed)
        return run.features(*arguments, run.chain_of(split))[0]

    split_data(loaded_run, split)  # its errors
    found = _mapped(loaded_run, split, values, rows)
    if rows is None:
        loaded_run.computed[split] = found
    return found


def map_features(
    loaded_run: LoadedRun,
    split: str,
    function: Callable,
    rows: Int[np.ndarray, "m"] | None = None,
) -> Any:
    """As `map_latents`, for a function (state, features, batch) of the input of the head.

    The state is an argument, so that a function that applies the head (`Run.latent_of_features`) is
    compiled without its parameters.
    """
    run = loaded_run.run

    @jax.jit
    def values(state, on_device, feed, key, inputs):
        return function(state, inputs, _batch(run, on_device, feed, split))

    found = features(loaded_run, split, rows)
    return _mapped(loaded_run, split, values, rows, inputs=found)


def map_latents(
    loaded_run: LoadedRun,
    split: str,
    function: Callable,
    rows: Int[np.ndarray, "m"] | None = None,
    postprocess: Callable[[Any], Any] = lambda values: values,
) -> Any:
    """Applies a function to the latents of the examples of a split, without augmentation.

    Args:
      loaded_run: the run.
      split: of the run.
      function: (key, latent, batch) -> a tree of arrays with one entry per example. Compiled.
      rows: positions in the split; defaults to all of them, in order.
      postprocess: applied to the tree of each batch, in numpy, before batches are concatenated.

    Returns:
      The tree in numpy, with one entry per example.
    """
    run = loaded_run.run

    @jax.jit
    def values(state, on_device, feed, key, inputs):
        latent = run.latent_of_features(state.params, inputs)
        return function(key, latent, _batch(run, on_device, feed, split))

    found = features(loaded_run, split, rows)
    return _mapped(loaded_run, split, values, rows, postprocess, inputs=found)


def map_predictions(
    loaded_run: LoadedRun,
    split: str,
    function: Callable,
    rows: Int[np.ndarray, "m"] | None = None,
) -> Any:
    """As `map_latents`, for a function (latent, logits, batch), where the predictive gives logits.

    Drawing noise takes longest to compile, so `logits` is compiled apart: once for all functions
    and runs whose predictives have the same settings and latents of the same shapes.
    """
    values = _of_predictions(loaded_run.run, split, function)
    found = features(loaded_run, split, rows)
    return _mapped(loaded_run, split, values, rows, inputs=found)


def sum_predictions(
    loaded_run: LoadedRun, split: str, function: Callable, batch_size: int | None = None
) -> Any:
    """The sums over the examples of a split of what is too large to keep for each example.

    Args:
      loaded_run: the run.
      split: of the run.
      function: (latent, logits, batch) -> a tree of sums over the examples, weighted by
        `batch.weights`. Compiled.
      batch_size: examples at a time; defaults to the batch size of the run.

    Returns:
      The tree in numpy, of float64.
    """
    values = _of_predictions(loaded_run.run, split, function)
    found = features(loaded_run, split)
    parts = _batches(loaded_run, split, values, None, found, batch_size)
    return functools.reduce(evaluate.merged, (part for part, _ in parts), None)


def _of_predictions(run: Run, split: str, function: Callable) -> Callable:
    latent_of = jax.jit(run.latent_of_features)
    of_batch = jax.jit(
        lambda latent, logits, on_device, feed: function(
            latent, logits, _batch(run, on_device, feed, split)
        )
    )

    def values(state, on_device, feed, key, inputs):
        latent = latent_of(state.params, inputs)
        return of_batch(latent, logits(run, key, latent), on_device, feed)

    return values


def map_maps(
    loaded_run: LoadedRun,
    split: str,
    function: Callable,
    rows: Int[np.ndarray, "m"] | None = None,
) -> Any:
    """As `map_features`, for a function (state, maps, batch) of the features of each place.

    The maps of one batch are in memory at a time.

    Raises:
      ValueError: the backbone is not convolutional.
    """
    run = loaded_run.run

    @jax.jit
    def values(state, on_device, feed, key):
        arguments = (state.params, state.model_state, on_device, feed)
        return function(state, *run.maps(*arguments, run.chain_of(split)))

    return _mapped(loaded_run, split, values, rows)


def map_batches(
    loaded_run: LoadedRun,
    split: str,
    function: Callable,
    rows: Int[np.ndarray, "m"] | None = None,
) -> Any:
    """As `map_features`, for a function (state, batch) of the inputs, as the model sees them."""
    run = loaded_run.run

    @jax.jit
    def values(state, on_device, feed, key):
        return function(state, _batch(run, on_device, feed, split))

    return _mapped(loaded_run, split, values, rows)


def _batch(run: Run, on_device: Split, feed: Feed, split: str) -> Batch:
    return run.batch(on_device, feed, run.chain_of(split))


def logits(run: Run, key: PRNGKeyArray, latent: LatentGaussian) -> Float[Array, "*b k"]:
    """The logits of the predictive of a run, compiled once for all runs with its settings."""
    return _logits(_ByValue(run.parts.predictive), key, latent)


@functools.partial(jax.jit, static_argnums=0)
def _logits(predictive, key, latent):
    return predictive.function(key, latent)


class _ByValue:
    """A function that equals another one with the same settings, for the cache of `jax.jit`."""

    def __init__(self, function: Callable):
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and _value(self.function) == _value(other.function)

    def __hash__(self) -> int:
        return hash(_value(self.function))


def _value(item: Any) -> Hashable:
    """What a bound function consists of."""
    if not isinstance(item, functools.partial):
        return item
    settings = tuple(sorted(item.keywords.items()))
    return _value(item.func), *map(_value, item.args), settings


def _mapped(
    loaded_run: LoadedRun,
    split: str,
    function: Callable,
    rows: Int[np.ndarray, "m"] | None,
    postprocess: Callable[[Any], Any] = lambda values: values,
    inputs: Float[np.ndarray, "m d"] | None = None,
) -> Any:
    """The values of a function for each example of `rows`; see `_batches`."""
    parts = []
    for part, present in _batches(loaded_run, split, function, rows, inputs):
        parts.append(
            postprocess(jax.tree.map(lambda x, present=present: np.asarray(x)[present], part))
        )
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _batches(
    loaded_run: LoadedRun,
    split: str,
    function: Callable,
    rows: Int[np.ndarray, "m"] | None,
    inputs: Float[np.ndarray, "m d"] | None = None,
    batch_size: int | None = None,
) -> Iterator[tuple[Any, Bool[np.ndarray, "b"]]]:
    """The values of a function (state, data on the device, feed, key) of batches.

    If there are inputs of each of `rows`, the batch of them is its last argument. Which examples of
    the batch are present follows each value.
    """
    run = loaded_run.run
    data = examples(run, split)
    on_device = jax.device_put(data)
    key = assembly.key_for(run.config["seed"], "analysis")
    rows = np.arange(len(data.ids)) if rows is None else rows
    size = batch_size or run.steps.batch_size
    for i, feed in enumerate(resident.feeds(rows, size)):
        arguments = [loaded_run.state, on_device, feed, jax.random.fold_in(key, i)]
        if inputs is not None:
            of_batch = inputs[i * size : (i + 1) * size]
            arguments.append(np.pad(of_batch, ((0, size - len(of_batch)), (0, 0))))
        yield function(*arguments), feed.weights > 0


def _on_one_device(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The array on the first device, whatever its sharding in the run."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
