import numpy as np
import pytest
from scipy import special

from heteroscedastic.calibration import recalibration, scores


def drawn(scale, n=40_000, k=5, seed=0):
    """Logits, and labels drawn from softmax(logits / scale)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 2
    noise = rng.gumbel(size=(n, k))
    return logits, np.argmax(logits / scale + noise, axis=-1)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_the_temperature_of_sampled_labels_is_recovered(scale):
    assert recalibration.temperature(*drawn(scale)) == pytest.approx(scale, rel=0.05)


def test_the_temperature_scales_with_the_logits():
    logits, labels = drawn(2.0, n=2000)
    actual = recalibration.temperature(logits, labels)
    assert recalibration.temperature(3 * logits, labels) == pytest.approx(3 * actual, rel=1e-3)


def test_no_other_temperature_has_a_larger_likelihood():
    logits, labels = drawn(1.7, n=500)
    best = scores.log_likelihood(logits / recalibration.temperature(logits, labels), labels)
    others = [scores.log_likelihood(logits / t, labels) for t in np.geomspace(0.01, 100, 200)]
    assert best >= max(others) - 1e-9


def test_the_gradient_at_the_optimum_is_zero():
    logits, labels = drawn(1.7, n=500)
    actual = recalibration.temperature(logits, labels)
    probs = special.softmax(logits / actual, axis=-1)
    # d NLL / d (1/t) = E[sum_k p_k z_k - z_y]
    own = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    assert np.mean((probs * logits).sum(-1) - own) == pytest.approx(0.0, abs=1e-4)


def test_the_limit_is_returned_if_all_or_no_predictions_are_correct():
    logits = np.array([[5.0, 0.0], [0.0, 5.0]])
    assert recalibration.temperature(logits, np.array([0, 1])) == pytest.approx(0.01)
    assert recalibration.temperature(logits, np.array([1, 0])) == pytest.approx(100.0)


def test_equal_logits_are_left_as_they_are():
    assert recalibration.temperature(np.ones((20, 3)), np.zeros(20, int)) == 1
    holds = np.arange(20)[:, None] % 2 == 0
    assert recalibration.sigmoid_temperature(np.zeros((20, 1)), holds) == 1


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_the_temperature_of_sampled_binary_answers_is_recovered(scale):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(20_000, 4)) - 1
    holds = rng.random(logits.shape) < special.expit(logits / scale)
    actual = recalibration.sigmoid_temperature(logits, holds)
    assert actual == pytest.approx(scale, rel=0.05)
    best = scores.sigmoid_log_likelihood(logits / actual, holds)
    assert (
        best
        >= max(
            scores.sigmoid_log_likelihood(logits / t, holds) for t in np.geomspace(0.01, 100, 20)
        )
        - 1e-9
    )


def test_two_classes_and_their_log_odds_have_the_same_temperature():
    logits, labels = drawn(1.7, n=500, k=2)
    odds = logits[:, 1:] - logits[:, :1]
    actual = recalibration.sigmoid_temperature(odds, labels[:, None] == 1)
    assert actual == pytest.approx(recalibration.temperature(logits, labels), rel=1e-4)


def test_missing_examples_are_an_error():
    with pytest.raises(ValueError, match="there are no examples"):
        recalibration.temperature(np.zeros((0, 3)), np.zeros(0, int))
    with pytest.raises(ValueError, match="there are no examples"):
        recalibration.sigmoid_temperature(np.zeros((0, 3)), np.zeros((0, 3), bool))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_impossible_label_is_an_error(value):
    logits = np.random.default_rng(0).normal(size=(20, 3))
    logits[7, 1] = value
    with pytest.raises(ValueError, match="no temperature gives the labels a finite likelihood"):
        recalibration.temperature(logits, np.ones(20, int))


def test_soft_labels_agree_with_hard_and_with_repeated_labels():
    logits, labels = drawn(1.7, n=300)
    assert recalibration.temperature(logits, np.eye(5)[labels]) == recalibration.temperature(
        logits, labels
    )
    others = np.roll(labels, 1)
    shares = 0.75 * np.eye(5)[labels] + 0.25 * np.eye(5)[others]
    repeated = recalibration.temperature(
        np.tile(logits, (4, 1)), np.concatenate([labels, labels, labels, others])
    )
    assert recalibration.temperature(logits, shares) == pytest.approx(repeated, rel=1e-4)


def test_a_class_of_probability_zero_may_have_an_infinite_logit():
    logits = np.array([[0.0, 1.0, -np.inf], [2.0, 0.0, -np.inf]])
    assert np.isfinite(
        recalibration.temperature(logits, np.array([[0.3, 0.7, 0.0], [0.8, 0.2, 0.0]]))
    )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 5]), "must be from 0 to 2"),
        (np.array([0, -1]), "must be from 0 to 2"),
        (np.array([[0.5, 0.2, 0.1], [1.0, 0.0, 0.0]]), "must be a distribution"),
        (np.array([[1.5, -0.5, 0.0], [1.0, 0.0, 0.0]]), "must be a distribution"),
    ],
)
def test_invalid_labels_are_errors(labels, message):
    with pytest.raises(ValueError, match=message):
        recalibration.temperature(np.zeros((2, 3)), labels)
