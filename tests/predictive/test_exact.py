"""The exact softmax of independent utilities against adaptive quadrature in float64."""

import functools

import exact_integral
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import KINDS, latent
from scipy import special
from scipy.stats import qmc

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
    "1,000": ([7.0, -1.0, 0.0], [0.5, 3.0, 1.0], [1, 1, 998]),
    "21,843": ([20.0, 9.0, 0.0], [9.5, 0.2, 5.3], [1, 2, 21_840]),
}


def arrays(values):
    return np.asarray(values, np.float32)


@functools.cache
def truth(name):
    loc, scale, *counts = (CASES | MANY)[name]
    return exact_integral.log_probs(arrays(loc), arrays(scale), *counts)


def padded(cases):
    """At most as many cases as CASES, as one batch of that size, with padding classes."""
    shape = len(CASES), max(len(loc) for loc, _ in CASES.values())
    loc, scale = np.full(shape, -np.inf, np.float32), np.ones(shape, np.float32)
    for i in range(len(loc)):
        m, d = cases[min(i, len(cases) - 1)]
        loc[i, : len(m)], scale[i, : len(d)] = m, d
    return LatentGaussian(jnp.asarray(loc), jnp.asarray(scale))


@jax.jit
def _with_gradient(one, cotangent):
    log_probs, pull = jax.vjp(functools.partial(predictive.softmax_exact, None), one)
    return log_probs, pull(cotangent)[0]


def with_gradient(cases, cotangents=None):
    """Log-probabilities of cases, and their gradients under the cotangents, in NumPy."""
    one = padded(cases)
    cotangent = np.zeros(one.loc.shape, np.float32)
    for i, row in enumerate(cotangents or ()):
        cotangent[i, : len(row)] = row
    log_probs, gradient = jax.tree.map(np.asarray, _with_gradient(one, jnp.asarray(cotangent)))
    return log_probs[: len(cases)], gradient


def rows(one):
    """The examples of a latent of one leading axis, as cases."""
    return list(zip(np.asarray(one.loc), np.asarray(one.scale_diag), strict=True))


def assert_accurate(actual, expected):
    """At most 1e-4 nats above a probability of 1e-6, 1e-2 nats down to 1e-12."""
    error = np.abs(np.asarray(actual, np.float64) - expected)
    assert error[expected > np.log(1e-6)].max() < 1e-4
    assert np.max(error, initial=0.0, where=expected > np.log(1e-12)) < 1e-2


def drawn():
    """As many random cases as CASES, of two to five classes, over the whole range of both."""
    rng = np.random.default_rng(0)
    cases = []
    for num_classes in np.resize([2, 3, 4, 5], len(CASES)):
        loc = rng.uniform(-60, 60, num_classes) * rng.choice([1.0, 0.1, 0.02])
        scale = np.exp(rng.uniform(np.log(1e-3), np.log(60), num_classes))
        cases.append((arrays(loc), arrays(scale)))
    return cases


@functools.cache
def computed():
    """Log-probabilities of all cases, and gradients of the last class of each."""
    cotangents = [np.eye(len(loc))[-1] for loc, _ in CASES.values()]
    return with_gradient(list(CASES.values()), cotangents)


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_agree_with_quadrature(name):
    i, num_classes = list(CASES).index(name), len(CASES[name][0])
    log_probs = computed()[0][i]
    assert_accurate(log_probs[:num_classes], truth(name))
    np.testing.assert_array_equal(log_probs[num_classes:], -np.inf)
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-6)


def test_random_means_and_scales_agree_with_quadrature():
    cases = drawn()
    for (loc, scale), log_probs in zip(cases, with_gradient(cases)[0], strict=True):
        assert_accurate(log_probs[: len(loc)], exact_integral.log_probs(loc, scale))


@pytest.mark.parametrize(
    "name",
    mostly_extended(
        [n for n in CASES if len(CASES[n][0]) < 4 and "above" not in n],
        [
            "equal",
            "hardly any noise",
            "a rare class of strong noise",
            "ten times the noise",
            "a narrow class within a wide one",
        ],
    ),
)
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


@pytest.mark.parametrize("name", mostly_extended(MANY, ["21,843"]))
def test_many_classes_agree_with_quadrature(name):
    loc, scale, counts = MANY[name]
    one = LatentGaussian(*(jnp.asarray(np.repeat(arrays(x), counts)) for x in (loc, scale)))
    log_probs = np.asarray(exact(one))
    first = np.cumsum([0, *counts[:-1]])
    assert_accurate(log_probs[first], truth(name))
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-5)


def test_gradients_of_a_thousand_classes_agree_with_quadrature():
    *values, counts = MANY["1,000"]
    one = LatentGaussian(*(jnp.asarray(np.repeat(arrays(x), counts)) for x in values))
    gradient = jax.grad(lambda one: exact(one)[0])(one)
    first = np.cumsum([0, *counts[:-1]])
    for i, field in enumerate(("loc", "scale_diag")):
        actual = np.add.reduceat(np.asarray(getattr(gradient, field)), first)
        for kind in range(3):  # all classes of a kind move together
            ends = []
            for step in (0.01, -0.01):
                moved = np.array(values)
                moved[i, kind] += step
                ends.append(exact_integral.log_probs(*moved, counts, tolerance=1e-9)[0])
            expected = (ends[0] - ends[1]) / 0.02
            np.testing.assert_allclose(actual[kind], expected, rtol=1e-3)


def test_the_exact_form_is_the_limit_of_samples_with_its_gradient():
    cases = [(loc / 0.3, scale / 0.3) for loc, scale in rows(latent("diagonal", batch=(2,)))]
    cotangents = np.cos(np.arange(10.0)).reshape(2, 5)
    log_probs, gradient = with_gradient(cases, list(cotangents))
    noise = special.ndtri(qmc.Sobol(5, rng=0).random(2**17))
    for i, ((loc, scale), cotangent) in enumerate(zip(cases, cotangents)):
        probs = special.softmax(loc + scale * noise, axis=-1)
        limit = probs.mean(axis=0)
        np.testing.assert_allclose(log_probs[i], np.log(limit), atol=2e-3)
        weights = probs * (cotangent / limit)
        slopes = weights - probs * weights.sum(axis=-1, keepdims=True)
        for name, expected in (("loc", slopes), ("scale_diag", slopes * noise)):
            actual = getattr(gradient, name)[i]
            np.testing.assert_allclose(actual, expected.mean(axis=0), rtol=0.01, atol=2e-3)


def test_permuting_the_classes_permutes_the_result():
    cases, order = rows(latent("diagonal")), np.array([3, 0, 4, 1, 2])
    permuted = with_gradient([(loc[order], scale[order]) for loc, scale in cases])[0]
    np.testing.assert_allclose(permuted, with_gradient(cases)[0][:, order], rtol=1e-6, atol=2e-6)


def test_a_shift_of_all_utilities_changes_nothing():
    cases = rows(latent("diagonal"))
    shifted = with_gradient([(loc + 50, scale) for loc, scale in cases])[0]
    np.testing.assert_allclose(shifted, with_gradient(cases)[0], atol=2e-5)


def test_an_example_does_not_depend_on_the_others():
    # The last example doubles the number of nodes, but only its own.
    cases = [CASES[name] for name in ("equal", "rare classes")]
    beside = with_gradient([*cases, CASES["five scales"]])[0]
    np.testing.assert_allclose(beside[:2], with_gradient(cases)[0], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0])
def test_a_class_100_nats_below_has_a_finite_value_and_the_right_gradient(scale):
    expected = exact_integral.log_probs([0.0, -100.0], [scale, scale])[1]
    shifted = exact_integral.log_probs([0.0, -100.1], [scale, scale])[1]
    log_probs, gradient = with_gradient([([0.0, -100.0], [scale, scale])], [[0.0, 1.0]])
    np.testing.assert_allclose(log_probs[0, 1], expected, rtol=1e-3)
    np.testing.assert_allclose(gradient.loc[0, 1], (expected - shifted) / 0.1, rtol=0.01)
    np.testing.assert_allclose(gradient.loc[0].sum(), 0.0, atol=1e-3)


def test_at_high_temperature_the_noise_vanishes_and_at_low_temperature_the_likeliest_wins():
    cases = rows(latent("diagonal"))
    hot = [(loc / 1e3, scale / 1e3) for loc, scale in cases]
    expected = special.log_softmax([loc for loc, _ in hot], axis=-1)
    np.testing.assert_allclose(with_gradient(hot)[0], expected, atol=1e-5)
    weak = with_gradient([(loc, 0 * scale + 1e-6) for loc, scale in cases])[0]
    expected = special.log_softmax([loc for loc, _ in cases], axis=-1)
    np.testing.assert_allclose(weak, expected, atol=2e-5)
    # At temperature 0, class 1 of two wins with the probability that its utility is larger.
    # The other three are padding, which takes no part however far the utilities spread.
    cold = np.exp(with_gradient([([10 * x, 0.0], [6 * x, 8 * x]) for x in (1e2, 1e3, 1e5)])[0])
    np.testing.assert_allclose(cold[:, :2], [[0.8413447, 0.1586553]] * 3, rtol=1e-4)


def test_forward_and_reverse_mode_agree_and_second_derivatives_are_those_of_the_gradient():
    one, direction = latent("diagonal", batch=()), latent("diagonal", batch=(), seed=1)
    cotangent = jnp.cos(jnp.arange(5.0))

    def value(x):
        return jnp.sum(exact(x) * cotangent)

    @jax.jit
    def derivatives(x):
        """The gradient, and both derivatives along the direction."""
        slope = jax.jvp(value, (x,), (direction,))[1]
        return *jax.jvp(jax.grad(value), (x,), (direction,)), slope

    def gradient(step):
        moved = jax.tree.map(lambda a, b: jnp.asarray(np.float32(a + step * b)), ours, along)
        return jax.tree.map(np.asarray, derivatives(moved)[0])

    ours, along = jax.tree.map(np.asarray, (one, direction))
    of_point, products, slope = jax.tree.map(np.asarray, derivatives(one))
    inner = jax.tree.map(lambda a, b: np.sum(a * b), of_point, along)
    np.testing.assert_allclose(slope, sum(jax.tree.leaves(inner)), rtol=1e-5)
    difference = jax.tree.map(lambda a, b: (a - b) / 0.1, gradient(0.05), gradient(-0.05))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02, atol=2e-3), products, difference
    )


@pytest.mark.parametrize("size", [1e-30, 1e4])
def test_values_and_gradients_are_finite_at_extremes(size):
    cases = [(loc * size, scale * size) for loc, scale in rows(latent("diagonal"))]
    log_probs, gradient = with_gradient(cases, [np.ones(5)] * 3)
    assert np.isfinite(log_probs).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


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

    def loss(x):
        return exact(x, num_nodes=1024)[:, 0].sum()

    compiled = jax.jit(jax.grad(loss)).lower(shapes).compile()
    num_arrays = compiled.memory_analysis().temp_size_in_bytes / (8 * 21_843 * 4)
    assert num_arrays < 140  # not one for each of 1024 nodes


def test_classes_left_of_all_nodes_are_resolved_too():
    """Among many classes of very different noise, a narrow one may have no node at its mean."""
    rng = np.random.default_rng(0)
    loc = rng.uniform(-2, 2, (100, 100))
    scale = 60 * 10 ** rng.uniform(-4.5, 0, (100, 100))
    mixed = LatentGaussian(jnp.asarray(loc, jnp.float32), jnp.asarray(scale, jnp.float32))
    fine = np.float64(exact(mixed, num_nodes=512))
    error = np.abs(np.asarray(exact(mixed)) - fine)
    assert error[fine > np.log(1e-6)].max() < 3e-4
    assert error[fine > np.log(1e-12)].max() < 1e-2


def test_xi_has_the_derivatives_of_the_distribution():
    x = np.linspace(-3.0, 12.0, 31)
    scales = np.array([0.1, 0.7, 2.0, 9.0, 40.0])
    at = np.float32(x * np.maximum(1.0, 0.3 * scales)[:, None])

    @jax.jit
    def derivatives(at, scale):
        return gumbel.xi_and_derivatives(at, scale, gumbel.coefficients(scale), 1)

    found = derivatives(*map(jnp.asarray, (at, np.float32(scales[:, None] + 0 * x))))
    for points, scale, xi, slope in zip(at, scales, *found, strict=True):
        log_cdf, log_density = exact_integral.log_tails(points, scale)
        np.testing.assert_allclose(-np.exp(-xi), log_cdf, rtol=2e-4, atol=1e-30)
        np.testing.assert_allclose(np.log(slope) - xi, log_density - log_cdf, atol=1e-3)
