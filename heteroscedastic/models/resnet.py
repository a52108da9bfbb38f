"""Residual networks: (inputs, present, train) -> features.

Version 1.5 (Goyal et al. 2017, arXiv:1706.02677) has the stride of a bottleneck in its 3x3
convolution. Version 2 (He et al. 2016, arXiv:1603.05027) normalises before each convolution, not
after the stem or on shortcuts, and once at the end; with a dense layer of 1,000 classes
ResNet-152v2 has the 60,185,128 parameters of Collier et al. (reading C12).

There are also the small networks for 32-pixel images of He et al. (2016, arXiv:1512.03385, section
4.2), and wide ones (Zagoruyko and Komodakis 2016, arXiv:1605.07146).
"""

import functools
from collections.abc import Callable
from typing import ClassVar

import jax
from flax import linen as nn
from jaxtyping import Array

from heteroscedastic.bind import check_number, check_numbers
from heteroscedastic.models.convolutions import conv_general_dilated
from heteroscedastic.models.normalization import BatchNorm, check_group_size, zero_outside
from heteroscedastic.models.stages import Staged


class ResNet(Staged):
    """A residual network of any depth and width.

    The named networks, such as ResNet50, fix the first three attributes and the two widths; the
    others are their settings.

    Attributes:
      stage_sizes: number of blocks of each stage; each stage after the first halves the image.
      bottleneck: whether a block has 1x1, 3x3 and 1x1 convolutions instead of two 3x3 ones.
      version: 1 (version 1.5) or 2.
      stem: "imagenet", a 7x7 convolution of stride 2 and max pooling, or "cifar", a 3x3
        convolution.
      stem_width: channels of the stem.
      width: channels of the 3x3 convolutions of the first stage; each stage doubles them.
      dtype: "float32" or "bfloat16", for the computation; parameters, statistics and features are
        float32.
      remat: whether to recompute the activations of a block for the gradient, to save memory.
      group_size: of the batch statistics; see BatchNorm.
      start: initial parameters. "identity" uses normal kernels scaled by the fan-out (He et al.
        2015, arXiv:1502.01852) and 0 for the last scale of each block of version 1 (Goyal et al.
        2017). "keras" uses its `he_normal` (scaled by the fan-in, truncated at two standard
        deviations) and 1 for all scales, as in the public code of Table 7 of Collier et al. (2021).
    """

    stage_sizes: tuple[int, ...] = (3, 4, 6, 3)
    bottleneck: bool = True
    version: int = 1
    stem: str = "imagenet"
    stem_width: int = 64
    width: int = 64
    dtype: str = "float32"
    remat: bool = False
    group_size: int | None = None
    start: str = "identity"

    def __post_init__(self):
        choices = {
            "version": (1, 2),
            "stem": ("imagenet", "cifar"),
            "dtype": ("float32", "bfloat16"),
            "start": tuple(_STARTS),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of {known}.")
        check_numbers("stage_sizes", self.stage_sizes, integer=True, at_least=1, at_most=1000)
        if len(self.stage_sizes) > 10:
            raise ValueError(f"stage_sizes is {self.stage_sizes}; it must have at most 10 stages.")
        for name in ("stem_width", "width"):
            check_number(name, getattr(self, name), integer=True, at_least=1, below=2**20)
        check_group_size(self.group_size)
        super().__post_init__()

    @property
    def num_stages(self) -> int:
        return len(self.stage_sizes)

    @property
    def first_of_tail(self) -> int | None:
        return self.num_stages if self.version == 1 else None

    @property
    def trunk_stride(self) -> int:
        num_halvings = max(self.num_stages - 2, 0)  # a trunk of the stem alone has none
        return (4 if self.stem == "imagenet" else 1) * 2**num_halvings

    def _stage(self, stage: int, x: Array, present: Array, train: bool) -> Array:
        conv = functools.partial(
            nn.Conv,
            use_bias=False,
            dtype=self.dtype,
            kernel_init=_STARTS[self.start],
            conv_general_dilated=conv_general_dilated if train else None,
        )
        norm = functools.partial(BatchNorm, dtype=self.dtype, group_size=self.group_size)
        block = _BlockV1 if self.version == 1 else _BlockV2
        block = nn.remat(block, static_argnums=(3,)) if self.remat else block
        if stage == 0:
            x = self._stem(x, present, train, conv, norm)
        for i in range((0, *self.stage_sizes)[stage]):
            x = block(
                width=self.width * 2 ** (stage - 1),
                strides=2 if stage > 1 and i == 0 else 1,
                bottleneck=self.bottleneck,
                conv=conv,
                norm=norm,
                zero_last=self.start == "identity",
                name=f"stage{stage}_block{i + 1}",
            )(x, present, train)
        if stage == self.num_stages and self.version == 2:
            x = jax.nn.relu(norm(name="final_norm")(x, present, train))
        return x

    def _stem(self, x: Array, present: Array, train: bool, conv: Callable, norm: Callable) -> Array:
        if self.stem == "imagenet":
            x = conv(self.stem_width, (7, 7), (2, 2), padding=((3, 3), (3, 3)), name="stem")(x)
        else:
            x = conv(self.stem_width, (3, 3), padding=((1, 1), (1, 1)), name="stem")(x)
        if self.version == 1:
            x = jax.nn.relu(norm(name="stem_norm")(x, present, train))
        if self.stem == "imagenet":
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
            # The first positions outside of an image have seen it, and convolutions read them.
            x = zero_outside(x, present)
        return x


_STARTS = {
    "identity": nn.initializers.variance_scaling(2.0, "fan_out", "normal"),
    "keras": nn.initializers.he_normal(),
}


class _Block(nn.Module):
    """A residual block; the subclasses order its convolutions and normalisations."""

    width: int
    strides: int
    bottleneck: bool
    conv: Callable
    norm: Callable
    zero_last: bool  # whether the last scale starts at 0, in version 1

    @property
    def convolutions(self) -> tuple[tuple[int, int, int], ...]:
        """(channels, kernel size, stride) of each convolution."""
        if self.bottleneck:
            return ((self.width, 1, 1), (self.width, 3, self.strides), (4 * self.width, 1, 1))
        return ((self.width, 3, self.strides), (self.width, 3, 1))

    def convolution(self, x: Array, i: int) -> Array:
        channels, kernel, stride = self.convolutions[i]
        pad = (kernel - 1) // 2
        padding = ((pad, pad), (pad, pad))
        return self.conv(
            channels, (kernel, kernel), (stride, stride), padding=padding, name=f"conv{i + 1}"
        )(x)

    def projection(self, x: Array) -> Array | None:
        """The input projected to the shape of the output; None if it has that shape already."""
        channels = self.convolutions[-1][0]
        if x.shape[-1] == channels and self.strides == 1:
            return None
        return self.conv(
            channels, (1, 1), (self.strides, self.strides), padding="VALID", name="shortcut"
        )(x)


class _BlockV1(_Block):
    @nn.compact
    def __call__(self, x, present, train):
        shortcut = self.projection(x)
        shortcut = (
            x if shortcut is None else self.norm(name="shortcut_norm")(shortcut, present, train)
        )
        last = len(self.convolutions) - 1
        for i in range(last + 1):
            x = self.convolution(x, i)
            x = self.norm(name=f"norm{i + 1}", zero_scale=self.zero_last and i == last)(
                x, present, train
            )
            x = x if i == last else jax.nn.relu(x)
        return jax.nn.relu(x + shortcut)


class _BlockV2(_Block):
    @nn.compact
    def __call__(self, x, present, train):
        residual = x
        for i in range(len(self.convolutions)):
            residual = jax.nn.relu(self.norm(name=f"norm{i + 1}")(residual, present, train))
            if i == 0:
                shortcut = self.projection(residual)
                shortcut = x if shortcut is None else shortcut
            residual = self.convolution(residual, i)
        return residual + shortcut


class _FixedResNet(ResNet):
    """A residual network whose name gives its architecture; the other fields are settings."""

    stage_sizes: ClassVar[tuple[int, ...]]
    bottleneck: ClassVar[bool]
    version: ClassVar[int]
    stem_width: ClassVar[int]
    width: ClassVar[int]


class ResNet18(_FixedResNet):
    """Version 1.5 with 18 layers."""

    stage_sizes = (2, 2, 2, 2)
    bottleneck = False


class ResNet10(ResNet18):
    """Version 1.5 with 10 layers."""

    stage_sizes = (1, 1, 1, 1)


class ResNet34(_FixedResNet):
    """Version 1.5 with 34 layers."""

    bottleneck = False


class ResNet50(_FixedResNet):
    """Version 1.5 with 50 layers."""


class ResNet101(_FixedResNet):
    """Version 1.5 with 101 layers."""

    stage_sizes = (3, 4, 23, 3)


class ResNet152(_FixedResNet):
    """Version 1.5 with 152 layers."""

    stage_sizes = (3, 8, 36, 3)


class ResNet10V2(ResNet10):
    """Version 2 with 10 layers."""

    version = 2


class ResNet18V2(ResNet18):
    """Version 2 with 18 layers."""

    version = 2


class ResNet34V2(ResNet34):
    """Version 2 with 34 layers."""

    version = 2


class ResNet50V2(ResNet50):
    """Version 2 with 50 layers."""

    version = 2


class ResNet101V2(ResNet101):
    """Version 2 with 101 layers."""

    version = 2


class ResNet152V2(ResNet152):
    """Version 2 with 152 layers."""

    version = 2


class ResNet8(_FixedResNet):
    """The network of He et al. for 32-pixel images, with 8 layers.

    Shortcuts that change the shape are projections.
    """

    stage_sizes = (1, 1, 1)
    bottleneck = False
    stem: str = "cifar"
    stem_width = 16
    width = 16


class ResNet20(ResNet8):
    """ResNet8 with 20 layers."""

    stage_sizes = (3, 3, 3)


class ResNet32(ResNet8):
    """ResNet8 with 32 layers."""

    stage_sizes = (5, 5, 5)


class ResNet44(ResNet8):
    """ResNet8 with 44 layers."""

    stage_sizes = (7, 7, 7)


class ResNet56(ResNet8):
    """ResNet8 with 56 layers."""

    stage_sizes = (9, 9, 9)


class WideResNet28x10(ResNet8):
    """Version 2 with 28 layers, ten times as wide."""

    stage_sizes = (4, 4, 4)
    version = 2
    width = 160
