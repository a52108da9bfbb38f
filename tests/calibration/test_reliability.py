import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.calibration import reliability


def counted(confidence, correct, weights=None, num_bins=15, low=0.0):
    """Sums over equal bins of these examples."""
    confidence = jnp.asarray(confidence, jnp.float32)
    weights = jnp.ones_like(confidence) if weights is None else jnp.asarray(weights, jnp.float32)
    edges = reliability.equal_edges(num_bins, low)
    return reliability.sums(confidence, jnp.asarray(correct, jnp.float32), weights, edges)


def error(*args, **settings):
    """The expected calibration error of these examples."""
    return reliability.expected_calibration_error(counted(*args, **settings))


def plain_gaps(confidence, correct, weights, num_bins, low=0.0):
    """(fraction of examples, accuracy, mean confidence, centre) of each nonempty bin, by a loop.

    Bin m holds low + m/M (1 - low) < confidence <= low + (m+1)/M (1 - low); the first bin also
    holds all smaller confidences.
    """
    actual = []
    for m in range(num_bins):
        bottom, top = (low + (1 - low) * x / num_bins for x in (m, m + 1))
        inside = (confidence > bottom if m else confidence == confidence) & (confidence <= top)
        mass = weights[inside].sum()
        if mass:
            accuracy = (weights * correct)[inside].sum() / mass
            stated = (weights * confidence)[inside].sum() / mass
            actual.append((mass / weights.sum(), accuracy, stated, (bottom + top) / 2))
    return np.array(actual).T


def random_case(seed, n=200):
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).astype(np.float32).astype(np.float64)
    return (
        confidence,
        (rng.random(n) < confidence**2).astype(float),
        rng.integers(0, 3, n).astype(float),
    )


def hostile_case(name):
    """A case with all confidences in one bin, with certainty only, or with many ties."""
    rng = np.random.default_rng(0)
    confidence = {
        "one bin": 0.61 + 0.05 * rng.random(60),
        "certain": rng.integers(0, 2, 60).astype(float),
        "ties": rng.choice([0.125, 0.5, 0.875], 60),
    }[name]
    return (
        confidence.astype(np.float32).astype(np.float64),
        rng.integers(0, 2, 60).astype(float),
        np.ones(60),
    )


CASES = [random_case(0), random_case(1), *map(hostile_case, ("one bin", "certain", "ties"))]


@pytest.mark.parametrize("num_bins", [1, 2, 10, 15, 100])
@pytest.mark.parametrize("case", CASES)
def test_the_errors_agree_with_a_plain_loop_over_bins(case, num_bins):
    share, accuracy, stated, _ = plain_gaps(*case, num_bins)
    actual, gaps = counted(*case, num_bins), np.abs(accuracy - stated)
    expected = reliability.expected_calibration_error(actual)
    np.testing.assert_allclose(expected, (share * gaps).sum(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        reliability.maximum_calibration_error(actual), gaps.max(), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("num_bins", [1, 15, 100])
@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("case", CASES)
def test_errors_by_bin_centre_agree_with_a_plain_loop(case, num_classes, num_bins):
    low = 1 / num_classes
    confidence, correct, weights = case
    confidence = np.maximum(confidence, np.float32(low)).astype(np.float32).astype(np.float64)
    edges = reliability.equal_edges(num_bins, low)
    moved = reliability.centered(jnp.asarray(confidence, jnp.float32), edges)
    actual = counted(moved, correct, weights, num_bins, low)
    share, accuracy, _, center = plain_gaps(confidence, correct, weights, num_bins, low)
    gaps = np.abs(accuracy - center)
    np.testing.assert_allclose(
        reliability.expected_calibration_error(actual), (share * gaps).sum(), rtol=1e-4
    )
    np.testing.assert_allclose(reliability.maximum_calibration_error(actual), gaps.max(), rtol=1e-4)


def test_only_the_error_by_bin_centre_can_be_below_the_gap_of_the_means():
    confidence, correct = jnp.full(10, 0.79), np.arange(10) < 6  # in (0.6, 0.8], of centre 0.7
    moved = reliability.centered(confidence, reliability.equal_edges(5))
    assert error(moved, correct, num_bins=5) == pytest.approx(0.1, rel=1e-5)
    assert error(confidence, correct, num_bins=5) == pytest.approx(0.19, rel=1e-5)
    for case in CASES:
        actual = counted(*case)
        accuracy = np.sum(actual.correct) / np.sum(actual.weight)
        gap = abs(accuracy - reliability.mean_confidence(actual))
        assert reliability.expected_calibration_error(actual) >= gap - 1e-6


@pytest.mark.parametrize("confidence", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_an_edge_belongs_to_the_bin_below_it(confidence):
    actual = counted([confidence], [1], num_bins=4)
    own = max(0, round(4 * confidence) - 1)
    np.testing.assert_array_equal(actual.weight, np.eye(4)[own])
    np.testing.assert_array_equal(actual.confidence, confidence * np.eye(4)[own])


def test_an_ulp_above_an_edge_is_above_it():
    edges = reliability.equal_edges(15)
    for confidence, own in (
        (edges[1:-1], np.arange(14)),
        (np.nextafter(edges[1:-1], 1), np.arange(1, 15)),
    ):
        for one, at in zip(confidence, own):
            assert counted([one], [1]).weight[at] == 1


def test_values_outside_the_edges_are_in_the_outermost_bins():
    actual = reliability.sums(
        jnp.array([0.1, 0.9]), jnp.ones(2), jnp.ones(2), np.array([0.4, 0.5, 0.6], np.float32)
    )
    np.testing.assert_array_equal(actual.weight, [1, 1])


@pytest.mark.parametrize("confidence", [0.0, 1.0])
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_the_error_of_certain_predictions_is_their_error_rate(confidence, right):
    np.testing.assert_allclose(
        error([confidence] * 3, [right] * 3), abs(confidence - right), atol=1e-7
    )


@pytest.mark.parametrize("num_right", [0, 3, 10])
def test_the_error_of_one_bin_is_the_gap_of_accuracy_and_mean_confidence(num_right):
    confidence = np.linspace(0.61, 0.65, 10)  # inside (9/15, 10/15]
    correct = np.arange(10) < num_right
    np.testing.assert_allclose(
        error(confidence, correct), abs(num_right / 10 - confidence.mean()), rtol=1e-5
    )


def test_the_error_of_calibrated_predictions_tends_to_zero():
    rng = np.random.default_rng(0)
    for n in (1_000, 100_000):
        confidence = rng.random(n)
        actual = error(confidence, rng.random(n) < confidence)
        # The error is sum_m (n_m / n) |error_m|, where error_m has a standard deviation of at most
        # 1 / (2 sqrt(n_m)), and sum_m sqrt(n_m / n) <= sqrt(15).
        assert actual <= 1.5 * 0.5 * np.sqrt(15 / n)


def test_errors_that_cancel_within_a_bin_appear_in_finer_bins():
    confidence, correct = np.array([0.6, 0.9]), np.array([1.0, 0.5])
    coarse = error(np.repeat(confidence, 2), [1, 1, 1, 0], num_bins=1)
    fine = error(np.repeat(confidence, 2), [1, 1, 1, 0], num_bins=10)
    np.testing.assert_allclose(coarse, 0.0, atol=1e-6)
    np.testing.assert_allclose(fine, np.abs(confidence - correct).mean(), rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_over_and_underconfidence_are_means_over_wrong_and_correct_predictions(case):
    actual, (confidence, correct, weights) = counted(*case), case
    wrong, right = weights * (1 - correct), weights * correct
    np.testing.assert_allclose(
        reliability.overconfidence(actual), np.average(confidence, weights=wrong), rtol=1e-5
    )
    np.testing.assert_allclose(
        reliability.underconfidence(actual),
        1 - np.average(confidence, weights=right),
        rtol=1e-4,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        reliability.mean_confidence(actual), np.average(confidence, weights=weights), rtol=1e-5
    )


@pytest.mark.parametrize("case", CASES)
def test_confidence_minus_accuracy_is_overconfidence_minus_underconfidence(
    case,
):
    actual = counted(*case)
    accuracy = np.sum(actual.correct) / np.sum(actual.weight)
    o, u = reliability.overconfidence(actual), reliability.underconfidence(actual)
    expected = (1 - accuracy) * o - accuracy * u
    np.testing.assert_allclose(reliability.mean_confidence(actual) - accuracy, expected, atol=1e-6)


def test_without_wrong_or_correct_predictions_their_confidence_is_nan():
    assert np.isnan(reliability.overconfidence(counted([0.7], [1])))
    assert np.isnan(reliability.underconfidence(counted([0.7], [0])))


def test_parts_merge_by_addition():
    case = random_case(0)
    parts = [counted(*(x[s] for x in case)) for s in (slice(0, 30), slice(30, None))]
    merged = jax.tree.map(np.add, *parts)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), merged, counted(*case)
    )


def test_leading_axes_do_not_matter():
    case = random_case(0)
    folded = counted(*(x.reshape(4, 50) for x in case))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), folded, counted(*case)
    )


@pytest.mark.parametrize("absent", [0.3, np.nan, np.inf])
def test_an_example_of_weight_zero_is_absent(absent):
    jax.tree.map(
        np.testing.assert_array_equal,
        counted([0.7, absent, 0.8], [1, absent, 0], [1, 0, 1]),
        counted([0.7, 0.8], [1, 0]),
    )


def test_a_nan_confidence_gives_nan():
    confidence = jnp.array([0.5, jnp.nan])
    for stated in (confidence, reliability.centered(confidence, reliability.equal_edges(15))):
        actual = counted(stated, [1, 1])
        assert np.isnan(reliability.expected_calibration_error(actual))
        assert np.isnan(reliability.maximum_calibration_error(actual))


def test_errors_without_examples_are_nan():
    for nothing in (counted([], []), counted([0.5], [1], [0])):
        for read in (
            reliability.expected_calibration_error,
            reliability.maximum_calibration_error,
            reliability.mean_confidence,
        ):
            assert np.isnan(read(nothing))


def test_zero_bins_are_an_error():
    with pytest.raises(ValueError, match="num_bins is 0"):
        reliability.equal_edges(0)
