"""Every backbone by name: (inputs, present, train) -> features."""

from heteroscedastic.models.convnet import ConvNet
from heteroscedastic.models.mlp import MLP
from heteroscedastic.models.resnet import (
    ResNet8,
    ResNet18,
    ResNet18V2,
    ResNet20,
    ResNet32,
    ResNet34,
    ResNet34V2,
    ResNet44,
    ResNet50,
    ResNet50V2,
    ResNet56,
    ResNet101,
    ResNet101V2,
    ResNet152,
    ResNet152V2,
    WideResNet28x10,
)

__all__ = [
    "MLP",
    "ConvNet",
    "ResNet8",
    "ResNet18",
    "ResNet18V2",
    "ResNet20",
    "ResNet32",
    "ResNet34",
    "ResNet34V2",
    "ResNet44",
    "ResNet50",
    "ResNet50V2",
    "ResNet56",
    "ResNet101",
    "ResNet101V2",
    "ResNet152",
    "ResNet152V2",
    "WideResNet28x10",
]
