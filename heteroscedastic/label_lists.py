"""Several labels per example: lists of classes, padded with -1, and booleans by class."""

import numpy as np
from jaxtyping import Bool, Int


def multi_hot(labels: Int[np.ndarray, "n m"], num_classes: int) -> Bool[np.ndarray, "n k"]:
    """Converts lists of labels to booleans by class."""
    hot = np.zeros((len(labels), num_classes + 1), bool)
    hot[np.arange(len(labels))[:, None], labels] = True  # -1 indexes the extra last column
    return hot[:, :num_classes]


def from_multi_hot(hot: Bool[np.ndarray, "n k"]) -> Int[np.ndarray, "n m"]:
    """Converts booleans by class to lists of labels, padded with -1 and at least one wide."""
    width = max(1, int(hot.sum(axis=1).max(initial=0)))
    order = np.argsort(~hot, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(hot, order, axis=1), order, -1).astype(np.int32)
