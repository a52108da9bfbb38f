import itertools

import numpy as np
import pytest

from heteroscedastic.calibration import selective


def test_the_risk_is_the_share_of_errors_among_the_most_confident():
    found = selective.risk_coverage(
        np.array([0.5, 0.9, 0.7, 0.6]), np.array([False, True, False, True])
    )
    np.testing.assert_allclose(found.risk, [0, 1 / 2, 1 / 3, 2 / 4])
    np.testing.assert_allclose(found.coverage, [0.25, 0.5, 0.75, 1.0])
    assert found.area == pytest.approx(np.mean(found.risk))
    assert found.optimum == pytest.approx(np.mean([0, 0, 1 / 3, 1 / 2]))


def test_ties_are_the_mean_over_their_orders():
    confidence = np.array([0.9, 0.5, 0.5, 0.5, 0.2, 0.2])
    correct = np.array([True, False, True, True, False, True])
    risks = []
    for order in itertools.permutations(range(6)):
        if np.all(np.diff(confidence[list(order)]) <= 0):
            risks.append(np.cumsum(~correct[list(order)]) / np.arange(1, 7))
    np.testing.assert_allclose(
        selective.risk_coverage(confidence, correct).risk, np.mean(risks, axis=0)
    )


def test_no_order_is_below_the_optimum_and_the_best_one_reaches_it():
    draws = np.random.default_rng(0)
    correct = draws.random(50) < 0.7
    assert all(selective.risk_coverage(draws.random(50), correct).excess > 0 for _ in range(20))
    assert selective.risk_coverage(
        correct + 0.1 * draws.random(50), correct
    ).excess == pytest.approx(0)


def test_without_knowledge_the_area_is_the_error():
    correct = np.arange(10) < 7
    assert selective.risk_coverage(np.ones(10), correct).area == pytest.approx(0.3)


def test_only_the_order_of_the_confidence_counts():
    draws = np.random.default_rng(1)
    confidence, correct = draws.random(30), draws.random(30) < 0.5
    one, other = (selective.risk_coverage(c, correct) for c in (confidence, confidence**3 - 1))
    np.testing.assert_allclose(one.risk, other.risk)


def test_of_many_examples_the_curve_is_thin_and_the_area_that_of_all():
    draws = np.random.default_rng(2)
    confidence = draws.random(5003)
    correct = draws.random(5003) < confidence
    found = selective.risk_coverage(confidence, correct)
    whole = np.cumsum(~correct[np.argsort(-confidence)]) / np.arange(1, 5004)
    assert len(found.risk) == len(found.coverage) == 1000
    assert (found.coverage[0], found.coverage[-1]) == (1 / 5003, 1)
    assert np.diff(found.coverage).max() < 1.2 / 1000
    np.testing.assert_allclose(found.risk, whole[np.round(found.coverage * 5003).astype(int) - 1])
    assert found.area == pytest.approx(whole.mean())


def test_no_example_is_an_error():
    with pytest.raises(ValueError, match="there are no examples"):
        selective.risk_coverage(np.zeros(0), np.zeros(0, bool))
