import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import weighting

LABELS = np.repeat([0, 1, 3], [7, 2, 1])  # class 2 of 0 to 3 is absent
COUNTS = jnp.asarray(np.bincount(LABELS, minlength=4), jnp.float32)
TARGETS = jax.nn.one_hot(LABELS, 4)
BY_COUNT = [
    weighting.inverse_frequency,
    *(functools.partial(weighting.effective_number, beta=beta) for beta in (0.0, 0.9, 0.9999)),
]


@pytest.mark.parametrize("scheme", [weighting.equal, *BY_COUNT])
def test_weights_have_mean_one_over_the_training_set(scheme):
    np.testing.assert_allclose(np.mean(scheme(TARGETS, COUNTS)), 1.0, rtol=1e-6)


def test_inverse_frequency_gives_every_class_the_same_total():
    weights = weighting.inverse_frequency(TARGETS, COUNTS)
    totals = np.bincount(LABELS, weights=weights, minlength=4)
    np.testing.assert_allclose(totals[[0, 1, 3]], len(LABELS) / 3, rtol=1e-6)


@pytest.mark.parametrize("scheme", BY_COUNT)
def test_balanced_classes_have_weight_one_under_every_scheme(scheme):
    targets = jnp.eye(5)
    counts = jnp.full(5, 20.0)
    np.testing.assert_allclose(scheme(targets, counts), weighting.equal(targets, counts), rtol=1e-6)


@pytest.mark.parametrize(
    "beta", [0.0, 1e-6, 0.5, 0.9, 0.999, 0.9999, 1 - 1e-6, 1 - 1e-9, 1 - 2**-53]
)
def test_effective_number_agrees_with_float64_for_counts_from_1_to_ten_million(beta):
    counts = np.unique(np.geomspace(1, 1e7, 200).round())
    log_beta = np.log1p(-(1 - beta)) if beta else -np.inf
    exact = -(1 - beta) / np.expm1(counts * log_beta)
    exact /= np.average(exact, weights=counts)
    weights = weighting.effective_number(
        jnp.eye(len(counts)), jnp.asarray(counts, jnp.float32), beta=beta
    )
    np.testing.assert_allclose(weights, exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("beta", "limit"), [(0.0, weighting.equal), (1 - 2**-53, weighting.inverse_frequency)]
)
def test_effective_number_is_between_equal_weights_and_inverse_frequency(beta, limit):
    counts = jnp.array([1.0, 30.0, 4000.0, 1e7])
    np.testing.assert_allclose(
        weighting.effective_number(jnp.eye(4), counts, beta=beta),
        limit(jnp.eye(4), counts),
        rtol=1e-6,
    )


@pytest.mark.parametrize("beta", [-0.1, 1.0, 1.5, float("nan")])
def test_a_bad_beta_is_an_error(beta):
    with pytest.raises(
        ValueError, match=f"beta is {beta}; it must be a finite number >= 0 and < 1"
    ):
        weighting.effective_number(TARGETS, COUNTS, beta=beta)


def test_equal_weights_are_one_for_any_counts():
    np.testing.assert_array_equal(
        weighting.equal(jnp.full((2, 3, 4), 0.25), COUNTS), np.ones((2, 3))
    )


@pytest.mark.parametrize("scheme", BY_COUNT)
def test_an_absent_class_has_weight_zero_and_does_not_change_the_others(scheme):
    present = np.array([0, 1, 3])
    without = scheme(jnp.eye(3), COUNTS[present])
    weights = scheme(jnp.eye(4), COUNTS)
    np.testing.assert_allclose(weights[present], without, rtol=1e-6)
    assert weights[2] == 0


@pytest.mark.parametrize("scheme", BY_COUNT)
def test_without_examples_all_weights_are_zero(scheme):
    np.testing.assert_array_equal(scheme(jnp.eye(3), jnp.zeros(3)), np.zeros(3))


@pytest.mark.parametrize("scheme", BY_COUNT)
def test_mixed_targets_have_the_expected_weight_of_the_class(scheme):
    rng = np.random.default_rng(0)
    targets = rng.dirichlet(np.ones(4), size=(2, 3))
    of_class = scheme(jnp.eye(4), COUNTS)
    expected = sum(targets[..., c] * float(of_class[c]) for c in range(4))
    np.testing.assert_allclose(
        scheme(jnp.asarray(targets, jnp.float32), COUNTS), expected, rtol=1e-5
    )
