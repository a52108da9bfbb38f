"""The covariance of one example, of a group of classes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt8

from heteroscedastic import latent as latent_lib
from heteroscedastic.data.resident import Feed
from heteroscedastic.runs import assembly, loaded_run


class Example(NamedTuple):
    """What a run says of one example, in units of the utilities."""

    image: UInt8[np.ndarray, "h w c"]
    labels: tuple[int, ...]  # as the run sees them
    clean_labels: tuple[
        int, ...
    ]  # without the noise that is known; none where -1 says that nobody knows
    classes: Int[np.ndarray, "c"]
    probs: Float[np.ndarray, "c"]
    covariance: Float[np.ndarray, "c c"]


def of(
    found: loaded_run.Finished,
    split: str,
    example_id: int,
    classes: Int[np.ndarray, "c"] | None = None,
    num_classes: int = 10,
) -> Example:
    """The covariance of an example, of these classes or else of its likeliest ones.

    Args:
      found: the run.
      split: where the example is.
      example_id: its position in the stored split, as predictions files tell it.
      classes: which.
      num_classes: how many, where `classes` does not say.

    Raises:
      ValueError: the split has no such example.
    """
    run, state, data = found.run, found.state, loaded_run.data(found, split)
    places = np.flatnonzero(data.ids == example_id)
    if not len(places):
        raise ValueError(
            f"the split {split!r} has no example of id {example_id}; its {len(data.ids)} ids are of"
            f" {data.ids.min()} to {data.ids.max()}, see `ids` in predictions/*.npz."
        )
    one = data.take(places)
    feed = Feed(np.zeros(1, np.int32), np.ones(1, np.float32), np.int32(0))
    latent, _ = run.latents(state.params, state.model_state, one, feed)
    key = assembly.key_for(run.config["seed"], "covariance")
    link = jax.nn.sigmoid if found.run.task.link == "sigmoid" else jax.nn.softmax
    probs = np.asarray(link(run.parts.predictive(key, latent))[0])
    if classes is None:
        classes = np.argsort(-probs, kind="stable")[:num_classes]
    rows, cols = (jnp.asarray(x.ravel()) for x in np.meshgrid(classes, classes, indexing="ij"))
    entries = (
        latent_lib.covariance_entries(latent, rows, cols)[0] * assembly.temperature(run, state) ** 2
    )
    return Example(
        image=one.inputs[0],
        labels=_listed(one.labels),
        clean_labels=_listed(loaded_run.clean_labels_of(run, split, one.ids)),
        classes=classes,
        probs=probs[classes],
        covariance=np.asarray(entries, np.float64).reshape(len(classes), -1),
    )


def _listed(labels: Int[np.ndarray, "1 *m"]) -> tuple[int, ...]:
    return tuple(int(x) for x in labels.ravel() if x >= 0)


def correlation(covariance: Float[np.ndarray, "c c"]) -> Float[np.ndarray, "c c"]:
    """The correlations; 0 where a class has no variance."""
    outer = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    return np.divide(covariance, outer, out=np.zeros_like(outer), where=outer > 0)


def table(example: Example, class_names: list[str]) -> list[dict[str, Any]]:
    """A row for each pair of classes, each with itself included."""
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
