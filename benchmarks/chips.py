"""Peak rates of devices, from the data sheets, and the operations and bytes of a program."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Chip(NamedTuple):
    """Peak rates of one device."""

    bfloat16: float  # TFLOP/s, without sparsity
    float32: float  # TFLOP/s in the type that JAX uses by default: TF32, or bfloat16 on a TPU
    bandwidth: float  # of its memory, GB/s
    vector: float | None  # TFLOP/s in float32 outside matrix products; TPU data sheets lack it


# NVIDIA A100 (June 2021), H100 and H200 (SXM columns); cloud.google.com/tpu/docs, "TPU v3" and
# "TPU v4". On v3 a device is one of the two cores of a chip.
CHIPS = {
    "NVIDIA A100-SXM4-40GB": Chip(312, 156, 1_555, 19.5),
    "NVIDIA A100-SXM4-80GB": Chip(312, 156, 2_039, 19.5),
    "NVIDIA H100 80GB HBM3": Chip(989, 494, 3_350, 67),
    "NVIDIA H200": Chip(989, 494, 4_800, 67),
    "TPU v3": Chip(61.5, 61.5, 450, None),
    "TPU v4": Chip(275, 275, 1_228, None),
}
# Primitives that compute nothing.
_MOVES = {
    *("bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy"),
    *("device_put", "dynamic_slice", "dynamic_update_slice", "gather", "iota", "pad"),
    *("optimization_barrier", "reshape", "rev", "scatter", "select_n", "sharding_constraint"),
    *("slice", "split", "squeeze", "stop_gradient", "transpose"),
}


class Demand(NamedTuple):
    """What a program asks of a device."""

    operations: int  # floating-point and integer; loops count as often as they run
    bytes: int  # of the arguments and results, which no program avoids


def chip(device: jax.Device) -> Chip | None:
    """The peak rates of a device, or None if they are unknown."""
    known = [rates for kind, rates in CHIPS.items() if device.device_kind.startswith(kind)]
    return known[0] if known else None


def demand(function: Callable, *arguments: Any) -> Demand:
    """The operations and bytes of a call, from its trace: nothing is compiled or run.

    The compiler's own count, `cost_analysis`, counts the body of a loop once.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    outside = (*closed.in_avals, *closed.out_avals)
    return Demand(_operations(closed.jaxpr), sum(_bytes(x) for x in outside))


def _bytes(x: Any) -> int:
    return 8 if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x.size * x.dtype.itemsize


def _operations(jaxpr: Any) -> int:
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> int:
    """The operations of an equation; a branch counts as its longest, `while` as one iteration."""
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        return max(_operations(branch.jaxpr) for branch in params["branches"])
    if name == "scan":
        return params["length"] * _operations(params["jaxpr"].jaxpr)
    inner = [
        getattr(value, "jaxpr", value)
        for value in params.values()
        if hasattr(getattr(value, "jaxpr", value), "eqns")
    ]
    if inner:
        return sum(map(_operations, inner))
    sizes = [math.prod(x.aval.shape) for x in equation.outvars]
    operands = [x.aval.shape for x in equation.invars]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * sizes[0] * math.prod(operands[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        return _of_convolution(params, *operands, equation.outvars[0].aval.shape)
    if name in _MOVES or name.startswith("random_"):
        return 0
    return max(sizes[0], math.prod(operands[0]) if operands else 0)


def _of_convolution(
    params: dict, image: tuple[int, ...], kernel: tuple[int, ...], output: tuple[int, ...]
) -> int:
    """Multiplications with padding and with the zeros of a dilated image do not count."""
    numbers = params["dimension_numbers"]
    sizes, widths, outputs = (
        [shape[axis] for axis in axes[2:]] for shape, axes in zip((image, kernel, output), numbers)
    )
    pairs = 1  # of an output and a kernel place, along each axis
    for axis, size in enumerate(sizes):
        place = np.arange(outputs[axis])[:, None] * params["window_strides"][axis]
        place = place + np.arange(widths[axis]) * params["rhs_dilation"][axis]
        place = place - params["padding"][axis][0]
        spread = params["lhs_dilation"][axis]
        pairs *= int(np.sum((place % spread == 0) & (place >= 0) & (place < size * spread)))
    batch, features = (output[axis] for axis in numbers.out_spec[:2])
    return 2 * batch * features * kernel[numbers.rhs_spec[1]] * pairs
