"""Convolutions in forms that suit a CPU.

XLA's gradient of a kernel reads all images at once there, out of the cache, and takes a large part
of a step. `python -m benchmarks.train --model=ResNet8` compares a step with one of plain Flax.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Strides = tuple[int, int]
Pads = tuple[tuple[int, int], ...]
_AXES = ("NHWC", "HWIO", "NHWC")
_POSITIONS = 4096  # of the images that are summed at once; their copies stay in the cache
_VALUES = 2**18  # inputs of a depthwise convolution that are summed at once, likewise


def conv_general_dilated(
    lhs: Float[Array, "b H W _"],
    rhs: Float[Array, "k l c d"],
    window_strides: tuple[int, int],
    padding: Any,
    **settings: Any,
) -> Float[Array, "b h w d"]:
    """`jax.lax.conv_general_dilated` with another kernel gradient, for `flax.linen.Conv`.

    On a CPU the gradient of the kernel is a sum over parts of the batch of one matrix product for
    each entry of the kernel. On another chip, over several devices, with groups and with dilations
    it is that of JAX. There is no forward-mode derivative, so it is for training.
    """
    dilations = (settings.get("lhs_dilation"), settings.get("rhs_dilation"))
    dilated = any(x and max(x) > 1 for x in dilations)
    if dilated or settings.get("feature_group_count", 1) > 1 or jax.device_count() > 1:
        # Over several devices XLA would gather the batch to go through its parts.
        return jax.lax.conv_general_dilated(lhs, rhs, window_strides, padding, **settings)
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(lhs.shape[1:3], rhs.shape[:2], window_strides, padding)
    return _convolution(lhs, rhs, tuple(window_strides), tuple(map(tuple, padding)))


def _jax(x: Array, kernel: Array, strides: Strides, pads: Pads) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, strides, pads, dimension_numbers=_AXES)


_convolution = jax.custom_vjp(_jax, nondiff_argnums=(2, 3))


def _forward(
    x: Array, kernel: Array, strides: Strides, pads: Pads
) -> tuple[Array, tuple[Array, Array]]:
    return _convolution(x, kernel, strides, pads), (x, kernel)


def _backward(
    strides: Strides, pads: Pads, saved: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    x, kernel = saved
    (of_x,) = jax.linear_transpose(lambda x: _jax(x, kernel, strides, pads), x)(gradient)

    def of_jax(x: Array, gradient: Array) -> Array:
        return jax.linear_transpose(lambda kernel: _jax(x, kernel, strides, pads), kernel)(
            gradient
        )[0]

    def in_parts(x: Array, gradient: Array) -> Array:
        return _kernel_gradient(x, gradient, kernel, strides, pads)

    return of_x, jax.lax.platform_dependent(x, gradient, cpu=in_parts, default=of_jax)


_convolution.defvjp(_forward, _backward)


def _kernel_gradient(
    x: Array, gradient: Array, kernel: Array, strides: Strides, pads: Pads
) -> Array:
    size, (_, *places, channels) = kernel.shape[:2], gradient.shape
    dtype = jnp.promote_types(x.dtype, jnp.float32)

    def products(x: Array, gradient: Array) -> list[Array]:
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
        return [
            jax.lax.dot_general(
                inputs.reshape(-1, x.shape[-1]),
                gradient.reshape(-1, channels),
                (((0,), (0,)), ((), ())),
                preferred_element_type=dtype,
            )
            for inputs in _windows(x, size, places, strides)
        ]

    most = _POSITIONS // max(1, places[0] * places[1])
    sums = _sum_over_parts(products, x, gradient, most)
    return jnp.stack(sums).reshape(kernel.shape).astype(kernel.dtype)


def depthwise(
    x: Float[Array, "b H W c"], kernel: Float[Array, "k l 1 c"], stride: int
) -> Float[Array, "b h w c"]:
    """The convolution of each channel with its own kernel, padded as "SAME".

    It is a sum over the entries of the kernel; XLA's convolution of groups is several times as slow
    on a CPU. On one device the gradient of the kernel is a sum over parts of the batch. There is no
    forward-mode derivative then.

    Args:
      x: images or features, float32 as the sums are.
      kernel: float32.
      stride: of both axes.
    """
    if jax.device_count() > 1:
        return depthwise_sum(x, kernel, stride)
    return _depthwise(x, kernel, stride)


def depthwise_sum(
    x: Float[Array, "b H W c"], kernel: Float[Array, "k l 1 c"], stride: int
) -> Float[Array, "b h w c"]:
    """`depthwise` with the gradients of JAX."""
    places, pads = _same(x.shape[1:3], kernel.shape[:2], stride)
    return _weighted_windows(jnp.pad(x, ((0, 0), *pads, (0, 0))), kernel, places, stride)


_depthwise = jax.custom_vjp(depthwise_sum, nondiff_argnums=(2,))


def _depthwise_forward(x: Array, kernel: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _depthwise(x, kernel, stride), (x, kernel)


def _depthwise_backward(
    stride: int, saved: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    x, kernel = saved
    size, sides = kernel.shape[:2], x.shape[1:3]
    places, pads = _same(sides, size, stride)
    # Each input is a sum over the outputs that saw it: with the kernel turned over, of the gradient
    # with `stride` - 1 zeros between its positions.
    padding = [
        (n - 1 - low, side - 1 + low - stride * (place - 1), stride - 1)
        for n, side, place, (low, _) in zip(size, sides, places, pads, strict=True)
    ]
    spread = jax.lax.pad(gradient, jnp.zeros((), x.dtype), ((0, 0, 0), *padding, (0, 0, 0)))
    input_gradient = _weighted_windows(spread, kernel[::-1, ::-1], sides, 1)

    def products(x: Array, gradient: Array) -> Array:
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
        windows = _windows(x, size, places, (stride, stride))
        return jnp.stack([jnp.sum(inputs * gradient, axis=(0, 1, 2)) for inputs in windows])

    most = _VALUES // max(1, x[0].size)
    kernel_gradient = _sum_over_parts(products, x, gradient, most).reshape(kernel.shape)
    return input_gradient, kernel_gradient


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _same(
    sides: tuple[int, ...], size: tuple[int, ...], stride: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Rows and columns of the result, and the zeros before and after, of padding "SAME"."""
    places = [-(-side // stride) for side in sides]
    return places, jax.lax.padtype_to_pads(sides, size, (stride, stride), "SAME")


def _weighted_windows(x: Array, kernel: Array, places: Sequence[int], stride: int) -> Array:
    """The sum over the entries of the kernel of what each channel sees there."""
    windows = _windows(x, kernel.shape[:2], places, (stride, stride))
    weights = kernel.reshape(-1, kernel.shape[-1])
    return sum(inputs * weight for inputs, weight in zip(windows, weights, strict=True))


def _windows(
    x: Array, size: Sequence[int], places: Sequence[int], strides: Strides
) -> Iterator[Array]:
    """What each entry of the kernel is multiplied with, of padded inputs."""
    spans = [stride * (n - 1) + 1 for stride, n in zip(strides, places, strict=True)]
    for i in range(size[0]):
        for j in range(size[1]):
            yield x[:, i : i + spans[0] : strides[0], j : j + spans[1] : strides[1]]


def _sum_over_parts(
    products: Callable[[Array, Array], Any], x: Array, gradient: Array, most: int
) -> Any:
    """The sum of `products` over parts of the batch, of `most` images at most."""
    batch = len(x)
    part = next((n for n in range(min(max(most, 1), batch), 0, -1) if batch % n == 0), 1)
    parts = [a.reshape(batch // part, part, *a.shape[1:]) for a in (x, gradient)]

    def add(sums: Any, images: list[Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, products(*images)), None

    shapes = jax.eval_shape(products, *(a[0] for a in parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    sums, _ = jax.lax.scan(add, zeros, parts)
    return sums
