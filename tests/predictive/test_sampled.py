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


@functools.partial(jax.jit, static_argnums=(1, 2))
def draw(latent, num_samples, points):
    return latent_lib.sample(key(), latent, num_samples, points)


def direct(sampled, latent, num_samples, points="independent"):
    """The definition in float64, for the same samples."""
    utilities = np.asarray(draw(latent, num_samples, points), np.float64)
    if sampled is predictive.softmax:
        return special.logsumexp(special.log_softmax(utilities, axis=-1), axis=0) - np.log(
            num_samples
        )
    positive, negative = (
        special.logsumexp(special.log_expit(s * utilities), axis=0) for s in (1, -1)
    )
    return positive - negative


def direct_in_jax(sampled, latent, num_samples, points):
    utilities = latent_lib.sample(key(), latent, num_samples, points)
    if sampled is predictive.softmax:
        return jax.nn.logsumexp(jax.nn.log_softmax(utilities), axis=0) - jnp.log(num_samples)
    return jax.nn.logsumexp(jax.nn.log_sigmoid(utilities), 0) - jax.nn.logsumexp(
        jax.nn.log_sigmoid(-utilities), 0
    )


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def value_and_gradient(sampled, latent, cotangent, num_samples, points, chunk_size=None):
    value, pull = jax.vjp(
        lambda x: sampled(key(), x, num_samples=num_samples, points=points, chunk_size=chunk_size),
        latent,
    )
    return value, pull(cotangent)[0]


SAMPLED = (predictive.softmax, predictive.sigmoid_sampled)


@pytest.mark.parametrize(
    ("sampled", "kind", "chunk_size", "points", "num_samples"),
    mostly_extended(
        [
            *((predictive.softmax, kind, 10, "independent", 23) for kind in KINDS),
            *((predictive.softmax, "low_rank", size, "independent", 23) for size in (1, 23, None)),
            (predictive.softmax, "diagonal", 10, "antithetic", 32),
            *((sampled, "everything", 10, "sobol", 32) for sampled in SAMPLED),
            (predictive.sigmoid_sampled, "low_rank", 10, "independent", 23),
        ],
        [
            *(
                (predictive.softmax, kind, 10, "independent", 23)
                for kind in ("deterministic", "diagonal", "readout")
            ),
            *((predictive.softmax, "low_rank", size, "independent", 23) for size in (1, 23, None)),
            (predictive.softmax, "diagonal", 10, "antithetic", 32),
            (predictive.softmax, "everything", 10, "sobol", 32),
            (predictive.sigmoid_sampled, "low_rank", 10, "independent", 23),
        ],
    ),
)
def test_chunks_change_neither_value_nor_gradient(sampled, kind, chunk_size, points, num_samples):
    one = latent(kind, batch=(2, 3))
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 5)), jnp.float32)
    value, gradient = value_and_gradient(sampled, one, cotangent, num_samples, points, chunk_size)
    np.testing.assert_allclose(
        value, direct(sampled, one, num_samples, points), rtol=1e-5, atol=1e-5
    )

    @jax.jit
    @jax.grad
    def expected(x):
        return jnp.sum(direct_in_jax(sampled, x, num_samples, points) * cotangent)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        gradient,
        expected(one),
    )


def test_a_chunk_has_at_least_one_sample():
    with pytest.raises(ValueError, match="chunk_size is 0; it must be a whole number >= 1"):
        predictive.softmax(key(), latent("low_rank"), num_samples=16, chunk_size=0)


def test_two_classes_agree_with_quadrature():
    loc, scale, factors = ([0.7, -0.4], [1.2, 0.9], [[1.5], [-0.5]])
    one = LatentGaussian(*(jnp.asarray(np.float32(x)) for x in (loc, scale, factors)))
    mean, deviation = 1.1, np.sqrt(1.2**2 + 0.9**2 + 2.0**2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    exact = (special.expit(mean + deviation * nodes) * weights).sum() / weights.sum()
    num_samples = 200_000
    both = jax.jit(
        lambda one, odds: (
            predictive.softmax(key(), one, num_samples=num_samples),
            predictive.sigmoid_sampled(key(1), odds, num_samples=num_samples),
        )
    )
    odds = LatentGaussian(*(jnp.asarray(np.float32([x])) for x in (mean, deviation)))
    log_probs, log_odds = both(one, odds)
    within = functools.partial(np.testing.assert_allclose, atol=5 * 0.5 / np.sqrt(num_samples))
    within(np.exp(log_probs), [exact, 1 - exact])
    within(special.expit(log_odds), [exact])


@pytest.mark.parametrize("sampled", SAMPLED)
def test_without_noise_the_logits_are_those_of_loc(sampled):
    one = latent("deterministic")
    link = jax.nn.log_softmax if sampled is predictive.softmax else (lambda x: x)
    np.testing.assert_allclose(
        jax.jit(functools.partial(sampled, num_samples=50))(key(), one),
        jax.jit(link)(one.loc),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("nats", [20.0, 100.0, 1e4])
def test_the_gradient_is_exact_for_very_unlikely_classes(nats):
    # At temperature 0.15 a utility of 3 is 20 nats. The noise is common to both classes, so
    # the exact gradient of log p is that of a softmax: 1 - p for the class and -p for the other.
    one = latent_lib.temper(
        LatentGaussian(*map(np.float32, ([0.0, -0.15 * nats], [1e-6, 1e-6], [[1.0], [1.0]]))),
        0.15,
    )
    cotangent = jnp.asarray([0.0, 1.0])
    value, gradient = value_and_gradient(predictive.softmax, one, cotangent, 100, "independent")
    np.testing.assert_allclose(value[1], -nats, rtol=1e-4)
    np.testing.assert_allclose(gradient.loc, [-1.0, 1.0], rtol=1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("nats", [20.0, 100.0, 1e4])
def test_both_tails_of_the_log_odds_are_exact(sign, nats):
    one = LatentGaussian(*(jnp.asarray(np.float32([x])) for x in (sign * nats, 1.0)))
    sampled = predictive.sigmoid_sampled
    value, gradient = value_and_gradient(sampled, one, jnp.ones(1), 64, "independent")
    np.testing.assert_allclose(value, direct(sampled, one, 64), rtol=1e-5)
    np.testing.assert_allclose(
        gradient.loc, [1.0], rtol=max(1e-4, 2e-7 * nats)
    )  # rounding of the utility itself


def test_a_shift_of_all_utilities_changes_nothing():
    one = latent("low_rank")
    shifted = one._replace(loc=one.loc + 30.0)
    form = jax.jit(functools.partial(predictive.softmax, key(), num_samples=64))
    np.testing.assert_allclose(form(shifted), form(one), atol=1e-4)


def test_the_order_of_classes_does_not_change_the_distribution():
    one, order = latent("low_rank", batch=()), np.array([3, 0, 4, 1, 2])
    permuted = jax.tree.map(lambda x: np.asarray(x)[order], one)
    form = jax.jit(functools.partial(predictive.softmax, num_samples=30_000))
    a, b = np.exp(form(key(0), one))[order], np.exp(form(key(1), permuted))
    np.testing.assert_allclose(a, b, atol=0.02)


@pytest.mark.parametrize("sampled", SAMPLED)
@pytest.mark.parametrize("size", [1e-30, 1e4])
def test_values_and_gradients_are_finite_at_extremes(sampled, size):
    one = latent_lib.map_batch(lambda x: x * size, latent("everything"))
    value, gradient = value_and_gradient(sampled, one, jnp.ones((3, 5)), 16, "independent")
    assert np.isfinite(value).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_memory_does_not_grow_with_the_number_of_samples():
    shapes = jax.eval_shape(lambda: latent("low_rank", batch=(32,), k=1000, r=15))

    def megabytes(num_samples):
        def loss(key, latent):
            return predictive.softmax(key, latent, num_samples=num_samples)[:, 0].sum()

        compiled = jax.jit(jax.value_and_grad(loss, argnums=1)).lower(key(), shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 1e6

    # Both are multiples of the chunk size, as a shorter last chunk has its own buffers.
    assert megabytes(10_240) < 300
    assert megabytes(10_240) < 1.01 * megabytes(1_024)


@pytest.mark.parametrize(
    "function",
    [predictive.softmax, functools.partial(predictive.shortlist, num_classes=2)],
    ids=["softmax", "shortlist"],
)
def test_the_width_of_the_noise_before_a_readout_determines_the_chunk(function):
    shapes = jax.eval_shape(lambda: latent("readout", batch=(64,), k=4, n=2048))
    compiled = jax.jit(functools.partial(function, num_samples=1024)).lower(key(), shapes)
    assert compiled.compile().memory_analysis().temp_size_in_bytes < 100e6


LOWERED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: "jaxpr_to_mlir" in name and LOWERED.append(name)
)


@pytest.mark.parametrize(
    "function",
    [
        *(functools.partial(sampled, points="sobol") for sampled in SAMPLED),
        functools.partial(predictive.shortlist, points="sobol", num_classes=2),
        functools.partial(latent_lib.sample, points="sobol"),
        lambda *arguments, num_samples: jax.grad(
            lambda x: predictive.softmax(
                *arguments[:-1], x, num_samples=num_samples, points="sobol"
            ).sum()
        )(*arguments[-1:]),
    ],
    ids=[*(sampled.__name__ for sampled in SAMPLED), "shortlist", "sample", "gradient"],
)
def test_a_repeated_call_outside_of_jit_compiles_nothing(function):
    one = latent("low_rank")
    for i in range(3):
        if i:  # after the first, which has compiled something
            assert LOWERED if i == 1 else not LOWERED
        LOWERED.clear()
        jax.block_until_ready(function(key(i), one, num_samples=16))


@pytest.mark.parametrize("sampled", SAMPLED)
def test_fewer_than_one_sample_is_an_error(sampled):
    with pytest.raises(ValueError, match="num_samples is 0"):
        sampled(key(), latent("diagonal"), num_samples=0)


@pytest.mark.parametrize(
    "derivative",
    [jax.jacfwd, lambda f: jax.jit(jax.jacfwd(f)), lambda f: lambda x: jax.jvp(f, (x,), (x,))],
)
@pytest.mark.parametrize(
    ("sampled", "alternative"),
    [(predictive.softmax, "mean_field"), (predictive.sigmoid_sampled, "sigmoid")],
)
def test_forward_mode_is_an_error_that_names_the_alternatives(sampled, alternative, derivative):
    def log_prob(latent):
        return sampled(key(), latent, num_samples=1).sum()

    name, one = sampled.__name__, latent("low_rank")
    with pytest.raises(
        TypeError, match=f"predictive.{name} supports reverse mode only.*predictive.{alternative}"
    ):
        derivative(log_prob)(one)
    with pytest.raises(TypeError, match="forward-mode"):  # raised by JAX in lowering
        derivative(jax.jit(log_prob))(one)


@pytest.mark.parametrize("sampled", mostly_extended(SAMPLED, [predictive.softmax]))
def test_the_hessian_is_that_of_the_definition_in_both_modes(sampled):
    one = latent("diagonal", batch=())

    def log_prob(loc):
        return sampled(key(), one._replace(loc=loc), num_samples=4)[0]

    def direct_log_prob(loc):
        return direct_in_jax(sampled, one._replace(loc=loc), 4, "independent")[0]

    @jax.jit
    def hessians(loc):
        return (
            jax.hessian(direct_log_prob)(loc),
            jax.hessian(log_prob)(loc),
            jax.jacrev(jax.jacrev(log_prob))(loc),
        )

    expected, *actual = hessians(one.loc)
    assert np.abs(expected).max() > 1e-3
    for hessian in actual:
        np.testing.assert_allclose(hessian, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("sampled", SAMPLED)
def test_second_derivatives_are_those_without_an_impossible_class(sampled):
    one = latent("diagonal", batch=())
    impossible = one._replace(loc=one.loc.at[-1].set(-jnp.inf))
    without = one._replace(loc=one.loc[:-1], scale_diag=one.scale_diag[:-1])

    def second(latent):
        def log_prob(loc):
            return sampled(key(), latent._replace(loc=loc), num_samples=4)[0]

        twice = jax.jacrev(jax.jacrev(log_prob))
        return jax.jit(lambda loc: (jax.hessian(log_prob)(loc), twice(loc)))(latent.loc)

    for actual, expected in zip(second(impossible), second(without), strict=True):
        np.testing.assert_allclose(actual[:-1, :-1], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(actual[-1], np.zeros_like(one.loc))
