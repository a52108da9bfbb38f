"""The exact softmax of independent utilities against adaptive quadrature in float64."""

import functools

import exact_integral
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import KINDS, key, latent

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.predictive import gumbel

exact = jax.jit(functools.partial(predictive.softmax_exact, None), static_argnames="num_nodes")
# Means and standard deviations of few classes, from hard to easy.
CASES = {
    "equal": ([0.0, 0.0, 1.0], [1.0, 1.0, 1.0]),
    "hardly any noise": ([0.0, -14.0, -3.0], [1e-3, 1e-3, 1e-3]),
    "a rare class of strong noise": ([0.0, -40.0], [6.0, 6.0]),
    "rare classes": ([4.9, -20.0, -32.0], [1.1, 1.0, 1.2]),
    "ten times the noise": ([0.0, -5.0, 10.0], [10.0, 1.0, 1.0]),
    "strong noise, ten times": ([60.0, -60.0, 0.0], [60.0, 6.0, 12.0]),
    "all noise strong": ([60.0, -60.0, 20.0, 0.0], [60.0, 40.0, 60.0, 50.0]),
    "different scales": ([0.0, 0.0, 0.0], [60.0, 1e-3, 5.0]),
    "a narrow class within a wide one": ([0.0, -60.0], [60.0, 1e-3]),
    "four scales": ([1.8, -1.4, 0.3, -9.0], [60.0, 1.0, 6.0, 0.1]),
    "five scales": ([-60.0, -25.7, 52.4, 11.8, 20.2], [1.0, 6.0, 60.0, 10.0, 1.0]),
    "a narrow class above a wide one": ([60.0, -16.0, -60.0], [1.0, 60.0, 10.0]),
}
MANY = {  # the number of classes of each kind
    "1,000": ([2.0, -1.0, 0.0], [0.5, 3.0, 1.0], [1, 1, 998]),
    "21,843": ([20.0, 9.0, 0.0], [9.5, 0.2, 5.3], [1, 2, 21_840]),
}


def arrays(values):
    return np.asarray(values, np.float32)


@functools.cache
def truth(name):
    loc, scale, *counts = (CASES | MANY)[name]
    return exact_integral.log_probs(arrays(loc), arrays(scale), *counts)


def padded(cases):
    """The cases as one batch, with padding classes."""
    size = max(len(loc) for loc, *_ in cases)
    loc, scale = np.full((len(cases), size), -np.inf), np.ones((len(cases), size))
    for i, (m, d) in enumerate(cases):
        loc[i, : len(m)], scale[i, : len(d)] = m, d
    return LatentGaussian(jnp.asarray(loc, jnp.float32), jnp.asarray(scale, jnp.float32))


def assert_accurate(actual, expected):
    """At most 1e-4 nats above a probability of 1e-6, 1e-2 nats down to 1e-12."""
    error = np.abs(np.asarray(actual, np.float64) - expected)
    assert error[expected > np.log(1e-6)].max() < 1e-4
    assert np.max(error, initial=0.0, where=expected > np.log(1e-12)) < 1e-2


@functools.cache
def computed():
    """Log-probabilities of all cases, and gradients of the last class of each."""
    one = padded(list(CASES.values()))
    last = np.array([len(loc) - 1 for loc, _ in CASES.values()])

    def last_log_prob(x):
        log_probs = exact(x)
        return jnp.take_along_axis(log_probs, last[:, None], axis=-1).sum(), log_probs

    gradient, log_probs = jax.jit(jax.grad(last_log_prob, has_aux=True))(one)
    return jax.tree.map(np.asarray, (log_probs, gradient))


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_agree_with_quadrature(name):
    i, num_classes = list(CASES).index(name), len(CASES[name][0])
    log_probs = computed()[0][i]
    assert_accurate(log_probs[:num_classes], truth(name))
    np.testing.assert_array_equal(log_probs[num_classes:], -np.inf)
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in CASES if len(CASES[n][0]) < 4 and "above" not in n])
def test_gradients_agree_with_quadrature(name):
    i, (loc, scale) = list(CASES).index(name), CASES[name]
    loc, scale = np.float64(arrays(loc)), np.float64(arrays(scale))
    gradient = computed()[1]
    for j in range(len(loc)):
        for field, values in (("loc", loc), ("scale_diag", scale)):
            step = 1e-2 * max(1.0, scale[j]) if field == "loc" else 1e-2 * scale[j]
            differences = []
            for sign in (1, -1):
                moved = values.copy()
                moved[j] += sign * step
                arguments = (moved, scale) if field == "loc" else (loc, moved)
                differences.append(exact_integral.log_probs(*arguments, tolerance=1e-9)[-1])
            expected = (differences[0] - differences[1]) / (2 * step)
            actual = getattr(gradient, field)[i, j]
            np.testing.assert_allclose(actual, expected, rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("name", MANY)
def test_many_classes_agree_with_quadrature(name):
    loc, scale, counts = MANY[name]
    one = LatentGaussian(*(jnp.repeat(arrays(x), np.array(counts)) for x in (loc, scale)))
    log_probs = jax.jit(exact)(one)
    first = np.cumsum([0, *counts[:-1]])
    assert_accurate(log_probs[first], truth(name))
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-5)


def test_the_exact_form_is_the_limit_of_samples_with_its_gradient():
    one = latent_lib.temper(latent("diagonal", batch=(2,)), 0.3)
    cotangent = jnp.cos(jnp.arange(10.0)).reshape(2, 5)
    sampled = functools.partial(
        predictive.softmax, key(), num_samples=2**16, points="sobol", chunk_size=2**12
    )
    (value, gradient), (limit, limit_gradient) = (
        jax.jit(jax.value_and_grad(lambda x, f=f: jnp.sum(f(x) * cotangent)))(one)
        for f in (exact, sampled)
    )
    np.testing.assert_allclose(value, limit, atol=2e-3)
    np.testing.assert_allclose(gradient.loc, limit_gradient.loc, rtol=0.01, atol=2e-3)
    np.testing.assert_allclose(gradient.scale_diag, limit_gradient.scale_diag, rtol=0.01, atol=2e-3)


def test_permuting_the_classes_permutes_the_result():
    one, order = latent("diagonal"), np.array([3, 0, 4, 1, 2])
    permuted = latent_lib.map_batch(lambda x: x[..., order], one)
    np.testing.assert_allclose(exact(permuted), exact(one)[..., order], rtol=1e-6, atol=2e-6)


def test_a_shift_of_all_utilities_changes_nothing():
    one = latent("diagonal")
    np.testing.assert_allclose(exact(one._replace(loc=one.loc + 50.0)), exact(one), atol=2e-4)


def test_an_example_does_not_depend_on_the_others():
    # The last example doubles the number of nodes, but only its own.
    rows = [CASES[name] for name in ("equal", "rare classes")]
    one = padded([*rows, CASES["five scales"]])
    alone = latent_lib.map_batch(lambda x: x[:2], one)
    np.testing.assert_allclose(exact(one)[:2], exact(alone), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0])
def test_a_class_100_nats_below_has_a_finite_value_and_the_right_gradient(scale):
    one = LatentGaussian(jnp.array([0.0, -100.0]), jnp.full(2, scale))
    expected = exact_integral.log_probs([0.0, -100.0], [scale, scale])[1]
    shifted = exact_integral.log_probs([0.0, -100.1], [scale, scale])[1]
    value, gradient = jax.value_and_grad(lambda x: exact(x)[1])(one)
    np.testing.assert_allclose(value, expected, rtol=1e-3)
    np.testing.assert_allclose(gradient.loc[1], (expected - shifted) / 0.1, rtol=0.01)
    np.testing.assert_allclose(gradient.loc.sum(), 0.0, atol=1e-3)


def test_at_high_temperature_the_noise_vanishes_and_at_low_temperature_the_likeliest_wins():
    one = latent("diagonal")
    hot = latent_lib.temper(one, 1e3)
    np.testing.assert_allclose(exact(hot), jax.nn.log_softmax(hot.loc), atol=1e-5)
    weak = one._replace(scale_diag=jnp.full_like(one.loc, 1e-6))
    np.testing.assert_allclose(exact(weak), jax.nn.log_softmax(one.loc), atol=2e-5)
    # At temperature 0, class 1 of two wins with the probability that its utility is larger.
    two = LatentGaussian(jnp.array([1.0, 0.0]), jnp.array([0.6, 0.8]))
    cold = np.exp(exact(latent_lib.temper(two, 1e-4)))
    np.testing.assert_allclose(cold, [0.8413447, 0.1586553], rtol=1e-4)


def test_forward_and_reverse_mode_agree_and_second_derivatives_are_those_of_the_gradient():
    one, direction = latent("diagonal", batch=()), latent("diagonal", batch=(), seed=1)
    cotangent = jnp.cos(jnp.arange(5.0))

    def value(x):
        return jnp.sum(exact(x) * cotangent)

    gradient = jax.jit(jax.grad(value))

    def along(step):
        return jax.tree.map(lambda a, b: a + step * b, one, direction)

    (slope, products) = (
        jax.jit(lambda: jax.jvp(value, (one,), (direction,)))()[1],
        jax.jit(lambda: jax.jvp(jax.grad(value), (one,), (direction,)))()[1],
    )
    inner = jax.tree.map(lambda a, b: jnp.sum(a * b), gradient(one), direction)
    np.testing.assert_allclose(slope, sum(jax.tree.leaves(inner)), rtol=1e-5)
    difference = jax.tree.map(
        lambda a, b: (a - b) / 0.1, gradient(along(0.05)), gradient(along(-0.05))
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02, atol=2e-3), products, difference
    )


@pytest.mark.parametrize("size", [1e-30, 1e4])
def test_values_and_gradients_are_finite_at_extremes(size):
    one = latent_lib.map_batch(lambda x: x * size, latent("diagonal"))
    value, pull = jax.vjp(exact, one)
    assert np.isfinite(value).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(pull(jnp.ones_like(value))[0]))


def test_without_noise_the_result_is_the_softmax_of_loc():
    one = latent("deterministic")
    np.testing.assert_array_equal(exact(one), jax.nn.log_softmax(one.loc))


@pytest.mark.parametrize("kind", KINDS[2:])
def test_correlated_utilities_are_an_error(kind):
    with pytest.raises(ValueError, match=r"needs independent utilities, but latent\..*correlated"):
        exact(latent(kind))


def test_noise_that_a_readout_mixes_is_an_error():
    with pytest.raises(ValueError, match=r"latent\.readout makes them correlated"):
        exact(latent("readout")._replace(factor_loadings=None))


@pytest.mark.parametrize("num_nodes", [0, 15, 1025])
def test_a_number_of_nodes_out_of_range_is_an_error(num_nodes):
    with pytest.raises(ValueError, match=f"num_nodes is {num_nodes}; it must be a whole number"):
        exact(latent("diagonal"), num_nodes=num_nodes)


def test_memory_does_not_grow_with_the_number_of_nodes():
    shapes = jax.eval_shape(lambda: latent("diagonal", batch=(8,), k=21_843))

    def megabytes(num_nodes):
        def loss(x):
            return exact(x, num_nodes=num_nodes)[:, 0].sum()

        compiled = jax.jit(jax.grad(loss)).lower(shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 1e6

    assert megabytes(32) < 100
    assert megabytes(256) < 1.01 * megabytes(32)


def test_classes_left_of_all_nodes_are_resolved_too():
    """Among many classes of very different noise, a narrow one may have no node at its mean."""
    rng = np.random.default_rng(0)
    loc = rng.uniform(-2, 2, (100, 100))
    scale = 60 * 10 ** rng.uniform(-4.5, 0, (100, 100))
    mixed = LatentGaussian(jnp.asarray(loc, jnp.float32), jnp.asarray(scale, jnp.float32))
    fine = np.float64(exact(mixed, num_nodes=512))
    error = np.abs(exact(mixed) - fine)
    assert error[fine > np.log(1e-6)].max() < 3e-4
    assert error[fine > np.log(1e-12)].max() < 1e-2


def test_xi_has_the_derivatives_of_the_distribution():
    x = jnp.linspace(-3.0, 12.0, 31)
    for scale in (0.1, 0.7, 2.0, 9.0, 40.0):
        scales = jnp.full_like(x, scale)
        at = x * max(1.0, 0.3 * scale)
        xi, slope = gumbel.xi_and_derivatives(at, scales, gumbel.coefficients(scales), 1)
        log_cdf, log_density = exact_integral.log_tails(at, scale)
        np.testing.assert_allclose(-np.exp(-xi), log_cdf, rtol=2e-4, atol=1e-30)
        np.testing.assert_allclose(np.log(slope) - xi, log_density - log_cdf, atol=1e-3)
