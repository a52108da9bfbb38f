"""The mean of several predictions of the same examples, and the split of its entropy.

The members are independently trained models, or samples of one model's latent. Everything is
computed in NumPy, in float64.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special


class EntropySplit(NamedTuple):
    """The entropy of the mean prediction of each example, in nats: total = expected + mutual.

    `mutual` is the mutual information of label and member: the mean Kullback-Leibler divergence of
    the members from their mean, >= 0.

    Source: Depeweg et al. (2018), arXiv:1710.07283, Eq. 2; Lakshminarayanan et al. (2017),
    arXiv:1612.01474, for the mean of the members.
    """

    total: Float[np.ndarray, "*b"]  # entropy of the mean of the members
    expected: Float[np.ndarray, "*b"]  # mean of the members' entropies
    mutual: Float[np.ndarray, "*b"]


def log_mean(log_probs: Float[np.ndarray, "m *b k"]) -> Float[np.ndarray, "*b k"]:
    """Log of the mean of the members' probabilities.

    Args:
      log_probs: log-probabilities of each member, up to a constant per example (so logits too).
    """
    log_probs = special.log_softmax(_members(log_probs), axis=-1)
    return special.logsumexp(log_probs, axis=0) - np.log(len(log_probs))


def mean_log_odds(log_odds: Float[np.ndarray, "m *b k"]) -> Float[np.ndarray, "*b k"]:
    """Log-odds of the mean of the members' probabilities, for K binary answers."""
    log_odds = _members(log_odds)
    positive, negative = (
        special.logsumexp(special.log_expit(x), axis=0) for x in (log_odds, -log_odds)
    )
    return positive - negative


def entropy_split(log_probs: Float[np.ndarray, "m *b k"]) -> EntropySplit:
    """The split for one label per example.

    Args:
      log_probs: log-probabilities of each member, up to a constant per example (so logits too).
    """
    members = special.log_softmax(_members(log_probs), axis=-1)
    mean = log_mean(members)
    probs = np.exp(members)
    with np.errstate(invalid="ignore"):  # of a class whose probability is 0
        divergence = np.sum(np.where(probs > 0, probs * (members - mean), 0.0), axis=-1)
    return EntropySplit(
        total=_entropy(mean),
        expected=np.mean(_entropy(members), axis=0),
        mutual=np.maximum(np.mean(divergence, axis=0), 0.0),
    )


def sigmoid_entropy_split(log_odds: Float[np.ndarray, "m *b k"]) -> EntropySplit:
    """The split for K binary answers, summed over the answers.

    Given a member, the answers are treated as independent. The mutual information is then that of
    each single answer, since the mean over members also has only single answers.
    """
    log_odds = _members(log_odds)
    answers = entropy_split(special.log_expit(np.stack([log_odds, -log_odds], axis=-1)))
    return EntropySplit(*(np.sum(x, axis=-1) for x in answers))


def _members(values):
    values = np.asarray(values, np.float64)
    if not len(values):
        raise ValueError("there are no members; a mean over members needs at least one.")
    return values


def _entropy(log_probs):
    return np.sum(special.entr(np.exp(log_probs)), axis=-1)
