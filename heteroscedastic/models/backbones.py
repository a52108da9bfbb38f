"""Every backbone by name: (inputs, present, train) -> features."""

from heteroscedastic.models.convnet import ConvNet
from heteroscedastic.models.inception_resnet import InceptionResNetV2, InceptionResNetV2Small
from heteroscedastic.models.mlp import MLP
from heteroscedastic.models.resnet import (
    ResNet8,
    ResNet10,
    ResNet10V2,
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

_FAMILIES = (  # the smallest first
    (ResNet10, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152),
    (ResNet10V2, ResNet18V2, ResNet34V2, ResNet50V2, ResNet101V2, ResNet152V2),
    (ResNet8, ResNet20, ResNet32, ResNet44, ResNet56),
    (WideResNet28x10,),
    (InceptionResNetV2Small, InceptionResNetV2),
    (MLP,),
    (ConvNet,),
)
__all__ = [member.__name__ for family in _FAMILIES for member in family]  # what config.backbone may name


def smallest(name: str) -> str:
    """The smallest backbone of the same family; the name itself where it has none."""
    families = ([member.__name__ for member in family] for family in _FAMILIES)
    return next((family[0] for family in families if name in family), name)
