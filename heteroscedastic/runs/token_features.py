"""Features of the tokens of a translator, as arrays of a data set; embed.py writes them."""

import jax
import numpy as np
from jaxtyping import Float, Shaped

from heteroscedastic import files
from heteroscedastic.data import resident
from heteroscedastic.data.packing import MAX_TOKENS
from heteroscedastic.data.text.pipeline import Text
from heteroscedastic.runs.loaded_run import LoadedRun


def labels(pipeline: Text) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The names of the words, and the ids, reference words and sentences of the tokens of splits.

    The sentences are `groups`; see data.dataset.Split.
    """
    # A class name has no control character, as a word from the web may have.
    arrays = {"class_names": np.array([files.printable(name) for name in pipeline.class_names])}
    for split in pipeline.sizes:
        arrays[f"{split}_ids"] = ids = pipeline.example_ids[split]
        arrays[f"{split}_groups"] = ids // MAX_TOKENS
        arrays[f"{split}_labels"] = pipeline.clean_labels[split]
    return arrays


def features(loaded_run: LoadedRun, split: str, batch_size: int) -> Float[np.ndarray, "n d"]:
    """The features of the tokens of a split in evaluation, in the order of `labels`.

    Args:
      loaded_run: of the task "translation".
      split: of its pipeline.
      batch_size: rows at a time.
    """
    run, state, parts = loaded_run.run, loaded_run.state, []
    on_device, apply = jax.device_put(run.pipeline.arrays[split]), jax.jit(run.features)
    for feed in resident.feeds(np.arange(run.pipeline.sizes[split]), batch_size):
        values, batch = apply(state.params, state.model_state, on_device, feed)
        parts.append(np.asarray(values)[np.asarray(batch.weights) > 0])
    return np.concatenate(parts)
