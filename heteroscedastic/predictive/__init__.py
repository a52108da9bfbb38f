"""Which probabilities follow from a latent: (key, latent) -> logits.

Under softmax the logits are log-probabilities, under sigmoid log-odds, so any loss or metric
that takes logits takes them.
"""

from heteroscedastic.predictive.closed_form import deterministic, sigmoid
from heteroscedastic.predictive.sampled import sigmoid_sampled, softmax
from heteroscedastic.predictive.taylor import mean_field, taylor

__all__ = ["deterministic", "mean_field", "sigmoid", "sigmoid_sampled", "softmax", "taylor"]
