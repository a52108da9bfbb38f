import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import metrics as sklearn_metrics

from heteroscedastic.calibration import ranking, reliability, scores, selective


def case(seed, n=200, k=4):
    rng = np.random.default_rng(seed)
    return special.softmax(rng.normal(size=(n, k)), axis=-1), rng.integers(0, k, n)


@pytest.mark.parametrize("seed", range(3))
def test_brier_and_likelihood_agree_with_scikit_learn(seed):
    probs, labels = case(seed)
    one_against_all = [sklearn_metrics.brier_score_loss(labels == c, probs[:, c]) for c in range(4)]
    assert scores.brier(probs, labels) == pytest.approx(sum(one_against_all))
    expected = -sklearn_metrics.log_loss(labels, probs, labels=range(4))
    assert scores.log_likelihood(np.log(probs) + 7.0, labels) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_auroc_with_ties_agrees_with_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    values, positive = rng.integers(0, 5, 50).astype(float), rng.random(50) < 0.4
    assert scores.auroc(values, positive) == pytest.approx(
        sklearn_metrics.roc_auc_score(positive, values)
    )


@pytest.mark.parametrize("seed", range(5))
def test_precision_and_recall_with_ties_agree_with_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    values, positive = rng.integers(0, 9, 60).astype(float), rng.random(60) < 0.4
    precision, recall = scores.precision_recall(values, positive)
    expected_precision, expected_recall, _ = sklearn_metrics.precision_recall_curve(
        positive, values
    )
    np.testing.assert_allclose(
        precision[::-1], expected_precision[:-1]
    )  # its last point belongs to no example
    np.testing.assert_allclose(recall[::-1], expected_recall[:-1])
    average = np.sum(np.diff(recall, prepend=0) * precision)
    assert average == pytest.approx(scores.average_precision(values, positive))


def test_infinite_values_are_one_threshold():
    infinite, equal = (
        scores.precision_recall(np.array([x, x, 0.0]), np.array([True, False, True]))
        for x in (np.inf, 1.0)
    )
    np.testing.assert_array_equal(infinite, equal)


def test_precision_at_a_count_is_the_mean_over_the_orders_of_ties():
    rng = np.random.default_rng(0)
    values, positive = rng.integers(0, 4, 30).astype(float), rng.random(30) < 0.4
    actual = []
    for _ in range(4000):
        order = rng.permutation(30)
        first = order[np.argsort(-values[order], kind="stable")][:11]
        actual.append(positive[first].mean())
    assert scores.precision_at(values, positive, 11) == pytest.approx(np.mean(actual), abs=0.005)
    distinct = rng.permutation(30).astype(float)
    assert scores.precision_at(distinct, positive, 11) == positive[distinct >= 19].mean()


@pytest.mark.parametrize("dtype", [int, float])
def test_answers_may_be_zeros_and_ones(dtype):
    values, answers = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1], dtype)
    assert scores.auroc(values, answers) == 0.75
    expected = selective.risk_coverage(values, answers > 0)
    assert selective.risk_coverage(values, answers).area == expected.area


def test_auroc_without_positives_or_negatives_is_nan():
    assert np.isnan(scores.auroc(np.ones(3), np.ones(3, bool)))
    assert np.isnan(scores.auroc(np.ones(3), np.zeros(3, bool)))


def test_the_adaptive_error_of_one_bin_and_of_single_examples_is_exact():
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
    gaps = [
        abs(sum(c for c, _ in pairs[i : i + 3]) - sum(r for _, r in pairs[i : i + 3]))
        for i in range(0, 45, 3)
    ]
    assert scores.adaptive_calibration_error(confidence, correct) == pytest.approx(sum(gaps) / 45)


def test_the_adaptive_error_does_not_depend_on_the_order_of_ties():
    right = np.array([True] * 15 + [False] * 15)
    assert scores.adaptive_calibration_error(np.full(30, 0.5), right) == pytest.approx(0.0)
    rng = np.random.default_rng(2)
    confidence, correct = rng.choice([0.0, 0.3, 0.9, 1.0], 100), rng.random(100) < 0.5
    actual = scores.adaptive_calibration_error(confidence, correct)
    for _ in range(5):
        order = rng.permutation(100)
        assert scores.adaptive_calibration_error(
            confidence[order], correct[order]
        ) == pytest.approx(actual)


def test_average_precision_of_a_nan_is_nan():
    assert np.isnan(
        scores.average_precision(np.array([0.1, np.nan, 0.3]), np.array([True, False, True]))
    )


def test_the_adaptive_error_needs_examples_and_bins():
    with pytest.raises(ValueError, match="both must be >= 1"):
        scores.adaptive_calibration_error(np.zeros(0), np.zeros(0, bool))
    with pytest.raises(ValueError, match="num_bins is 0"):
        scores.adaptive_calibration_error(np.ones(3), np.ones(3, bool), 0)


def brier_case(name):
    """Probabilities and labels; the last class has no examples."""
    probs, labels = case(0, n=90)
    labels = labels % 3
    if name == "certain":
        probs = np.eye(4)[np.random.default_rng(1).integers(0, 4, 90)]
    if name == "all in one bin":
        probs = np.full((90, 4), 0.25) + 1e-3 * (probs - 0.25)
    if name == "ties":
        probs = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.4, 0.4, 0.1]])[np.arange(90) % 2]
    return probs, labels


HOSTILE = ["random", "certain", "all in one bin", "ties"]


@pytest.mark.parametrize("num_bins", [1, 15, 1000])
@pytest.mark.parametrize("name", HOSTILE)
def test_the_parts_of_the_brier_score_add_up_to_it(name, num_bins):
    probs, labels = brier_case(name)
    parts = scores.brier_parts(probs, labels, reliability.equal_edges(num_bins))
    murphy = parts.reliability - parts.resolution + parts.uncertainty
    total = murphy + parts.within_variance - parts.within_covariance
    assert total == pytest.approx(scores.brier(probs, labels), abs=1e-12)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_parts_of_the_brier_score_agree_with_a_plain_loop(name):
    probs, labels = brier_case(name)
    expected = np.zeros(5)
    for c in range(4):
        p, y = probs[:, c], (labels == c).astype(float)
        expected[2] += y.mean() * (1 - y.mean())
        for m in range(15):
            inside = (p > np.float32(m / 15) if m else p >= 0) & (p <= np.float32((m + 1) / 15))
            if inside.any():
                share = inside.mean()
                expected[0] += share * (p[inside].mean() - y[inside].mean()) ** 2
                expected[1] += share * (y[inside].mean() - y.mean()) ** 2
                expected[3] += share * p[inside].var()
                expected[4] += share * 2 * np.cov(p[inside], y[inside], bias=True)[0, 1]
    np.testing.assert_allclose(
        scores.brier_parts(probs, labels, reliability.equal_edges(15)), expected, atol=1e-12
    )


def test_with_one_probability_per_bin_the_parts_are_those_of_murphy():
    parts = scores.brier_parts(*brier_case("ties"), reliability.equal_edges(15))
    assert (parts.within_variance, parts.within_covariance) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize("levels", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_average_precision_with_ties_agrees_with_scikit_learn(seed, levels):
    rng = np.random.default_rng(seed)
    values, positive = rng.integers(0, levels, 200) / levels, rng.random(200) < 0.2
    actual = scores.average_precision(values, positive)
    assert actual == pytest.approx(sklearn_metrics.average_precision_score(positive, values))


def test_average_precision_without_positives_is_nan():
    assert np.isnan(scores.average_precision(np.ones(3), np.zeros(3, bool)))


def test_the_likelihood_of_binary_answers_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    logits, holds = 3 * rng.normal(size=(50, 4)), rng.random((50, 4)) < 0.3
    expected = -sum(
        sklearn_metrics.log_loss(holds[:, c], special.expit(logits[:, c])) for c in range(4)
    )
    assert scores.sigmoid_log_likelihood(logits, holds) == pytest.approx(expected)


def test_infinite_log_odds_of_correct_answers_cost_nothing():
    logits = np.array([[np.inf, -np.inf, -1e4]])
    assert scores.sigmoid_log_likelihood(logits, np.array([[True, False, False]])) == 0
    assert scores.sigmoid_log_likelihood(logits, np.array([[True, False, True]])) == -1e4


@pytest.mark.parametrize("count", [0, -1, 4])
def test_precision_at_a_count_out_of_range_is_an_error(count):
    with pytest.raises(
        ValueError, match=f"count is {count}, but must be from 1 to the number of values, 3"
    ):
        scores.precision_at(np.arange(3.0), np.ones(3, bool), count)


def test_precision_at_a_count_of_a_nan_is_nan():
    assert np.isnan(
        scores.precision_at(np.array([0.1, np.nan, 0.3]), np.array([True, False, True]), 2)
    )


def test_a_value_on_an_edge_is_in_the_bin_below_it_in_all_modules():
    edges = np.array([0.0, 0.5, 1.0], np.float32)
    value, one = jnp.array([[0.5]]), jnp.ones(1)
    assert reliability.sums(value[0], one, one, edges).weight[0] == 1
    assert ranking.sums(value, jnp.ones((1, 1)), one, edges).positive[0] == 1
    beside = np.array([[0.5, 0.5], [0.25, 0.75]])  # 0.5 shares a bin with 0.25
    assert scores.brier_parts(beside, np.array([0, 1]), edges).within_variance > 0
    # 0.7 is above its edge in float32, but on it once both are rounded.
    tenths = np.array([[0.7, 0.3], [0.65, 0.35]])
    parts = scores.brier_parts(tenths, np.array([0, 1]), reliability.equal_edges(10))
    assert parts.within_variance == pytest.approx(0.025**2)
