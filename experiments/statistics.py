"""Comparisons of methods over seeds: tests, corrections, power, and other test sets."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize, special, stats

from heteroscedastic import files
from heteroscedastic.analysis.report import comparison
from heteroscedastic.calibration import bootstrap, reliability
from heteroscedastic.runs import predictions

LEVEL = 0.05  # of two-sided tests
POWER = 0.8
RESAMPLED = ("accuracy", "nll", "brier", "ece")  # metrics of resampled test sets
_EDGES = reliability.equal_edges(15)


class Comparison(NamedTuple):
    """A difference of two methods, paired by seed."""

    mean: float
    half: float  # half the width of its 95 % interval by Student's t
    p: float  # of the paired t-test, two-sided
    detectable: float  # the true difference that such a test would find with a probability of 80 %
    num_pairs: int


def compared(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Comparison:
    """Compares values with the same seed; all but the mean are nan for fewer than two pairs."""
    seeds = sorted(set(ours) & set(theirs))
    first, second = ([values[seed] for seed in seeds] for values in (ours, theirs))
    mean, half = comparison.paired(first, second)
    if len(seeds) < 2:
        return Comparison(mean, half, float("nan"), float("nan"), len(seeds))
    differences = np.subtract(first, second)
    deviation = float(differences.std(ddof=1))
    # Without any spread the t-test divides by zero: equal methods, or a difference beyond doubt.
    p = float(stats.ttest_1samp(differences, 0.0).pvalue) if deviation else float(mean == 0)
    return Comparison(mean, half, p, detectable_difference(deviation, len(seeds)), len(seeds))


def detectable_difference(
    deviation: float, num_pairs: int, level: float = LEVEL, power: float = POWER
) -> float:
    """The true mean difference that a paired t-test finds with probability `power`.

    Args:
      deviation: standard deviation of the paired differences.
      num_pairs: 2 or more.
      level: of the two-sided test.
      power: above `level`, below 1.
    """
    freedom = num_pairs - 1
    critical = stats.t.ppf(1 - level / 2, freedom)

    def missing(noncentrality):
        # A difference in the other direction is not a finding of this one.
        return stats.nct.sf(critical, freedom, noncentrality) - power

    return float(optimize.brentq(missing, 0, 10 * critical)) * deviation / float(np.sqrt(num_pairs))


def holm(p_values: Sequence[float]) -> Float[np.ndarray, "m"]:
    """P values after Holm's correction for the number of tests; nan stays and does not count.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    values = np.asarray(p_values, float)
    adjusted = np.full(len(values), np.nan)
    order = np.argsort(values)[: np.sum(~np.isnan(values))]  # nan is last
    scaled = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return adjusted


def crossed_interval(
    ours: Float[np.ndarray, "s r"], theirs: Float[np.ndarray, "s r"], seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of a mean paired difference over other seeds and other test examples.

    Seeds and examples are resampled independently, as both are shared by the values: all seeds have
    the same test examples. An interval over seeds alone is too narrow for another test set.

    Args:
      ours: a metric of the run of each of s seeds, on each of r resampled test sets.
      theirs: the same of the other method, with the same seeds and test sets.
      seed: of the resampling of seeds.

    Source: Owen (2007), arXiv:0712.1111.
    """
    num_seeds, num_resamples = ours.shape
    draws = np.random.default_rng(seed).integers(num_seeds, size=(num_resamples, num_seeds))
    differences = np.take_along_axis((ours - theirs).T, draws, axis=1).mean(axis=1)
    (low,), (high,) = bootstrap.percentile_band(differences[:, None])
    return float(low), float(high)


def resampled_metrics(
    run: files.Path, evaluation: str, num_resamples: int = 1000
) -> dict[str, Float[np.ndarray, "r"]]:
    """The metrics of `RESAMPLED` on test sets of examples drawn with replacement.

    All runs with as many examples have the same draws.

    Args:
      run: directory of the run.
      evaluation: with one label per example.
      num_resamples: r.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the predictions do not hold all logits.
    """
    saved = predictions.read(run, evaluation)
    logits = predictions.all_logits(saved, "resampling").astype(np.float64)
    rows = np.arange(len(saved.labels))
    log_probs = special.log_softmax(logits, axis=-1)
    confidence, correct = predictions.confidence(saved), predictions.is_correct(saved)
    brier = np.sum(np.exp(2 * log_probs), axis=-1) - 2 * np.exp(log_probs[rows, saved.labels]) + 1
    bins = np.searchsorted(_EDGES[1:-1], confidence.astype(np.float32), side="left")
    gaps = (correct - confidence)[:, None] * (bins[:, None] == np.arange(len(_EDGES) - 1))
    columns = np.column_stack([correct, -log_probs[rows, saved.labels], brier, gaps])
    means = bootstrap.resampled_sums(columns, num_resamples) / len(rows)
    ece = np.abs(means[:, 3:]).sum(axis=1)
    return dict(zip(RESAMPLED, [*means[:, :3].T, ece]))
