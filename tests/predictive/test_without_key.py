"""Without a key the points are fixed, and a prediction depends only on its input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import key, latent

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.models.layers import HeteroscedasticDense

POINTS = ("independent", "antithetic", "sobol")


@functools.partial(jax.jit, static_argnums=1)
def log_probs(one, points):
    return predictive.softmax(None, one, num_samples=16, points=points)


@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("kind", ["diagonal", "everything"])
def test_permuting_the_batch_permutes_the_predictions_bit_for_bit(kind, points):
    one, order = latent(kind, batch=(13,), k=10), np.random.default_rng(0).permutation(13)
    permuted = latent_lib.map_batch(lambda x: x[order], one)
    np.testing.assert_array_equal(log_probs(permuted, points), log_probs(one, points)[order])


@pytest.mark.parametrize("points", mostly_extended(POINTS, ["sobol"]))
def test_single_examples_and_slices_and_vmap_agree_with_the_batch(points):
    one = latent("low_rank", batch=(13,), k=10)
    complete = log_probs(one, points)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    close(log_probs(latent_lib.map_batch(lambda x: x[7:], one), points), complete[7:])
    close(log_probs(latent_lib.map_batch(lambda x: x[12], one), points), complete[12])
    close(jax.vmap(lambda x: log_probs(x, points))(one), complete)
    close(
        log_probs(latent_lib.map_batch(lambda x: x[:12].reshape(3, 4, *x.shape[1:]), one), points)[
            1, 2
        ],
        complete[6],
    )


def test_the_normals_of_an_example_are_independent_of_each_other():
    @jax.jit
    def points(one):
        return latent_lib.noise_source(None, one, 4096)(jnp.arange(4096))

    drawn = points(latent("everything", batch=(2,), q=2))
    noise = np.concatenate([np.asarray(x)[:, 1] for x in drawn], axis=-1)
    assert np.abs(np.corrcoef(noise.T) - np.eye(noise.shape[1])).max() < 0.08


@pytest.mark.extended
def test_the_layer_does_not_depend_on_the_position_in_the_batch():
    features = np.random.default_rng(0).normal(size=(13, 7)).astype(np.float32)
    layer = HeteroscedasticDense(10, num_factors=3, num_samples=16)
    variables = jax.jit(layer.init)(key(), features)
    apply = jax.jit(layer.apply)
    order = np.random.default_rng(0).permutation(13)
    complete = np.asarray(apply(variables, features))
    np.testing.assert_array_equal(apply(variables, features[order]), complete[order])
    np.testing.assert_allclose(apply(variables, features[5:6]), complete[5:6], rtol=1e-4, atol=1e-5)


HALF = (jnp.bfloat16, jnp.float16)


@pytest.mark.parametrize("dtype", mostly_extended(HALF, HALF[:1]))
@pytest.mark.parametrize(
    ("predict", "kind"),
    [
        (functools.partial(predictive.softmax, num_samples=32, chunk_size=8), "everything"),
        (functools.partial(predictive.sigmoid_sampled, num_samples=32, chunk_size=8), "low_rank"),
        (functools.partial(predictive.shortlist, num_classes=3, num_samples=8), "low_rank"),
        (predictive.softmax_exact, "diagonal"),
        (predictive.sigmoid, "low_rank"),
        (predictive.mean_field, "low_rank"),
        (predictive.taylor, "low_rank"),
        (predictive.deterministic, "deterministic"),
    ],
)
def test_a_latent_of_half_the_bits_is_averaged_in_float32(predict, kind, dtype):
    half = jax.tree.map(lambda x: x.astype(dtype), latent(kind, batch=(3,), k=8))
    single = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    found = predict(key(), half)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, predict(key(), single))
