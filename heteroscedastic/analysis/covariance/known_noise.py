"""Known label noise, and how well a measure of pairs of classes agrees with it, or with the
probabilities.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse, stats

from heteroscedastic.calibration import scores


def share(description: dict[str, Any]) -> float | None:
    """The share of training labels that differ from the clean ones, of dataset.json; None where it
    does not tell.
    """
    counts = description.get("label_noise")
    if not counts:
        return None
    clean, seen, number = np.array(counts).T
    return float(number[clean != seen].sum() / number.sum())


def mixed(
    description: dict[str, Any], rows: Int[np.ndarray, "p"], cols: Int[np.ndarray, "p"]
) -> Float[np.ndarray, "p"]:
    """Of the examples of two different classes, the share whose label is the other one, from
    dataset.json.

    0 where no label noise is known.
    """
    noise = np.array(description.get("label_noise", ()), int).reshape(-1, 3)
    counts = sparse.csr_array(
        (noise[:, 2], noise[:, :2].T), shape=(len(description["class_names"]),) * 2
    )
    sizes = counts.sum(axis=1)
    crossed = np.asarray(counts[rows, cols] + counts[cols, rows], float)
    both = np.asarray(sizes[rows] + sizes[cols], float)
    return np.divide(crossed, both, out=np.zeros_like(both), where=(both > 0) & (rows != cols))


def confusions(description: dict[str, Any]) -> Float[np.ndarray, "k k"]:
    """`mixed` of every pair: symmetric, and 0 on the diagonal."""
    num_classes = len(description["class_names"])
    rows, cols = np.indices((num_classes, num_classes)).reshape(2, -1)
    return mixed(description, rows, cols).reshape(num_classes, num_classes)


def most_mixed(confusion: Float[np.ndarray, "k k"]) -> Bool[np.ndarray, "k k"]:
    """The pairs that a measure is to find: those that are mixed at all.

    Where every pair is, as under human noise, they are a tenth of the pairs, rounded up, three at
    least: the most mixed ones, with those that tie with the last of them.
    """
    sizes = confusion[np.triu_indices(len(confusion), 1)]
    count = max(3, -(-len(sizes) // 10))
    if not sizes.all() or count >= len(sizes):
        return confusion > 0
    return confusion >= np.sort(sizes)[-count]


def agreement(
    measure: Float[np.ndarray, "k k"], pairs: Bool[np.ndarray, "k k"]
) -> dict[str, float]:
    """How well the sizes of a measure rank the pairs that are mixed before those that are not.

    Returns:
      `first`: how many of the m mixed pairs are among the m largest, ties shared evenly;
      `auc`: the chance that a mixed pair is above another, ties one half.
    """
    upper = np.triu_indices(len(measure), 1)
    values, mixed = np.abs(measure[upper]), pairs[upper]
    num_mixed, num_pairs = int(mixed.sum()), len(mixed)
    if num_mixed in (0, num_pairs):
        return {"first": float("nan"), "auc": float("nan")}
    first = num_mixed * scores.precision_at(values, mixed, num_mixed)
    return {"first": first, "auc": scores.auroc(values, mixed)}


def rank_correlation(
    measure: Float[np.ndarray, "k k"],
    confusion: Float[np.ndarray, "k k"],
    num_permutations: int = 9999,
) -> dict[str, float]:
    """Spearman's correlation, over pairs of classes, of the sizes of a measure with known
    confusions.

    Returns:
      `rho`, and `p`: the chance of one as large if the classes of the measure had other names,
      by random permutations of them (pairs that share a class are not independent).

    Source: Mantel (1967).
    """
    upper = np.triu_indices(len(measure), 1)
    wanted = _centred_ranks(confusion[upper])
    if not wanted.any():  # no pair is confused, or all alike; before permutations are drawn
        return {"rho": float("nan"), "p": float("nan")}
    draws = np.random.Generator(np.random.Philox(key=0))
    orders = [
        np.arange(len(measure)),
        *(draws.permutation(len(measure)) for _ in range(num_permutations)),
    ]
    ranked = np.zeros(measure.shape)
    ranked[upper] = _centred_ranks(np.abs(measure[upper]))
    ranked += ranked.T
    products = np.array([ranked[np.ix_(order, order)][upper] @ wanted for order in orders])
    size = np.sqrt((ranked[upper] @ ranked[upper]) * (wanted @ wanted))
    if size == 0:
        return {"rho": float("nan"), "p": float("nan")}
    # Rounding must not part what is equal.
    as_large = np.sum(products >= products[0] - 1e-9 * size)
    return {"rho": float(products[0] / size), "p": float(as_large / len(orders))}


def _centred_ranks(values: np.ndarray) -> np.ndarray:
    ranks = stats.rankdata(values)
    return ranks - ranks.mean()


def agreements(
    measures: dict[str, Float[np.ndarray, "k k"]], description: dict[str, Any]
) -> dict[str, dict[str, float]] | None:
    """`agreement`, on `most_mixed`, and `rank_correlation` of each measure with the confusions of
    dataset.json.

    Of many classes there are fewer permutations.

    Returns:
      Of each measure what both say, and `to_find`: m, how many pairs are the most mixed. None where
      no noise is known.
    """
    known = confusions(description)
    if not known.any():
        return None
    wanted = most_mixed(known)
    to_find = {"to_find": int(np.count_nonzero(np.triu(wanted, 1)))}
    num_permutations = int(np.clip(10**9 // known.size, 99, 9999))
    return {
        name: to_find
        | agreement(values, wanted)
        | rank_correlation(values, known, num_permutations)
        for name, values in measures.items()
    }


def with_probabilities(
    measures: dict[str, Float[np.ndarray, "k k"]],
) -> dict[str, dict[str, float]]:
    """Whether the sizes of each measure follow those of `overlap`, p_i p_j, which a plain softmax
    has too.

    `seen` does, as they are in it. Labels say nothing of the noise between classes that are never
    both probable, so what the other measures say of such a pair is of the initial weights, the
    regularisation and shared features; see docs/identifiability.md. This is of all pairs: a measure
    may have the right ones first and follow no further.

    Returns:
      `rank_correlation` of every other measure, with 999 permutations.
    """
    overlap = measures["overlap"]
    return {
        name: rank_correlation(values, overlap, 999)
        for name, values in measures.items()
        if name != "overlap"
    }
