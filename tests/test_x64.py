"""With 64-bit types enabled, float32 inputs give the same float32 outputs, and float64 float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import key, latent

from heteroscedastic import latent as latent_lib
from heteroscedastic import losses, metrics, mixing, predictive, sampling, smoothing, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.models.layers import HeteroscedasticDense

ONE = jax.tree.map(np.asarray, latent("everything", k=2))
TARGETS = np.eye(2, dtype=np.float32)[[0, 1, 1]]
LABELS, WEIGHTS = np.array([0, 1, 1], np.int32), np.ones(3, np.float32)


def _diagonal(x):
    return latent_lib.LatentGaussian(x.loc, x.scale_diag[:, :2])


def with_gradient(form):
    """The result of a function of a latent, and the gradient of the sum of the first class."""

    def both(x):
        value, pull = jax.vjp(form, x)
        return value, pull(jnp.zeros_like(value).at[..., 0].set(1.0))[0]

    return both


FUNCTIONS = {
    **{
        name: functools.partial(getattr(predictive, name), key(), num_samples=4)
        for name in ("softmax", "sigmoid_sampled")
    },
    "chunks": with_gradient(
        functools.partial(predictive.softmax, key(), num_samples=4, points="sobol", chunk_size=3)
    ),
    **{
        name: functools.partial(getattr(predictive, name), key())
        for name in ("taylor", "mean_field")
    },
    "temper": lambda x: latent_lib.temper(x, np.float64(2.0)),
    "difference_variance": latent_lib.difference_variance,
    "covariance": latent_lib.covariance,
    "sample": lambda x: latent_lib.sample(key(), x, 8, "antithetic"),
    "cross_entropy": lambda x: losses.cross_entropy(x.loc, jnp.asarray(TARGETS, x.loc.dtype)),
    "focal": lambda x: losses.focal(x.loc, jnp.asarray(TARGETS, x.loc.dtype), gamma=2.0),
    "generalized_cross_entropy": lambda x: losses.generalized_cross_entropy(
        x.loc, jnp.asarray(TARGETS, x.loc.dtype)
    ),
    "logit_adjusted": lambda x: losses.logit_adjusted(
        x.loc, jnp.asarray(TARGETS, x.loc.dtype), jnp.array([3, 0], jnp.float32)
    ),
    "effective_number": lambda x: weighting.effective_number(
        jnp.asarray(TARGETS, x.loc.dtype), jnp.array([3, 1], jnp.float32), beta=0.9
    ),
    "sigmoid_cross_entropy": lambda x: losses.sigmoid_cross_entropy(
        x.loc, jnp.asarray(TARGETS, x.loc.dtype)
    ),
    "softmax_exact": lambda x: with_gradient(functools.partial(predictive.softmax_exact, None))(
        _diagonal(x)
    ),
    "sigmoid": with_gradient(functools.partial(predictive.sigmoid, None)),
}


@pytest.mark.parametrize("name", mostly_extended(FUNCTIONS, set(FUNCTIONS) - {"softmax"}))
def test_float32_results_are_unchanged_and_float64_gives_float64(name):
    function = jax.jit(FUNCTIONS[name])
    expected = jax.tree.map(np.asarray, function(jax.tree.map(jnp.asarray, ONE)))
    with jax.enable_x64(True):
        for dtype, tolerance in ((jnp.float32, 2e-6), (jnp.float64, 2e-4)):
            actual = function(jax.tree.map(lambda x, dtype=dtype: jnp.asarray(x, dtype), ONE))
            assert {x.dtype for x in jax.tree.leaves(actual)} == {jnp.dtype(dtype)}
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance),
                actual,
                expected,
            )


@pytest.mark.parametrize("kind", ["independent", "antithetic", "sobol"])
def test_points_are_bit_identical(kind):
    @jax.jit
    def points():
        return sampling.sampler(kind)(key(), 16, jnp.arange(70))(jnp.arange(16))

    expected = points()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(points(), expected)


@pytest.mark.parametrize(
    "metric",
    [metrics.multiclass, metrics.multiclass_sigmoid, metrics.any_label, metrics.multilabel],
)
def test_sums_of_metrics_are_float32(metric):
    labels = (
        LABELS if metric in (metrics.multiclass, metrics.multiclass_sigmoid) else LABELS[:, None]
    )
    metric = jax.jit(metric)
    expected = metric(jnp.asarray(ONE.loc), jnp.asarray(labels), jnp.asarray(WEIGHTS))
    with jax.enable_x64(True):
        actual = metric(jnp.asarray(ONE.loc), jnp.asarray(labels), jnp.asarray(WEIGHTS))
        assert {x.dtype for x in jax.tree.leaves(actual)} == {jnp.dtype("float32")}
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), actual, expected)


def test_targets_are_float32():
    with jax.enable_x64(True):
        batch = Batch(None, jnp.asarray(LABELS), jnp.asarray(WEIGHTS), jnp.arange(3), {})
        targets = smoothing.uniform(batch, 4, rate=0.1)
        images = jnp.ones((3, 4, 4, 1), jnp.float32)
        mixed = jax.jit(mixing.cutmix)(key(), images, targets, batch.weights)
        assert {x.dtype for x in (targets, *mixed)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    "head",
    mostly_extended(
        ["Deterministic", "LowRank", "ParameterEfficient"], ["Deterministic", "ParameterEfficient"]
    ),
)
def test_parameters_of_the_layer_are_float32_and_logits_have_the_dtype_of_the_features(head):
    layer = HeteroscedasticDense(2, head=head, num_samples=4, temperature=(0.3, 3.0))
    features = np.ones((4, 7))
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.float64):
            logits, variables = jax.jit(layer.init_with_output)(key(), jnp.asarray(features, dtype))
            assert (logits.shape, logits.dtype) == ((4, 2), jnp.dtype(dtype))
            assert {x.dtype for x in jax.tree.leaves(variables["params"])} == {jnp.dtype("float32")}


def test_a_latent_of_both_precisions_gets_the_higher_one():
    with jax.enable_x64(True):
        mixed = latent_lib.LatentGaussian(jnp.zeros((3, 4), jnp.float32), jnp.ones((3, 4)))
        for points in ("sobol", "independent"):
            logits = predictive.softmax(key(), mixed, num_samples=4, points=points, chunk_size=2)
            assert logits.dtype == jnp.dtype("float64")
