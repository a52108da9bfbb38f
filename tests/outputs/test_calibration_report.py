import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from heteroscedastic.calibration import recalibration, scores
from heteroscedastic.outputs import calibration_report


def outputs(num_examples=4000, sharpness=1.0, seed=0):
    """Labels drawn from softmax(logits), and the logits times the sharpness."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(num_examples, 4))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return labels, special.log_softmax(sharpness * logits, axis=1)


def test_values_equal_an_independent_computation():
    labels, log_probs = outputs()
    report, probs = calibration_report(labels, log_probs), np.exp(log_probs)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    assert report.accuracy.value == pytest.approx(correct.mean())
    assert report.overconfidence.value == pytest.approx(confidence.mean() - correct.mean())
    assert report.nll.value == pytest.approx(-log_probs[np.arange(len(labels)), labels].mean())
    assert report.brier.value == pytest.approx(scores.brier(probs, labels))
    bins = np.ceil(confidence * 15)
    gaps = [abs((confidence - correct)[bins == b].sum()) for b in range(16)]
    assert report.ece == pytest.approx(sum(gaps) / len(labels), abs=1e-6)
    expected = scores.adaptive_calibration_error(confidence, correct)
    assert report.adaptive_ece == pytest.approx(expected)


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
def test_the_temperature_is_the_sharpness_of_the_logits(sharpness):
    report = calibration_report(*outputs(sharpness=sharpness))
    assert report.temperature == pytest.approx(sharpness, rel=0.06)
    assert report.scaled_nll <= report.nll.value + 1e-9
    assert report.scaled_ece < 0.03


def test_sharper_predictions_are_overconfident():
    sharp, calibrated, flat = (calibration_report(*outputs(sharpness=s)) for s in (2, 1, 0.5))
    assert sharp.overconfidence.low > 0 > flat.overconfidence.high
    assert calibrated.overconfidence.low < 0 < calibrated.overconfidence.high


def test_an_interval_of_a_mean_is_that_of_the_central_limit_theorem():
    labels, log_probs = outputs()
    interval = calibration_report(labels, log_probs).accuracy
    error = np.sqrt(interval.value * (1 - interval.value) / len(labels))
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert interval.low < interval.value < interval.high


def test_log_probabilities_may_have_half_the_bits():
    labels, log_probs = outputs(500)
    half = jnp.asarray(log_probs, jnp.bfloat16)
    report, rounded = (calibration_report(labels, x) for x in (half, np.asarray(half, np.float64)))
    assert report.nll == rounded.nll


def test_logits_work_as_log_probabilities():
    labels, log_probs = outputs(500)
    report, shifted = (calibration_report(labels, x) for x in (log_probs, log_probs + 3.0))
    assert report.nll.value == pytest.approx(shifted.nll.value)
    assert report.temperature == pytest.approx(recalibration.temperature(log_probs, labels))


def test_an_impossible_label_has_an_infinite_loss_and_no_temperature():
    log_probs = np.array([[0.0, -np.inf], [0.0, -np.inf], [-0.5, np.log1p(-np.exp(-0.5))]])
    report = calibration_report([0, 1, 0], log_probs)
    assert report.accuracy.value == pytest.approx(2 / 3)
    assert report.nll == (np.inf, np.inf, np.inf)
    assert np.isfinite([*report.brier, *report.overconfidence, report.ece]).all()
    assert np.isnan([report.temperature, report.scaled_nll, report.scaled_ece]).all()


def test_bad_input_is_named():
    labels, log_probs = outputs(10)
    with pytest.raises(ValueError, match="num_bins is 0"):
        calibration_report(labels, log_probs, num_bins=0)
    with pytest.raises(ValueError, match="each row sums to 1"):
        calibration_report(labels, np.exp(log_probs))
