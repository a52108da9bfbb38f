"""A pass over a split: merged sums, and the predictions that are written down."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

EXTRA = "extra_"  # before the name of an extra in a predictions file


def merged(total: Any | None, part: Any) -> Any:
    """Sums of two parts of a data set, in float64 on the host; None is no part."""
    part = jax.tree.map(lambda x: np.asarray(x, np.float64), part)
    return part if total is None else jax.tree.map(np.add, total, part)


def listed(sums: Any | None) -> list[Any] | None:
    """Sums as JSON values."""
    return None if sums is None else [x.tolist() for x in jax.tree.leaves(sums)]


def unlisted(values: list[Any], form: Any) -> Any | None:
    """What was `listed`, as a tree like `form`; None with a warning where it was of another
    version's form.
    """
    if len(jax.tree.leaves(form)) != len(values):
        logging.warning(
            "this checkpoint was saved by another version; the interval's metrics begin again."
        )
        return None
    return jax.tree.unflatten(jax.tree.structure(form), map(np.float64, values))


def evaluate(
    step: Callable, feeds: Iterable[Any], key: Any, keeps_predictions: bool = True
) -> tuple[Any, Any]:
    """Sums over all feeds, and the predictions of the examples that are present.

    Args:
      step: (feed, key) -> sums, the task's record of predictions, with a field `weights`.
      feeds: of the split, each example once.
      key: the noise of feed i follows from it and i.
      keeps_predictions: otherwise they are None, and stay on the device.
    """
    sums, parts = None, []
    for i, feed in enumerate(feeds):
        part, predictions = step(feed, jax.random.fold_in(key, i))
        sums = merged(sums, part)
        present = np.asarray(predictions.weights) > 0  # waits, so that no steps pile up
        if keeps_predictions:
            parts.append(jax.tree.map(lambda x, own=present: np.asarray(x)[own], predictions))
    return sums, jax.tree.map(lambda *x: np.concatenate(x), *parts) if parts else None


def arrays(predictions: Any) -> dict[str, np.ndarray]:
    """The arrays of a predictions file."""
    fields = predictions._asdict()
    extras = fields.pop("extras")
    arrays = {name: x for name, x in fields.items() if name != "weights" and x is not None}
    return arrays | {f"{EXTRA}{name}": x for name, x in extras.items()}
