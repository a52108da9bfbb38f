import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic.calibration import bootstrap


def test_moments_agree_with_draws_with_replacement():
    values = np.random.default_rng(0).normal(size=(200, 2)) @ np.array([[1.0, 0.5], [0.0, 2.0]])
    actual = bootstrap.resampled_sums(values, 4000)
    expected = 200 * np.cov(values.T, bias=True)
    assert np.all(np.abs(actual.mean(0) - values.sum(0)) < 4 * np.sqrt(np.diag(expected) / 4000))
    np.testing.assert_allclose(np.cov(actual.T), expected, rtol=0.1)


def test_the_seed_determines_the_draws():
    values = np.arange(12.0).reshape(6, 2)
    one, again, other = (bootstrap.resampled_sums(values, 5, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)


def test_every_resample_has_the_same_number_of_examples(monkeypatch):
    monkeypatch.setattr(bootstrap, "_CHUNK_VALUES", 40)  # several chunks, the last one short
    np.testing.assert_array_equal(
        bootstrap.resampled_sums(np.ones((20, 1)), 5), np.full((5, 1), 20.0)
    )


def test_the_interval_of_a_proportion_has_its_nominal_coverage():
    draws, share, covered = np.random.default_rng(0), 0.3, 0
    for seed in range(300):
        values = (draws.random((150, 1)) < share).astype(float)
        low, high = bootstrap.percentile_band(
            bootstrap.resampled_sums(values, 200, seed) / 150, 0.9
        )
        covered += low[0] <= share <= high[0]
    assert stats.binomtest(covered, 300, 0.9).pvalue > 0.001


def test_the_interval_ignores_nan():
    statistics = np.stack([np.arange(101.0), np.full(101, np.nan)], axis=1)
    statistics = np.concatenate([statistics, np.full((10, 2), np.nan)])
    low, high = bootstrap.percentile_band(statistics, 0.9)
    np.testing.assert_allclose([low[0], high[0]], [5, 95])
    assert np.isnan([low[1], high[1]]).all()


def test_invalid_arguments_are_errors():
    with pytest.raises(ValueError, match="must be >= 1"):
        bootstrap.resampled_sums(np.zeros((0, 1)), 10)
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap.percentile_band(np.zeros((3, 1)), 95)


def _interval(statistics, value):
    errors = bootstrap.errors_of_runs(statistics)
    return bootstrap.corrected_interval(value, statistics.mean(axis=1), errors)


def test_the_interval_over_runs_alone_is_that_of_student():
    of_runs = np.array([0.0, 1.0, 5.0])
    expected = stats.t.interval(0.95, 2, of_runs.mean(), stats.sem(of_runs))
    actual = _interval(np.tile(of_runs, (1000, 1)), 2.0)
    np.testing.assert_allclose(actual, (2.0, *expected), rtol=0.02)


def test_the_bias_of_the_examples_does_not_move_the_errors_of_runs():
    """A calibration error of two runs is above its value in every resample."""
    rng, of_runs = np.random.default_rng(0), np.array([0.10, 0.12])
    statistics = of_runs + 0.01 + 1e-4 * rng.normal(size=(1000, 1))
    actual = _interval(statistics, 0.11)
    expected = stats.t.interval(0.95, 1, 0.12, stats.sem(of_runs))
    np.testing.assert_allclose(actual, (0.11, *expected), atol=0.004)


def test_examples_and_runs_add_up_and_one_run_has_examples_alone():
    rng = np.random.default_rng(0)
    of_examples, of_runs = rng.normal(size=(20000, 1)), rng.normal(size=40)
    errors = bootstrap.errors_of_runs(of_examples + of_runs)
    assert errors.mean() == pytest.approx(0, abs=0.01)
    of_student = np.var(of_runs, ddof=1) / 40 * stats.t.var(39)
    assert np.var(of_examples[:, 0] + errors) == pytest.approx(1 + of_student, rel=0.05)
    assert not bootstrap.errors_of_runs(of_examples).any()


def test_the_corrected_interval_covers_a_biased_number_better_than_percentiles():
    """A mean of absolute values of bins, such as a calibration error, is biased upwards."""
    rng, covered, by_percentile, true = np.random.default_rng(0), 0, 0, 0.03
    for seed in range(100):
        gaps = np.zeros((400, 10))
        gaps[np.arange(400), rng.integers(10, size=400)] = rng.normal(true, 0.25, size=400)
        value = np.abs(gaps.sum(axis=0)).sum() / 400
        sums = bootstrap.resampled_sums(gaps, 200, seed)
        draws = np.abs(sums).sum(axis=-1) / 400
        _, low, high = bootstrap.corrected_interval(value, draws)
        assert low <= value <= high
        covered += low <= true <= high
        low, high = np.quantile(draws, [0.025, 0.975])
        by_percentile += low <= true <= high
    assert covered > by_percentile + 30


def test_without_bias_the_corrected_interval_holds_the_percentiles():
    draws = np.arange(1001.0)
    _, low, high = bootstrap.corrected_interval(500.0, draws, level=0.9)
    np.testing.assert_allclose([low, high], [50, 950], atol=0.01)
    assert bootstrap.corrected_interval(0.0, 1 + draws / 1000).low == 0.0  # it holds the number
    assert bootstrap.corrected_interval(1.0, np.ones(100)) == (1.0, 1.0, 1.0)


def test_the_bias_is_corrected_at_both_ends_by_the_formula_of_the_source():
    value, draws = 200.0, np.arange(1001.0)
    bias = special.ndtri((value + 0.5) / 1001)
    expected = 1000 * special.ndtr(2 * bias + special.ndtri([0.05, 0.95]))
    _, low, high = bootstrap.corrected_interval(value, draws, level=0.9)
    np.testing.assert_allclose([low, high], expected, atol=1)


def test_examples_of_a_group_are_drawn_together():
    """Copies of each sentence add nothing, in any order."""
    rng = np.random.default_rng(0)
    sentences, groups = rng.normal(size=(30, 2)), np.repeat(np.arange(30), 7)
    order = rng.permutation(210)
    tokens = bootstrap.resampled_sums(sentences[groups[order]], 50, 3, 10 * groups[order])
    np.testing.assert_allclose(tokens, 7 * bootstrap.resampled_sums(sentences, 50, 3))


def test_the_number_of_examples_varies_with_the_groups_that_are_drawn():
    groups = np.array([0, 1, 1, 1, 1])
    counts = bootstrap.resampled_sums(np.ones((5, 1)), 200, 0, groups)
    assert set(np.unique(counts)) == {2, 5, 8}
