import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.calibration import reliability


def error(confidence, correct, weights=None, num_bins=15):
    """The expected calibration error of these examples."""
    confidence = jnp.asarray(confidence, jnp.float32)
    weights = jnp.ones_like(confidence) if weights is None else jnp.asarray(weights, jnp.float32)
    return reliability.expected_calibration_error(
        reliability.sums(confidence, jnp.asarray(correct, jnp.float32), weights, num_bins)
    )


def plain_error(confidence, correct, weights, num_bins):
    """Guo et al. (2017), Eq. 3, a bin at a time: bin m holds m/M < confidence <= (m+1)/M, the first also 0."""
    total = 0.0
    for m in range(num_bins):
        inside = (confidence > m / num_bins) & (confidence <= (m + 1) / num_bins)
        if m == 0:
            inside |= confidence == 0
        mass = weights[inside].sum()
        if mass:
            accuracy = (weights * correct)[inside].sum() / mass
            stated = (weights * confidence)[inside].sum() / mass
            total += mass / weights.sum() * abs(accuracy - stated)
    return total


def random_case(seed, n=200):
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).astype(np.float32).astype(np.float64)
    return confidence, (rng.random(n) < confidence**2).astype(float), rng.integers(0, 3, n).astype(float)


@pytest.mark.parametrize("num_bins", [1, 2, 10, 15, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_agrees_with_a_plain_loop_over_bins(seed, num_bins):
    confidence, correct, weights = random_case(seed)
    found = error(confidence, correct, weights, num_bins)
    np.testing.assert_allclose(found, plain_error(confidence, correct, weights, num_bins), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("confidence", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_an_edge_belongs_to_the_bin_below_it(confidence):
    counted = reliability.sums(jnp.array([confidence]), jnp.ones(1), jnp.ones(1), 4)
    own = max(0, round(4 * confidence) - 1)
    np.testing.assert_array_equal(counted.weight, np.eye(4)[own])
    np.testing.assert_array_equal(counted.confidence, confidence * np.eye(4)[own])


@pytest.mark.parametrize("confidence", [0.0, 1.0])
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_certainty_is_wrong_by_how_often_it_is_wrong(confidence, right):
    np.testing.assert_allclose(error([confidence] * 3, [right] * 3), abs(confidence - right), atol=1e-7)


@pytest.mark.parametrize("num_right", [0, 3, 10])
def test_in_one_bin_the_error_is_accuracy_against_mean_confidence(num_right):
    confidence = np.linspace(0.61, 0.65, 10)  # inside (9/15, 10/15]
    correct = np.arange(10) < num_right
    np.testing.assert_allclose(error(confidence, correct), abs(num_right / 10 - confidence.mean()), rtol=1e-5)


def test_the_error_of_calibrated_predictions_tends_to_zero():
    rng = np.random.default_rng(0)
    for n in (1_000, 100_000):
        confidence = rng.random(n)
        found = error(confidence, rng.random(n) < confidence)
        # sum_m (n_m / n) |error_m| with error_m of deviation <= 1/2 / sqrt(n_m), and sum_m sqrt(n_m / n) <= sqrt(15)
        assert found <= 1.5 * 0.5 * np.sqrt(15 / n)


def test_errors_that_cancel_within_a_bin_show_in_finer_bins():
    confidence, correct = np.array([0.6, 0.9]), np.array([1.0, 0.5])
    coarse = error(np.repeat(confidence, 2), [1, 1, 1, 0], num_bins=1)
    fine = error(np.repeat(confidence, 2), [1, 1, 1, 0], num_bins=10)
    np.testing.assert_allclose(coarse, 0.0, atol=1e-6)
    np.testing.assert_allclose(fine, np.abs(confidence - correct).mean(), rtol=1e-5)


def test_parts_merge_by_addition():
    confidence, correct, weights = (jnp.asarray(x, jnp.float32) for x in random_case(0))
    whole = reliability.sums(confidence, correct, weights)
    parts = [reliability.sums(confidence[s], correct[s], weights[s]) for s in (slice(0, 30), slice(30, None))]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), jax.tree.map(np.add, *parts), whole
    )


def test_leading_axes_do_not_matter():
    confidence, correct, weights = (jnp.asarray(x, jnp.float32) for x in random_case(0))
    folded = reliability.sums(*(x.reshape(4, 50) for x in (confidence, correct, weights)))
    flat = reliability.sums(confidence, correct, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), folded, flat)


@pytest.mark.parametrize("absent", [0.3, np.nan, np.inf])
def test_weight_zero_is_absence(absent):
    present = error([0.7, 0.8], [1, 0])
    assert error([0.7, absent, 0.8], [1, absent, 0], [1, 0, 1]) == present


def test_the_error_of_nothing_is_no_number():
    assert np.isnan(error([], []))
    assert np.isnan(error([0.5], [1], [0]))
