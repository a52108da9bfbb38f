import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import KINDS, key, latent
from scipy import special

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian

MEANS = np.concatenate([-np.geomspace(60, 1e-3, 20), [0.0], np.geomspace(1e-3, 60, 20)]).astype(np.float32)
SCALES = np.geomspace(1e-3, 60, 20).astype(np.float32)


def quadrature(mean, scale):
    """log p, log(1 - p), E[sigmoid'] and E[sigmoid''] in float64, of one label."""
    log_p, log_q = (_log_integral(special.log_expit, sign * mean, scale) for sign in (1.0, -1.0))
    nodes = np.linspace(-14 - scale, 14 + scale, 100_001)  # the slope alone may lie `scale` from the mean
    u = mean + scale * nodes
    weights = np.exp(-0.5 * nodes**2) / np.sqrt(2 * np.pi) * (nodes[1] - nodes[0])
    slope = special.expit(u) * special.expit(-u)
    return log_p, log_q, (slope * weights).sum(), (slope * -np.tanh(u / 2) * weights).sum()


def _log_integral(log_link, mean, scale):
    nodes = np.linspace(-14, 14 + scale, 100_001)  # e^u tilts the normal by `scale`
    values = log_link(mean + scale * nodes) - 0.5 * nodes**2
    return special.logsumexp(values) + np.log((nodes[1] - nodes[0]) / np.sqrt(2 * np.pi))


def one_label(mean, scale):
    return LatentGaussian(jnp.asarray(mean)[None], jnp.asarray(scale)[None])


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
@functools.partial(jax.value_and_grad, argnums=(0, 1))
def log_odds(mean, scale):
    return predictive.sigmoid(None, one_label(mean, scale))[0]


@pytest.mark.parametrize("scale", SCALES)
def test_it_is_the_integral_in_both_tails_with_its_gradients(scale):
    value, (by_mean, by_scale) = log_odds(jnp.asarray(MEANS), jnp.asarray(scale))
    log_p, log_q, slope, curvature = np.array([quadrature(float(m), float(scale)) for m in MEANS]).T
    value = np.asarray(value, np.float64)
    np.testing.assert_allclose(special.log_expit(value), log_p, atol=3e-5, rtol=1e-6)
    np.testing.assert_allclose(special.log_expit(-value), log_q, atol=3e-5, rtol=1e-6)
    of_p = np.exp(log_p + log_q)  # d log-odds = dp / (p (1 - p))
    np.testing.assert_allclose(by_mean, slope / of_p, rtol=1e-3)
    np.testing.assert_allclose(by_scale * of_p, scale * curvature, rtol=0.01, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_it_is_the_limit_of_the_sampled_form(kind):
    one = latent(kind, batch=(2,))
    num_samples = 40_000
    sampled = jax.nn.sigmoid(predictive.sigmoid_sampled(key(), one, num_samples=num_samples))
    np.testing.assert_allclose(jax.nn.sigmoid(predictive.sigmoid(None, one)), sampled, atol=5 * 0.5 / num_samples**0.5)


def test_without_noise_it_is_loc_and_little_noise_changes_little():
    one = latent("deterministic")
    np.testing.assert_array_equal(predictive.sigmoid(None, one), one.loc)
    little = one._replace(scale_diag=jnp.full_like(one.loc, 1e-5))
    np.testing.assert_allclose(predictive.sigmoid(None, little), one.loc, atol=3e-5)


def test_no_noise_at_all_has_gradients_too():
    one = LatentGaussian(jnp.array([0.3, -2.0, 0.0]), factor_loadings=jnp.zeros((3, 2)))
    value, pull = jax.vjp(lambda x: predictive.sigmoid(None, x), one)
    (gradient,) = pull(jnp.ones_like(value))
    np.testing.assert_allclose(gradient.loc, 1.0, atol=2e-4)
    np.testing.assert_array_equal(gradient.factor_loadings, 0.0)


def test_the_mirror_image_has_opposite_odds():
    one = latent("low_rank")
    mirrored = one._replace(loc=-one.loc)
    np.testing.assert_array_equal(predictive.sigmoid(None, mirrored), -predictive.sigmoid(None, one))


@pytest.mark.parametrize("mean", [-1e4, -60.0, 0.0, 60.0, 1e4])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 60.0, 1e4])
def test_it_is_finite_at_extremes(mean, scale):
    value, gradient = jax.value_and_grad(lambda x: predictive.sigmoid(None, x)[0])(one_label(mean, scale))
    assert np.isfinite([value, gradient.loc[0], gradient.scale_diag[0]]).all()
    assert np.sign(value) == np.sign(mean)


def test_a_label_that_cannot_be_stays_impossible():
    value, gradient = jax.value_and_grad(lambda x: jax.nn.sigmoid(predictive.sigmoid(None, x))[0])(
        one_label(-np.inf, 1.0)
    )
    np.testing.assert_array_equal([value, gradient.loc[0], gradient.scale_diag[0]], 0.0)


def test_the_temperature_is_a_change_of_units():
    one = latent("low_rank")
    by_hand = one._replace(
        loc=one.loc / 0.15, scale_diag=one.scale_diag / 0.15, factor_loadings=one.factor_loadings / 0.15
    )
    np.testing.assert_allclose(
        predictive.sigmoid(None, latent_lib.temper(one, 0.15)), predictive.sigmoid(None, by_hand), rtol=1e-4
    )


def test_deterministic_is_loc_and_refuses_noise():
    one = latent("deterministic")
    np.testing.assert_array_equal(predictive.deterministic(None, one), one.loc)
    with pytest.raises(ValueError, match="with noise"):
        predictive.deterministic(None, latent("diagonal"))
