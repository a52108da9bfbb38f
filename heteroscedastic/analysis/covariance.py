"""Which classes the learned noise ties together: python -m heteroscedastic.analysis.covariance --run=DIR.

A softmax does not see noise common to all classes, so of the covariance only the variance of
differences, S_ii + S_jj - 2 S_ij, can be learned from labels, and only where both classes are
probable. `seen`, its average weighted by p_i p_j, is therefore the measure to trust.
"""

import argparse
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from heteroscedastic import files
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis import finished
from heteroscedastic.calibration import scores
from heteroscedastic.data import resident
from heteroscedastic.training import assembly, evaluate

_MAX_CLASSES = 2000


class Measures(NamedTuple):
    """Of every pair of classes, averaged over a split, in units of the utilities."""

    covariance: Float[np.ndarray, "k k"]
    correlation: Float[np.ndarray, "k k"]  # of the average covariance; 0 where a class has no variance
    difference: Float[np.ndarray, "k k"]  # mean of var(u_i - u_j)
    seen: Float[np.ndarray, "k k"]  # mean of p_i p_j var(u_i - u_j)
    overlap: Float[np.ndarray, "k k"]  # mean of p_i p_j, which needs no covariance


def measures(found: finished.Finished, split: str = "test") -> Measures:
    """The measures of a finished run on one of its splits.

    Raises:
      ValueError: more classes than a K x K matrix an example is sensible for, or several labels
        an example.
    """
    run, state = found.run, found.state
    num_classes = len(found.dataset["class_names"])
    if num_classes > _MAX_CLASSES:
        raise ValueError(f"{num_classes} classes; covariance matrices of an example are made up to {_MAX_CLASSES}.")
    data = run.dataset.splits[split]
    if data.labels.ndim != 1:
        raise ValueError(
            "these measures are for one label an example, under softmax; this data set has lists of labels, where"
            " answers to different classes do not compete and p_i p_j of a softmax means nothing."
        )
    scale = assembly.temperature(run, state) ** 2  # back from units of the temperature

    @jax.jit
    def sums(feed, key):
        latent, batch = run.latents(state.params, state.model_state, data_on_device, feed)
        probs = jax.nn.softmax(run.predictive(key, latent), axis=-1)
        overlap = probs[:, :, None] * probs[:, None, :]
        difference = scale * latent_lib.difference_variance(latent)
        parts = {
            "covariance": scale * latent_lib.covariance(latent),
            "difference": difference,
            "seen": overlap * difference,
            "overlap": overlap,
        }
        return {n: jnp.einsum("b,bij->ij", batch.weights, x) for n, x in parts.items()}

    data_on_device = jax.device_put(data)
    key = assembly.key_for(run.config["seed"], "covariance")
    feeds = resident.feeds(np.arange(len(data.ids)), run.batch_size)
    parts = (sums(feed, jax.random.fold_in(key, i)) for i, feed in enumerate(feeds))
    total = functools.reduce(evaluate.merged, parts, None)
    averages = {name: value / len(data.ids) for name, value in total.items()}
    deviations = np.sqrt(np.diag(averages["covariance"]))
    outer = np.outer(deviations, deviations)
    correlation = np.divide(averages["covariance"], outer, out=np.zeros_like(outer), where=outer > 0)
    return Measures(correlation=correlation, **averages)


def confusions(description: dict[str, Any]) -> Float[np.ndarray, "k k"]:
    """Of the examples of two classes, the share whose label is the other one, from dataset.json.

    Symmetric; 0 on the diagonal, and everywhere where no label noise is known.
    """
    num_classes = len(description["class_names"])
    counts = np.zeros((num_classes, num_classes))
    for clean, seen, number in description.get("label_noise", ()):
        counts[clean, seen] = number
    sizes = counts.sum(axis=1)
    mixed, both = counts + counts.T, sizes[:, None] + sizes
    np.fill_diagonal(mixed, 0)
    return np.divide(mixed, both, out=np.zeros_like(both), where=both > 0)


def agreement(measure: Float[np.ndarray, "k k"], pairs: Bool[np.ndarray, "k k"]) -> dict[str, float]:
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
    threshold = np.sort(values)[-num_mixed]
    above, tied = values > threshold, values == threshold
    share = (num_mixed - above.sum()) / tied.sum()
    first = (mixed & above).sum() + share * (mixed & tied).sum()
    return {"first": float(first), "auc": scores.auroc(values, mixed)}


def rank_correlation(
    measure: Float[np.ndarray, "k k"], confusion: Float[np.ndarray, "k k"], num_permutations: int = 9999
) -> dict[str, float]:
    """Spearman's correlation, over pairs of classes, of the sizes of a measure with known confusions.

    Returns:
      `rho`, and `p`: the chance of one as large if the classes of the measure had other names,
      by random permutations of them (pairs that share a class are not independent).

    Source: Mantel (1967).
    """
    upper = np.triu_indices(len(measure), 1)
    wanted = _centred_ranks(confusion[upper])
    draws = np.random.Generator(np.random.Philox(key=0))
    orders = [np.arange(len(measure)), *(draws.permutation(len(measure)) for _ in range(num_permutations))]
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


def main() -> None:
    """Prints and writes the class pairs that the noise of a finished run ties together."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--split", default="test")
    parser.add_argument("--checkpoint", default="last", choices=("last", "best"))
    parser.add_argument("--top", type=int, default=10, help="pairs to print")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    found = finished.load(flags.run, flags.checkpoint, flags.data_dir)
    measured, known = measures(found, flags.split), confusions(found.dataset)
    names = found.dataset["class_names"]
    rows, cols = np.triu_indices(len(names), 1)
    order = np.argsort(-measured.seen[rows, cols], kind="stable")[: flags.top]
    print(f"{'classes':<28}{'p_i p_j var(u_i - u_j)':>24}{'covariance':>12}{'correlation':>12}{'labels mixed':>14}")
    for i, j in zip(rows[order], cols[order]):
        told = f"{known[i, j]:.1%}" if known[i, j] else ""
        print(
            f"{names[i] + ', ' + names[j]:<28}{measured.seen[i, j]:>24.4f}{measured.covariance[i, j]:>12.4f}"
            f"{measured.correlation[i, j]:>12.3f}{told:>14}"
        )
    path = os.path.join(flags.run, "covariance", f"{flags.split}_{flags.checkpoint}.npz")
    files.write_arrays(path, measured._asdict())
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
