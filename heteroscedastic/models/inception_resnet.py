"""Inception-ResNet-v2: (inputs, present, train) -> features.

This is the network of the authors' code in TensorFlow-Slim and of Keras; the widths of a few layers
differ from the figures of the paper. With a dense layer of 1,000 classes it has the 55,813,192
trainable parameters of Keras, whose normalisation has a bias but no scale. The auxiliary classifier
and the dropout before the last layer are omitted.

Source: Szegedy et al. (2017), arXiv:1602.07261.
"""

import functools
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from heteroscedastic.models.normalization import BatchNorm, check_group_size

_Tower = tuple[tuple[int, int, int], ...]  # (channels, height, width) of successive convolutions
_35: tuple[_Tower, ...] = (
    ((32, 1, 1),),
    ((32, 1, 1), (32, 3, 3)),
    ((32, 1, 1), (48, 3, 3), (64, 3, 3)),
)
_17: tuple[_Tower, ...] = (((192, 1, 1),), ((128, 1, 1), (160, 1, 7), (192, 7, 1)))
_8: tuple[_Tower, ...] = (((192, 1, 1),), ((192, 1, 1), (224, 1, 3), (256, 3, 1)))
_MIXED_5B: tuple[_Tower, ...] = (
    ((96, 1, 1),),
    ((48, 1, 1), (64, 5, 5)),
    ((64, 1, 1), (96, 3, 3), (96, 3, 3)),
)
# In a reduction the last convolution of each tower has stride 2.
_MIXED_6A: tuple[_Tower, ...] = (((384, 3, 3),), ((256, 1, 1), (256, 3, 3), (384, 3, 3)))
_MIXED_7A: tuple[_Tower, ...] = (
    ((256, 1, 1), (384, 3, 3)),
    ((256, 1, 1), (288, 3, 3)),
    ((256, 1, 1), (288, 3, 3), (320, 3, 3)),
)


class InceptionResNetV2(nn.Module):
    """Inception blocks with residual connections, in three stages.

    Attributes:
      padding: of the convolutions and poolings of stem and reductions. "VALID", as published,
        requires images of 75 pixels or more; "SAME", the `align_feature_maps` of the authors' code,
        supports any size.
      dtype: "float32" or "bfloat16", for the computation; parameters, statistics and features are
        float32.
      remat: whether to recompute the activations of a block for the gradient, to save memory.
      group_size: of the batch statistics; see BatchNorm.
    """

    # For images of 299 pixels the maps of the three stages are 35, 17 and 8 wide.
    num_blocks: ClassVar[tuple[int, int, int]] = (10, 20, 10)
    padding: str = "VALID"
    dtype: str = "float32"
    remat: bool = False
    group_size: int | None = None

    def __post_init__(self):
        for name, known in {"padding": ("VALID", "SAME"), "dtype": ("float32", "bfloat16")}.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of {known}.")
        check_group_size(self.group_size)
        super().__post_init__()

    def __call__(
        self, inputs: Float[Array, "b h w c"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b d"]:
        return jnp.mean(self.maps(inputs, present, train), axis=(1, 2))

    @nn.compact
    def maps(
        self, inputs: Float[Array, "b H W c"], present: Bool[Array, "b"], train: bool = False
    ) -> Float[Array, "b h w d"]:
        """The features before their mean over the image."""
        if self.padding == "VALID" and min(inputs.shape[1:3]) < 75:
            raise ValueError(
                f"images are {inputs.shape[1]}x{inputs.shape[2]}, but InceptionResNetV2 with"
                " padding='VALID' needs 75 pixels or more; use padding='SAME' for smaller images."
            )
        conv = functools.partial(
            nn.Conv, dtype=self.dtype, kernel_init=nn.initializers.glorot_uniform()
        )
        norm = functools.partial(
            BatchNorm,
            epsilon=1e-3,
            momentum=0.99,
            use_scale=False,
            dtype=self.dtype,
            group_size=self.group_size,
        )
        layer = functools.partial(_Layer, conv=conv, norm=norm)
        layers = dict(conv=conv, layer=layer)
        pool = functools.partial(
            nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=self.padding
        )
        mixed = functools.partial(_Towers, layer=layer)
        reduction = functools.partial(mixed, strides=2, padding=self.padding)
        block = nn.remat(_Block, static_argnums=(3,)) if self.remat else _Block

        x = inputs.astype(self.dtype)
        stem = ((32, 3, 2, self.padding), (32, 3, 1, self.padding), (64, 3, 1, "SAME"))
        for i, (channels, kernel, strides, padding) in enumerate(stem):
            x = layer(channels, (kernel, kernel), strides, padding, name=f"stem{i + 1}")(
                x, present, train
            )
        x = pool(x)
        x = layer(80, (1, 1), name="stem4")(x, present, train)
        x = layer(192, (3, 3), padding=self.padding, name="stem5")(x, present, train)
        x = pool(x)
        averaged = nn.avg_pool(x, (3, 3), padding="SAME", count_include_pad=False)
        averaged = layer(64, (1, 1), name="mixed_5b_pool")(averaged, present, train)
        x = jnp.concatenate(
            [mixed(_MIXED_5B, name="mixed_5b")(x, present, train), averaged], axis=-1
        )
        for i in range(self.num_blocks[0]):
            x = block(_35, 0.17, **layers, name=f"stage1_block{i + 1}")(x, present, train)
        x = jnp.concatenate(
            [reduction(_MIXED_6A, name="mixed_6a")(x, present, train), pool(x)], axis=-1
        )
        for i in range(self.num_blocks[1]):
            x = block(_17, 0.1, **layers, name=f"stage2_block{i + 1}")(x, present, train)
        x = jnp.concatenate(
            [reduction(_MIXED_7A, name="mixed_7a")(x, present, train), pool(x)], axis=-1
        )
        for i in range(self.num_blocks[2]):
            last = i == self.num_blocks[2] - 1
            scale = 1.0 if last else 0.2
            x = block(_8, scale, rectified=not last, **layers, name=f"stage3_block{i + 1}")(
                x, present, train
            )
        x = layer(1536, (1, 1), name="final")(x, present, train)
        return x.astype(jnp.float32)


class InceptionResNetV2Small(InceptionResNetV2):
    """One block per stage, for small images."""

    num_blocks = (1, 1, 1)
    padding: str = "SAME"


class _Layer(nn.Module):
    """Convolution, BatchNorm and ReLU."""

    channels: int
    kernel: tuple[int, int]
    strides: int = 1
    padding: str = "SAME"
    conv: Callable = nn.Conv
    norm: Callable = BatchNorm

    @nn.compact
    def __call__(self, x, present, train):
        strides = (self.strides, self.strides)
        x = self.conv(
            self.channels, self.kernel, strides, padding=self.padding, use_bias=False, name="conv"
        )(x)
        return jax.nn.relu(self.norm(name="norm")(x, present, train))


class _Towers(nn.Module):
    """Parallel towers of successive convolutions, concatenated along the channels.

    `strides` and `padding` apply to the last convolution of each tower.
    """

    towers: tuple[_Tower, ...]
    layer: Callable
    strides: int = 1
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x, present, train):
        ends = []
        for i, tower in enumerate(self.towers):
            y = x
            for j, (channels, *kernel) in enumerate(tower):
                last = (self.strides, self.padding) if j == len(tower) - 1 else ()
                y = self.layer(channels, tuple(kernel), *last, name=f"tower{i + 1}_{j + 1}")(
                    y, present, train
                )
            ends.append(y)
        return jnp.concatenate(ends, axis=-1)


class _Block(nn.Module):
    """The input plus `scale` times a projection of the towers."""

    towers: tuple[_Tower, ...]
    scale: float
    conv: Callable
    layer: Callable
    rectified: bool = True

    @nn.compact
    def __call__(self, x, present, train):
        added = _Towers(self.towers, self.layer, name="towers")(x, present, train)
        x = x + self.scale * self.conv(x.shape[-1], (1, 1), name="out")(added)
        return jax.nn.relu(x) if self.rectified else x
