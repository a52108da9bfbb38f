"""Calibration by class: exact posteriors, whose calibration errors are known."""

import json
import sys

import numpy as np
import pytest
from scipy import special
from small_runs import small

from heteroscedastic.analysis.uncertainty import by_class
from heteroscedastic.calibration import recalibration, reliability

K = 10
UNIFORM = np.ones(K) / K
EXPONENTIAL = 100.0 ** -np.linspace(0, 1, K)


def gaussians(num_per_class=1000, seed=0):
    """Examples of N(2.5 e_y, I), as many of each class, and their log-likelihoods by class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(K), num_per_class)
    inputs = rng.normal(size=(len(labels), K)) + 2.5 * np.eye(K)[labels]
    return labels, 2.5 * inputs


def posterior(log_likelihoods, prior):
    return special.log_softmax(log_likelihoods + np.log(prior), axis=-1)


def test_the_exact_posterior_has_the_errors_of_reading_d15_and_those_of_its_floor():
    labels, log_likelihoods = gaussians()
    logits = posterior(log_likelihoods, UNIFORM)
    observed = by_class.by_class(logits, labels)
    np.testing.assert_array_equal(observed.count, 1000)
    assert 0.01 < observed.ece.min() < 0.03 < observed.ece.max() < 0.06
    draws = by_class.drawn_labels(np.random.default_rng(1), logits, 60)
    means = np.array([draw.ece.mean() for draw in draws])
    assert abs(observed.ece.mean() - means.mean()) < 4 * means.std()
    ratios = np.array([draw.ece_ratio for draw in draws])
    assert ratios.min() < observed.ece_ratio < ratios.max()


def test_under_an_unequal_prior_the_prior_alone_makes_the_ratio_and_its_shift_removes_it():
    labels, log_likelihoods = gaussians()
    unequal = posterior(log_likelihoods, EXPONENTIAL / EXPONENTIAL.sum())
    counts = 5000 * EXPONENTIAL
    result = by_class.report(unequal, labels, counts, counts, num_draws=3)
    assert 0.15 < result["observed"]["class_ece_max"] < 0.35  # reading D15: 0.25
    assert 6 < result["observed"]["class_ece_ratio"] < 25  # 12.6
    equal = by_class.by_class(posterior(log_likelihoods, UNIFORM), labels)
    assert result["after_prior_shift"]["class_ece_ratio"] == pytest.approx(equal.ece_ratio)
    assert result["after_prior_shift"]["balanced_accuracy"] == pytest.approx(
        equal.balanced_accuracy
    )
    assert result["classes"]["gap"][-1] > 0.1 > result["classes"]["gap"][0]
    shifted = result["after_prior_shift"]
    assert 0.06 < result["observed"]["ece"] < 0.1  # 0.08
    assert shifted["ece"] == pytest.approx(equal.total_ece)
    np.testing.assert_allclose(shifted["classes"]["gap"], equal.gap, atol=1e-9)
    np.testing.assert_allclose(np.abs(shifted["classes"]["gap"]).max(), 0, atol=0.06)


def test_the_error_of_all_examples_is_that_without_classes():
    labels, log_likelihoods = gaussians(100)
    logits = posterior(log_likelihoods, EXPONENTIAL / EXPONENTIAL.sum())
    probs = special.softmax(logits, axis=-1)
    one_class = reliability.sums_by_class(
        probs.max(axis=-1),
        probs.argmax(axis=-1) == labels,
        np.zeros(len(labels), int),
        reliability.equal_edges(15),
        1,
    )
    expected = reliability.expected_calibration_error(one_class)[0]
    assert by_class.by_class(logits, labels).total_ece == pytest.approx(expected)


def test_the_floor_has_the_sizes_of_the_classes_that_its_labels_were_drawn_of():
    labels, log_likelihoods = gaussians(100)
    shares = EXPONENTIAL / EXPONENTIAL.sum()
    logits = posterior(log_likelihoods, shares)
    result = by_class.report(logits, labels, 5000 * shares, shares, num_draws=200)
    hits, drawn = (result[name]["classes"] for name in ("floor_of_hits", "floor_of_labels"))
    np.testing.assert_array_equal(hits["count"], 100)
    expected = special.softmax(logits, axis=-1).sum(axis=0)
    np.testing.assert_allclose(drawn["count"], expected, atol=4 * np.sqrt(100 / 200) * 3)
    np.testing.assert_allclose(drawn["gap"], 0, atol=0.2)
    assert result["floor_of_hits"]["class_ece_max"] >= max(hits["ece"])  # a mean of maxima


def test_classes_of_many_medium_and_few_training_examples():
    labels = np.repeat(np.arange(6), 10)
    right = np.concatenate([np.arange(10) < n for n in (10, 8, 6, 4, 2, 0)])
    logits = np.where(np.arange(6) == np.where(right, labels, (labels + 1) % 6)[:, None], 5.0, 0.0)
    counts = np.array([101, 100, 20, 19, 1, 0])
    result = by_class.report(logits, labels, counts, counts, num_draws=1)
    assert result["accuracy_by_shots"] == pytest.approx({"many": 1.0, "medium": 0.7, "few": 0.3})
    result = by_class.report(logits, labels, counts + 101, counts + 101, num_draws=1)
    assert result["accuracy_by_shots"]["many"] == pytest.approx(0.5)
    assert result["accuracy_by_shots"]["few"] is None


def test_hits_drawn_at_the_stated_confidence_keep_the_classes_and_have_no_gap():
    labels, log_likelihoods = gaussians(200)
    labels = np.where(labels == 9, 8, labels)
    (draw,) = by_class.drawn_hits(np.random.default_rng(0), log_likelihoods, labels, 1)
    np.testing.assert_array_equal(draw.count, [*[200] * 8, 400, 0])
    assert np.isnan(draw.ece[9])
    assert np.isfinite(draw.ece_ratio)
    many = by_class.drawn_hits(np.random.default_rng(0), log_likelihoods, labels, 200)
    gaps = np.mean([x.gap[:9] for x in many], axis=0)
    np.testing.assert_allclose(gaps, 0, atol=0.01)


def test_the_ratio_to_a_class_without_error_is_unknown_and_left_out_of_means():
    certain = np.array([[800.0, 0.0], [0.0, 1.0]])
    found = by_class.by_class(certain, np.array([0, 1]))
    assert found.ece[0] == 0 < found.ece[1]
    assert np.isnan(found.ece_ratio)
    other = by_class.by_class(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([0, 1]))
    assert by_class.summary([found, other])["class_ece_ratio"] == pytest.approx(other.ece_ratio)
    assert np.isnan(by_class.summary([found])["class_ece_ratio"])


def test_a_prior_shift_gives_the_posterior_under_the_other_prior():
    _, log_likelihoods = gaussians(20)
    other = np.arange(1, K + 1) / np.arange(1, K + 1).sum()
    logits = posterior(log_likelihoods, EXPONENTIAL)
    shifted = recalibration.prior_shift(logits, 7 * EXPONENTIAL, 3 * other)  # counts are enough
    np.testing.assert_allclose(shifted, posterior(log_likelihoods, other), atol=1e-9)
    same = recalibration.prior_shift(logits, EXPONENTIAL, EXPONENTIAL)
    np.testing.assert_allclose(same, logits, atol=1e-12)
    absent = recalibration.prior_shift(logits, EXPONENTIAL, np.eye(K)[0] + np.eye(K)[3])
    assert (absent[:, [1, 2, *range(4, K)]] == -np.inf).all()
    np.testing.assert_allclose(special.logsumexp(absent, axis=-1), 0, atol=1e-12)


@pytest.mark.parametrize("prior", [-np.ones(K), np.full(K, np.nan), np.zeros(K)])
def test_shares_that_are_none_are_an_error(prior):
    with pytest.raises(ValueError, match="train_prior must be shares >= 0"):
        recalibration.prior_shift(np.zeros((2, K)), prior, UNIFORM)


def test_a_class_without_training_examples_has_no_prior_to_shift():
    labels, logits = gaussians(5)
    counts = np.array([0, *[5] * (K - 1)])
    with pytest.raises(ValueError, match="class 0 has no examples in training but has in test"):
        recalibration.prior_shift(logits, counts, UNIFORM)
    assert by_class.report(logits, labels, counts, counts, num_draws=1)["after_prior_shift"] is None


@pytest.mark.parametrize(
    ("overrides", "power"),
    [
        ({}, 1.0),
        ({"weighting": dict(name="inverse_frequency")}, 0.0),
        ({"selection": dict(name="balanced")}, 0.0),
        ({"loss": dict(name="logit_adjusted", strength=1.0)}, 0.0),
        ({"loss": dict(name="logit_adjusted", strength=0.25)}, 0.75),
    ],
)
def test_what_makes_classes_equal_leaves_no_prior_and_what_does_not_the_counts(overrides, power):
    counts = np.array([500.0, 50, 5, 5, 5, 5, 5, 5, 5, 0])
    expected = np.where(counts > 0, np.maximum(counts, 1) ** power, 0)
    np.testing.assert_allclose(
        by_class.effective_prior(small(**overrides), counts), expected / expected.sum(), rtol=1e-5
    )


def test_the_effective_number_leaves_a_prior_between_the_counts_and_equal_classes():
    counts = np.array([500.0, 50, 5, 5, 5, 5, 5, 5, 5, 5])
    weighting = dict(name="effective_number", beta=0.99)
    prior = by_class.effective_prior(small(weighting=weighting), counts)
    expected = counts * (1 - 0.99) / (1 - 0.99**counts)
    np.testing.assert_allclose(prior, expected / expected.sum(), rtol=1e-4)
    assert 1 < prior[0] / prior[1] < 10


def test_the_command_prints_each_class_and_writes_what_it_prints(with_noise, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["by_class", f"--run={with_noise}", "--num_draws=5"])
    by_class.main()
    printed = capsys.readouterr().out
    result = json.loads((with_noise / "analysis/calibration/by_class_test.json").read_text())
    assert sum(result["classes"]["count"]) == 597
    for name, ece in zip(("zero", "nine"), np.array(result["classes"]["ece"])[[0, 9]]):
        assert any(line.startswith(name) and f"{ece:.4f}" in line for line in printed.splitlines())
    assert f"{result['floor_of_hits']['class_ece_ratio']:.4f}" in printed
    many = result["accuracy_by_shots"]["medium"]
    assert f"medium, 20 to 100{many:>23.4f}" in printed


def test_a_bin_edge_belongs_to_the_bin_below_in_both_forms():
    edges = reliability.equal_edges(15)
    confidence = edges[1:].astype(np.float64)
    (own,) = reliability.sums_by_class(confidence, confidence, np.zeros(15, int), edges, 1).weight
    np.testing.assert_array_equal(own, 1)
