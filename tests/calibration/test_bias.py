"""The floor of the calibration error and its debiased estimate, against simulations."""

import numpy as np
import pytest
from scipy import stats

from heteroscedastic.calibration import bias, reliability

EDGES = reliability.equal_edges(15)


def error(confidence, correct):
    one_class = np.zeros(len(confidence), int)
    sums = reliability.sums_by_class(confidence, correct, one_class, EDGES, 1)
    return float(reliability.expected_calibration_error(sums)[0])


@pytest.mark.parametrize("n", [200, 5000])
def test_the_floor_is_the_mean_error_of_a_perfect_model(n):
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 2, n)
    errors = [error(confidence, rng.random(n) < confidence) for _ in range(400)]
    floor = bias.error_floor(confidence, EDGES)
    assert np.mean(errors) == pytest.approx(floor, abs=4 * np.std(errors) / 20 + 0.02 * floor)


def test_a_confidence_at_an_edge_is_in_the_bin_below_as_in_the_error():
    confidence = np.array([0.4, 0.5])
    edges = np.array([0.0, 0.5, 1.0], np.float32)
    floor = np.sqrt(2 / np.pi * np.sum(confidence * (1 - confidence))) / 2  # of one bin
    assert bias.error_floor(confidence, edges) == pytest.approx(floor)


def test_certain_predictions_have_no_floor_and_no_bias():
    certain = np.ones(10)
    assert bias.error_floor(certain, EDGES) == 0
    assert bias.debiased_error(certain, np.ones(10, bool), EDGES) == 0
    assert bias.debiased_error(certain, np.zeros(10, bool), EDGES) == 1


def test_the_estimate_is_the_mean_of_the_resampling():
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.3, 1, 400)
    correct = rng.random(400) < confidence**2
    plain = error(confidence, correct)
    bins = np.searchsorted(EDGES[1:-1], confidence.astype(np.float32))
    resampled = np.zeros(20_000)
    for m in np.unique(bins):
        own = bins == m
        mean, count = correct[own].mean(), own.sum()
        deviation = np.sqrt(mean * (1 - mean) / count)
        drawn = mean + deviation * rng.standard_normal(len(resampled))
        resampled += count / 400 * np.abs(drawn - confidence[own].mean())
    expected = 2 * plain - resampled.mean()
    assert bias.debiased_error(confidence, correct, EDGES) == pytest.approx(
        expected, abs=4 * stats.sem(resampled) + 1e-6
    )


def test_the_estimate_has_less_bias_than_the_error():
    rng, n = np.random.default_rng(2), 500
    confidence = np.repeat(np.linspace(0.35, 0.95, 10), n // 10)
    truth = 0.04
    plain, debiased = [], []
    for _ in range(400):
        correct = rng.random(n) < confidence - truth
        plain.append(error(confidence, correct))
        debiased.append(bias.debiased_error(confidence, correct, EDGES))
    assert abs(np.mean(debiased) - truth) < 0.6 * abs(np.mean(plain) - truth)


def test_empty_bins_change_nothing():
    confidence, correct = np.array([0.9, 0.91, 0.92]), np.array([True, False, True])
    coarse = np.array([0.0, 0.8, 1.0], np.float32)
    fine = np.array([0.0, 0.1, 0.2, 0.8, 0.99, 1.0], np.float32)
    assert bias.error_floor(confidence, fine) == bias.error_floor(confidence, coarse)
    found = [bias.debiased_error(confidence, correct, edges) for edges in (fine, coarse)]
    assert found[0] == found[1]
