"""The softmax over a shortlist: limits, invariances, and errors beside those of simpler lumps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import KINDS, key, latent

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.predictive.shortlist import _Lump, _with_lump


@functools.partial(jax.jit, static_argnums=(1, 2))
def shortlist(one, num_classes, num_samples=64, seed=0):
    return predictive.shortlist(
        key(seed), one, num_classes=num_classes, num_samples=num_samples, points="sobol"
    )


def many(temperature=1.0, batch=4, k=200):
    """Random utilities of many classes, of which a few are likely."""
    one = latent("low_rank", batch=(batch,), k=k, r=4, seed=1)
    return latent_lib.temper(
        one._replace(loc=3 * one.loc, factor_loadings=one.factor_loadings / 2), temperature
    )


@functools.partial(jax.jit, static_argnums=1)
def reference(one, num_samples=2**14):
    return predictive.softmax(key(9), one, num_samples=num_samples, points="sobol")


@pytest.mark.parametrize("kind", ["diagonal", "everything"])
def test_with_all_classes_it_is_the_softmax_bit_for_bit(kind):
    one = latent(kind)
    expected = jax.jit(functools.partial(predictive.softmax, num_samples=64, points="sobol"))
    np.testing.assert_array_equal(shortlist(one, 5), expected(key(), one))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_lump_of_one_class_is_that_class(kind):
    one = latent(kind)
    np.testing.assert_allclose(shortlist(one, 4, 2**14), reference(one), atol=0.02)


def test_a_lump_of_one_class_of_strong_noise_is_that_class():
    one = LatentGaussian(jnp.zeros(2), jnp.full(2, 20.0))
    np.testing.assert_allclose(jnp.exp(shortlist(one, 1, 1024)), 0.5, atol=0.01)


@pytest.mark.parametrize(("kind", "num_classes"), zip(KINDS, [1, 3, 1, 3, 1, 3]))
def test_probabilities_sum_to_one(kind, num_classes):
    one = latent(kind, batch=(2, 3), k=7)
    log_probs = shortlist(one, num_classes)
    np.testing.assert_allclose(jax.nn.logsumexp(log_probs, axis=-1), 0.0, atol=1e-6)
    assert log_probs.shape == (2, 3, 7)


@pytest.mark.parametrize("temperature", [1.0, 0.15])
def test_the_error_is_below_a_bound_for_weak_and_strong_noise(temperature):
    one = many(temperature)
    expected = reference(one)
    actual = shortlist(one, 20, 1024)
    divergence = jnp.sum(jnp.exp(expected) * (expected - actual), axis=-1)
    assert divergence.mean() < 0.06
    lump = 1 - jnp.sum(jax.lax.top_k(jnp.exp(expected), 20)[0], axis=-1)
    assert lump.max() > 0.003  # the others are not negligible


def test_the_lump_has_the_mean_of_many_independent_equal_classes():
    # E[log sum_j exp(u_j)] of n classes of variance v: log n + v / 2 below v = 2 log n, and
    # sqrt(2 v log n) above (Derrida 1981), in the limit of many classes.
    n = 2**16
    for v in (4.0, 16.0, 64.0):
        top = 30.0  # of one class without much noise, which is the shortlist
        one = LatentGaussian(
            jnp.zeros(n + 1).at[0].set(top), jnp.full(n + 1, np.sqrt(v)).at[0].set(1e-3)
        )
        log_probs = shortlist(one, 1)
        lump = jax.nn.logsumexp(log_probs[1:]) - log_probs[0] + top
        limit = np.log(n) + v / 2 if v < 2 * np.log(n) else np.sqrt(2 * v * np.log(n))
        np.testing.assert_allclose(lump, limit, rtol=2e-3)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_lump_has_the_covariance_of_the_weighted_mean_of_its_classes(kind):
    one, top = latent(kind), jnp.array([[0, 3], [4, 1], [2, 0]])
    is_top = jax.nn.one_hot(top, 5)
    shares = jax.nn.softmax(jnp.where(is_top.sum(axis=1) > 0, -jnp.inf, jnp.arange(5.0)))
    lump = _Lump(jnp.zeros(3), jnp.log(shares), shares)
    actual = jax.jit(lambda x: latent_lib.covariance(_with_lump(x, top, lump)))(one)
    rows = jnp.concatenate([is_top, shares[:, None]], axis=1)
    expected = jnp.einsum("bik,bkl,bjl->bij", rows, latent_lib.covariance(one), rows)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_likeliest_classes_are_those_of_strong_noise_too():
    # Each class of strong noise has probability 0.22, far above its softmax without noise.
    loc = jnp.asarray([0.0, -8.0, *[-1.0] * 5])
    one = LatentGaussian(loc, jnp.asarray([0.1, 12.0, *[0.1] * 5]))
    np.testing.assert_allclose(shortlist(one, 2, 1024)[:2], reference(one)[:2], atol=0.02)


def test_noise_common_to_all_classes_changes_nothing():
    one = many()
    common = jnp.broadcast_to(5 * jax.random.normal(key(2), (4, 1, 2)), (*one.loc.shape, 2))
    without = jnp.zeros_like(common)
    added = [
        one._replace(factor_loadings=jnp.concatenate([one.factor_loadings, extra], axis=-1))
        for extra in (without, common)
    ]
    np.testing.assert_allclose(shortlist(added[0], 10), shortlist(added[1], 10), atol=1e-3)


def test_renamed_classes_have_the_same_probabilities():
    one, order = many(), np.random.default_rng(0).permutation(200)
    renamed = latent_lib.map_batch(
        lambda x: x[:, order], one
    )  # the class axis is the second of each field
    np.testing.assert_allclose(shortlist(renamed, 10), shortlist(one, 10)[:, order], atol=1e-4)


def test_the_forms_of_one_covariance_agree():
    one = many()
    readout = LatentGaussian(one.loc, factor_loadings=one.factor_loadings, readout=jnp.eye(200))
    np.testing.assert_allclose(
        shortlist(readout, 10), shortlist(one._replace(scale_diag=None), 10), atol=1e-4
    )
    shared = jax.random.normal(key(3), (200, 4))
    scale = 1 + jax.random.uniform(key(4), (4, 200))
    efficient = LatentGaussian(one.loc, one.scale_diag, None, scale, shared)
    as_factors = LatentGaussian(one.loc, one.scale_diag, scale[..., None] * shared)
    np.testing.assert_allclose(
        shortlist(efficient, 10, 2**13), shortlist(as_factors, 10, 2**13), atol=0.02
    )


def test_gradients_are_those_of_the_softmax_for_a_lump_of_one_class():
    one = latent("low_rank")
    weights = jnp.cos(jnp.arange(15.0)).reshape(3, 5)
    actual = jax.grad(lambda x: jnp.sum(weights * shortlist(x, 4, 2**13)))(one)
    expected = jax.grad(lambda x: jnp.sum(weights * reference(x, 2**13)))(one)
    for name in ("loc", "scale_diag", "factor_loadings"):
        np.testing.assert_allclose(getattr(actual, name), getattr(expected, name), atol=0.01)


@pytest.mark.parametrize("temperature", [1.0, 0.3])  # the best power is 1 and below
def test_gradients_agree_with_differences(temperature):
    one = many(temperature, batch=1, k=30)
    weights = jnp.cos(jnp.arange(30.0))

    @jax.jit
    def loss(x):
        return jnp.sum(weights * shortlist(x, 5))

    gradient, step = jax.jit(jax.grad(loss))(one), 2e-3  # the shortlist stays the same
    for name in ("loc", "scale_diag", "factor_loadings"):
        field = getattr(one, name)
        direction = jax.random.normal(key(5), field.shape)
        ahead, behind = (loss(one._replace(**{name: field + s * direction})) for s in (step, -step))
        slope = jnp.sum(getattr(gradient, name) * direction)
        np.testing.assert_allclose((ahead - behind) / (2 * step), slope, rtol=0.01)


@pytest.mark.parametrize("num_classes", [1, 3])
@pytest.mark.parametrize("scale", [1e-3, 60.0])
def test_values_and_gradients_are_finite_at_extremes(scale, num_classes):
    one = LatentGaussian(
        jnp.asarray([[60.0, -60.0, 0.0, 1.0, -jnp.inf], [0.0, -jnp.inf, -jnp.inf, 2.0, -jnp.inf]]),
        jnp.full((2, 5), scale),
        jnp.full((2, 5, 1), scale),
    )
    log_probs = shortlist(one, num_classes)
    np.testing.assert_array_equal(jnp.isneginf(log_probs), jnp.isneginf(one.loc))
    gradient = jax.grad(
        lambda x: jnp.sum(jnp.where(jnp.isneginf(x.loc), 0.0, shortlist(x, num_classes)))
    )(one)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_memory_does_not_grow_with_samples_times_classes():
    one = many(batch=2, k=2000)
    form = functools.partial(shortlist, num_classes=8)
    sizes = [
        jax.jit(functools.partial(form, num_samples=n)).lower(one).compile().memory_analysis()
        for n in (16, 4096)
    ]
    few, many_samples = (size.temp_size_in_bytes for size in sizes)
    assert many_samples < few + 4096 * 2 * 9 * 4 * 16  # a few numbers per sample and listed class


@pytest.mark.parametrize("value", [0, -1])
def test_a_number_of_classes_below_one_is_an_error(value):
    with pytest.raises(ValueError, match="num_classes"):
        shortlist(latent("diagonal"), value)
