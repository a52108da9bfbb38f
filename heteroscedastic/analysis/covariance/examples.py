"""The covariance between a group of classes for one example."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from heteroscedastic import latent as latent_lib
from heteroscedastic.data.resident import Feed
from heteroscedastic.runs import assembly
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun


class ExampleCovariance(NamedTuple):
    """What a run predicts for one example, in units of the utilities."""

    image: Shaped[np.ndarray, "..."]  # or features
    labels: tuple[int, ...]  # with label noise, as the run sees them
    clean_labels: tuple[int, ...]  # without known label noise; empty if they are unknown (-1)
    classes: Int[np.ndarray, "c"]
    probs: Float[np.ndarray, "c"]
    covariance: Float[np.ndarray, "c c"]


def example_covariance(
    loaded_run: LoadedRun,
    split: str,
    example_id: int,
    classes: Int[np.ndarray, "c"] | None = None,
    num_classes: int = 10,
) -> ExampleCovariance:
    """The covariance of the utilities of some classes for one example.

    Args:
      loaded_run: the run.
      split: the split that holds the example.
      example_id: its position in the stored split, as in `ids` of a predictions file.
      classes: the classes; the most probable ones by default.
      num_classes: the number of classes if `classes` is None.

    Raises:
      ValueError: the split has no such example.
    """
    run, state = loaded_run.run, loaded_run.state
    data = loaded_run_lib.split_data(loaded_run, split)
    positions = loaded_run_lib.positions_of_id(data, split, example_id)
    example = data.take(positions)
    feed = Feed(np.zeros(1, np.int32), np.ones(1, np.float32), np.int32(0))
    latent, _ = run.latents(state.params, state.model_state, example, feed, run.chain_of(split))
    key = assembly.key_for(run.config["seed"], "covariance")
    link = jax.nn.sigmoid if run.task.link == "sigmoid" else jax.nn.softmax
    probs = np.asarray(link(run.parts.predictive(key, latent))[0])
    if classes is None:
        classes = np.argsort(-probs, kind="stable")[:num_classes]
    rows, cols = (jnp.asarray(x.ravel()) for x in np.meshgrid(classes, classes, indexing="ij"))
    scale = loaded_run.variance_scale
    entries = latent_lib.covariance_entries(latent, rows, cols)[0] * scale
    return ExampleCovariance(
        image=example.inputs[0],
        labels=_label_tuple(example.labels),
        clean_labels=_label_tuple(loaded_run_lib.clean_labels(run, split, example.ids)),
        classes=classes,
        probs=probs[classes],
        covariance=np.asarray(entries, np.float64).reshape(len(classes), -1),
    )


def _label_tuple(labels: Int[np.ndarray, "1 *m"]) -> tuple[int, ...]:
    return tuple(int(x) for x in labels.ravel() if x >= 0)


def correlation(covariance: Float[np.ndarray, "c c"]) -> Float[np.ndarray, "c c"]:
    """The correlation matrix; 0 for a class without variance."""
    outer = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    return np.divide(covariance, outer, out=np.zeros_like(outer), where=outer > 0)


def table(example: ExampleCovariance, class_names: list[str]) -> list[dict[str, Any]]:
    """A row for each pair of classes, including each class with itself."""
    correlations = correlation(example.covariance)
    return [
        {
            "class": class_names[example.classes[i]],
            "other": class_names[example.classes[j]],
            "covariance": float(example.covariance[i, j]),
            "correlation": float(correlations[i, j]),
            "probability": float(example.probs[i]),
            "probability_of_other": float(example.probs[j]),
        }
        for i, j in zip(*np.triu_indices(len(example.classes)))
    ]
