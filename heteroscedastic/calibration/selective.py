"""Selective prediction: the error among the most confident examples."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

_MAX_POINTS = 1000  # in a curve


class RiskCoverage(NamedTuple):
    """The error rate among the i most confident of n examples, by i.

    The curve has at most 1,000 points, spread evenly over i = 1 to n.
    """

    coverage: Float[np.ndarray, "m"]  # i / n
    risk: Float[np.ndarray, "m"]  # error rate among the i most confident examples
    area: float  # AURC, the mean of the risk over all i
    optimum: float  # the area if all correct examples preceded all wrong ones

    @property
    def excess(self) -> float:
        """The part of the area that a better order of the examples could remove."""
        return self.area - self.optimum


def risk_coverage(
    confidence: Float[np.ndarray, "n"], correct: Shaped[np.ndarray, "n"]
) -> RiskCoverage:
    """The risk-coverage curve; ties in confidence give the mean over all their orders.

    Args:
      confidence: only its order matters.
      correct: whether the prediction is correct; booleans, or 0 and 1.

    Raises:
      ValueError: there are no examples.

    Source: Geifman, Uziel and El-Yaniv (2019), arXiv:1805.08206, Eq. 2 and 3.
    """
    n = len(confidence)
    if not n:
        raise ValueError("there are no examples; a risk-coverage curve needs at least one.")
    correct = np.asarray(correct, bool)
    order = np.argsort(-confidence, kind="stable")
    errors = np.concatenate([[0], np.cumsum(~correct[order])]).astype(np.float64)
    # Within a tie the expected number of errors grows linearly.
    ordered = confidence[order]
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), n - 1) + 1
    ends = np.concatenate([[0], last])
    numbers = np.arange(1, n + 1)
    risk = np.interp(numbers, ends, errors[ends]) / numbers
    num_wrong = int(np.sum(~correct))
    optimum = np.maximum(numbers - (n - num_wrong), 0) / numbers
    points = np.linspace(0, n - 1, min(n, _MAX_POINTS)).round().astype(int)
    return RiskCoverage(
        numbers[points] / n, risk[points], float(np.mean(risk)), float(np.mean(optimum))
    )
