import numpy as np
import pytest
from scipy import special
from sklearn import metrics as sklearn_metrics

from heteroscedastic.calibration import scores


def case(seed, n=200, k=4):
    rng = np.random.default_rng(seed)
    return special.softmax(rng.normal(size=(n, k)), axis=-1), rng.integers(0, k, n)


@pytest.mark.parametrize("seed", range(3))
def test_brier_and_likelihood_agree_with_another_library(seed):
    probs, labels = case(seed)
    one_against_all = [sklearn_metrics.brier_score_loss(labels == c, probs[:, c]) for c in range(4)]
    assert scores.brier(probs, labels) == pytest.approx(sum(one_against_all))
    expected = -sklearn_metrics.log_loss(labels, probs, labels=range(4))
    assert scores.log_likelihood(np.log(probs) + 7.0, labels) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_auroc_agrees_with_another_library_ties_included(seed):
    rng = np.random.default_rng(seed)
    values, positive = rng.integers(0, 5, 50).astype(float), rng.random(50) < 0.4
    assert scores.auroc(values, positive) == pytest.approx(sklearn_metrics.roc_auc_score(positive, values))


def test_auroc_of_one_kind_alone_is_not_a_number():
    assert np.isnan(scores.auroc(np.ones(3), np.ones(3, bool)))
    assert np.isnan(scores.auroc(np.ones(3), np.zeros(3, bool)))


def test_the_adaptive_error_of_one_bin_is_the_gap_of_the_means_and_of_bins_of_one_the_mean_gap():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(40), rng.random(40) < 0.5
    assert scores.adaptive_calibration_error(confidence, correct, 1) == pytest.approx(
        abs(confidence.mean() - correct.mean())
    )
    singles = scores.adaptive_calibration_error(confidence, correct, 1000)
    assert singles == pytest.approx(np.abs(confidence - correct).mean())


def test_the_adaptive_error_agrees_with_a_plain_loop():
    rng = np.random.default_rng(1)
    confidence, correct = rng.random(45), rng.random(45) < 0.5  # 15 bins of 3
    pairs = sorted(zip(confidence, correct))
    gaps = [abs(sum(c for c, _ in pairs[i : i + 3]) - sum(r for _, r in pairs[i : i + 3])) for i in range(0, 45, 3)]
    assert scores.adaptive_calibration_error(confidence, correct) == pytest.approx(sum(gaps) / 45)


def test_the_adaptive_error_needs_examples_and_bins():
    with pytest.raises(ValueError, match="both must be >= 1"):
        scores.adaptive_calibration_error(np.zeros(0), np.zeros(0, bool))
    with pytest.raises(ValueError, match="num_bins is 0"):
        scores.adaptive_calibration_error(np.ones(3), np.ones(3, bool), 0)
