"""Measures of class pairs, from the averaged covariance S of the utilities.

Noise that is common to all classes does not change a softmax. The probabilities depend on S only
through the variances of differences, S_ii + S_jj - 2 S_ij, or equivalently through the centred S
(the covariance of the utilities minus their mean over classes), and only where both classes are
probable. The most reliable measure is therefore `seen`, the average of p_i p_j var(u_i - u_j).
"""

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.cluster import hierarchy
from scipy.spatial import distance

from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.covariance import average as average_lib
from heteroscedastic.analysis.covariance.average import Average
from heteroscedastic.models import heads
from heteroscedastic.runs import by_example
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

# The measures that are available for any number of classes.
MEASURES = ("covariance", "correlation", "centred", "centred_correlation", "difference")
_NUM_ENTRIES = 1024  # pairs evaluated at once for each example
_LATENT_VALUES = 2**24  # values in the latents of a batch


class Pairs(NamedTuple):
    """Pairs of classes and the averaged covariance of each pair."""

    rows: Int[np.ndarray, "p"]
    cols: Int[np.ndarray, "p"]
    covariance: Float[np.ndarray, "p"]


def measure(
    name: str,
    average: Average,
    covariance: Float[np.ndarray, "*p"],
    rows: Int[np.ndarray, "..."] | slice,
    cols: Int[np.ndarray, "..."] | slice,
) -> Float[np.ndarray, "*p"]:
    """An exact measure of class pairs, computed from their averaged covariance S.

    Args:
      name: "covariance"; "correlation", S_ij / sqrt(S_ii S_jj), or 0 for a class without
        variance; "centred" and "centred_correlation", the same for the utilities minus their mean
        over classes; or "difference", the mean of var(u_i - u_j).
      average: averaged covariance of the split.
      covariance: S_ij of the pairs, or of a block of rows and columns.
      rows: first class of each pair; for a block, of shape [c, 1].
      cols: second class of each pair.

    Raises:
      ValueError: the measure is unknown.
    """
    if name not in MEASURES:
        raise ValueError(f"measure {name!r} is unknown; choose one of {', '.join(MEASURES)}.")
    variance, means = average.variance, average.means
    if name == "covariance":
        return covariance
    if name == "difference":
        return np.maximum(variance[rows] + variance[cols] - 2 * covariance, 0)
    if name != "correlation":
        covariance = covariance - means[rows] - means[cols] + means.mean()
        variance = np.maximum(variance - 2 * means + means.mean(), 0)
    if name == "centred":
        return covariance
    inverse = np.divide(1, np.sqrt(variance), out=np.zeros_like(variance), where=variance > 0)
    return covariance * inverse[rows] * inverse[cols]


def top_pairs(average: Average, num: int, name: str = "covariance") -> Pairs:
    """The pairs with the largest absolute value of a measure, in descending order.

    Computes blocks of rows and never stores the K x K matrix. Values are compared in float32, so
    that pairs whose values are equal up to rounding tie; ties are ordered by class.

    Args:
      average: averaged covariance of the split.
      num: number of pairs; at least 1.
      name: name of the measure.

    Raises:
      ValueError: `num` is below 1 or the measure is unknown.

    Source: with "covariance" Table 4 of Collier et al. (2021), arXiv:2105.10305.
    """
    if num < 1:
        raise ValueError(f"the number of pairs is {num}, but must be >= 1.")
    pairs = Pairs(np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    sizes = np.zeros(0, np.float32)
    for block in average_lib.row_blocks(average):
        rows = np.arange(block.start, block.stop)
        covariance = average_lib.covariance_rows(average, rows, block.start)
        size = measure(name, average, covariance, rows[:, None], slice(block.start, None))
        size = np.abs(size.astype(np.float32))
        size[np.tril_indices(len(rows))] = -1  # excludes repeated pairs and the diagonal
        size = size.ravel()
        threshold = sizes[-1] if len(sizes) == num else np.float32(-1)
        if size.size > num:
            threshold = max(threshold, np.partition(size, -num)[-num])
        above = np.flatnonzero(size > threshold)
        equal = np.flatnonzero((size == threshold) & (size >= 0))[:num]
        candidates = np.sort(np.concatenate([above, equal]))
        entries = np.unravel_index(candidates, covariance.shape)
        block_pairs = Pairs(entries[0] + block.start, entries[1] + block.start, covariance[entries])
        pairs = Pairs(*(np.concatenate(x) for x in zip(pairs, block_pairs)))
        sizes = np.concatenate([sizes, size[candidates]])
        order = np.lexsort((pairs.cols, pairs.rows, -sizes))[:num]
        pairs, sizes = Pairs(*(x[order] for x in pairs)), sizes[order]
    return pairs


def top_matrix_pairs(
    measure: Float[np.ndarray, "k k"], covariance: Float[np.ndarray, "k k"], num: int
) -> Pairs:
    """`top_pairs` of a measure that is given as a matrix."""
    rows, cols = np.triu_indices(len(measure), 1)
    order = _descending_order(measure[rows, cols])[:num]
    rows, cols = rows[order], cols[order]
    return Pairs(rows, cols, covariance[rows, cols])


def class_pairs(average: Average, number: int) -> Pairs:
    """The pairs of one class, given by its number, with every other class."""
    cols = np.delete(np.arange(len(average.variance)), number)
    covariance = average_lib.covariance_rows(average, np.array([number]))[0, cols]
    return Pairs(np.full(len(cols), number), cols, covariance)


def group_pairs(average: Average, classes: Int[np.ndarray, "c"]) -> Pairs:
    """Every pair of these classes, in the order of scipy's condensed distance matrices."""
    rows, cols = np.triu_indices(len(classes), 1)
    covariance = average_lib.covariance_rows(average, classes)[rows, classes[cols]]
    return Pairs(classes[rows], classes[cols], covariance)


def largest(pairs: Pairs, values: Float[np.ndarray, "p"], num: int) -> Pairs:
    """The pairs with the largest absolute values, in descending order."""
    order = _descending_order(values)[:num]
    return Pairs(*(x[order] for x in pairs))


def _descending_order(values: Float[np.ndarray, "p"]) -> Int[np.ndarray, "p"]:
    return np.argsort(-np.abs(values.astype(np.float32)), kind="stable")


def visible_variance(
    loaded_run: LoadedRun, split: str, rows: Int[np.ndarray, "p"], cols: Int[np.ndarray, "p"]
) -> Float[np.ndarray, "p"]:
    """The measure `seen`: the average over a split of p_i p_j var(u_i - u_j) of these pairs.

    The variances are exact, from the covariance of each example. The probabilities come from the
    run's predictive with its Monte Carlo samples.
    """
    run, scale = loaded_run.run, loaded_run.variance_scale
    num_examples = len(loaded_run_lib.split_data(loaded_run, split).ids)
    size = min(len(rows), _NUM_ENTRIES)
    padding = -len(rows) % size
    parts = [jnp.pad(jnp.asarray(x), (0, padding)).reshape(-1, size) for x in (rows, cols)]

    def sums(latent, logits, batch):
        probs = jax.nn.softmax(logits, axis=-1)

        def of_part(part):
            rows, cols = part
            variances = scale * latent_lib.difference_variance_entries(latent, rows, cols)
            seen = probs[:, rows] * probs[:, cols] * variances
            return jnp.einsum("b,bp->p", batch.weights, seen)

        return jax.lax.map(of_part, parts)

    num_classes = len(loaded_run.dataset["class_names"])
    num_factors = getattr(run.model.head, "num_factors", 0)
    values_per_example = num_classes * (1 + num_factors)
    if getattr(run.model.head, "noise_on", "utilities") == "features":
        width = loaded_run.state.params["head"][heads.UTILITIES_LAYER]["kernel"].shape[0]
        values_per_example = max(values_per_example, 2 * size * (width + num_factors))
    batch_size = max(1, min(run.steps.batch_size, _LATENT_VALUES // values_per_example))
    total = by_example.sum_predictions(loaded_run, split, sums, batch_size)
    return total.ravel()[: len(rows)] / num_examples


def table(
    average: Average,
    pairs: Pairs,
    class_names: Sequence[str],
    seen: Float[np.ndarray, "p"] | None = None,
    confusion: Float[np.ndarray, "p"] | None = None,
) -> list[dict[str, Any]]:
    """A row for each pair with the class names and every measure.

    Args:
      average: averaged covariance of the split.
      pairs: the pairs.
      class_names: names of all classes.
      seen: `visible_variance` of the pairs, if known.
      confusion: confusion rates of the labels, if known; the column is `labels_mixed`.
    """
    columns = {
        name: measure(name, average, pairs.covariance, pairs.rows, pairs.cols) for name in MEASURES
    }
    optional = {"seen": seen, "labels_mixed": confusion}
    columns |= {name: values for name, values in optional.items() if values is not None}
    return [
        {
            "class": class_names[i],
            "other": class_names[j],
            **{name: float(values[n]) for name, values in columns.items()},
        }
        for n, (i, j) in enumerate(zip(pairs.rows, pairs.cols))
    ]


def first_classes(pairs: Pairs, num_classes: int) -> Int[np.ndarray, "c"]:
    """The classes of the first pairs, at most `num_classes` of them."""
    classes = dict.fromkeys(int(c) for pair in zip(pairs.rows, pairs.cols) for c in pair)
    return np.array(list(classes)[:num_classes], int)


def cluster_order(correlation: Float[np.ndarray, "p"]) -> Int[np.ndarray, "c"]:
    """An order of classes in which strongly correlated classes, of either sign, are neighbours.

    Average linkage with the distance 1 - |correlation| and optimal leaf order.

    Args:
      correlation: correlation of every pair, in the order of `group_pairs`.
    """
    if len(correlation) < 3:
        return np.arange(distance.num_obs_y(correlation)) if len(correlation) else np.arange(1)
    distances = np.clip(1 - np.abs(correlation), 0, None)
    return hierarchy.leaves_list(hierarchy.linkage(distances, "average", optimal_ordering=True))


def class_numbers(class_names: Sequence[str], names: Sequence[str]) -> Int[np.ndarray, "c"]:
    """The numbers of classes that are given by name or by number, counted from 0.

    A name takes precedence over a number. If several classes share a name, it refers to the first
    of them; give the others by number.

    Raises:
      ValueError: no class has the name, in which case the message lists similar names, or a class
        is given twice.
    """
    by_name = {str(i): i for i in range(len(class_names))}
    by_name |= {name: i for i, name in reversed(list(enumerate(class_names)))}
    numbers = []
    for name in names:
        if name not in by_name:
            similar = difflib.get_close_matches(name, class_names, n=5, cutoff=0.3)
            raise ValueError(
                f"there is no class {name!r}; similar names are"
                f" {', '.join(map(repr, similar or class_names[:5]))}, and class numbers range from"
                f" 0 to {len(class_names) - 1}."
            )
        numbers.append(by_name[name])
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"a class is given twice in {', '.join(map(repr, names))}; give it once.")
    return np.array(numbers, int)
