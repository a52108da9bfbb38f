"""Choice of the examples of an epoch, on the host: (rng, pool) -> rows, weights.

Rows are positions in the training split; an example may occur more than once. The weights are those
of the loss. `config.selection` names a function; without it every epoch has every example once.
Functions that read scores require `config.prioritization`. The rng decides between equal scores.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Int

from heteroscedastic.bind import check_number

__all__ = [  # choices of config.selection
    "balanced",
    "everything",
    "excess",
    "largest",
    "pruned",
    "random",
    "smallest",
    "spread",
]
_Function = TypeVar("_Function", bound=Callable)


class Pool(NamedTuple):
    """The training examples."""

    ids: Int[np.ndarray, "n"]
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]  # lists are padded with -1
    class_counts: Float[np.ndarray, "k"]
    progress: float = 0.0  # share of training that has passed, in [0, 1]
    scores: Float[np.ndarray, "n"] | None = None  # see score.py; None without prioritization
    target_scores: Float[np.ndarray, "n"] | None = None  # of the target's last weights


class Selected(NamedTuple):
    """The examples of an epoch."""

    rows: Int[np.ndarray, "m"]  # positions in the training split
    weights: Float[np.ndarray, "m"]


def reads(*fields: str) -> Callable[[_Function], _Function]:
    """Declares which of the scores of a pool a function reads."""

    def declared(function):
        function.reads = fields
        return function

    return declared


@reads()
def everything(rng: np.random.Generator, pool: Pool) -> Selected:
    """Every example once, with weight 1."""
    return _once(np.arange(len(pool.ids)))


@reads()
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
    return _once(rng.choice(n, n, p=probabilities / probabilities.sum()))


@reads()
def random(rng: np.random.Generator, pool: Pool, *, fraction: float) -> Selected:
    """A fraction of the examples, each equally likely.

    Args:
      rng: of the draw.
      pool: the examples.
      fraction: of the examples, in (0, 1], rounded to a whole number of them.
    """
    n = len(pool.ids)
    return _once(np.sort(rng.choice(n, _number(fraction, n), replace=False)))


@reads("scores")
def largest(rng: np.random.Generator, pool: Pool, *, fraction: float) -> Selected:
    """The fraction of the examples with the largest scores.

    Args:
      rng: decides between equal scores.
      pool: the examples, with scores.
      fraction: of the examples, in (0, 1], rounded to a whole number of them.

    Source: Tata et al. (2022), arXiv:2210.06592, with `score.entropy`.
    """
    return _once(_lowest(rng, -_required("scores", pool.scores), fraction))


@reads("scores")
def smallest(rng: np.random.Generator, pool: Pool, *, fraction: float) -> Selected:
    """The fraction of the examples with the smallest scores.

    With `score.loss` these are the examples of small loss, whose labels are more often correct.

    Args:
      rng: decides between equal scores.
      pool: the examples, with scores.
      fraction: of the examples, in (0, 1], rounded to a whole number of them.

    Source: Han et al. (2018), arXiv:1804.06872, of a single network and over an epoch.
    """
    return _once(_lowest(rng, _required("scores", pool.scores), fraction))


@reads("scores")
def spread(rng: np.random.Generator, pool: Pool, *, fraction: float) -> Selected:
    """Every (1 / fraction)-th example of the ranking by score, from the largest score on.

    Args:
      rng: decides between equal scores.
      pool: the examples, with scores.
      fraction: of the examples, in (0, 1], rounded to a whole number of them.

    Source: `uniform` in the public code of Tata et al. (2022), arXiv:2210.06592.
    """
    n = len(pool.ids)
    shuffled = rng.permutation(n)
    scores = _required("scores", pool.scores)
    ranking = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    number = _number(fraction, n)
    return _once(np.sort(ranking[np.arange(number) * n // number]))


@reads("scores", "target_scores")
def excess(rng: np.random.Generator, pool: Pool, *, fraction: float) -> Selected:
    """The fraction of the examples whose score exceeds that of the target's last weights most.

    With `score.loss`, and a target that was trained on other examples, the difference is the
    reducible holdout loss. The source selects within a batch, this function within an epoch.

    Args:
      rng: decides between equal differences.
      pool: the examples, with both scores.
      fraction: of the examples, in (0, 1], rounded to a whole number of them.

    Source: Mindermann et al. (2022), arXiv:2206.07137, Eq. 3.
    """
    difference = _required("target_scores", pool.target_scores) - _required("scores", pool.scores)
    return _once(_lowest(rng, difference, fraction))


@reads("scores")
def pruned(
    rng: np.random.Generator, pool: Pool, *, rate: float, full_fraction: float = 0.125
) -> Selected:
    """Every example of at least the mean score, and a share 1 - rate of the others.

    The kept examples among the others weigh their number before over their number after, so that
    the weighted sum of any values has the expectation of the sum over all examples. The weighted
    sum of losses is therefore unbiased over draws, but the weighted mean of a batch is a ratio and
    is not. The last part of training has every example.

    Args:
      rng: of the draw.
      pool: the examples, with scores, and the progress of training.
      rate: share of the examples below the mean that an epoch leaves out, in [0, 1).
      full_fraction: part of training, at its end, that has every example; in [0, 1].

    Source: Qin et al. (2024), arXiv:2303.04947, section 3, with `score.loss`. There each example is
    left out independently; here their number is fixed.
    """
    check_number("rate", rate, at_least=0, below=1)
    check_number("full_fraction", full_fraction, at_least=0, at_most=1)
    n, scores = len(pool.ids), _required("scores", pool.scores)
    # In float64, as a rounded mean of equal scores may exceed them.
    below = scores < np.mean(scores, dtype=np.float64)
    candidates = np.flatnonzero(below)
    # As 0.7 * 90 is below 63 by rounding.
    number = len(candidates) - int(rate * len(candidates) * (1 + 1e-12))
    is_full = pool.progress >= 1 - full_fraction - 1e-9  # as 0.3 is below 1 - 0.7 by rounding
    if is_full or number == len(candidates):
        return _once(np.arange(n))
    kept = rng.choice(candidates, number, replace=False)
    rows = np.sort(np.concatenate([np.flatnonzero(~below), kept]))
    weights = np.where(below[rows], len(candidates) / number, 1.0)
    return Selected(rows, weights.astype(np.float32))


def _required(name: str, scores: Float[np.ndarray, "n"] | None) -> Float[np.ndarray, "n"]:
    """The scores of a pool, which this field has.

    Raises:
      ValueError: the pool has no such scores.
    """
    if scores is None:
        raise ValueError(
            f"the selection reads {name} of the pool, which has none; give Pool({name}=...), or"
            " config.prioritization in a run."
        )
    return scores


def _once(rows: Int[np.ndarray, "m"]) -> Selected:
    return Selected(rows, np.ones(len(rows), np.float32))


def _lowest(
    rng: np.random.Generator, values: Float[np.ndarray, "n"], fraction: float
) -> Int[np.ndarray, "m"]:
    """The rows of the lowest values, in order of the rows."""
    n = len(values)
    number = _number(fraction, n)
    # Of equal values at the limit the partition takes any by their positions, so these are random.
    shuffled = rng.permutation(n)
    chosen = np.zeros(n, bool)
    chosen[shuffled[np.argpartition(values[shuffled], number - 1)[:number]]] = True
    return np.flatnonzero(chosen)


def _number(fraction: float, num_examples: int) -> int:
    """Number of examples that a fraction of them is.

    Raises:
      ValueError: the fraction is outside (0, 1], or of no example.
    """
    check_number("fraction", fraction, above=0, at_most=1)
    number = round(fraction * num_examples)
    if number == 0:
        raise ValueError(
            f"fraction is {fraction}, which is no example of {num_examples:,}; give at least"
            f" {1 / num_examples:.2g}, which is one."
        )
    return number
