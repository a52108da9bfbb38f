"""EfficientNet-Lite: (inputs, present, train) -> features.

EfficientNets without squeeze-and-excitation and with ReLU6. Stem and last convolution have the same
width in all of them, and the first and last stage the same depth. `pretrained.py` reads public
weights. Training here has no stochastic depth and no dropout, unlike that of the public weights.

Source: Tan and Le (2019), arXiv:1905.11946; tensorflow/tpu, models/official/efficientnet/lite
(2020).
"""

import functools
import math
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from heteroscedastic.models.convolutions import conv_general_dilated, depthwise
from heteroscedastic.models.normalization import BatchNorm, check_group_size
from heteroscedastic.models.stages import Staged

# Blocks, kernel size, stride of the first block, expansion and channels of each stage.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM_WIDTH, _LAST_WIDTH = 32, 1280
_EPSILON = 1e-3
_START = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# A channel has one input and one output, so both fans are the entries of its kernel.
_DEPTHWISE_START = nn.initializers.variance_scaling(2.0, "fan_in", "normal")


class EfficientNetLite0(Staged):
    """EfficientNet-Lite0, for 224 pixels; 4,652,008 parameters with a layer of 1,000 classes.

    Attributes:
      dtype: "float32" or "bfloat16", for the computation; parameters, statistics and features are
        float32.
      group_size: of the batch statistics; see BatchNorm.
    """

    dtype: str = "float32"
    group_size: int | None = None
    width: ClassVar[float] = 1.0  # factors of the channels and of the depth of a stage
    depth: ClassVar[float] = 1.0

    def __post_init__(self):
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"dtype is {self.dtype!r}, but must be one of ('float32', 'bfloat16')."
            )
        check_group_size(self.group_size)
        super().__post_init__()

    @property
    def num_stages(self) -> int:
        return len(_STAGES)

    @property
    def first_of_tail(self) -> int:
        return 6

    @property
    def trunk_stride(self) -> int:
        return 16

    def _stage(self, stage: int, x: Array, present: Array, train: bool) -> Array:
        layer = functools.partial(_Layer, dtype=self.dtype, group_size=self.group_size)
        if stage == 0:
            x = layer(_STEM_WIDTH, 3, 2, name="stem")(x, present, train)
        for i, (own_stage, *settings) in enumerate(self._blocks()):
            if own_stage == stage:
                x = _Block(*settings, layer, name=f"block{i}")(x, present, train)
        if stage == self.num_stages:
            x = layer(_LAST_WIDTH, 1, 1, name="last")(x, present, train)
        return x

    def _blocks(self) -> list[tuple[int, int, int, int, int]]:
        """Stage, kernel size, stride, expansion and channels of each block."""
        blocks = []
        for stage, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES, 1):
            if 1 < stage < len(_STAGES):
                repeats = math.ceil(repeats * self.depth)
            width = _rounded(channels * self.width)
            blocks += [
                (stage, kernel, stride if i == 0 else 1, expansion, width) for i in range(repeats)
            ]
        return blocks


class EfficientNetLite1(EfficientNetLite0):
    """EfficientNet-Lite1, for 240 pixels."""

    depth = 1.1


class EfficientNetLite2(EfficientNetLite0):
    """EfficientNet-Lite2, for 260 pixels."""

    width = 1.1
    depth = 1.2


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that is at least nine tenths of the number."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


class _Layer(nn.Module):
    """Convolution, batch normalisation and, by default, ReLU6."""

    width: int
    kernel: int
    stride: int
    dtype: str
    group_size: int | None
    depthwise: bool = False
    linear: bool = False

    @nn.compact
    def __call__(self, x: Array, present: Array, train: bool) -> Array:
        settings = dict(dtype=self.dtype, name="conv")
        if self.depthwise:
            start = _DEPTHWISE_START
            x = _DepthwiseConv(self.kernel, self.stride, kernel_init=start, **settings)(x)
        else:
            size = (self.kernel, self.kernel)
            conv = nn.Conv(
                self.width,
                size,
                self.stride,
                use_bias=False,
                kernel_init=_START,
                conv_general_dilated=conv_general_dilated if train else None,
                **settings,
            )
            x = conv(x)
        x = BatchNorm(epsilon=_EPSILON, dtype=self.dtype, group_size=self.group_size, name="norm")(
            x, present, train
        )
        return x if self.linear else jax.nn.relu6(x)


class _DepthwiseConv(nn.Module):
    """A depthwise convolution, padded as "SAME"; without forward-mode derivatives."""

    kernel: int
    stride: int
    dtype: str
    kernel_init: Callable

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b _ _ c"]:
        shape = (self.kernel, self.kernel, 1, x.shape[-1])
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        return jax.lax.platform_dependent(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            cpu=self._sum,
            default=self._convolution,
        )

    def _convolution(self, x: Array, kernel: Array) -> Array:
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (self.stride, self.stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=x.shape[-1],
        )

    def _sum(self, x: Array, kernel: Array) -> Array:
        # The gradient of the kernel is a sum over positions, which stops growing in bfloat16.
        dtype = x.dtype
        x, kernel = (a.astype(jnp.promote_types(dtype, jnp.float32)) for a in (x, kernel))
        return depthwise(x, kernel, self.stride).astype(dtype)


class _Block(nn.Module):
    """An inverted residual block: expansion, depthwise convolution, projection."""

    kernel: int
    stride: int
    expansion: int
    width: int
    layer: Callable[..., _Layer]

    @nn.compact
    def __call__(self, inputs: Array, present: Array, train: bool) -> Array:
        x, hidden = inputs, self.expansion * inputs.shape[-1]
        if self.expansion > 1:
            x = self.layer(hidden, 1, 1, name="expand")(x, present, train)
        depthwise = self.layer(hidden, self.kernel, self.stride, depthwise=True, name="depthwise")
        x = depthwise(x, present, train)
        x = self.layer(self.width, 1, 1, linear=True, name="project")(x, present, train)
        return x + inputs if x.shape == inputs.shape else x
