import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from heteroscedastic import losses

BOTH = (losses.cross_entropy, losses.sigmoid_cross_entropy)


def random_case(loss, shape, seed=0):
    """Logits, and targets for the loss: distributions, or probabilities of K binary answers."""
    rng = np.random.default_rng(seed)
    targets = rng.random(shape)
    if loss is losses.cross_entropy:
        targets /= targets.sum(axis=-1, keepdims=True)
    return jnp.asarray(3 * rng.normal(size=shape), jnp.float32), jnp.asarray(targets, jnp.float32)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (4, 1)])
def test_losses_agree_with_optax(shape):
    logits, targets = random_case(losses.cross_entropy, shape)
    np.testing.assert_allclose(
        losses.cross_entropy(logits, targets),
        optax.losses.softmax_cross_entropy(logits, targets),
        rtol=1e-5,
        atol=1e-6,
    )
    logits, targets = random_case(losses.sigmoid_cross_entropy, shape)
    np.testing.assert_allclose(
        losses.sigmoid_cross_entropy(logits, targets),
        optax.losses.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1),
        rtol=1e-5,
    )


@pytest.mark.parametrize("loss", BOTH)
def test_the_class_counts_are_ignored(loss):
    logits, targets = random_case(loss, (3, 5))
    counts = jnp.array([1.0, 20.0, 3.0, 0.0, 7.0])
    np.testing.assert_array_equal(loss(logits, targets, counts), loss(logits, targets))


@pytest.mark.parametrize("k", [1, 2, 10])
def test_equal_logits_cost_the_log_of_the_number_of_answers(k):
    first = jax.nn.one_hot(0, k)
    np.testing.assert_allclose(
        losses.cross_entropy(jnp.full(k, 7.0), first), np.log(k), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        losses.sigmoid_cross_entropy(jnp.zeros(k), first), k * np.log(2), rtol=1e-6
    )


def test_the_gradient_is_the_probability_minus_the_target():
    logits, targets = random_case(losses.cross_entropy, (5,))
    gradient = jax.grad(losses.cross_entropy)(logits, targets)
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits) - targets, atol=1e-6)
    gradient = jax.grad(losses.sigmoid_cross_entropy)(logits, targets)
    np.testing.assert_allclose(gradient, jax.nn.sigmoid(logits) - targets, atol=1e-6)


def test_a_shift_of_all_utilities_does_not_change_the_softmax_cross_entropy():
    logits, targets = random_case(losses.cross_entropy, (3, 5))
    shifted = losses.cross_entropy(logits + 10.0, targets)
    np.testing.assert_allclose(shifted, losses.cross_entropy(logits, targets), rtol=1e-5)


@pytest.mark.parametrize("loss", BOTH)
def test_the_order_of_the_classes_does_not_matter(loss):
    logits, targets = random_case(loss, (3, 5))
    order = np.array([3, 0, 4, 1, 2])
    np.testing.assert_allclose(
        loss(logits[:, order], targets[:, order]), loss(logits, targets), rtol=1e-5
    )


@pytest.mark.parametrize("loss", BOTH)
def test_the_loss_is_linear_in_the_targets(loss):
    logits, one = random_case(loss, (3, 5), seed=0)
    _, other = random_case(loss, (3, 5), seed=1)
    mixed = 0.3 * loss(logits, one) + 0.7 * loss(logits, other)
    np.testing.assert_allclose(loss(logits, 0.3 * one + 0.7 * other), mixed, rtol=1e-5)


def test_an_impossible_class_of_target_zero_changes_neither_loss_nor_gradient():
    logits, targets = jnp.array([1.0, -jnp.inf, 0.5]), jnp.array([0.6, 0.0, 0.4])
    value, gradient = jax.value_and_grad(losses.cross_entropy)(logits, targets)
    rest = np.array([0, 2])
    value_without, gradient_without = jax.value_and_grad(losses.cross_entropy)(
        logits[rest], targets[rest]
    )
    np.testing.assert_allclose(value, value_without, rtol=1e-6)
    np.testing.assert_allclose(gradient, [gradient_without[0], 0.0, gradient_without[1]], atol=1e-6)


def test_an_impossible_class_with_a_target_has_infinite_loss():
    assert losses.cross_entropy(jnp.array([1.0, -jnp.inf]), jnp.array([0.5, 0.5])) == jnp.inf


@pytest.mark.parametrize("loss", BOTH)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
@pytest.mark.parametrize("right", [True, False])
def test_extreme_logits_have_finite_losses_and_gradients(loss, size, right):
    logits = size * jnp.array([1.0, -1.0, -1.0])
    targets = jnp.array([1.0, 0.0, 0.0]) if right else jnp.array([0.0, 1.0, 0.0])
    value, gradient = jax.value_and_grad(loss)(logits, targets)
    # Far from zero both losses are a sum of relu(-margin).
    far = 2 * size
    np.testing.assert_allclose(value, 0.0 if right else far, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, jnp.array([1.0, 0.0, 0.0]) - targets, atol=1e-6)


def test_an_example_of_weight_zero_is_absent():
    values, weights = jnp.array([1.0, 2.0, 30.0]), jnp.array([1.0, 3.0, 0.0])
    np.testing.assert_allclose(
        losses.weighted_mean(values, weights), losses.weighted_mean(values[:2], weights[:2])
    )
    np.testing.assert_allclose(losses.weighted_mean(values, weights), (1 * 1 + 3 * 2) / (1 + 3))


@pytest.mark.parametrize("absent", [jnp.nan, jnp.inf, -jnp.inf, 1e38])
@pytest.mark.parametrize("reduction", [losses.weighted_sum, losses.weighted_mean])
def test_an_absent_value_is_ignored_and_has_no_gradient(reduction, absent):
    values, weights = jnp.array([1.0, absent, 2.0]), jnp.array([0.5, 0.0, 1.5])
    value, (of_values, of_weights) = jax.value_and_grad(reduction, argnums=(0, 1))(values, weights)
    rest = np.array([0, 2])
    without, (of_kept, _) = jax.value_and_grad(reduction, argnums=(0, 1))(
        values[rest], weights[rest]
    )
    np.testing.assert_allclose(value, without, rtol=1e-6)
    np.testing.assert_allclose(of_values, [of_kept[0], 0.0, of_kept[1]], rtol=1e-6)
    assert np.isfinite(of_weights).all()


@pytest.mark.parametrize("loss", BOTH)
def test_the_logits_of_an_absent_example_have_no_gradient(loss):
    logits, targets = random_case(loss, (3, 5))
    weights = jnp.array([1.0, 0.0, 2.0])
    gradient = jax.grad(lambda x: losses.weighted_mean(loss(x, targets), weights))(logits)
    assert not gradient[1].any()
    rest = np.array([0, 2])
    alone = jax.grad(lambda x: losses.weighted_mean(loss(x, targets[rest]), weights[rest]))(
        logits[rest]
    )
    np.testing.assert_allclose(gradient[rest], alone, atol=1e-6)


def test_the_mean_of_absent_values_is_zero_with_zero_gradient():
    values = jnp.array([1.0, jnp.nan])
    value, gradient = jax.value_and_grad(losses.weighted_mean)(values, jnp.zeros(2))
    assert value == 0
    assert not gradient.any()


def test_the_mean_does_not_depend_on_the_scale_of_the_weights():
    values, weights = jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 3.0, 0.5])
    np.testing.assert_allclose(
        losses.weighted_mean(values, 1e-3 * weights),
        losses.weighted_mean(values, weights),
        rtol=1e-6,
    )
