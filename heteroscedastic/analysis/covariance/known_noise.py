"""Known label noise, and how well measures of class pairs agree with it or with probabilities."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse, stats

from heteroscedastic.calibration import scores


def noise_rate(description: dict[str, Any]) -> float | None:
    """The fraction of training labels that differ from the clean labels.

    Args:
      description: contents of dataset.json.

    Returns:
      None if dataset.json does not record the label noise.
    """
    counts = description.get("label_noise")
    if not counts:
        return None
    clean, observed, number = np.array(counts).T
    return float(number[clean != observed].sum() / number.sum())


def confusion_rates(
    description: dict[str, Any], rows: Int[np.ndarray, "p"], cols: Int[np.ndarray, "p"]
) -> Float[np.ndarray, "p"]:
    """The fraction of the examples of two different classes that carry the other class's label.

    Args:
      description: contents of dataset.json; without known label noise all rates are 0.
      rows: first class of each pair.
      cols: second class of each pair.
    """
    noise = np.array(description.get("label_noise", ()), int).reshape(-1, 3)
    counts = sparse.csr_array(
        (noise[:, 2], noise[:, :2].T), shape=(len(description["class_names"]),) * 2
    )
    sizes = counts.sum(axis=1)
    swapped = np.asarray(counts[rows, cols] + counts[cols, rows], float)
    total = np.asarray(sizes[rows] + sizes[cols], float)
    return np.divide(swapped, total, out=np.zeros_like(total), where=(total > 0) & (rows != cols))


def confusion_matrix(description: dict[str, Any]) -> Float[np.ndarray, "k k"]:
    """`confusion_rates` of every pair: a symmetric matrix with a diagonal of 0."""
    num_classes = len(description["class_names"])
    rows, cols = np.indices((num_classes, num_classes)).reshape(2, -1)
    return confusion_rates(description, rows, cols).reshape(num_classes, num_classes)


def most_confused(confusion: Float[np.ndarray, "k k"]) -> Bool[np.ndarray, "k k"]:
    """The pairs that a measure should find.

    These are the pairs with a positive confusion rate. If every pair has one, as under human label
    noise, they are the tenth of the pairs with the highest rates (rounded up, at least three),
    together with all pairs that tie with the last of them.
    """
    rates = confusion[np.triu_indices(len(confusion), 1)]
    count = max(3, -(-len(rates) // 10))
    if not rates.all() or count >= len(rates):
        return confusion > 0
    return confusion >= np.sort(rates)[-count]


def agreement(
    measure: Float[np.ndarray, "k k"], pairs: Bool[np.ndarray, "k k"]
) -> dict[str, float]:
    """How well the absolute values of a measure rank the given pairs before all others.

    Returns:
      `first`: how many of the m given pairs are among the m largest values, with ties shared
      evenly; `auc`: the probability that a given pair ranks above another pair, ties one half.
    """
    upper = np.triu_indices(len(measure), 1)
    values, positive = np.abs(measure[upper]), pairs[upper]
    num_positive, num_pairs = int(positive.sum()), len(positive)
    if num_positive in (0, num_pairs):
        return {"first": float("nan"), "auc": float("nan")}
    first = num_positive * scores.precision_at(values, positive, num_positive)
    return {"first": first, "auc": scores.auroc(values, positive)}


def rank_correlation(
    measure: Float[np.ndarray, "k k"],
    confusion: Float[np.ndarray, "k k"],
    num_permutations: int = 9999,
    given: Float[np.ndarray, "k k"] | None = None,
    strata: Int[np.ndarray, "k"] | None = None,
) -> dict[str, float]:
    """Spearman's correlation, over class pairs, of a measure's absolute values with confusions.

    Pairs that share a class are not independent, so the test permutes the classes of the measure.

    Args:
      measure: of each pair.
      confusion: of each pair.
      num_permutations: of the test.
      given: another measure of each pair. The correlation is then partial: of what remains of both
        ranks after a linear fit to the ranks of `given`. The test permutes the remainder of the
        measure. Ranks that depend on those of `given` by the same curve keep a small correlation,
        so that p is a little too small.
      strata: number of the group of each class within which classes are permuted; None if all are
        of one group.

    Returns:
      `rho`, and `p`: the probability of a correlation at least as large under a random permutation
      of the classes. Both are nan if nothing varies, or nothing beyond `given`.

    Source: Mantel (1967); for the partial test Legendre (2000), permutation of residuals.
    """
    upper = np.triu_indices(len(measure), 1)
    control = np.zeros(len(upper[0]))
    if given is not None:
        control = _centred_ranks(given[upper])
        control /= np.linalg.norm(control) or 1.0
    remainder, target = (
        _remainder(_centred_ranks(x[upper]), control) for x in (np.abs(measure), confusion)
    )
    if not (target.any() and remainder.any()):  # skip the permutations
        return {"rho": float("nan"), "p": float("nan")}
    if strata is None:
        strata = np.zeros(len(measure), int)
    orders = [np.arange(len(measure)), *permutations(strata, num_permutations)]
    ranks = np.zeros(measure.shape)
    ranks[upper] = remainder
    ranks += ranks.T
    factors = np.stack([target, control], axis=1)
    products = np.array([ranks[np.ix_(order, order)][upper] @ factors for order in orders])
    # A permuted remainder is correlated with the control again, by its second product.
    squares = np.maximum(remainder @ remainder - products[:, 1] ** 2, 0.0)
    scales = np.sqrt(squares * (target @ target))
    rho = np.divide(products[:, 0], scales, out=np.zeros_like(scales), where=scales > 0)
    # The tolerance counts values that differ only by rounding as equal.
    return {"rho": float(rho[0]), "p": float(np.mean(rho >= rho[0] - 1e-9))}


def permutations(strata: Int[np.ndarray, "k"], number: int) -> Iterator[Int[np.ndarray, "k"]]:
    """Random orders of classes in which each has the place of one of its group, from one seed.

    Args:
      strata: number of the group of each class.
      number: of orders.
    """
    draws = np.random.Generator(np.random.Philox(key=0))
    members = [np.flatnonzero(strata == group) for group in np.unique(strata)]
    for _ in range(number):
        order = np.empty(len(strata), int)
        for own in members:
            order[own] = own[draws.permutation(len(own))]
        yield order


def _remainder(
    values: Float[np.ndarray, "p"], control: Float[np.ndarray, "p"]
) -> Float[np.ndarray, "p"]:
    """Centred values without their projection on a unit vector; 0 if only rounding remains."""
    rest = values - (values @ control) * control
    return rest if np.linalg.norm(rest) > 1e-9 * np.linalg.norm(values) else np.zeros_like(rest)


def _centred_ranks(values: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"]:
    ranks = stats.rankdata(values)
    return ranks - ranks.mean()


def agreements(
    measures: dict[str, Float[np.ndarray, "k k"]], description: dict[str, Any]
) -> dict[str, dict[str, float]] | None:
    """`agreement` and `rank_correlation` of each measure with the known label noise.

    With many classes the rank correlation uses fewer permutations.

    Args:
      measures: by name.
      description: contents of dataset.json.

    Returns:
      For each measure the values of both functions, and `to_find`, the number m of pairs in
      `most_confused`. None if no label noise is known.
    """
    known = confusion_matrix(description)
    if not known.any():
        return None
    target = most_confused(known)
    to_find = {"to_find": int(np.count_nonzero(np.triu(target, 1)))}
    num_permutations = int(np.clip(10**9 // known.size, 99, 9999))
    return {
        name: to_find
        | agreement(values, target)
        | rank_correlation(values, known, num_permutations)
        for name, values in measures.items()
    }


def probability_correlations(
    measures: dict[str, Float[np.ndarray, "k k"]],
) -> dict[str, dict[str, float]]:
    """The rank correlation of each measure with `overlap`, the mean of p_i p_j.

    A plain softmax has an `overlap` as well. The measure `seen` correlates with it because it
    contains p_i p_j as a factor. Labels carry no information about the noise between two classes
    that are never both probable; for such a pair the other measures reflect the initial weights,
    the regularisation and shared features (docs/identifiability.md). The correlation covers all
    pairs: a measure may rank the right pairs first and have no correlation beyond them.

    Returns:
      `rank_correlation` of every measure except `overlap`, with 999 permutations.
    """
    overlap = measures["overlap"]
    return {
        name: rank_correlation(values, overlap, 999)
        for name, values in measures.items()
        if name != "overlap"
    }
