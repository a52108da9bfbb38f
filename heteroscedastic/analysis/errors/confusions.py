"""Which classes a model takes for which other classes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.predictions import Predictions

MAX_CLASSES = 2000  # above which a report has no K x K matrix


class Confusion(NamedTuple):
    """A class that is taken for another one."""

    true: int
    predicted: int
    count: int  # predictions, of all runs
    rate: float  # fraction of the predictions for examples of the true class


def confusion_matrix(runs: Sequence[Predictions], num_classes: int) -> Int[np.ndarray, "k k"]:
    """The number of predictions of all runs by true class (rows) and predicted class (columns).

    A tie of the largest logits counts for the first of its classes.

    Raises:
      ValueError: the predictions are of lists of labels.
    """
    for run in runs:
        if run.link == "sigmoid":
            raise ValueError(
                f"{run.source} has lists of labels; a confusion matrix requires one label per"
                " example."
            )
    counts = np.zeros(num_classes**2, np.int64)
    for run in runs:
        cells = run.labels.astype(np.int64) * num_classes + predictions_lib.predicted_classes(run)
        counts += np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def rates(matrix: Int[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """The fractions of each true class; nan for a class without examples."""
    sizes = matrix.sum(axis=1, keepdims=True)
    return np.divide(matrix, sizes, out=np.full(matrix.shape, np.nan), where=sizes > 0)


def largest(matrix: Int[np.ndarray, "k k"], number: int) -> list[Confusion]:
    """The confusions of at most this many pairs, by falling rate and then count."""
    fractions = rates(matrix)
    rows, cols = np.nonzero(matrix * (1 - np.eye(len(matrix), dtype=matrix.dtype)))
    order = np.lexsort((-matrix[rows, cols], -fractions[rows, cols]))[:number]
    return [
        Confusion(int(i), int(j), int(matrix[i, j]), float(fractions[i, j]))
        for i, j in zip(rows[order], cols[order])
    ]


def group_of_classes(matrix: Int[np.ndarray, "k k"], number: int) -> Int[np.ndarray, "c"]:
    """At most `number` classes, in ascending order: all, or those of the largest confusions."""
    if len(matrix) <= number:
        return np.arange(len(matrix))
    classes: list[int] = []
    for confusion in largest(matrix, number**2):
        classes += [c for c in confusion[:2] if c not in classes]
    return np.sort(np.array(classes[:number], int))
