import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import KINDS, covariance, key, latent
from scipy import special

from heteroscedastic import latent as latent_lib
from heteroscedastic import losses, predictive
from heteroscedastic.latent import LatentGaussian


def compiled(predict, **settings):
    """As a function of a latent; each operation alone would be a program."""
    return jax.jit(functools.wraps(predict)(functools.partial(predict, None, **settings)))


taylor, mean_field = compiled(predictive.taylor), compiled(predictive.mean_field)
APPROXIMATIONS = (taylor, mean_field)


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(approximate, latent):
    """The values [..., k], and the gradients of the sum of each of them over the examples."""
    value, pull = jax.vjp(approximate, latent)
    k = value.shape[-1]
    one_hot = jnp.broadcast_to(jnp.expand_dims(jnp.eye(k), range(1, value.ndim)), (k, *value.shape))
    return value, jax.vmap(pull)(one_hot)[0]


def quieter(latent, factor):
    """The latent with its noise multiplied by a factor, but not its loc."""
    names = ("scale_diag", "factor_loadings", "factor_scale")
    fields = {name: getattr(latent, name) for name in names}
    return latent._replace(**{name: factor * x for name, x in fields.items() if x is not None})


def expansion(latent):
    """softmax + half the trace of its Hessian (from JAX) times the covariance, not clipped."""

    k = latent.loc.shape[-1]
    half_trace = np.einsum(
        "bkij,bij->bk",
        hessians(np.reshape(latent.loc, (-1, k))),
        covariance(latent).reshape(-1, k, k),
    )
    return special.softmax(latent.loc, axis=-1) + half_trace.reshape(latent.loc.shape) / 2


hessians = jax.jit(jax.vmap(jax.hessian(jax.nn.softmax)))


def eq_9(probs, scale_diag, k):
    others = [j for j in range(len(probs)) if j != k]
    down = sum(probs[j] * (1 - 2 * probs[j]) * scale_diag[j] ** 2 for j in others)
    return probs[k] * (1 - down / 2 + (1 - probs[k]) * (1 - 2 * probs[k]) * scale_diag[k] ** 2 / 2)


def eq_13(probs, covariance, k, cross):
    """The correction to log s_k; the paper prints the factor cross = 1/2, which should be 1."""
    others = [j for j in range(len(probs)) if j != k]
    total = sum(probs[i] * probs[j] * covariance[i, j] for i in others for j in others if i != j)
    total -= cross * sum(probs[j] * (1 - 2 * probs[k]) * covariance[j, k] for j in others)
    total -= sum(probs[j] * (1 - 2 * probs[j]) * covariance[j, j] for j in others) / 2
    return total + (1 - probs[k]) * (1 - 2 * probs[k]) * covariance[k, k] / 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_the_result_agrees_with_the_expansion_by_the_hessian(kind, batch):
    one = quieter(latent(kind, batch=batch), 0.3)
    stated = expansion(one)
    assert stated.min() > 0.001  # so nothing is clipped
    assert kind == "deterministic" or np.abs(stated - special.softmax(one.loc, -1)).max() > 0.003
    np.testing.assert_allclose(np.exp(taylor(one)), stated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_with_strong_noise_the_expansion_is_clipped_and_normalised(kind):
    one, min_factor = quieter(latent(kind), 3.0), 0.05
    probs = special.softmax(np.asarray(one.loc), axis=-1)
    clipped = np.maximum(expansion(one), min_factor * probs)
    assert kind == "deterministic" or (expansion(one) < 0).any()
    stated = clipped / clipped.sum(-1, keepdims=True)
    np.testing.assert_allclose(
        np.exp(compiled(predictive.taylor, min_factor=min_factor)(one)), stated, rtol=1e-4
    )


def test_the_loss_of_a_diagonal_latent_is_minus_the_log_of_equation_9():
    one = latent_lib.temper(quieter(latent("diagonal", batch=()), 0.5), 0.9)
    probs, scale_diag = special.softmax(one.loc), np.asarray(one.scale_diag)
    log_probs = taylor(one)
    for k in range(5):
        loss = losses.cross_entropy(log_probs, jnp.asarray(np.eye(5)[k]))
        np.testing.assert_allclose(loss, -np.log(eq_9(probs, scale_diag, k)), rtol=1e-5)


def test_the_cross_term_of_equation_13_counts_twice():
    rng = np.random.default_rng(0)  # the example of reading C3
    loc, loadings = 1.3 * rng.normal(size=6), np.sqrt(0.3) * rng.normal(size=(6, 3))
    scale_diag = np.sqrt(rng.uniform(0.1, 0.5, 6))
    stated, probs = loadings @ loadings.T + np.diag(scale_diag**2), special.softmax(loc)
    one = LatentGaussian(*(jnp.asarray(x, jnp.float32) for x in (loc, scale_diag, loadings)))
    actual = np.exp(taylor(one)) / probs - 1
    np.testing.assert_allclose(actual[2], 0.13400, atol=5e-6)
    for k in range(6):
        np.testing.assert_allclose(actual[k], eq_13(probs, stated, k, cross=1.0), atol=5e-6)
    np.testing.assert_allclose(eq_13(probs, stated, 2, cross=0.5), 0.10480, atol=5e-6)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_correction_scales_with_the_square_of_the_temperature(kind):
    temperature, one = 0.9, quieter(latent(kind), 0.2)
    loc = one.loc / temperature
    hessian = jax.jit(jax.vmap(jax.hessian(lambda u: jax.nn.softmax(u / temperature))))(one.loc)
    half_trace = np.einsum("bkij,bij->bk", hessian, covariance(one)) / 2
    correction = np.exp(taylor(one._replace(loc=loc))) - special.softmax(loc, axis=-1)
    np.testing.assert_allclose(correction / temperature**2, half_trace, rtol=1e-3, atol=2e-6)
    tempered = np.exp(taylor(latent_lib.temper(one, temperature))) - special.softmax(loc, axis=-1)
    np.testing.assert_allclose(tempered, half_trace, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_without_noise_the_result_is_the_softmax_of_loc(approximate):
    one = latent("deterministic")
    np.testing.assert_allclose(
        approximate(one), special.log_softmax(one.loc, axis=-1), rtol=1e-5, atol=1e-6
    )
    quiet = quieter(latent("everything"), 1e-4)
    np.testing.assert_allclose(
        approximate(quiet), special.log_softmax(quiet.loc, axis=-1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_the_error_is_of_fourth_order_in_the_noise(approximate):
    # The exact value is a product of Gauss-Hermite quadratures over the noise of three classes.
    loc, scale_diag = np.array([0.5, -1.0, 0.2]), np.array([1.0, 1.4, 0.7])
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1)
    mass = np.einsum("i,j,k->ijk", *[weights / weights.sum()] * 3)

    def error(size):
        exact = np.einsum(
            "ijk,ijkc->c", mass, special.softmax(loc + size * scale_diag * grid, axis=-1)
        )
        one = LatentGaussian(
            jnp.asarray(loc, jnp.float32), jnp.asarray(size * scale_diag, jnp.float32)
        )
        return np.abs(np.exp(approximate(one)) - exact).max()

    assert error(0.2) > 5e-6  # above rounding errors
    assert 9 < error(0.4) / error(0.2) < 25  # 16 for fourth order, 4 for second order


@pytest.mark.parametrize("kind", KINDS[1:])
def test_with_weak_noise_the_approximations_agree_with_monte_carlo(kind):
    one, num_samples = latent(kind), 50_000
    variance = np.einsum("...kk->...k", covariance(one))
    one = quieter(one, np.float32(0.4 / np.sqrt(variance.max())))
    sampled = jax.jit(functools.partial(predictive.softmax, num_samples=num_samples))
    sampled = np.exp(sampled(key(), one))
    for approximate in APPROXIMATIONS:
        # dp/du <= 1/4, and the standard deviation of u is 0.4.
        np.testing.assert_allclose(
            np.exp(approximate(one)), sampled, atol=5 * 0.1 / np.sqrt(num_samples) + 5e-4
        )


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("factor", [0.3, 3.0, 100.0])
def test_probabilities_sum_to_one(approximate, factor):
    one = quieter(latent("everything", k=7), factor)
    np.testing.assert_allclose(np.exp(approximate(one)).sum(-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_classes_changes_nothing(approximate, kind):
    one, order = latent(kind, batch=()), jnp.array([3, 0, 4, 1, 2])
    permuted = one._replace(loc=one.loc[order])
    if one.readout is None:
        fields = {name: getattr(one, name) for name in one._fields}
        permuted = LatentGaussian(
            **{name: None if x is None else x[order] for name, x in fields.items()}
        )
    else:
        permuted = permuted._replace(readout=one.readout[:, order])
    np.testing.assert_allclose(approximate(permuted), approximate(one)[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("readout", [False, True])
def test_noise_and_shifts_common_to_all_classes_change_nothing(approximate, readout):
    one = quieter(latent("readout" if readout else "low_rank"), 0.5)
    ones = jnp.ones((*one.factor_loadings.shape[:-1], 1))
    if readout:  # one more entry of the noise, equal for all classes
        noisy = one._replace(
            scale_diag=jnp.concatenate([one.scale_diag, jnp.full((3, 1), 30.0)], axis=-1),
            factor_loadings=jnp.concatenate(
                [one.factor_loadings, jnp.full((3, 1, 2), 30.0)], axis=-2
            ),
            readout=jnp.concatenate([one.readout, jnp.ones((1, 5))]),
        )
    else:
        noisy = one._replace(
            factor_loadings=jnp.concatenate([one.factor_loadings, 30 * ones], axis=-1)
        )
    shifted = noisy._replace(loc=noisy.loc + 30.0)
    np.testing.assert_allclose(approximate(shifted), approximate(one), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4])
def test_values_and_gradients_are_finite_at_extremes(approximate, kind, size):
    one = latent_lib.map_batch(lambda x: x * size, latent(kind))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(value_and_gradients(approximate, one)))


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_a_class_of_loc_minus_infinity_has_probability_zero_and_finite_gradients(approximate):
    one = quieter(latent("low_rank", batch=()), 0.3)
    less = LatentGaussian(one.loc[1:], one.scale_diag[1:], one.factor_loadings[1:])
    masked = one._replace(loc=one.loc.at[0].set(-jnp.inf))
    value, gradients = value_and_gradients(approximate, masked)
    np.testing.assert_allclose(value[1], approximate(less)[0], rtol=1e-5)
    assert all(np.isfinite(x[1]).all() for x in jax.tree.leaves(gradients))
    assert np.exp(approximate(masked))[0] == 0
    alone = one._replace(loc=jnp.where(jnp.arange(5) == 2, 0.0, -jnp.inf))
    np.testing.assert_allclose(np.exp(approximate(alone)), [0, 0, 1, 0, 0], atol=1e-6)


@pytest.mark.parametrize("nats", [20.0, 100.0, 1e4])
def test_an_unlikely_class_keeps_its_gradient(nats):
    one = LatentGaussian(loc=jnp.array([0.0, -nats]), scale_diag=jnp.array([0.1, 0.1]))
    _, gradients = value_and_gradients(taylor, one)
    np.testing.assert_allclose(gradients.loc[1], [-1.0, 1.0], rtol=1e-4)


def test_a_clipped_class_can_be_learned():
    one = LatentGaussian(loc=jnp.array([1.0, 0.0]), scale_diag=jnp.array([6.0, 0.1]))
    assert expansion(one)[0] < 0

    def descend(_, latent):
        gradient = jax.grad(lambda x: -taylor(x)[0])(latent)
        return jax.tree.map(lambda x, g: x - 0.1 * jnp.clip(g, -1, 1), latent, gradient)

    learned = jax.jit(lambda one: jax.lax.fori_loop(0, 1000, descend, one))(one)
    assert taylor(learned)[0] > np.log(0.9)


@pytest.mark.parametrize("min_factor", [0.0, 1.0])
def test_a_clip_out_of_range_is_an_error(min_factor):
    with pytest.raises(ValueError, match="min_factor is"):
        predictive.taylor(None, latent("diagonal"), min_factor=min_factor)


@pytest.mark.parametrize("deviation", [0.3, 1.0, 3.0, 10.0])
def test_the_mean_field_of_two_classes_agrees_with_quadrature(deviation):
    mean = np.linspace(-12, 12, 49)
    z = np.linspace(-9, 9, 20_001)
    density = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    exact = special.expit(mean[:, None] + deviation * z) @ density
    one = LatentGaussian(
        loc=jnp.asarray(np.stack([mean, np.zeros(49)], axis=-1), jnp.float32),
        factor_loadings=jnp.asarray(
            np.tile([[0.4 * deviation], [-0.6 * deviation]], (49, 1, 1)), jnp.float32
        ),
    )
    error = np.abs(np.exp(mean_field(one))[:, 0] - exact).max()
    assert error < {0.3: 1e-4, 1.0: 0.002, 3.0: 0.012, 10.0: 0.04}[deviation]


@pytest.mark.parametrize("nats", [20.0, 300.0])
def test_the_mean_field_is_accurate_where_one_class_is_certain(nats):
    # The probability of another class j is then E[exp(u_j - u_top)], the log of which is the mean
    # of u_j - u_top plus half its variance.
    one = LatentGaussian(loc=jnp.array([nats, 0.0, -0.5]), scale_diag=jnp.array([0.3, 0.2, 0.1]))
    moved = np.array([0.0, (0.3**2 + 0.2**2) / 2, (0.3**2 + 0.1**2) / 2])
    np.testing.assert_allclose(
        mean_field(one), special.log_softmax(one.loc, axis=-1) + moved, atol=0.01
    )


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_one_class_is_certain(approximate):
    np.testing.assert_array_equal(approximate(LatentGaussian(jnp.ones(1), jnp.ones(1))), [0.0])


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_no_matrix_of_classes_is_computed(approximate):
    one = jax.eval_shape(lambda: latent("parameter_efficient", batch=(32,), k=1000, q=15))

    def loss(latent):
        return approximate(latent)[:, 0].sum()

    program = jax.jit(jax.value_and_grad(loss)).lower(one).compile()
    assert program.memory_analysis().temp_size_in_bytes < 32 * 1000 * 1000 * 4 / 10
