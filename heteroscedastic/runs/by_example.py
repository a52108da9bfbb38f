"""Passes over the examples of a split of a loaded run, without augmentation.

Each applies a function to what a part of the model makes of an example: its input, the maps of the
backbone, its features, its latent or its prediction.
"""

import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from heteroscedastic.batch import Batch
from heteroscedastic.data import resident
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.resident import Feed
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.runs import assembly
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.assembly import Run
from heteroscedastic.runs.loaded_run import LoadedRun
from heteroscedastic.training import evaluate


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

    loaded_run_lib.split_data(loaded_run, split)  # its errors
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
    data = loaded_run_lib.examples(run, split)
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
