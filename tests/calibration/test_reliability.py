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
    """A bin at a time, of those that hold anything: its share, and accuracy, mean confidence and
    centre.

    Bin m holds low + m/M (1 - low) < confidence <= low + (m+1)/M (1 - low), the first also what is
    below.
    """
    found = []
    for m in range(num_bins):
        bottom, top = (low + (1 - low) * x / num_bins for x in (m, m + 1))
        inside = (confidence > bottom if m else confidence == confidence) & (confidence <= top)
        mass = weights[inside].sum()
        if mass:
            accuracy = (weights * correct)[inside].sum() / mass
            stated = (weights * confidence)[inside].sum() / mass
            found.append((mass / weights.sum(), accuracy, stated, (bottom + top) / 2))
    return np.array(found).T


def random_case(seed, n=200):
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).astype(np.float32).astype(np.float64)
    return (
        confidence,
        (rng.random(n) < confidence**2).astype(float),
        rng.integers(0, 3, n).astype(float),
    )


def hostile_case(name):
    """All in one bin; certainty alone; many ties."""
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
    found, gaps = counted(*case, num_bins), np.abs(accuracy - stated)
    expected = reliability.expected_calibration_error(found)
    np.testing.assert_allclose(expected, (share * gaps).sum(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        reliability.maximum_calibration_error(found), gaps.max(), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("num_bins", [1, 15, 100])
@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("case", CASES)
def test_by_centre_the_errors_compare_accuracy_with_the_middle_of_the_bin(
    case, num_classes, num_bins
):
    low = 1 / num_classes
    confidence, correct, weights = case
    confidence = np.maximum(confidence, np.float32(low)).astype(np.float32).astype(np.float64)
    edges = reliability.equal_edges(num_bins, low)
    moved = reliability.centered(jnp.asarray(confidence, jnp.float32), edges)
    found = counted(moved, correct, weights, num_bins, low)
    share, accuracy, _, center = plain_gaps(confidence, correct, weights, num_bins, low)
    gaps = np.abs(accuracy - center)
    np.testing.assert_allclose(
        reliability.expected_calibration_error(found), (share * gaps).sum(), rtol=1e-4
    )
    np.testing.assert_allclose(reliability.maximum_calibration_error(found), gaps.max(), rtol=1e-4)


def test_by_centre_the_error_may_be_below_the_gap_of_the_means_and_else_never():
    confidence, correct = jnp.full(10, 0.79), np.arange(10) < 6  # in (0.6, 0.8], of centre 0.7
    moved = reliability.centered(confidence, reliability.equal_edges(5))
    assert error(moved, correct, num_bins=5) == pytest.approx(0.1, rel=1e-5)
    assert error(confidence, correct, num_bins=5) == pytest.approx(0.19, rel=1e-5)
    for case in CASES:
        found = counted(*case)
        accuracy = np.sum(found.correct) / np.sum(found.weight)
        gap = abs(accuracy - reliability.mean_confidence(found))
        assert reliability.expected_calibration_error(found) >= gap - 1e-6


@pytest.mark.parametrize("confidence", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_an_edge_belongs_to_the_bin_below_it(confidence):
    found = counted([confidence], [1], num_bins=4)
    own = max(0, round(4 * confidence) - 1)
    np.testing.assert_array_equal(found.weight, np.eye(4)[own])
    np.testing.assert_array_equal(found.confidence, confidence * np.eye(4)[own])


def test_an_ulp_above_an_edge_is_above_it():
    edges = reliability.equal_edges(15)
    for confidence, own in (
        (edges[1:-1], np.arange(14)),
        (np.nextafter(edges[1:-1], 1), np.arange(1, 15)),
    ):
        for one, at in zip(confidence, own):
            assert counted([one], [1]).weight[at] == 1


def test_what_lies_outside_the_edges_is_in_the_outermost_bins():
    found = reliability.sums(
        jnp.array([0.1, 0.9]), jnp.ones(2), jnp.ones(2), np.array([0.4, 0.5, 0.6], np.float32)
    )
    np.testing.assert_array_equal(found.weight, [1, 1])


@pytest.mark.parametrize("confidence", [0.0, 1.0])
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_certainty_is_wrong_by_how_often_it_is_wrong(confidence, right):
    np.testing.assert_allclose(
        error([confidence] * 3, [right] * 3), abs(confidence - right), atol=1e-7
    )


@pytest.mark.parametrize("num_right", [0, 3, 10])
def test_in_one_bin_the_error_is_accuracy_against_mean_confidence(num_right):
    confidence = np.linspace(0.61, 0.65, 10)  # inside (9/15, 10/15]
    correct = np.arange(10) < num_right
    np.testing.assert_allclose(
        error(confidence, correct), abs(num_right / 10 - confidence.mean()), rtol=1e-5
    )


def test_the_error_of_calibrated_predictions_tends_to_zero():
    rng = np.random.default_rng(0)
    for n in (1_000, 100_000):
        confidence = rng.random(n)
        found = error(confidence, rng.random(n) < confidence)
        # sum_m (n_m / n) |error_m| with error_m of deviation <= 1/2 / sqrt(n_m), and sum_m sqrt(n_m
        # / n) <= sqrt(15)
        assert found <= 1.5 * 0.5 * np.sqrt(15 / n)


def test_errors_that_cancel_within_a_bin_show_in_finer_bins():
    confidence, correct = np.array([0.6, 0.9]), np.array([1.0, 0.5])
    coarse = error(np.repeat(confidence, 2), [1, 1, 1, 0], num_bins=1)
    fine = error(np.repeat(confidence, 2), [1, 1, 1, 0], num_bins=10)
    np.testing.assert_allclose(coarse, 0.0, atol=1e-6)
    np.testing.assert_allclose(fine, np.abs(confidence - correct).mean(), rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_over_and_underconfidence_are_means_over_the_wrong_and_the_right(case):
    found, (confidence, correct, weights) = counted(*case), case
    wrong, right = weights * (1 - correct), weights * correct
    np.testing.assert_allclose(
        reliability.overconfidence(found), np.average(confidence, weights=wrong), rtol=1e-5
    )
    np.testing.assert_allclose(
        reliability.underconfidence(found),
        1 - np.average(confidence, weights=right),
        rtol=1e-4,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        reliability.mean_confidence(found), np.average(confidence, weights=weights), rtol=1e-5
    )


@pytest.mark.parametrize("case", CASES)
def test_confidence_less_accuracy_is_overconfidence_of_the_wrong_less_underconfidence_of_the_right(
    case,
):
    found = counted(*case)
    accuracy = np.sum(found.correct) / np.sum(found.weight)
    o, u = reliability.overconfidence(found), reliability.underconfidence(found)
    expected = (1 - accuracy) * o - accuracy * u
    np.testing.assert_allclose(reliability.mean_confidence(found) - accuracy, expected, atol=1e-6)


def test_without_wrong_or_right_predictions_their_confidence_is_no_number():
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
def test_weight_zero_is_absence(absent):
    jax.tree.map(
        np.testing.assert_array_equal,
        counted([0.7, absent, 0.8], [1, absent, 0], [1, 0, 1]),
        counted([0.7, 0.8], [1, 0]),
    )


def test_a_confidence_that_is_no_number_shows():
    confidence = jnp.array([0.5, jnp.nan])
    for stated in (confidence, reliability.centered(confidence, reliability.equal_edges(15))):
        found = counted(stated, [1, 1])
        assert np.isnan(reliability.expected_calibration_error(found))
        assert np.isnan(reliability.maximum_calibration_error(found))


def test_the_errors_of_nothing_are_no_numbers():
    for nothing in (counted([], []), counted([0.5], [1], [0])):
        for read in (
            reliability.expected_calibration_error,
            reliability.maximum_calibration_error,
            reliability.mean_confidence,
        ):
            assert np.isnan(read(nothing))


def test_bins_are_one_or_more():
    with pytest.raises(ValueError, match="num_bins is 0"):
        reliability.equal_edges(0)
