"""Recalibration of probabilities after training, on held-out data."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int, Real
from scipy import optimize, special

from heteroscedastic.calibration import scores

_MAX_TEMPERATURE = 100.0


def temperature(
    logits: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"] | Float[np.ndarray, "n k"]
) -> float:
    """The temperature t that maximises the likelihood of the labels under softmax(logits / t).

    The log-likelihood is concave in 1 / t, so there is one maximum. Returns 1/100 or 100 if the
    maximum lies beyond this limit; for example, t tends to 0 if all predictions are correct.

    Args:
      logits: finite logits of each class.
      labels: the class of each example, or soft labels: distributions over the classes.

    Raises:
      ValueError: there are no examples, a label is not a class, a soft label is not a
        distribution, or a label has no finite likelihood at any t.

    Source: Guo et al. (2017), arXiv:1706.04599, section 4.2.
    """
    if labels.ndim == 1 and not ((labels >= 0) & (labels < logits.shape[-1])).all():
        raise ValueError(
            f"labels must be from 0 to {logits.shape[-1] - 1}, the classes of the logits."
        )
    if labels.ndim == 2 and not (
        (labels >= 0).all() and np.allclose(labels.sum(axis=-1), 1, atol=1e-3)
    ):
        raise ValueError("each soft label must be a distribution: values >= 0 that sum to 1.")
    return _maximum_likelihood(scores.log_likelihood, logits, labels)


def sigmoid_temperature(logits: Float[np.ndarray, "n k"], labels: Bool[np.ndarray, "n k"]) -> float:
    """The temperature t that maximises the likelihood of binary labels under sigmoid(logits / t).

    Limits and errors are the same as in `temperature`.

    Args:
      logits: finite log-odds of each class.
      labels: whether each class is a label of the example.
    """
    return _maximum_likelihood(scores.sigmoid_log_likelihood, logits, labels)


def prior_shift(
    logits: Float[np.ndarray, "n k"],
    train_prior: Real[np.ndarray, "k"],
    test_prior: Real[np.ndarray, "k"],
) -> Float[np.ndarray, "n k"]:
    """The logits under other class frequencies: logits + log(test share / train share).

    This is exact if the inputs of a class have the same distribution in training and test.

    Args:
      logits: log-probabilities up to a constant per example.
      train_prior: share or count of each class that the logits were learned under.
      test_prior: share or count of each class where the logits are used.

    Returns:
      Log-probabilities. A class with test share 0 has log-probability -inf.

    Raises:
      ValueError: a share is negative or not finite, or a class with a test share has no train
        share.

    Source: Saerens, Latinne and Decaestecker (2002), Neural Computation 14, Eq. 4.
    """
    train, test = (np.asarray(x, np.float64) for x in (train_prior, test_prior))
    for name, prior in (("train_prior", train), ("test_prior", test)):
        if not (np.isfinite(prior).all() and (prior >= 0).all() and prior.sum() > 0):
            raise ValueError(f"{name} must be shares >= 0 of the classes, but is {prior}.")
    unseen = np.flatnonzero((train == 0) & (test > 0))
    if unseen.size:
        raise ValueError(
            f"class {unseen[0]} has no examples in training but has in test, so the shift of its"
            " prior is not defined; leave its examples out."
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(test > 0, np.log(test / test.sum()) - np.log(train / train.sum()), -np.inf)
    return special.log_softmax(logits.astype(np.float64) + shift, axis=-1)


def _maximum_likelihood(log_likelihood: Callable, logits: np.ndarray, labels: np.ndarray) -> float:
    if not len(labels):
        raise ValueError("there are no examples; temperature scaling needs at least one.")

    def loss(log_temperature):
        return -log_likelihood(logits / np.exp(log_temperature), labels)

    limit = np.log(_MAX_TEMPERATURE)
    optimum = optimize.minimize_scalar(
        loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6}
    )
    # First 0, which stays if equal logits make all temperatures equally good.
    candidates = {x: loss(x) for x in (0.0, -limit, float(optimum.x), limit)}
    if not np.isfinite(candidates[limit]):  # then the loss is infinite at all temperatures
        raise ValueError(
            "no temperature gives the labels a finite likelihood: a logit is nan, or the logit of a"
            " label is -inf; pass finite logits."
        )
    return float(np.exp(min(candidates, key=candidates.__getitem__)))
