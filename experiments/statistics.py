"""Comparisons of methods over seeds: tests, corrections, power, and other test sets."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.uncertainty import intervals
from heteroscedastic.analysis.uncertainty.intervals import Resampled
from heteroscedastic.calibration.bootstrap import Interval

Run = TypeVar("Run")  # predictions of a run
LEVEL = 0.05  # of two-sided tests
POWER = 0.8


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
    t = mean / (deviation / np.sqrt(len(seeds))) if deviation else 0.0
    p = float(2 * stats.t.sf(abs(t), len(seeds) - 1)) if deviation else float(mean == 0)
    return Comparison(mean, half, p, detectable_difference(deviation, len(seeds)), len(seeds))


class Differences:
    """The differences that a command prints, and those that its tests could have found."""

    def __init__(self) -> None:
        self._by_column: dict[str, list[Comparison]] = {}

    def add(self, column: str, found: Comparison) -> None:
        """Counts a comparison of a column."""
        self._by_column.setdefault(column, []).append(found)

    def cell(
        self, column: str, ours: Mapping[int, float], theirs: Mapping[int, float], digits: int = 4
    ) -> str:
        """The difference as text, see `comparison.difference`; counts it."""
        self.add(column, compared(ours, theirs))
        return comparison.difference(ours, theirs, digits)

    def detectable(self) -> list[str]:
        """The line after a table; none if no column has a test."""
        ranges = []
        for column, comparisons in self._by_column.items():
            # nan without a test, and 0 where all seeds differ alike.
            values = [c.detectable for c in comparisons if c.detectable > 0]
            if values:
                low, high = (f"{x:.4f}" for x in (min(values), max(values)))
                ranges.append(f"{column} {low}" + (f" to {high}" if high != low else ""))
        if not ranges:
            return []
        return [
            f"Differences that a paired t-test finds with a probability of {POWER:.0%}, before any"
            f" correction: {', '.join(ranges)}."
        ]


def unpaired_p(ours: list[float], theirs: list[float]) -> float:
    """The p-value of the two-tailed unpaired t-test with equal variances.

    Returns:
      nan if a sample has fewer than two values.
    """
    return (
        float(stats.ttest_ind(ours, theirs).pvalue)
        if min(len(ours), len(theirs)) > 1
        else float("nan")
    )


def slopes(values: Mapping[float, Mapping[int, float]]) -> dict[int, float]:
    """The least-squares slope over x of each seed that has a value at every x.

    Args:
      values: x -> seed -> value; two or more x.
    """
    x = np.array(list(values))
    centered = x - x.mean()
    return {
        seed: float(centered @ np.subtract(y, y[0]) / (centered @ centered))  # 0 if y is constant
        for seed in sorted(set.intersection(*(set(by_seed) for by_seed in values.values())))
        for y in [[values[a][seed] for a in values]]
    }


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
    noncentrality = _detectable_noncentrality(num_pairs - 1, level, power)
    return noncentrality * deviation / float(np.sqrt(num_pairs))


@functools.cache
def _detectable_noncentrality(freedom: int, level: float, power: float) -> float:
    """The noncentrality at which a t-test has a power; a table has few degrees of freedom."""
    critical = stats.t.ppf(1 - level / 2, freedom)

    def missing(noncentrality):
        # A difference in the other direction is not a finding of this one.
        return stats.nct.sf(critical, freedom, noncentrality) - power

    return float(optimize.brentq(missing, 0, 10 * critical))


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


def crossed(
    ours: Mapping[int, Run],
    theirs: Mapping[int, Run],
    resampled: Callable[[Sequence[Run]], dict[str, Resampled]] = intervals.resampled,
) -> dict[str, Interval]:
    """Differences paired by seed, with intervals over other seeds and other test examples.

    An interval over seeds alone is too narrow for another test set.

    Args:
      ours: predictions of the run of each seed.
      theirs: those of the other method, on the same examples for the same seed.
      resampled: predictions of runs -> metrics; `intervals.resampled_detections` of detectors.

    Returns:
      By metric; see `resampled`. Empty without a common seed.
    """
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return {}
    mine, other = (resampled([runs[s] for s in seeds]) for runs in (ours, theirs))
    pairs = [(i, i) for i in range(len(seeds))]
    return {name: intervals.difference(mine[name], other[name], pairs) for name in mine}
