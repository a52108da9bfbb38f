"""Maps of a fixed trunk, computed once for each training image of a detector.

A step then reads the maps of its images instead of applying the trunk. Its losses are the same, up
to rounding.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from heteroscedastic.batch import TRUNK_MAPS
from heteroscedastic.data import chains, resident
from heteroscedastic.data.dataset import Split
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs.assembly import Run
from heteroscedastic.training import optimizer
from heteroscedastic.training.state import TrainState

_SETTING = "config.training.cached_maps is True"


def is_on(run: Run) -> bool:
    """Whether a run caches maps."""
    return run.config["training"].get("cached_maps", False)


def check(run: Run) -> None:
    """Raises a ValueError where a run caches maps that may differ between its steps."""
    if not is_on(run):
        return
    pipeline = run.pipeline
    if not isinstance(pipeline, resident.Resident):
        raise ValueError(
            f"{_SETTING}, but a stream decodes its images in each epoch; set it to False, or"
            " config.data.pipeline to 'resident'."
        )
    if drawn := chains.with_random_pixels(pipeline.training_chain):
        raise ValueError(
            f"{_SETTING}, but {chains.link_text(drawn[0])} of config.data.train changes the pixels"
            " of an image in each epoch; set it to False, or remove the operation."
        )
    key, feed = jax.random.key(0), pipeline.example("train", training=True)
    batch = jax.eval_shape(pipeline.training_batch, key, pipeline.arrays["train"], feed)
    arguments = batch.inputs, jnp.ones(batch.weights.shape, bool), jnp.ones((*batch.ids.shape, 2))
    start = functools.partial(run.model.init, method="trunk_maps")
    params = run.shapes.params
    fixed = optimizer.is_fixed(run.config["optimizer"].get("fixed", ()), params)
    by_path = traverse_util.flatten_dict(fixed, sep="/")
    in_trunk = traverse_util.flatten_dict(jax.eval_shape(start, key, *arguments)["params"], sep="/")
    if trained := [path for path in in_trunk if not by_path[path]]:
        modules = dict.fromkeys("/".join(path.split("/")[:2]) for path in trained)
        raise ValueError(
            f"{_SETTING}, but {trained[0]!r} of the trunk is trained; set it to False, or add"
            f" {', '.join(map(repr, modules))} to config.optimizer.fixed."
        )


def with_maps(run: Run, placement: Placement, state: TrainState, split: Split) -> Split:
    """The training split with the maps of each image as an extra, for each of its occurrences.

    Args:
      run: that caches maps.
      placement: of its arrays.
      state: on devices, with the parameters of the trunk.
      split: on devices.
    """
    size, occurrences = run.steps.batch_size, run.pipeline.occurrences

    @functools.partial(jax.jit, out_shardings=placement.replicated)
    def maps(params, model_state, split, feed):
        batch = run.pipeline.training_batch(jax.random.key(0), split, feed)  # draws no pixels
        sizes = run.task.model_inputs(batch)["sizes"]
        variables = {"params": params, **model_state}
        return run.model.apply(
            variables, batch.inputs, batch.weights > 0, sizes, method="trunk_maps"
        )

    rows = np.repeat(np.arange(run.pipeline.sizes["train"]), occurrences)
    found: np.ndarray | None = None  # all at once, as they may fill half of the memory
    for i, feed in enumerate(resident.feeds(rows, size)):  # which numbers the occurrences of a row
        own = placement.feed(resident.at_slots(feed, placement.slots(size)), size)
        part = np.asarray(maps(state.params, state.model_state, split, own))
        found = np.empty((len(rows), *part.shape[1:]), part.dtype) if found is None else found
        target = found[i * size : (i + 1) * size]
        target[:] = part[: len(target)]
    assert found is not None, "a split has an example"
    found = found.reshape(-1, occurrences, *found.shape[1:])
    placed = placement.put(found, placement.replicated)
    return split._replace(extras={**split.extras, TRUNK_MAPS: placed})
