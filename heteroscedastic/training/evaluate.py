"""A pass over a split: merged sums, and the predictions that are written down."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from scipy import special

from heteroscedastic.training.step import Predictions

_MAX_CLASSES = 2000  # above this, only the largest logits and the labels' own are kept
_NUM_KEPT = 100


def merged(total: Any | None, part: Any) -> Any:
    """Sums of two parts of a data set, in float64 on the host; None is no part."""
    part = jax.tree.map(lambda x: np.asarray(x, np.float64), part)
    return part if total is None else jax.tree.map(np.add, total, part)


def evaluate(step: Callable, feeds: Iterable[Any], key: Any) -> tuple[Any, Predictions]:
    """Sums over all feeds, and the predictions of the examples that are present.

    Args:
      step: (feed, key) -> sums, Predictions.
      feeds: of the split, each example once.
      key: the noise of feed i follows from it and i.
    """
    sums, parts = None, []
    for i, feed in enumerate(feeds):
        part, predictions = step(feed, jax.random.fold_in(key, i))
        sums = merged(sums, part)
        present = np.asarray(predictions.weights) > 0
        parts.append(Predictions(*(np.asarray(x)[present] for x in predictions)))
    return sums, jax.tree.map(lambda *x: np.concatenate(x), *parts)


def arrays(predictions: Predictions) -> dict[str, np.ndarray]:
    """What the predictions file holds: ids, labels, logits.

    Above 2,000 classes logits are the 100 largest, `classes` says whose, `label_logits` are the
    labels' own (nan at padding) and `log_normalizer` is log sum exp of all of them.
    """
    ids, _, labels, logits = predictions
    if logits.shape[-1] <= _MAX_CLASSES:
        return {"ids": ids, "labels": labels, "logits": logits}
    classes = np.argsort(-logits, axis=-1, kind="stable")[:, :_NUM_KEPT]
    lists = labels if labels.ndim == 2 else labels[:, None]
    own = np.take_along_axis(logits, np.maximum(lists, 0), axis=-1)
    own = np.where(lists >= 0, own, np.nan)
    return {
        "ids": ids,
        "labels": labels,
        "classes": classes.astype(np.int32),
        "logits": np.take_along_axis(logits, classes, axis=-1),
        "label_logits": own if labels.ndim == 2 else own[:, 0],
        "log_normalizer": special.logsumexp(logits, axis=-1),
    }
