"""Mending of probabilities after training, on held-out data."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import optimize

from heteroscedastic.calibration import scores

_LARGEST = 100.0


def temperature(
    logits: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"] | Float[np.ndarray, "n k"]
) -> float:
    """The t > 0 for which softmax(logits / t) has the largest likelihood of the labels.

    The likelihood is concave in 1/t, so there is one maximum. Where it lies beyond 1/100 or 100
    (every prediction right, say, wants t to be 0) that limit is returned.

    Args:
      logits: of each class.
      labels: the true class; or soft labels, distributions over the classes.

    Raises:
      ValueError: there is no example, a label is no class, a soft label is no distribution, or a
        label has no finite likelihood at any t.

    Source: Guo et al. (2017), arXiv:1706.04599, section 4.2.
    """
    if labels.ndim == 1 and not ((labels >= 0) & (labels < logits.shape[-1])).all():
        raise ValueError(
            f"a label is not from 0 to {logits.shape[-1] - 1}, the last of the classes of the"
            " logits."
        )
    if labels.ndim == 2 and not (
        (labels >= 0).all() and np.allclose(labels.sum(axis=-1), 1, atol=1e-3)
    ):
        raise ValueError("a soft label is no distribution: its shares must be >= 0 and sum to 1.")
    return _likeliest(scores.log_likelihood, logits, labels)


def sigmoid_temperature(logits: Float[np.ndarray, "n k"], holds: Bool[np.ndarray, "n k"]) -> float:
    """The t > 0 for which sigmoid(logits / t) has the largest likelihood of the yes/no answers.

    Concave in 1/t, and limited, as `temperature` is.
    """
    return _likeliest(scores.sigmoid_log_likelihood, logits, holds)


def _likeliest(log_likelihood: Callable, logits: np.ndarray, labels: np.ndarray) -> float:
    if not len(labels):
        raise ValueError("temperature scaling needs one example or more.")

    def loss(log_temperature):
        return -log_likelihood(logits / np.exp(log_temperature), labels)

    limit = np.log(_LARGEST)
    found = optimize.minimize_scalar(
        loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6}
    )
    ends = {x: loss(x) for x in (-limit, float(found.x), limit)}
    if not np.isfinite(ends[limit]):  # the mildest of all
        raise ValueError(
            "no temperature gives the labels a finite likelihood: a logit is nan, or a label's own"
            " is -inf. Give logits"
            " that are finite."
        )
    return float(np.exp(min(ends, key=ends.get)))
