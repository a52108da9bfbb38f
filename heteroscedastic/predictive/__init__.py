"""Which probabilities follow from a latent: (key, latent) -> logits.

Under softmax the logits are log-probabilities, under sigmoid log-odds, so any loss or metric
that takes logits takes them.
"""

from heteroscedastic.predictive.closed_form import deterministic, sigmoid
from heteroscedastic.predictive.sampled import sigmoid_sampled, softmax

__all__ = ["deterministic", "sigmoid", "sigmoid_sampled", "softmax"]
