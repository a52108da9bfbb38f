import itertools

import numpy as np
import pytest

from heteroscedastic.calibration import selective


def test_the_risk_is_the_error_rate_among_the_most_confident():
    actual = selective.risk_coverage(
        np.array([0.5, 0.9, 0.7, 0.6]), np.array([False, True, False, True])
    )
    np.testing.assert_allclose(actual.risk, [0, 1 / 2, 1 / 3, 2 / 4])
    np.testing.assert_allclose(actual.coverage, [0.25, 0.5, 0.75, 1.0])
    assert actual.area == pytest.approx(np.mean(actual.risk))
    assert actual.optimum == pytest.approx(np.mean([0, 0, 1 / 3, 1 / 2]))


def test_ties_give_the_mean_over_their_orders():
    confidence = np.array([0.9, 0.5, 0.5, 0.5, 0.2, 0.2])
    correct = np.array([True, False, True, True, False, True])
    risks = []
    for order in itertools.permutations(range(6)):
        if np.all(np.diff(confidence[list(order)]) <= 0):
            risks.append(np.cumsum(~correct[list(order)]) / np.arange(1, 7))
    np.testing.assert_allclose(
        selective.risk_coverage(confidence, correct).risk, np.mean(risks, axis=0)
    )


def test_infinite_confidences_are_ties():
    for correct in ([True, False, True], [False, True, True]):
        infinite, equal = (
            selective.risk_coverage(np.array([x, x, 0.0]), np.array(correct)).risk
            for x in (np.inf, 1.0)
        )
        np.testing.assert_array_equal(infinite, equal)


def test_the_best_order_reaches_the_optimum_and_no_order_is_below_it():
    draws = np.random.default_rng(0)
    correct = draws.random(50) < 0.7
    assert all(selective.risk_coverage(draws.random(50), correct).excess > 0 for _ in range(20))
    assert selective.risk_coverage(
        correct + 0.1 * draws.random(50), correct
    ).excess == pytest.approx(0)


def test_with_equal_confidences_the_area_is_the_error_rate():
    correct = np.arange(10) < 7
    assert selective.risk_coverage(np.ones(10), correct).area == pytest.approx(0.3)


def test_the_curve_depends_only_on_the_order_of_the_confidences():
    draws = np.random.default_rng(1)
    confidence, correct = draws.random(30), draws.random(30) < 0.5
    one, other = (selective.risk_coverage(c, correct) for c in (confidence, confidence**3 - 1))
    np.testing.assert_allclose(one.risk, other.risk)


def test_the_curve_of_many_examples_is_thinned_and_the_area_is_exact():
    draws = np.random.default_rng(2)
    confidence = draws.random(5003)
    correct = draws.random(5003) < confidence
    actual = selective.risk_coverage(confidence, correct)
    complete = np.cumsum(~correct[np.argsort(-confidence)]) / np.arange(1, 5004)
    assert len(actual.risk) == len(actual.coverage) == 1000
    assert (actual.coverage[0], actual.coverage[-1]) == (1 / 5003, 1)
    assert np.diff(actual.coverage).max() < 1.2 / 1000
    np.testing.assert_allclose(
        actual.risk, complete[np.round(actual.coverage * 5003).astype(int) - 1]
    )
    assert actual.area == pytest.approx(complete.mean())


def test_missing_examples_are_an_error():
    with pytest.raises(ValueError, match="there are no examples"):
        selective.risk_coverage(np.zeros(0), np.zeros(0, bool))
