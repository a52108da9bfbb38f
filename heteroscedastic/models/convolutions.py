"""Convolutions in forms that suit a CPU.

XLA's gradient of a kernel copies all images at once there, out of the cache, and takes a large part
of a step. `python -m benchmarks.train --model=ResNet8` compares a step with one of plain Flax.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Strides = tuple[int, int]
Pads = tuple[tuple[int, int], ...]
_AXES = ("NHWC", "HWIO", "NHWC")
_POSITIONS = 4096  # of the images that are summed at once; their copies stay in the cache


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
    size, (batch, *places, channels) = kernel.shape[:2], gradient.shape
    most = max(1, _POSITIONS // max(1, places[0] * places[1]))
    part = next((n for n in range(min(most, batch), 0, -1) if batch % n == 0), 1)
    dtype = jnp.promote_types(x.dtype, jnp.float32)

    def add(sums: list[Array], images: tuple[Array, ...]) -> tuple[list[Array], None]:
        x, gradient = images
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
        lasts = [stride * (n - 1) + 1 for stride, n in zip(strides, places, strict=True)]
        seen = (  # what each entry of the kernel is multiplied with
            x[:, i : i + lasts[0] : strides[0], j : j + lasts[1] : strides[1]]
            for i in range(size[0])
            for j in range(size[1])
        )
        products = (
            jax.lax.dot_general(
                inputs.reshape(-1, x.shape[-1]),
                gradient.reshape(-1, channels),
                (((0,), (0,)), ((), ())),
                preferred_element_type=dtype,
            )
            for inputs in seen
        )
        return [a + b for a, b in zip(sums, products, strict=True)], None

    zeros = [jnp.zeros((x.shape[-1], channels), dtype)] * (size[0] * size[1])
    parts = [a.reshape(batch // part, part, *a.shape[1:]) for a in (x, gradient)]
    sums, _ = jax.lax.scan(add, zeros, tuple(parts))
    return jnp.stack(sums).reshape(kernel.shape).astype(kernel.dtype)
