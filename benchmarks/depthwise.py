"""Gradients of depthwise convolutions, by three forms: python -m benchmarks.depthwise

prints for four layers of an EfficientNet-Lite0, two of them with the regions of a detector as
batch, the seconds of a value with its gradients by XLA's convolution of groups, by a sum over the
entries of the kernel with the gradients of JAX, and by heteroscedastic.models.convolutions, which
is used on a CPU; and each relative to the last. They are timed in turn.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from heteroscedastic.models import convolutions

# Images, side, channels, side of the kernel, stride.
_LAYERS = ((16, 112, 96, 3, 2), (16, 56, 144, 3, 1), (128, 14, 672, 5, 2), (128, 7, 1152, 5, 1))


def grouped(x: Array, kernel: Array, stride: int) -> Array:
    """XLA's convolution of groups."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )


FORMS = {
    "groups": grouped,
    "sum": convolutions.depthwise_sum,
    "sum, gradient in parts": convolutions.depthwise,
}


def gradients(form, stride: int):
    """(x, kernel) -> the gradients of half the squared norm of the result, jitted."""
    return jax.jit(jax.grad(lambda x, kernel: jnp.sum(form(x, kernel, stride) ** 2) / 2, (0, 1)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    flags = parser.parse_args()
    rng, (*_, last) = np.random.default_rng(0), FORMS
    print(f"on {jax.devices()[0].device_kind}, jax {jax.__version__}:\n")
    print("| batch | side | channels | kernel | stride | " + " | ".join(FORMS) + " |")
    print("|" + " --- |" * (5 + len(FORMS)))
    for layer in _LAYERS:
        batch, side, channels, size, stride = layer
        x = jnp.asarray(rng.normal(size=(batch, side, side, channels)), jnp.float32)
        kernel = jnp.asarray(rng.normal(size=(size, size, 1, channels)), jnp.float32)
        calls = {name: gradients(form, stride) for name, form in FORMS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(flags.repeats + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                jax.block_until_ready(call(x, kernel))
                if turn:  # the first compiles
                    seconds[name].append(time.perf_counter() - start)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        cells = [f"{s:.3f} s, {s / medians[last]:.2f}" for s in medians.values()]
        print("| " + " | ".join([*map(str, layer), *cells]) + " |")


if __name__ == "__main__":
    main()
