"""Tests of differences over seeds: power by simulation, corrections, and other test sets."""

import numpy as np
import pytest
from scipy import stats

from experiments import statistics, study
from heteroscedastic.analysis.report import comparison
from heteroscedastic.runs.predictions import Predictions


def test_a_comparison_is_the_paired_t_test_of_the_common_seeds():
    ours = {0: 0.7, 1: 0.9, 2: 0.8, 5: 0.1}
    theirs = {0: 0.5, 1: 0.6, 2: 0.7, 4: 0.9}
    found = statistics.compared(ours, theirs)
    expected = stats.ttest_rel([0.7, 0.9, 0.8], [0.5, 0.6, 0.7])
    assert found.num_pairs == 3
    assert found.mean == pytest.approx(0.2)
    assert found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    deviation = stats.tstd([0.2, 0.3, 0.1])
    assert found.detectable == pytest.approx(statistics.detectable_difference(deviation, 3))


def test_a_slope_is_that_of_a_line_through_the_values_of_a_seed():
    values = {
        0.0: {0: 1.0, 1: 5.0, 2: 0.0},
        0.2: {0: 1.4, 1: 4.9, 2: 0.0},
        0.5: {0: 2.0, 1: 4.1},  # seed 2 is missing, so it has no slope
    }
    slopes = statistics.slopes(values)
    assert set(slopes) == {0, 1}
    assert slopes[0] == pytest.approx(2.0)
    assert slopes[1] == pytest.approx(stats.linregress([0.0, 0.2, 0.5], [5.0, 4.9, 4.1]).slope)
    constant = {x: {0: 1.0} for x in (0.0, 0.1, 0.2, 0.3, 0.4)}
    assert statistics.slopes(constant) == {0: 0.0}  # exactly, or it is a trend without spread


@pytest.mark.parametrize("num_pairs", [2, 3, 10, 40])
def test_the_detectable_difference_is_found_in_four_of_five_experiments(num_pairs):
    difference = statistics.detectable_difference(2.0, num_pairs)
    draws = np.random.default_rng(0).normal(difference, 2.0, (40_000, num_pairs))
    test = stats.ttest_1samp(draws, 0, axis=1)
    found = (test.pvalue < 0.05) & (test.statistic > 0)
    assert found.mean() == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / 40_000))


def test_values_without_spread_have_the_p_value_of_their_limit():
    same = {seed: 0.5 for seed in range(3)}
    assert statistics.compared(same, same).p == 1
    other = {seed: 0.75 for seed in range(3)}  # exact in binary
    assert statistics.compared(other, same).p == 0
    assert statistics.compared(other, same).detectable == 0


def test_fewer_than_two_pairs_have_no_test():
    found = statistics.compared({0: 1.0}, {0: 0.5})
    assert found.mean == 0.5
    assert np.isnan([found.half, found.p, found.detectable]).all()


def test_the_line_of_a_table_has_the_least_and_the_largest_detectable_difference_of_a_column():
    differences, zero = statistics.Differences(), {0: 0.0, 1: 0.0}
    assert differences.detectable() == []
    values = {0: 0.5, 1: 0.7}
    assert differences.cell("NLL", values, zero) == comparison.difference(values, zero)
    assert differences.cell("NLL", {0: 0.5, 1: 0.6}, zero, 2) == "+0.55 ± 0.64"
    differences.cell("NLL", {0: 0.5}, zero)  # has no test
    differences.cell("ECE", {0: 1.0}, zero)
    low, high = (statistics.compared({0: 0.5, 1: x}, zero).detectable for x in (0.6, 0.7))
    assert 0 < low < high
    assert differences.detectable() == [
        "Differences that a paired t-test finds with a probability of 80%, before any correction:"
        f" NLL {low:.4f} to {high:.4f}."
    ]


def test_holm_multiplies_the_smallest_by_the_number_of_tests():
    # Worked by hand: 4 x 0.01, 3 x 0.02, 2 x 0.03 raised to the previous, 1 x 0.5.
    assert statistics.holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert statistics.holm([0.6, 0.7]) == pytest.approx([1, 1])
    with_nan = statistics.holm([np.nan, 0.01, np.nan, 0.04])
    assert with_nan[[1, 3]] == pytest.approx([0.02, 0.04])
    assert np.isnan(with_nan[[0, 2]]).all()


def test_holm_keeps_the_rate_of_any_false_finding():
    draws = np.random.default_rng(1).random((20_000, 6))
    false = np.array([np.any(statistics.holm(row) < 0.05) for row in draws])
    assert false.mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 20_000)
    assert np.any(draws < 0.05, axis=1).mean() > 0.2  # without the correction


def test_crossed_differences_are_paired_by_seed_on_the_same_examples():
    rng, n = np.random.default_rng(3), 400
    labels = rng.integers(4, size=n)

    def predictions(shift):
        easy = rng.normal(0, 3, (n, 4)).astype(np.float32)
        easy[np.arange(n), labels] += shift
        return Predictions(study.Path("x.npz"), np.arange(n), labels, easy)

    ours = {seed: predictions(3.0) for seed in (0, 1, 2, 5)}
    theirs = {seed: predictions(2.0) for seed in (2, 1, 0, 7)}
    found = statistics.crossed(ours, theirs)

    def accuracy(p):
        return np.mean(p.logits.argmax(axis=-1) == labels)

    differences = [accuracy(ours[s]) - accuracy(theirs[s]) for s in (0, 1, 2)]
    assert found["accuracy"].value == pytest.approx(np.mean(differences))
    assert found["accuracy"].low < found["accuracy"].value < found["accuracy"].high
    assert {"accuracy", "nll", "brier", "ece"} <= set(found)
    assert statistics.crossed({0: ours[0]}, {1: theirs[1]}) == {}


def test_what_two_methods_share_by_seed_or_by_example_does_not_widen_a_crossed_interval():
    """Seeds and examples differ by far more than the methods, which differ by 2 % of examples."""
    rng, n = np.random.default_rng(0), 2000
    ranks, solved = rng.permutation(n) / n, {0: 0.3, 1: 0.5, 2: 0.9}

    def predictions(share):
        logits = np.where(ranks < share, 1.0, -1.0)[:, None] * [1.0, 0.0]
        return Predictions(study.Path("x.npz"), np.arange(n), np.zeros(n, int), logits)

    ours = {seed: predictions(share + 0.02) for seed, share in solved.items()}
    theirs = {seed: predictions(share) for seed, share in solved.items()}
    found = statistics.crossed(ours, theirs)["accuracy"]
    assert found.value == pytest.approx(0.02)
    # Seeds have one difference, and each is of 40 of 2,000 images: the error of their mean is that
    # of a third of 120 independent images. Unpaired seeds would have an error of 0.25.
    error = np.sqrt(0.02 * (1 - 0.06) / 3 / n)
    assert 2 * error < found.high - found.low < 10 * error
