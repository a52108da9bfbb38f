"""Choice of the examples of an epoch, on the host: (rng, pool) -> rows, weights.

Rows are positions in the training split, in any order; an example may occur more than once. The
weights are those of the loss. `config.selection` names a function; without it every epoch has every
example once.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

__all__ = ["balanced", "everything"]  # what config.selection may name


class Pool(NamedTuple):
    """The training examples."""

    ids: Int[np.ndarray, "n"]
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]  # lists are padded with -1
    class_counts: Float[np.ndarray, "k"]


class Selected(NamedTuple):
    """The examples of an epoch."""

    rows: Int[np.ndarray, "m"]  # positions in the training split
    weights: Float[np.ndarray, "m"]


def everything(rng: np.random.Generator, pool: Pool) -> Selected:
    """Every example once, with weight 1."""
    n = len(pool.ids)
    return Selected(np.arange(n), np.ones(n, np.float32))


def balanced(rng: np.random.Generator, pool: Pool) -> Selected:
    """As many draws with replacement as there are examples, each of any class equally often.

    An example of class c has probability 1 / (K n_c), where K is the number of classes that have
    examples and n_c their number.

    Raises:
      ValueError: examples have lists of labels.
    """
    if pool.labels.ndim != 1:
        raise ValueError(
            "balanced draws by the class of an example, but these examples have lists of labels;"
            " use config.weighting instead."
        )
    counts = np.bincount(pool.labels, minlength=len(pool.class_counts))
    probabilities = 1 / counts[pool.labels]
    n = len(pool.ids)
    rows = rng.choice(n, n, p=probabilities / probabilities.sum())
    return Selected(rows, np.ones(n, np.float32))
