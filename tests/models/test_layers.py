"""Laws of the drop-in layer, in flax.linen and in flax.nnx; test_nnx_layers.py has those of nnx."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mostly_extended
from flax import linen as nn
from flax import nnx
from gaussians import key

from heteroscedastic import predictive
from heteroscedastic.models import heads, nnx_layers
from heteroscedastic.models.layers import HeteroscedasticDense

FEATURES = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7)), jnp.float32)


class Layer(NamedTuple):
    """A layer with initial parameters, and its functions of the features with fixed points."""

    params: dict[str, Any]
    logits: Callable
    latent: Callable


def linen_layer(*args, **settings):
    layer = HeteroscedasticDense(*args, **settings)
    variables = jax.jit(layer.init)(key(), FEATURES)

    def latent(features):
        _, sown = layer.apply(variables, features, mutable="intermediates")
        (latent,) = sown["intermediates"]["latent"]
        return latent

    logits = jax.jit(functools.partial(layer.apply, variables))
    return Layer(variables["params"]["utilities"], logits, latent)


_call = nnx.jit(lambda layer, features: layer(features))


def nnx_layer(*args, **settings):
    layer = nnx_layers.HeteroscedasticDense(7, *args, **settings, rngs=nnx.Rngs(0))
    layer.eval()
    return Layer(
        nnx_layers.to_linen(layer)["utilities"], functools.partial(_call, layer), layer.latent
    )


in_both = pytest.mark.parametrize("build", [linen_layer, nnx_layer])


_HEADS = ("Deterministic", "Diagonal", "LowRank", "ParameterEfficient")
_LAYERS = list(itertools.product((linen_layer, nnx_layer), _HEADS, ("softmax", "sigmoid")))
_SLOW_LAYERS = [(nnx_layer, "Diagonal", "softmax"), (nnx_layer, "ParameterEfficient", "softmax")]


@pytest.mark.parametrize(
    ("build", "head", "link"),
    mostly_extended(_LAYERS, (case for case in _LAYERS if case not in _SLOW_LAYERS)),
)
def test_the_layer_replaces_a_dense_layer(build, head, link):
    num_factors = 3 if head in ("LowRank", "ParameterEfficient") else 0
    layer = build(5, num_factors=num_factors, head=head, link=link, num_samples=16)
    logits = layer.logits(FEATURES)
    assert logits.shape == nn.Dense(5).init_with_output(key(), FEATURES)[0].shape
    if link == "softmax":
        np.testing.assert_allclose(np.exp(logits).sum(-1), 1.0, rtol=1e-5)
    else:
        expected = predictive.sigmoid(None, layer.latent(FEATURES))
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@in_both
def test_settings_are_passed_to_the_head(build):
    settings = dict(noise_on="features", edward2=True, temperature=(0.3, 3.0), num_factors=3)
    layer = build(5, head="ParameterEfficient", num_samples=16, **settings)
    expected = heads.ParameterEfficient(5, **settings).apply({"params": layer.params}, FEATURES)
    jax.tree.map(np.testing.assert_array_equal, layer.latent(FEATURES), expected)


@in_both
@pytest.mark.parametrize("points", ["independent", "antithetic", "sobol"])
def test_logits_are_the_predictive_of_the_latent(build, points):
    layer = build(5, num_factors=3, num_samples=16, points=points, temperature=(0.3, 3.0))
    expected = predictive.softmax(None, layer.latent(FEATURES), num_samples=16, points=points)
    np.testing.assert_allclose(layer.logits(FEATURES), expected, rtol=1e-5, atol=1e-6)


@in_both
@pytest.mark.parametrize("settings", [{}, dict(noise_on="features"), dict(edward2=True)])
def test_the_softmax_of_independent_noise_is_exact(build, settings):
    layer = build(5, head="Diagonal", num_samples=16, **settings)
    latent, logits = layer.latent(FEATURES), layer.logits(FEATURES)
    sampled = predictive.softmax(None, latent, num_samples=16, points="sobol")
    expected = sampled if settings else predictive.softmax_exact(None, latent)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    assert settings or np.abs(sampled - expected).max() > 1e-3


@in_both
def test_the_initialisers_are_those_of_the_utilities_alone(build):
    bias_init = nn.initializers.constant(-10.0)
    layer = build(5, num_factors=3, kernel_init=nn.initializers.zeros, bias_init=bias_init)
    np.testing.assert_array_equal(layer.latent(FEATURES).loc, np.full((4, 5), -10.0))
    default = build(5, num_factors=3).params
    assert (np.asarray(default["loc"]["kernel"]) != 0).all()
    jax.tree.map(np.testing.assert_array_equal, layer.params | {"loc": 0}, default | {"loc": 0})


@in_both
@pytest.mark.parametrize(
    ("dtype", "head"),
    mostly_extended(
        itertools.product([jnp.bfloat16, "float16"], ["LowRank", "ParameterEfficient"]),
        [(jnp.bfloat16, "LowRank"), ("float16", "ParameterEfficient")],
    ),
)
def test_the_dense_layers_alone_compute_in_the_dtype(build, head, dtype):
    layer = build(5, num_factors=3, num_samples=16, head=head, dtype=dtype, temperature=0.5)
    assert {x.dtype for x in jax.tree.leaves(layer.params)} == {jnp.dtype("float32")}
    latent = layer.latent(FEATURES)
    assert {x.dtype for x in jax.tree.leaves(latent)} == {jnp.dtype("float32")}

    def dense(name):
        outputs = nn.Dense(5, dtype=dtype).apply({"params": layer.params[name]}, FEATURES)
        assert outputs.dtype == jnp.dtype(dtype)
        return outputs.astype(jnp.float32)

    np.testing.assert_array_equal(latent.loc, dense("loc") / 0.5)
    scale_diag = heads.standard_deviations(dense("scale_diag")) / 0.5
    np.testing.assert_allclose(latent.scale_diag, scale_diag, rtol=1e-6)
    exact = build(5, num_factors=3, head=head, temperature=0.5).latent(FEATURES)
    assert 0 < np.abs(latent.loc - exact.loc).max() < 0.05
    logits = layer.logits(FEATURES)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(np.exp(logits).sum(-1), 1.0, rtol=1e-5)


def test_float64_is_a_dtype():
    with jax.enable_x64(True):
        layer = linen_layer(5, num_factors=3, num_samples=16, dtype=jnp.float64)
        assert layer.logits(FEATURES).dtype == jnp.float64


@pytest.mark.parametrize("noise_on", ["utilities", "features"])
def test_a_partitioned_kernel_is_an_array_to_the_head(noise_on):
    settings = dict(num_factors=3, num_samples=16, noise_on=noise_on)
    init = nn.initializers.lecun_normal()
    partitioned = nn.with_partitioning(init, (None, "classes"))
    actual, expected = (
        linen_layer(5, kernel_init=kernel_init, **settings) for kernel_init in (partitioned, init)
    )
    np.testing.assert_array_equal(actual.logits(FEATURES), expected.logits(FEATURES))


def test_noise_depends_on_the_key_and_is_fixed_without_one():
    layer = HeteroscedasticDense(5, num_factors=3, num_samples=16)
    variables = jax.jit(layer.init)(key(), FEATURES)
    apply = jax.jit(lambda **rngs: layer.apply(variables, FEATURES, rngs=rngs))
    noisy = [apply(noise=key(i)) for i in (0, 0, 1)]
    np.testing.assert_array_equal(noisy[0], noisy[1])
    assert np.abs(noisy[0] - noisy[2]).max() > 1e-3
    np.testing.assert_array_equal(apply(), apply())


def test_a_layer_is_tabulated_and_its_outputs_are_captured():
    layer = HeteroscedasticDense(5, num_factors=3, num_samples=16)
    assert "Total Parameters: 200" in layer.tabulate(key(), FEATURES)
    variables = layer.init(key(), FEATURES)
    _, captured = layer.apply(variables, FEATURES, capture_intermediates=lambda *_: True)
    assert captured["intermediates"]["__call__"][0].shape == (4, 5)


def test_a_single_key_draws_noise_as_in_dropout_and_init_draws_none():
    layer = HeteroscedasticDense(5, num_factors=3, num_samples=16)
    first, variables = layer.init_with_output(key(), FEATURES)
    fixed = layer.apply(variables, FEATURES)
    np.testing.assert_allclose(first, fixed, rtol=1e-5)
    noisy = [layer.apply(variables, FEATURES, rngs=key(i)) for i in (0, 1)]
    assert np.abs(noisy[0] - fixed).max() > 1e-3
    assert np.abs(noisy[0] - noisy[1]).max() > 1e-3


@in_both
@pytest.mark.parametrize(("num_classes", "num_factors"), [(5, 5), (40, 15)])
@pytest.mark.parametrize("head", ["LowRank", "ParameterEfficient"])
def test_the_default_number_of_factors_is_fifteen_or_the_number_of_classes(
    build, head, num_classes, num_factors
):
    params = jax.eval_shape(lambda: build(num_classes, head=head).params)
    loadings = params["factor_loadings"]["bias"] if head == "LowRank" else params["shared_loadings"]
    assert loadings.shape == (num_classes, num_factors)


@in_both
def test_the_latent_is_that_of_the_features(build):
    layer = build(5, num_factors=3)
    latent = layer.latent(FEATURES)
    expected = FEATURES @ layer.params["loc"]["kernel"]
    np.testing.assert_allclose(latent.loc, expected, rtol=1e-4, atol=1e-5)
    assert latent.factor_loadings.shape == (4, 5, 3)


def test_a_model_with_the_layer_trains():
    labels = jnp.array([0, 1, 2, 3])
    layer = HeteroscedasticDense(5, num_factors=2, num_samples=16)

    def loss(variables, key):
        logits = layer.apply(variables, FEATURES, rngs={"noise": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(variables, key):
        value, gradient = jax.value_and_grad(loss)(variables, key)
        return jax.tree.map(lambda v, g: v - 0.5 * g, variables, gradient), value

    variables = jax.jit(layer.init)(key(), FEATURES)
    _, first = step(variables, key())
    for i in range(100):
        variables, _ = step(variables, key(i))
    assert step(variables, key())[1] < 0.3 * first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(link="probit"), "link is 'probit'; choose 'softmax' or 'sigmoid'"),
        (dict(head="Full"), "choose one of"),
        (dict(head="Diagonal", num_factors=3), "no setting 'num_factors'"),
        (dict(head="Deterministic", noise_on="features"), "no setting 'edward2', 'noise_on'"),
        (dict(num_factors=0), "num_factors is 0, but head 'LowRank' needs 1 or more"),
        (
            dict(num_factors=-2, head="ParameterEfficient"),
            "num_factors is -2, but head 'ParameterEfficient' needs",
        ),
        (dict(temperature=1e30), "temperature is 1e"),
        (dict(num_samples=0), "num_samples is 0"),
        (dict(num_samples=100), "use 128"),
        (dict(points="halton"), "points is 'halton'"),
        (dict(temperature=-1.0), "temperature is -1.0"),
        (dict(dtype=jnp.int32), "dtype is int32, but must be a floating type"),
    ],
)
@in_both
def test_bad_settings_are_clear_errors(build, settings, message):
    with pytest.raises(ValueError, match=message):
        build(5, **settings)
