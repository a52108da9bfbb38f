"""Several predictions of the same examples: their mean, and how much of its entropy they agree on.

Members are models trained apart, or samples of one model's latent. All in numpy and float64.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special


class EntropySplit(NamedTuple):
    """Of each example, in nats: total = expected + mutual.

    Source: Depeweg et al. (2018), arXiv:1710.07283, Eq. 2; Lakshminarayanan et al. (2017),
    arXiv:1612.01474, for the mean of members.
    """

    total: Float[np.ndarray, "*b"]  # entropy of the mean of the members
    expected: Float[np.ndarray, "*b"]  # mean of the members' entropies
    mutual: Float[
        np.ndarray, "*b"
    ]  # mean divergence of a member from their mean, which is mutual information, >= 0


def log_mean(log_probs: Float[np.ndarray, "m *b k"]) -> Float[np.ndarray, "*b k"]:
    """Log of the mean of the members' probabilities; logits are taken as log-probabilities up to a
    constant.
    """
    log_probs = special.log_softmax(_members(log_probs), axis=-1)
    return special.logsumexp(log_probs, axis=0) - np.log(len(log_probs))


def mean_log_odds(log_odds: Float[np.ndarray, "m *b k"]) -> Float[np.ndarray, "*b k"]:
    """Log-odds of the mean of the members' probabilities of yes, for K yes/no answers."""
    log_odds = _members(log_odds)
    yes, no = (special.logsumexp(special.log_expit(x), axis=0) for x in (log_odds, -log_odds))
    return yes - no


def entropy_split(log_probs: Float[np.ndarray, "m *b k"]) -> EntropySplit:
    """The split for one label an example; logits are taken as log-probabilities up to a constant."""
    members = special.log_softmax(_members(log_probs), axis=-1)
    mean = log_mean(members)
    divergence = np.sum(special.rel_entr(np.exp(members), np.exp(mean)), axis=-1)
    return EntropySplit(
        total=_entropy(mean),
        expected=np.mean(_entropy(members), axis=0),
        mutual=np.maximum(np.mean(divergence, axis=0), 0.0),
    )


def sigmoid_entropy_split(log_odds: Float[np.ndarray, "m *b k"]) -> EntropySplit:
    """The split for K yes/no answers, summed over them: they are taken as independent given the
    member.

    Mutual information is then of each answer by itself, which is what the mean over members tells
    too.
    """
    log_odds = _members(log_odds)
    answers = entropy_split(special.log_expit(np.stack([log_odds, -log_odds], axis=-1)))
    return EntropySplit(*(np.sum(x, axis=-1) for x in answers))


def _members(values):
    values = np.asarray(values, np.float64)
    if not len(values):
        raise ValueError("a mean over members needs one member or more.")
    return values


def _entropy(log_probs):
    return np.sum(special.entr(np.exp(log_probs)), axis=-1)
