import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize, special, stats

from heteroscedastic import losses, predictive
from heteroscedastic.latent import LatentGaussian

COUNTS = np.array([1.0, 20.0, 3.0, 0.0, 7.0], np.float32)
LOSSES = {
    "cross_entropy": losses.cross_entropy,
    "sigmoid_cross_entropy": losses.sigmoid_cross_entropy,
    "focal": functools.partial(losses.focal, gamma=2.0),
    "focal of gamma below 1": functools.partial(losses.focal, gamma=0.3),
    "logit_adjusted": functools.partial(losses.logit_adjusted, strength=0.7),
    "generalized_cross_entropy": losses.generalized_cross_entropy,
}
BOTH = (losses.cross_entropy, losses.sigmoid_cross_entropy)
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


# Compiled, because each operation alone would be a program.
compiled = functools.cache(jax.jit)


@functools.cache
def value_and_gradient(loss):
    return jax.jit(jax.value_and_grad(loss))


@functools.cache
def value_and_gradients(reduction):
    """Those by values and weights."""
    return jax.jit(jax.value_and_grad(reduction, argnums=(0, 1)))


@functools.cache
def values_and_gradient(loss):
    """The values, and the gradient of their sum by the logits."""

    @jax.jit
    def both(logits, *rest):
        def total(logits):
            values = loss(logits, *rest)
            return values.sum(), values

        gradient, values = jax.grad(total, has_aux=True)(logits)
        return values, gradient

    return both


def random_case(loss, shape, seed=0):
    """Logits, and targets for the loss: distributions, or probabilities of K binary answers."""
    rng = np.random.default_rng(seed)
    targets = rng.random(shape)
    if loss is not losses.sigmoid_cross_entropy:
        targets /= targets.sum(axis=-1, keepdims=True)
    return np.float32(3 * rng.normal(size=shape)), np.float32(targets)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (4, 1)])
def test_losses_agree_with_optax(shape):
    logits, targets = random_case(losses.cross_entropy, shape)
    np.testing.assert_allclose(
        compiled(losses.cross_entropy)(logits, targets),
        compiled(optax.losses.softmax_cross_entropy)(logits, targets),
        rtol=1e-5,
        atol=1e-6,
    )
    logits, targets = random_case(losses.sigmoid_cross_entropy, shape)
    np.testing.assert_allclose(
        compiled(losses.sigmoid_cross_entropy)(logits, targets),
        compiled(optax.losses.sigmoid_binary_cross_entropy)(logits, targets).sum(axis=-1),
        rtol=1e-5,
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "logit_adjusted"])
def test_the_class_counts_are_ignored(name):
    logits, targets = random_case(LOSSES[name], (3, 5))
    np.testing.assert_array_equal(
        compiled(LOSSES[name])(logits, targets, COUNTS), compiled(LOSSES[name])(logits, targets)
    )


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
    _, gradient = value_and_gradient(losses.cross_entropy)(logits, targets)
    np.testing.assert_allclose(gradient, special.softmax(logits) - targets, atol=1e-6)
    _, gradient = value_and_gradient(losses.sigmoid_cross_entropy)(logits, targets)
    np.testing.assert_allclose(gradient, special.expit(logits) - targets, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "sigmoid_cross_entropy"])
def test_a_shift_of_all_utilities_does_not_change_a_softmax_loss(name):
    logits, targets = random_case(LOSSES[name], (3, 5))
    loss = compiled(LOSSES[name])
    shifted = loss(logits + np.float32(10), targets, COUNTS)
    np.testing.assert_allclose(shifted, loss(logits, targets, COUNTS), rtol=1e-5)


@every_loss
def test_the_order_of_the_classes_does_not_matter(loss):
    logits, targets = random_case(loss, (3, 5))
    order = np.array([3, 0, 4, 1, 2])
    np.testing.assert_allclose(
        compiled(loss)(logits[:, order], targets[:, order], COUNTS[order]),
        compiled(loss)(logits, targets, COUNTS),
        rtol=1e-5,
    )


@every_loss
def test_the_loss_is_linear_in_the_targets(loss):
    logits, one = random_case(loss, (3, 5), seed=0)
    _, other = random_case(loss, (3, 5), seed=1)
    mixture = np.float32(0.3 * one + 0.7 * other)
    of_one, of_other, of_mixture = (
        np.asarray(compiled(loss)(logits, targets, COUNTS)) for targets in (one, other, mixture)
    )
    np.testing.assert_allclose(of_mixture, 0.3 * of_one + 0.7 * of_other, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "sigmoid_cross_entropy"])
def test_an_impossible_class_of_target_zero_changes_neither_loss_nor_gradient(name):
    logits, targets = np.float32([1.0, -np.inf, 0.5]), np.float32([0.6, 0.0, 0.4])
    loss, rest = value_and_gradient(LOSSES[name]), np.array([0, 2])
    value, gradient = loss(logits, targets, COUNTS[:3])
    value_without, gradient_without = loss(logits[rest], targets[rest], COUNTS[rest])
    np.testing.assert_allclose(value, value_without, rtol=1e-6)
    np.testing.assert_allclose(gradient, [gradient_without[0], 0.0, gradient_without[1]], atol=1e-6)


def test_an_impossible_class_with_a_target_has_infinite_loss():
    assert losses.cross_entropy(jnp.array([1.0, -jnp.inf]), jnp.array([0.5, 0.5])) == jnp.inf


@pytest.mark.parametrize("loss", BOTH)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
@pytest.mark.parametrize("right", [True, False])
def test_extreme_logits_have_finite_losses_and_gradients(loss, size, right):
    logits = np.float32([size, -size, -size])
    targets = np.float32([1.0, 0.0, 0.0] if right else [0.0, 1.0, 0.0])
    value, gradient = value_and_gradient(loss)(logits, targets)
    # Far from zero both losses are a sum of relu(-margin).
    far = 2 * size
    np.testing.assert_allclose(value, 0.0 if right else far, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, np.float32([1.0, 0.0, 0.0]) - targets, atol=1e-6)


def in_float64(loss, logits, targets):
    """A loss of one example in float64, for extreme logits."""
    shifted = np.asarray(logits, np.float64) - np.max(logits)
    log_probs = shifted - np.log(np.exp(shifted).sum())
    others = np.exp(log_probs) @ (1 - np.eye(len(shifted)))  # exact where a probability is near 1
    gamma, q = (loss.keywords.get(name) for name in ("gamma", "q"))
    terms = -np.expm1(q * log_probs) / q if gamma is None else -(others**gamma) * log_probs
    return np.sum(targets * terms)


@pytest.mark.parametrize(
    "loss",
    [functools.partial(losses.focal, gamma=gamma) for gamma in (0.0, 0.3, 1.0, 2.0, 5.0)]
    + [functools.partial(losses.generalized_cross_entropy, q=q) for q in (1e-4, 0.3, 0.7, 1.0)],
    ids=lambda loss: f"{loss.func.__name__} {loss.keywords}",
)
@pytest.mark.parametrize("size", [1.0, 10.0, 100.0])
def test_focal_and_generalized_cross_entropy_agree_with_float64_up_to_100_nats(loss, size):
    logits = size * np.random.default_rng(0).uniform(-1, 1, (2, 3, 4))
    logits[0, :, 0], logits[0, :, 1] = size, -size
    targets = np.stack([np.eye(4)[[0, 1, 2]], np.full((3, 4), 0.25)])
    both = values_and_gradient(loss)(np.float32(logits), np.float32(targets))
    values, gradients = map(np.asarray, both)
    steps = 1e-5 * np.eye(4)
    for i in np.ndindex(2, 3):
        value = functools.partial(in_float64, loss, targets=targets[i])
        np.testing.assert_allclose(values[i], value(logits[i]), rtol=1e-5, atol=1e-6)
        differences = [value(logits[i] + step) - value(logits[i] - step) for step in steps]
        np.testing.assert_allclose(gradients[i], np.array(differences) / 2e-5, rtol=2e-5, atol=2e-6)


@every_loss
@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
@pytest.mark.parametrize("label", [0, 1])
def test_every_loss_has_finite_gradients_at_extreme_logits(loss, size, label):
    logits, target = np.float32([size, -size, -size]), np.float32(np.eye(3)[label])
    value, gradient = value_and_gradient(loss)(logits, target, COUNTS[:3])
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_focal_of_gamma_zero_is_cross_entropy():
    logits, targets = random_case(losses.focal, (2, 3, 5))
    np.testing.assert_allclose(
        compiled(functools.partial(losses.focal, gamma=0.0))(logits, targets),
        compiled(losses.cross_entropy)(logits, targets),
        rtol=1e-6,
    )


def test_one_class_alone_costs_nothing():
    focal_of_gamma_zero = functools.partial(losses.focal, gamma=0.0)
    for loss in (LOSSES["focal"], focal_of_gamma_zero, LOSSES["generalized_cross_entropy"]):
        value, gradient = value_and_gradient(loss)(np.float32([3]), np.ones(1, np.float32))
        assert (value, gradient) == (0, 0)


def test_generalized_cross_entropy_is_between_cross_entropy_and_the_probability_of_an_error():
    logits, _ = random_case(losses.generalized_cross_entropy, (2, 3, 5))
    targets = np.eye(5, dtype=np.float32)[[[0, 1, 2], [3, 4, 0]]]
    error = 1 - np.sum(targets * special.softmax(logits, axis=-1), axis=-1)
    for q, limit in ((1e-6, compiled(losses.cross_entropy)(logits, targets)), (1.0, error)):
        loss = jax.jit(functools.partial(losses.generalized_cross_entropy, q=q))
        np.testing.assert_allclose(loss(logits, targets), limit, rtol=1e-5)


def test_with_equal_counts_logit_adjustment_is_cross_entropy():
    logits, targets = random_case(losses.logit_adjusted, (2, 3, 5))
    expected = compiled(losses.cross_entropy)(logits, targets)
    loss = jax.jit(functools.partial(losses.logit_adjusted, strength=2.0))
    for counts in (37 * np.ones(5, np.float32), np.zeros(5, np.float32)):
        np.testing.assert_allclose(loss(logits, targets, counts), expected, rtol=1e-6)


def test_logit_adjustment_is_cross_entropy_with_the_prior_in_each_probability():
    logits, targets = random_case(losses.logit_adjusted, (2, 3, 5))
    counts = np.array([1.0, 20.0, 3.0, 1e7, 7.0])
    adjusted = np.exp(np.asarray(logits, np.float64)) * (counts / counts.sum()) ** 0.7
    log_probs = np.log(adjusted / adjusted.sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(
        compiled(LOSSES["logit_adjusted"])(logits, targets, np.float32(counts)),
        -np.sum(targets * log_probs, axis=-1),
        rtol=1e-5,
    )


def test_under_logit_adjustment_a_class_without_examples_counts_as_one():
    logits, targets = random_case(losses.logit_adjusted, (3, 5))
    both = values_and_gradient(losses.logit_adjusted)
    np.testing.assert_array_equal(
        both(logits, targets, COUNTS)[0], both(logits, targets, np.maximum(COUNTS, 1))[0]
    )
    of_others = np.eye(5, dtype=np.float32)[:3]
    _, gradient = both(logits, of_others, COUNTS)
    assert (gradient[:, 3] > 0).all()  # the model learns that it is improbable


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_logit_adjustment_of_strength_one_learns_the_balanced_posterior_of_two_gaussians(strength):
    counts = np.array([950.0, 50.0])
    x = np.linspace(-8, 8, 801)
    density = stats.norm.pdf(x[:, None], [-1.0, 1.0]) * counts / counts.sum()
    mass = density.sum(axis=1)
    targets = jnp.asarray(density / mass[:, None], jnp.float32)

    @jax.value_and_grad
    def risk(affine):
        logits = jnp.stack([jnp.zeros(len(x)), affine[0] * x + affine[1]], axis=1)
        values = losses.logit_adjusted(logits, targets, jnp.asarray(counts), strength=strength)
        return losses.weighted_mean(values, jnp.asarray(mass))

    learned = optimize.minimize(jax.jit(risk), np.zeros(2), jac=True, method="BFGS").x
    # Log-odds of the two densities, and of the part of the prior that is not in the loss.
    expected = [2.0, (1 - strength) * np.log(counts[1] / counts[0])]
    np.testing.assert_allclose(learned, expected, atol=2e-3)


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (losses.focal, dict(gamma=-0.1), "gamma is -0.1; it must be a finite number >= 0"),
        (losses.generalized_cross_entropy, dict(q=0.0), "q is 0.0; it must be a finite number >="),
        (losses.generalized_cross_entropy, dict(q=1.1), "q is 1.1"),
        (losses.logit_adjusted, dict(strength=-1.0), "strength is -1.0"),
    ],
)
def test_a_bad_setting_is_named(loss, settings, message):
    with pytest.raises(ValueError, match=message):
        loss(jnp.zeros(5), jnp.full(5, 0.2), jnp.asarray(COUNTS), **settings)


def test_the_divergence_is_that_of_scipy_and_zero_for_the_targets_themselves():
    rng = np.random.default_rng(0)
    targets, probs = rng.dirichlet(np.ones(5), (3, 4)), rng.dirichlet(np.ones(5), (3, 4))
    targets[0, 0] = np.eye(5)[2]  # a hard target has no entropy
    result = losses.divergence(jnp.log(probs) + 3.0, jnp.asarray(targets))
    np.testing.assert_allclose(result, stats.entropy(targets, probs, axis=-1), atol=1e-5)
    same = losses.divergence(jnp.log(targets), jnp.asarray(targets, jnp.float32))
    np.testing.assert_allclose(same, np.zeros((3, 4)), atol=1e-6)


def test_an_example_of_weight_zero_is_absent():
    values, weights = jnp.array([1.0, 2.0, 30.0]), jnp.array([1.0, 3.0, 0.0])
    np.testing.assert_allclose(
        losses.weighted_mean(values, weights), losses.weighted_mean(values[:2], weights[:2])
    )
    np.testing.assert_allclose(losses.weighted_mean(values, weights), (1 * 1 + 3 * 2) / (1 + 3))


@pytest.mark.parametrize("absent", [jnp.nan, jnp.inf, -jnp.inf, 1e38])
@pytest.mark.parametrize("reduction", [losses.weighted_sum, losses.weighted_mean])
def test_an_absent_value_is_ignored_and_has_no_gradient(reduction, absent):
    values, weights = np.float32([1.0, absent, 2.0]), np.float32([0.5, 0.0, 1.5])
    gradients = value_and_gradients(reduction)
    value, (of_values, of_weights) = gradients(values, weights)
    rest = np.array([0, 2])
    without, (of_kept, _) = gradients(values[rest], weights[rest])
    np.testing.assert_allclose(value, without, rtol=1e-6)
    np.testing.assert_allclose(of_values, [of_kept[0], 0.0, of_kept[1]], rtol=1e-6)
    assert np.isfinite(of_weights).all()


@every_loss
def test_the_logits_of_an_absent_example_have_no_gradient(loss):
    logits, targets = random_case(loss, (3, 5))
    weights = np.float32([1.0, 0.0, 2.0])

    @jax.jit
    @jax.grad
    def gradient_of_mean(logits, targets, weights):
        return losses.weighted_mean(loss(logits, targets, jnp.asarray(COUNTS)), weights)

    gradient = gradient_of_mean(logits, targets, weights)
    assert not gradient[1].any()
    rest = np.array([0, 2])
    alone = gradient_of_mean(logits[rest], targets[rest], weights[rest])
    gradient = np.asarray(gradient)
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


def test_on_separated_data_larger_utilities_lower_the_loss_and_confidence_tends_to_one():
    """Theorem 1 of Dataset Curation Beyond Accuracy, and with noise of a fixed covariance."""
    rng = np.random.default_rng(0)
    labels = np.arange(6) % 3
    loc = rng.normal(size=(6, 3))
    loc[np.arange(6), labels] = loc.max(axis=1) + 0.3  # each label has the largest utility
    targets, counts = jnp.asarray(np.eye(3)[labels]), jnp.ones(3)
    loc, loadings = np.float32(loc), np.float32(0.5 * rng.normal(size=(6, 3, 2)))

    @jax.jit
    def result(scale, deviation):
        latent = LatentGaussian(scale * loc, jnp.full((6, 3), deviation), deviation * loadings)
        log_probs = predictive.softmax(None, latent, num_samples=1024, points="sobol")
        value = losses.cross_entropy(log_probs, targets, counts).mean()
        return value, jnp.exp(log_probs.max(axis=-1)).mean()

    for deviation in (1e-3, 1.0):
        values, confidences = zip(*(result(1.0 + a, deviation) for a in (0, 0.1, 1, 10, 100)))
        assert np.all(np.diff(values) < 0)
        assert confidences[-1] > 0.999
