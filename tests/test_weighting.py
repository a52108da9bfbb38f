import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import weighting

LABELS = np.repeat([0, 1, 3], [7, 2, 1])  # class 2 of 0 to 3 is absent
COUNTS = jnp.asarray(np.bincount(LABELS, minlength=4), jnp.float32)
TARGETS = jax.nn.one_hot(LABELS, 4)


@pytest.mark.parametrize("scheme", [weighting.equal, weighting.inverse_frequency])
def test_weights_have_mean_one_over_the_training_set(scheme):
    np.testing.assert_allclose(np.mean(scheme(TARGETS, COUNTS)), 1.0, rtol=1e-6)


def test_inverse_frequency_gives_every_class_the_same_total():
    weights = weighting.inverse_frequency(TARGETS, COUNTS)
    totals = np.bincount(LABELS, weights=weights, minlength=4)
    np.testing.assert_allclose(totals[[0, 1, 3]], len(LABELS) / 3, rtol=1e-6)


def test_balanced_classes_have_weight_one_under_every_scheme():
    targets = jnp.eye(5)
    counts = jnp.full(5, 20.0)
    np.testing.assert_allclose(
        weighting.inverse_frequency(targets, counts), weighting.equal(targets, counts), rtol=1e-6
    )


def test_equal_weights_are_one_for_any_counts():
    np.testing.assert_array_equal(
        weighting.equal(jnp.full((2, 3, 4), 0.25), COUNTS), np.ones((2, 3))
    )


def test_an_absent_class_has_weight_zero_and_does_not_change_the_others():
    present = np.array([0, 1, 3])
    without = weighting.inverse_frequency(jnp.eye(3), COUNTS[present])
    weights = weighting.inverse_frequency(jnp.eye(4), COUNTS)
    np.testing.assert_allclose(weights[present], without, rtol=1e-6)
    assert weights[2] == 0


def test_without_examples_all_weights_are_zero():
    np.testing.assert_array_equal(
        weighting.inverse_frequency(jnp.eye(3), jnp.zeros(3)), np.zeros(3)
    )


def test_mixed_targets_have_the_expected_weight_of_the_class():
    rng = np.random.default_rng(0)
    targets = rng.dirichlet(np.ones(4), size=(2, 3))
    of_class = weighting.inverse_frequency(jnp.eye(4), COUNTS)
    expected = sum(targets[..., c] * float(of_class[c]) for c in range(4))
    np.testing.assert_allclose(
        weighting.inverse_frequency(jnp.asarray(targets, jnp.float32), COUNTS), expected, rtol=1e-5
    )
