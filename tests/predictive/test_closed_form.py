import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import KINDS, key, latent
from scipy import special

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian

MEANS = np.concatenate([-np.geomspace(60, 1e-3, 20), [0.0], np.geomspace(1e-3, 60, 20)]).astype(
    np.float32
)
SCALES = np.geomspace(1e-3, 60, 20).astype(np.float32)


def quadrature(mean, scale):
    """log p, log(1 - p), E[sigmoid'] and E[sigmoid''] of one label, in float64."""
    log_p, log_q = (_log_integral(special.log_expit, sign * mean, scale) for sign in (1.0, -1.0))
    # The mass of the slope may lie `scale` standard deviations from the mean.
    nodes = np.linspace(-14 - scale, 14 + scale, 20_001)
    u = mean + scale * nodes
    weights = np.exp(-0.5 * nodes**2) / np.sqrt(2 * np.pi) * (nodes[1] - nodes[0])
    slope = special.expit(u) * special.expit(-u)
    return log_p, log_q, (slope * weights).sum(), (slope * -np.tanh(u / 2) * weights).sum()


def _log_integral(log_link, mean, scale):
    nodes = np.linspace(-14, 14 + scale, 20_001)  # e^u shifts the mass by up to `scale`
    values = log_link(mean + scale * nodes) - 0.5 * nodes**2
    return special.logsumexp(values) + np.log((nodes[1] - nodes[0]) / np.sqrt(2 * np.pi))


def one_label(mean, scale):
    return LatentGaussian(jnp.asarray(mean)[None], jnp.asarray(scale)[None])


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
@functools.partial(jax.value_and_grad, argnums=(0, 1))
def log_odds(mean, scale):
    return predictive.sigmoid(None, one_label(mean, scale))[0]


# Without a key, as no closed form takes one; compiled, because each operation would be a program.
sigmoid = jax.jit(functools.partial(predictive.sigmoid, None))


@jax.jit
def value_and_pullback_of_ones(one):
    value, pull = jax.vjp(sigmoid, one)
    return value, pull(jnp.ones_like(value))[0]


@pytest.mark.parametrize("scale", mostly_extended(SCALES, [*SCALES[::3]]))
def test_values_and_gradients_agree_with_quadrature_in_both_tails(scale):
    value, (by_mean, by_scale) = log_odds(jnp.asarray(MEANS), jnp.asarray(scale))
    log_p, log_q, slope, curvature = np.array([quadrature(float(m), float(scale)) for m in MEANS]).T
    value = np.asarray(value, np.float64)
    np.testing.assert_allclose(special.log_expit(value), log_p, atol=3e-5, rtol=1e-6)
    np.testing.assert_allclose(special.log_expit(-value), log_q, atol=3e-5, rtol=1e-6)
    spread = np.exp(log_p + log_q)  # d log-odds = dp / (p (1 - p))
    np.testing.assert_allclose(by_mean, slope / spread, rtol=1e-3)
    np.testing.assert_allclose(by_scale * spread, scale * curvature, rtol=0.01, atol=1e-5)


@pytest.mark.parametrize("kind", mostly_extended(KINDS[1:], ["diagonal", "everything"]))
def test_the_closed_form_is_the_limit_of_the_sampled_form(kind):
    one = latent(kind, batch=(2,))
    num_samples = 40_000
    sampled = jax.jit(functools.partial(predictive.sigmoid_sampled, num_samples=num_samples))
    np.testing.assert_allclose(
        special.expit(sigmoid(one)),
        special.expit(sampled(key(), one)),
        atol=5 * 0.5 / num_samples**0.5,
    )


def test_without_noise_the_log_odds_are_loc_and_weak_noise_changes_them_little():
    one = latent("deterministic")
    np.testing.assert_array_equal(sigmoid(one), one.loc)
    little = one._replace(scale_diag=np.full_like(one.loc, 1e-5))
    np.testing.assert_allclose(sigmoid(little), one.loc, atol=3e-5)


def test_gradients_are_finite_at_zero_noise():
    one = LatentGaussian(jnp.array([0.3, -2.0, 0.0]), factor_loadings=jnp.zeros((3, 2)))
    _, gradient = value_and_pullback_of_ones(one)
    np.testing.assert_allclose(gradient.loc, 1.0, atol=2e-4)
    np.testing.assert_array_equal(gradient.factor_loadings, 0.0)


def test_the_log_odds_are_odd_in_loc():
    one = latent("low_rank")
    mirrored = one._replace(loc=-one.loc)
    np.testing.assert_array_equal(sigmoid(mirrored), -np.asarray(sigmoid(one)))


@pytest.mark.parametrize("mean", [-1e4, -60.0, 0.0, 60.0, 1e4])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 60.0, 1e4])
def test_values_and_gradients_are_finite_at_extremes(mean, scale):
    one = LatentGaussian(jnp.float32([mean]), jnp.float32([scale]))
    (value,), gradient = value_and_pullback_of_ones(one)
    assert np.isfinite([value, gradient.loc[0], gradient.scale_diag[0]]).all()
    assert np.sign(value) == np.sign(mean)


def test_an_impossible_label_stays_impossible():
    value, gradient = jax.jit(jax.value_and_grad(lambda x: jax.nn.sigmoid(sigmoid(x))[0]))(
        one_label(-np.inf, 1.0)
    )
    np.testing.assert_array_equal([value, gradient.loc[0], gradient.scale_diag[0]], 0.0)


@pytest.mark.parametrize("loc", [-np.inf, np.inf])
def test_the_log_odds_of_a_certain_label_have_no_curvature(loc):
    @jax.jit
    @functools.partial(jax.hessian, argnums=(0, 1))
    def hessian(loc, variance):
        return sigmoid(LatentGaussian(loc[None], jnp.sqrt(variance)[None]))[0]

    np.testing.assert_allclose(hessian(jnp.float32(loc), jnp.float32(1.0)), 0.0)


def test_the_temperature_divides_the_utilities():
    one = latent("low_rank")
    by_hand = one._replace(
        loc=one.loc / 0.15,
        scale_diag=one.scale_diag / 0.15,
        factor_loadings=one.factor_loadings / 0.15,
    )
    np.testing.assert_allclose(
        sigmoid(latent_lib.temper(one, 0.15)),
        sigmoid(by_hand),
        rtol=1e-4,
    )


def test_deterministic_returns_loc_and_rejects_noise():
    one = latent("deterministic")
    np.testing.assert_array_equal(predictive.deterministic(None, one), one.loc)
    with pytest.raises(ValueError, match="the latent has noise"):
        predictive.deterministic(None, latent("diagonal"))


def exact_curvatures(mean, scale):
    """The second derivatives of the log-odds for mean <= 0, by dense quadrature in float64."""
    nodes = np.linspace(-14, 14 + scale, 20_001)
    u = mean + scale * nodes
    log_weight = special.log_expit(u) - 0.5 * nodes**2
    log_total = special.logsumexp(log_weight)
    p = np.exp(log_total + np.log((nodes[1] - nodes[0]) / np.sqrt(2 * np.pi)))
    weight, up, down = np.exp(log_weight - log_total), special.expit(u), special.expit(-u)
    slope, bend = up * down, down - up
    first, second, third, fourth = (
        (weight * values).sum()
        for values in (down, down * bend, down * (1 - 6 * slope), down * bend * (1 - 12 * slope))
    )
    odds = (1 - 2 * p) / (1 - p) ** 2
    by_both = (third / (1 - p) - odds * first * second) / 2
    return second / (1 - p) - odds * first**2, by_both, (fourth / (1 - p) - odds * second**2) / 4


def test_large_second_derivatives_have_a_relative_error_below_one_percent():
    means, scales = np.meshgrid(MEANS[:21][::2], SCALES[::2])
    means, scales = (np.float64(np.float32(x.ravel())) for x in (means, scales))
    expected = np.array([exact_curvatures(m, s) for m, s in zip(means, scales)])
    assert (np.abs(expected) > 1e-3).sum() > 80

    @jax.jit
    @jax.vmap
    @functools.partial(jax.hessian, argnums=(0, 1))
    def hessian(loc, variance):
        return predictive.sigmoid(None, LatentGaussian(loc[None], jnp.sqrt(variance)[None]))[0]

    for sign in (1, -1):
        actual = hessian(
            jnp.asarray(sign * means, jnp.float32), jnp.asarray(scales**2, jnp.float32)
        )
        actual = np.stack([sign * actual[0][0], actual[0][1], sign * actual[1][1]], axis=-1)
        # Rounding of the square root changes the variance; second derivatives by the variance
        # divide by it, so small variances are excluded.
        np.testing.assert_allclose(actual[:, :2], expected[:, :2], rtol=0.01, atol=1e-5)
        large = scales > 0.1
        np.testing.assert_allclose(actual[large, 2], expected[large, 2], rtol=0.01, atol=1e-4)


def test_without_noise_the_derivatives_are_those_of_loc():
    loc = jnp.array([-60.0, -2.0, 0.0, 0.3, 60.0])
    one = LatentGaussian(loc, factor_loadings=jnp.zeros((5, 2)))
    value, gradient = value_and_pullback_of_ones(one)
    np.testing.assert_array_equal(value, loc)
    np.testing.assert_array_equal(gradient.loc, 1.0)
