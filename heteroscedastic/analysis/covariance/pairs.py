"""Pairs of classes: those of the largest averaged covariance, and what is told of a pair.

A softmax does not see noise common to all classes. Of the covariance S it sees the variance of
differences, S_ii + S_jj - 2 S_ij, and the centred S, of the utilities less their mean over classes,
and these only where both classes are probable: `seen`, the average of p_i p_j var(u_i - u_j), is
the measure to trust.
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
from heteroscedastic.data import resident
from heteroscedastic.runs import assembly, loaded_run
from heteroscedastic.training import evaluate

MEASURES = (
    "covariance",
    "correlation",
    "centred",
    "centred_correlation",
    "difference",
)  # of any number of classes
_NUM_ENTRIES = 1024  # pairs of an example at once
_NUMBERS = 2**24  # of the latents of a batch


class Pairs(NamedTuple):
    """Pairs of classes, and the averaged covariance of each."""

    rows: Int[np.ndarray, "p"]
    cols: Int[np.ndarray, "p"]
    covariance: Float[np.ndarray, "p"]


def measure(
    name: str,
    average: Average,
    covariance: np.ndarray,
    rows: np.ndarray | slice,
    cols: np.ndarray | slice,
) -> np.ndarray:
    """A measure of pairs, from their averaged covariance S, exact.

    Args:
      name: "covariance"; "correlation", S_ij / sqrt(S_ii S_jj); "centred" and
        "centred_correlation", the same of the utilities less their mean over classes; "difference",
        the mean of var(u_i - u_j). A correlation with a class that has no variance is 0.
      average: of the split.
      covariance: of the pairs, or of a block of rows and columns.
      rows: first class of each; for a block, of shape [c, 1].
      cols: second class.
    """
    if name not in MEASURES:
        raise ValueError(f"measure {name!r} is unknown; choose of {', '.join(MEASURES)}.")
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


def top(average: Average, num: int, by: str = "covariance") -> Pairs:
    """The pairs of the largest size of a measure, largest first; of equal ones the first classes
    first.

    Goes through rows of the matrix with a running list, and never holds K x K. Sizes are
    compared in float32, so that rounding does not part what is equal.

    Source: with "covariance" Table 4 of Collier et al. (2021), arXiv:2105.10305.
    """
    if num < 1:
        raise ValueError(f"{num} pairs are asked for, but it must be >= 1.")
    kept, sizes = Pairs(np.zeros(0, int), np.zeros(0, int), np.zeros(0)), np.zeros(0, np.float32)
    for part in average_lib.strips(average):
        rows = np.arange(part.start, part.stop)
        covariance = average_lib.rows(average, rows, part.start)
        size = measure(by, average, covariance, rows[:, None], slice(part.start, None))
        size = np.abs(size.astype(np.float32))
        size[np.tril_indices(len(rows))] = -1  # a pair once, and no class with itself
        size = size.ravel()
        least = sizes[-1] if len(sizes) == num else np.float32(-1)
        if size.size > num:
            least = max(least, np.partition(size, -num)[-num])
        above, equal = (
            np.flatnonzero(size > least),
            np.flatnonzero((size == least) & (size >= 0))[:num],
        )
        chosen = np.sort(np.concatenate([above, equal]))
        places = np.unravel_index(chosen, covariance.shape)
        found = Pairs(places[0] + part.start, places[1] + part.start, covariance[places])
        kept = Pairs(*(np.concatenate(x) for x in zip(kept, found)))
        sizes = np.concatenate([sizes, size[chosen]])
        order = np.lexsort((kept.cols, kept.rows, -sizes))[:num]
        kept, sizes = Pairs(*(x[order] for x in kept)), sizes[order]
    return kept


def top_of(
    measure: Float[np.ndarray, "k k"], covariance: Float[np.ndarray, "k k"], num: int
) -> Pairs:
    """The same of a measure that is held whole."""
    rows, cols = np.triu_indices(len(measure), 1)
    order = _largest(measure[rows, cols])[:num]
    rows, cols = rows[order], cols[order]
    return Pairs(rows, cols, covariance[rows, cols])


def of_class(average: Average, chosen: int) -> Pairs:
    """A class with every other."""
    cols = np.delete(np.arange(len(average.variance)), chosen)
    return Pairs(
        np.full(len(cols), chosen), cols, average_lib.rows(average, np.array([chosen]))[0, cols]
    )


def within(average: Average, classes: Int[np.ndarray, "c"]) -> Pairs:
    """Every pair of these classes, in the order of scipy's condensed matrices."""
    rows, cols = np.triu_indices(len(classes), 1)
    return Pairs(
        classes[rows], classes[cols], average_lib.rows(average, classes)[rows, classes[cols]]
    )


def largest(pairs: Pairs, sizes: Float[np.ndarray, "p"], num: int) -> Pairs:
    """Those of the largest sizes, largest first."""
    order = _largest(sizes)[:num]
    return Pairs(*(x[order] for x in pairs))


def _largest(values: Float[np.ndarray, "p"]) -> Int[np.ndarray, "p"]:
    return np.argsort(-np.abs(values.astype(np.float32)), kind="stable")


def seen(
    found: loaded_run.Finished, split: str, rows: Int[np.ndarray, "p"], cols: Int[np.ndarray, "p"]
) -> Float[np.ndarray, "p"]:
    """The average over a split of p_i p_j var(u_i - u_j) of these pairs, from every example's own
    covariance.

    Exact but for the probabilities, which are those of the run's predictive with its own samples.
    """
    run, state = found.run, found.state
    scale = assembly.temperature(run, state) ** 2  # back from units of the temperature

    @jax.jit
    def predicted(feed, key):
        latent, batch = run.latents(state.params, state.model_state, data, feed)
        return latent, jax.nn.softmax(run.parts.predictive(key, latent), axis=-1), batch.weights

    @jax.jit
    def sums(latent, probs, weights, rows, cols):
        apart = scale * latent_lib.difference_variance_entries(latent, rows, cols)
        return jnp.einsum("b,bp->p", weights, probs[:, rows] * probs[:, cols] * apart)

    data = jax.device_put(run.dataset.splits[split])
    key, num_examples = assembly.key_for(run.config["seed"], "covariance"), len(data.ids)
    starts = range(0, len(rows), _NUM_ENTRIES)
    parts = [
        tuple(jnp.asarray(x[start : start + _NUM_ENTRIES]) for x in (rows, cols))
        for start in starts
    ]
    total, size = (
        None,
        len(found.dataset["class_names"]) * (1 + getattr(run.model.head, "num_factors", 0)),
    )
    batch_size = max(1, min(run.steps.batch_size, _NUMBERS // size))
    for i, feed in enumerate(resident.feeds(np.arange(num_examples), batch_size)):
        told = predicted(feed, jax.random.fold_in(key, i))
        total = evaluate.merged(total, [sums(*told, *part) for part in parts])
    return np.concatenate(total) / num_examples


def table(
    average: Average,
    pairs: Pairs,
    class_names: Sequence[str],
    seen: Float[np.ndarray, "p"] | None = None,
    mixed: Float[np.ndarray, "p"] | None = None,
) -> list[dict[str, Any]]:
    """A row for each pair: names, every measure, and where they are known `seen` and the share of
    labels mixed.
    """
    columns = {
        name: measure(name, average, pairs.covariance, pairs.rows, pairs.cols) for name in MEASURES
    }
    columns |= {
        name: x for name, x in {"seen": seen, "labels_mixed": mixed}.items() if x is not None
    }
    return [
        {
            "class": class_names[i],
            "other": class_names[j],
            **{name: float(x[n]) for name, x in columns.items()},
        }
        for n, (i, j) in enumerate(zip(pairs.rows, pairs.cols))
    ]


def first_classes(pairs: Pairs, num_classes: int) -> Int[np.ndarray, "c"]:
    """The classes of the first pairs, so many at most."""
    classes = dict.fromkeys(int(c) for pair in zip(pairs.rows, pairs.cols) for c in pair)
    return np.array(list(classes)[:num_classes], int)


def clustered(correlation: Float[np.ndarray, "p"]) -> Int[np.ndarray, "c"]:
    """An order in which classes that vary together, in either direction, lie side by side.

    Average linkage of the distance 1 - |correlation|, the leaves in their best order.

    Args:
      correlation: of every pair, as `within` has them.
    """
    if len(correlation) < 3:
        return np.arange(distance.num_obs_y(correlation)) if len(correlation) else np.arange(1)
    apart = np.clip(1 - np.abs(correlation), 0, None)
    return hierarchy.leaves_list(hierarchy.linkage(apart, "average", optimal_ordering=True))


def named_classes(class_names: Sequence[str], wanted: Sequence[str]) -> Int[np.ndarray, "c"]:
    """The classes of these names, or of these numbers where no class has such a name; classes are
    counted from 0.

    Of equal names the first is meant; the others are told by their numbers.

    Raises:
      ValueError: a name that no class has, with those that are like it; a class that is given
        twice.
    """
    numbers = {str(i): i for i in range(len(class_names))}
    places = numbers | {name: i for i, name in reversed(list(enumerate(class_names)))}
    found = []
    for name in wanted:
        if name not in places:
            like = difflib.get_close_matches(name, class_names, n=5, cutoff=0.3) or list(
                class_names[:5]
            )
            raise ValueError(
                f"there is no class {name!r}; classes with such names are"
                f" {', '.join(map(repr, like))}, and numbers go"
                f" from 0 to {len(class_names) - 1}."
            )
        found.append(places[name])
    if len(set(found)) < len(found):
        raise ValueError(f"a class is named twice in {', '.join(map(repr, wanted))}.")
    return np.array(found, int)
