"""A convolution of the models is that of JAX, with its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.models import convolutions
from heteroscedastic.models.convolutions import conv_general_dilated

AXES = ("NHWC", "HWIO", "NHWC")


def random(*shape, seed=0, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def of_jax(x, kernel, strides, padding):
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=AXES)


def value_and_gradients(function, x, kernel, strides, padding):
    @jax.jit
    def compute(x, kernel):
        y, transpose = jax.vjp(lambda *a: function(*a, strides, padding), x, kernel)
        return y, *transpose(random(*y.shape, seed=2, dtype=y.dtype))

    return compute(x, kernel)


@pytest.mark.parametrize(
    ("shape", "size", "strides", "padding"),
    [
        ((6, 8, 8, 3), (3, 3), (1, 1), "SAME"),
        ((6, 9, 7, 3), (3, 3), (2, 2), "SAME"),
        ((6, 8, 8, 3), (3, 3), (2, 1), ((0, 2), (1, 0))),
        ((5, 9, 8, 3), (7, 7), (2, 2), ((3, 3), (3, 3))),
        ((7, 8, 5, 3), (2, 3), (1, 2), "VALID"),
        ((4, 8, 8, 3), (1, 1), (2, 2), "VALID"),
    ],
)
@pytest.mark.parametrize("positions", [1, 4096])
def test_values_and_gradients_are_those_of_jax(
    shape, size, strides, padding, positions, monkeypatch
):
    monkeypatch.setattr(convolutions, "_POSITIONS", positions)
    x, kernel = random(*shape), random(*size, shape[-1], 4, seed=1)
    wanted = value_and_gradients(of_jax, x, kernel, strides, padding)
    ours = value_and_gradients(conv_general_dilated, x, kernel, strides, padding)
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def second_derivatives(function, x, kernel):
    def norm(x, kernel):
        first = jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), (0, 1))(x, kernel)
        return sum(jnp.sum(a**2) for a in first)

    return jax.jit(jax.grad(norm, (0, 1)))(x, kernel)


def test_second_derivatives_are_those_of_jax():
    x, kernel = random(2, 4, 4, 2), random(3, 3, 2, 2, seed=1)
    wanted = second_derivatives(lambda *a: of_jax(*a, (1, 1), "SAME"), x, kernel)
    ours = second_derivatives(lambda *a: conv_general_dilated(*a, (1, 1), "SAME"), x, kernel)
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_gradient_in_bfloat16_is_summed_in_float32(monkeypatch):
    monkeypatch.setattr(convolutions, "_POSITIONS", 1)
    x, kernel = jnp.ones((512, 2, 2, 1), jnp.bfloat16), jnp.ones((1, 1, 1, 1), jnp.bfloat16)

    @jax.jit
    def gradient(kernel):
        return jax.grad(lambda kernel: conv_general_dilated(x, kernel, (1, 1), "SAME").sum())(
            kernel
        )

    ours = gradient(kernel)
    assert ours.dtype == jnp.bfloat16
    assert ours == x.size  # in bfloat16 a sum of fours ends at 1,024


@pytest.mark.parametrize(
    "settings", [{"feature_group_count": 3}, {"rhs_dilation": (2, 2)}, {"lhs_dilation": (2, 2)}]
)
def test_groups_and_dilations_are_those_of_jax(settings):
    x = random(2, 4, 4, 3)
    kernel = random(3, 3, 1 if "feature_group_count" in settings else 3, 3, seed=1)
    ours, wanted = (
        function(x, kernel, (1, 1), ((1, 1), (1, 1)), dimension_numbers=AXES, **settings)
        for function in (conv_general_dilated, jax.lax.conv_general_dilated)
    )
    np.testing.assert_array_equal(ours, wanted)


def grouped(x, kernel, stride, _):
    groups = dict(feature_group_count=x.shape[-1], dimension_numbers=AXES)
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", **groups)


def ours(x, kernel, stride, _):
    return convolutions.depthwise(x, kernel, stride)


DEPTHWISE = [
    ((6, 8, 8, 3), (3, 3), 1),
    ((6, 9, 7, 3), (5, 5), 2),
    ((5, 8, 7, 3), (5, 5), 2),
    ((3, 7, 8, 2), (3, 5), 3),
    ((2, 6, 5, 2), (1, 1), 2),  # the last row is not seen
    ((2, 3, 2, 2), (5, 5), 1),  # smaller than the kernel
]


@pytest.mark.parametrize(("shape", "size", "stride"), DEPTHWISE)
@pytest.mark.parametrize("values", [1, 2**18])
def test_each_channel_has_its_own_convolution(shape, size, stride, values, monkeypatch):
    monkeypatch.setattr(convolutions, "_VALUES", values)
    x, kernel = random(*shape), random(*size, 1, shape[-1], seed=1)
    wanted = value_and_gradients(grouped, x, kernel, stride, "SAME")
    found = value_and_gradients(ours, x, kernel, stride, "SAME")
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_second_derivatives_of_each_channel_are_those_of_jax():
    x, kernel = random(2, 5, 4, 2), random(3, 3, 1, 2, seed=1)
    found, wanted = (
        second_derivatives(lambda *a, f=f: f(*a, 2, "SAME"), x, kernel) for f in (ours, grouped)
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
