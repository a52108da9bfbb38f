"""Answering only where the confidence is high: the error among the most confident examples."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

_MAX_POINTS = 1000  # of a curve


class RiskCoverage(NamedTuple):
    """The share of errors among the i most confident examples, i = 1 to n; of many, at 1,000 i from
    1 to n.
    """

    coverage: Float[np.ndarray, "m"]  # i / n
    risk: Float[np.ndarray, "m"]  # fraction of these that is wrong
    area: float  # AURC, the mean of the risk over every i
    optimum: float  # the area if every right example came before every wrong one

    @property
    def excess(self) -> float:
        """What of the area a better order could take away."""
        return self.area - self.optimum


def risk_coverage(
    confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"]
) -> RiskCoverage:
    """Risk by coverage; of examples of one confidence it is the mean over all their orders.

    Args:
      confidence: of any one order.
      correct: whether the prediction is right.

    Raises:
      ValueError: there is no example.

    Source: Geifman, Uziel and El-Yaniv (2019), arXiv:1805.08206, Eq. 2 and 3.
    """
    n = len(confidence)
    if not n:
        raise ValueError("risk against coverage needs one example or more.")
    falling = np.argsort(-confidence, kind="stable")
    errors = np.concatenate([[0], np.cumsum(~correct[falling])]).astype(np.float64)
    # Among ties the expected number of errors grows evenly.
    last = np.append(np.flatnonzero(np.diff(confidence[falling])), n - 1) + 1
    ends = np.concatenate([[0], last])
    taken = np.arange(1, n + 1)
    risk = np.interp(taken, ends, errors[ends]) / taken
    num_wrong = int(np.sum(~correct))
    best = np.maximum(taken - (n - num_wrong), 0) / taken
    shown = np.linspace(0, n - 1, min(n, _MAX_POINTS)).round().astype(int)
    return RiskCoverage(taken[shown] / n, risk[shown], float(np.mean(risk)), float(np.mean(best)))
