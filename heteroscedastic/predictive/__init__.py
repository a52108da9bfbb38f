"""Predictives, the class probabilities that follow from a latent: (key, latent) -> logits.

The logits are log-probabilities for a softmax and log-odds for a sigmoid, so any loss or metric
that takes logits accepts them.
"""

from heteroscedastic.predictive.closed_form import deterministic, sigmoid
from heteroscedastic.predictive.exact import softmax_exact
from heteroscedastic.predictive.sampled import sigmoid_sampled, softmax
from heteroscedastic.predictive.shortlist import shortlist
from heteroscedastic.predictive.taylor import mean_field, taylor

__all__ = [
    "deterministic",
    "mean_field",
    "shortlist",
    "sigmoid",
    "sigmoid_sampled",
    "softmax",
    "softmax_exact",
    "taylor",
]
