"""Every backbone by name: (inputs, present, train) -> features."""

from heteroscedastic.models.convnet import ConvNet
from heteroscedastic.models.mlp import MLP

__all__ = ["MLP", "ConvNet"]
