"""The softmax over a shortlist: limits, invariances, and errors beside those of simpler lumps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import KINDS, covariance, key, latent
from scipy import special
from scipy.stats import qmc

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.predictive.shortlist import _Lump, _with_lump

NUM_SAMPLES = 2**14


@functools.partial(jax.jit, static_argnums=(1, 2))
def shortlist(one, num_classes, num_samples=NUM_SAMPLES):
    return predictive.shortlist(
        key(), one, num_classes=num_classes, num_samples=num_samples, points="sobol"
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def value_and_gradient(one, num_classes, num_samples=NUM_SAMPLES):
    """Log-probabilities, and the gradient of a sum of those that are finite."""

    def loss(x):
        log_probs = shortlist(x, num_classes, num_samples)
        weights = jnp.cos(jnp.arange(x.loc.size)).reshape(x.loc.shape)
        return jnp.sum(weights * jnp.where(jnp.isneginf(x.loc), 0.0, log_probs)), log_probs

    (value, log_probs), gradient = jax.value_and_grad(loss, has_aux=True)(one)
    return value, log_probs, gradient


def few(kind):
    """Utilities of seven classes, of which the last two are impossible."""
    one = latent(kind, batch=(2, 3), k=7)
    return one._replace(loc=jnp.where(jnp.arange(7) < 5, one.loc, -jnp.inf))


def many(temperature=1.0, batch=4, k=200):
    """Random utilities of many classes, of which a few are likely; the last factors are empty."""
    one = latent("low_rank", batch=(batch,), k=k, r=4, seed=1)
    loadings = np.pad(one.factor_loadings / 2, [(0, 0), (0, 0), (0, 2)])
    return latent_lib.temper(
        one._replace(loc=3 * one.loc, factor_loadings=jnp.asarray(loadings)), temperature
    )


@functools.cache
def normals(k, num_samples=2**14):
    points = qmc.Sobol(k, rng=0).random(num_samples)
    return special.ndtri(np.clip(points, 1e-9, 1 - 1e-9))


def reference(one, num_samples=2**14):
    """Log of the average softmax of samples, in NumPy."""
    loc = np.asarray(one.loc, np.float64)
    roots = np.linalg.cholesky(covariance(one) + 1e-9 * np.eye(loc.shape[-1]))
    log_probs = np.empty_like(loc)
    for i in np.ndindex(loc.shape[:-1]):
        noise = normals(loc.shape[-1], num_samples) @ roots[i].T
        samples = special.softmax(loc[i] + noise, axis=-1)
        log_probs[i] = np.log(samples.mean(axis=0), where=loc[i] > -np.inf, out=loc[i].copy())
    return log_probs


@pytest.mark.parametrize("kind", ["diagonal", "everything"])
def test_with_all_classes_it_is_the_softmax_bit_for_bit(kind):
    settings = {"num_samples": 8, "points": "sobol"}
    actual, expected = (
        jax.jit(functools.partial(form, **settings))(key(), latent(kind))
        for form in (functools.partial(predictive.shortlist, num_classes=5), predictive.softmax)
    )
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "kind", mostly_extended(KINDS, ["deterministic", "low_rank", "everything"])
)
def test_a_lump_of_one_class_is_that_class_and_probabilities_of_any_lump_sum_to_one(kind):
    form = shortlist if kind != "low_rank" else lambda *args: value_and_gradient(*args)[1]
    np.testing.assert_allclose(form(few(kind), 4), reference(few(kind)), atol=0.02)
    log_probs = form(latent(kind, batch=(2, 3), k=7), 4)
    np.testing.assert_allclose(special.logsumexp(log_probs, axis=-1), 0.0, atol=1e-6)
    assert log_probs.shape == (2, 3, 7)


def test_a_lump_of_one_class_of_strong_noise_is_that_class():
    loc = np.zeros((2, 3, 7), np.float32)
    loc[..., 5:] = -np.inf
    one = LatentGaussian(jnp.asarray(loc), jnp.full_like(loc, 20.0))
    np.testing.assert_allclose(np.exp(shortlist(one, 4))[..., :5], 0.2, atol=0.01)


@pytest.mark.parametrize("temperature", [1.0, 0.15])
def test_the_error_is_below_a_bound_for_weak_and_strong_noise(temperature):
    one = many(temperature)
    expected = reference(one)
    actual = np.asarray(shortlist(one, 20, 1024))
    divergence = np.sum(np.exp(expected) * (expected - actual), axis=-1)
    assert divergence.mean() < 0.06
    lump = 1 - np.sort(np.exp(expected))[..., -20:].sum(axis=-1)
    assert lump.max() > 0.003  # the others are not negligible
    np.testing.assert_allclose(special.logsumexp(actual, axis=-1), 0.0, atol=1e-6)


def test_the_lump_has_the_mean_of_many_independent_equal_classes():
    # E[log sum_j exp(u_j)] of n classes of variance v: log n + v / 2 below v = 2 log n, and
    # sqrt(2 v log n) above (Derrida 1981), in the limit of many classes.
    n = 2**16
    for v in (4.0, 16.0, 64.0):
        top = 30.0  # of one class without much noise, which is the shortlist
        loc, scale = np.zeros(n + 1, np.float32), np.full(n + 1, np.sqrt(v), np.float32)
        loc[0], scale[0] = top, 1e-3
        log_probs = np.asarray(shortlist(LatentGaussian(*map(jnp.asarray, (loc, scale))), 1, 64))
        lump = special.logsumexp(log_probs[1:]) - log_probs[0] + top
        limit = np.log(n) + v / 2 if v < 2 * np.log(n) else np.sqrt(2 * v * np.log(n))
        np.testing.assert_allclose(lump, limit, rtol=2e-3)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_lump_has_the_covariance_of_the_weighted_mean_of_its_classes(kind):
    one, top = latent(kind), np.array([[0, 3], [4, 1], [2, 0]])
    is_top = np.eye(5, dtype=np.float32)[top]
    shares = np.exp(np.arange(5, dtype=np.float32)) * (is_top.sum(axis=1) == 0)
    shares /= shares.sum(axis=-1, keepdims=True)

    @jax.jit
    def actual(one, shares):
        lump = _Lump(jnp.zeros(3), jnp.log(shares), shares)
        return latent_lib.covariance(_with_lump(one, jnp.asarray(top), lump))

    rows = np.concatenate([is_top, shares[:, None]], axis=1)
    expected = np.einsum("bik,bkl,bjl->bij", rows, covariance(one), rows)
    np.testing.assert_allclose(actual(one, shares), expected, rtol=1e-4, atol=1e-5)


def test_the_likeliest_classes_are_those_of_strong_noise_too():
    # Each class of strong noise has probability 0.22, far above its softmax without noise.
    loc = np.float32([0.0, -8.0, *[-1.0] * 5])
    scale = np.float32([0.1, 12.0, *[0.1] * 5])
    one = LatentGaussian(*(jnp.asarray(np.tile(x, (2, 3, 1))) for x in (loc, scale)))
    np.testing.assert_allclose(shortlist(one, 4)[..., :2], reference(one)[..., :2], atol=0.02)


def test_noise_common_to_all_classes_changes_nothing():
    one = many()
    loadings = np.array(one.factor_loadings)
    loadings[..., 4:] = 5 * np.random.default_rng(2).normal(size=(4, 1, 2))
    with_common = one._replace(factor_loadings=jnp.asarray(loadings))
    np.testing.assert_allclose(
        shortlist(one, 20, 1024), shortlist(with_common, 20, 1024), atol=1e-3
    )


def test_renamed_classes_have_the_same_probabilities():
    one, order = many(), np.random.default_rng(0).permutation(200)
    renamed = latent_lib.map_batch(
        lambda x: x[:, order], one
    )  # the class axis is the second of each field
    np.testing.assert_allclose(
        shortlist(renamed, 20, 1024), shortlist(one, 20, 1024)[:, order], atol=1e-4
    )


def test_the_forms_of_one_covariance_agree():
    one = many()
    readout = LatentGaussian(one.loc, factor_loadings=one.factor_loadings, readout=jnp.eye(200))
    without_diag = one._replace(scale_diag=jnp.full_like(one.loc, 1e-12))
    np.testing.assert_allclose(
        shortlist(readout, 20, 1024), shortlist(without_diag, 20, 1024), atol=1e-4
    )
    rng = np.random.default_rng(3)
    shared = np.float32(rng.normal(size=(200, 6)))
    scale = np.float32(rng.uniform(1, 2, (4, 200)) / 2)
    efficient = LatentGaussian(one.loc, one.scale_diag, None, *map(jnp.asarray, (scale, shared)))
    as_factors = one._replace(factor_loadings=jnp.asarray(scale[..., None] * shared))
    np.testing.assert_allclose(
        shortlist(efficient, 20, 1024), shortlist(as_factors, 20, 1024), atol=1e-3
    )


def test_gradients_are_those_of_the_softmax_for_a_lump_of_one_class():
    one, rng = few("low_rank"), np.random.default_rng(5)
    gradient, step = value_and_gradient(one, 4)[2], 1e-3
    weights = np.cos(np.arange(42)).reshape(2, 3, 7)[..., :5]
    for name in ("loc", "scale_diag", "factor_loadings"):
        field = np.asarray(getattr(one, name), np.float64)
        direction = rng.normal(size=field.shape)
        ahead, behind = (
            np.sum(weights * reference(one._replace(**{name: field + s * direction}))[..., :5])
            for s in (step, -step)
        )
        slope = np.sum(np.asarray(getattr(gradient, name)) * direction)
        np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("temperature", [1.0, 0.3])  # the best power is 1 and below
def test_gradients_agree_with_differences(temperature):
    one, rng = many(temperature, batch=1, k=30), np.random.default_rng(5)
    gradient, step = value_and_gradient(one, 5, 64)[2], 2e-3  # the shortlist stays the same
    for name in ("loc", "scale_diag", "factor_loadings"):
        field = np.asarray(getattr(one, name))
        direction = np.float32(rng.normal(size=field.shape))
        ahead, behind = (
            value_and_gradient(one._replace(**{name: jnp.asarray(field + s * direction)}), 5, 64)[0]
            for s in (step, -step)
        )
        slope = np.sum(np.asarray(getattr(gradient, name)) * direction)
        np.testing.assert_allclose((ahead - behind) / (2 * step), slope, rtol=0.01)


@pytest.mark.parametrize("num_classes", mostly_extended([1, 3], [3]))
@pytest.mark.parametrize("scale", [1e-3, 60.0])
def test_values_and_gradients_are_finite_at_extremes(scale, num_classes):
    loc = [[60.0, -60.0, 0.0, 1.0, -np.inf], [0.0, -np.inf, -np.inf, 2.0, -np.inf]]
    scales = np.full((2, 5), scale, np.float32)
    one = LatentGaussian(*map(jnp.asarray, (np.float32(loc), scales, scales[..., None])))
    _, log_probs, gradient = value_and_gradient(one, num_classes, 64)
    np.testing.assert_array_equal(np.isneginf(log_probs), np.isneginf(loc))
    np.testing.assert_allclose(special.logsumexp(log_probs, axis=-1), 0.0, atol=1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_memory_does_not_grow_with_samples_times_classes():
    one = many(batch=2, k=2000)
    size = shortlist.lower(one, 8, 4096).compile().memory_analysis()
    # A few numbers per sample and listed class, and a few per class and factor.
    assert size.temp_size_in_bytes < 4096 * 2 * 9 * 4 * 16 + one.factor_loadings.nbytes * 8


def test_memory_does_not_grow_with_examples_times_classes_times_shared_factors():
    one = latent("parameter_efficient", batch=(64,), k=2000, q=128)
    size = value_and_gradient.lower(one, 8, 8).compile().memory_analysis()
    assert size.temp_size_in_bytes < one.loc.nbytes * 64


@pytest.mark.parametrize("value", [0, -1])
def test_a_number_of_classes_below_one_is_an_error(value):
    with pytest.raises(ValueError, match="num_classes"):
        shortlist(latent("diagonal"), value)
