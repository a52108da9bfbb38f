import numpy as np
import pytest
from scipy import special

from heteroscedastic.analysis.uncertainty import confidence
from heteroscedastic.calibration import bootstrap, selective
from heteroscedastic.runs.predictions import Predictions

RNG = np.random.default_rng(0)


def calibrated(n, seed=0, sharper=1.0):
    """Predictions with labels drawn from their probabilities; overconfident with `sharper` > 1."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 4))
    labels = np.argmax(logits + rng.gumbel(size=(n, 4)), axis=-1)
    return Predictions(None, np.arange(n), labels, (sharper * logits).astype(np.float32))


def lists(n, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 2))
    targets = rng.random((n, 2)) < special.expit(logits)
    labels = np.where(targets, np.arange(2), -1)
    return Predictions(None, np.arange(n), labels, logits.astype(np.float32)), targets


def test_a_diagram_holds_the_means_of_bins():
    runs = [calibrated(200), calibrated(200, seed=1)]
    result = confidence.reliability_diagram(runs)
    probs = np.concatenate([special.softmax(p.logits, axis=-1) for p in runs])
    confident = probs.max(-1)
    right = probs.argmax(-1) == np.concatenate([p.labels for p in runs])
    assert result.count.sum() == 400
    for low, high, count, predicted, accuracy in zip(
        result.edges, result.edges[1:], result.count, result.confidence, result.accuracy
    ):
        inside = (confident > low) & (confident <= high)
        assert count == inside.sum()
        expected = [confident[inside].mean(), right[inside].mean()] if count else np.nan
        np.testing.assert_allclose([predicted, accuracy], expected, rtol=1e-5)
    there = result.count > 0
    gaps = np.abs(result.accuracy - result.confidence)[there]
    assert result.error == pytest.approx(np.average(gaps, weights=result.count[there]), rel=1e-5)


def test_bands_cover_calibrated_predictions_and_not_overconfident_ones():
    def coverage(run):
        result = confidence.reliability_diagram([run])
        many = result.count >= 30
        return np.mean(
            (result.low <= result.confidence)[many] & (result.confidence <= result.high)[many]
        )

    assert coverage(calibrated(4000)) > 0.75
    assert coverage(calibrated(4000, sharper=3.0)) < 0.3


def test_dividing_by_the_temperature_restores_calibration():
    plain = confidence.reliability_diagram([calibrated(2000)])
    back = confidence.reliability_diagram([calibrated(2000, sharper=3.0)], [3.0])
    np.testing.assert_allclose(back.accuracy, plain.accuracy)
    assert back.error == pytest.approx(plain.error, rel=1e-4)


def test_all_runs_of_an_example_are_resampled_together():
    one = confidence.reliability_diagram([calibrated(500)])
    thrice = confidence.reliability_diagram([calibrated(500)] * 3)
    np.testing.assert_allclose(thrice.low, one.low)  # copies of a run add no information
    np.testing.assert_allclose(thrice.high, one.high)


def test_ten_runs_of_one_example_count_as_one_example_without_a_band():
    logits = np.array([[5.0, 0.0], *[[0.0, 0.5]] * 20], np.float32)
    run = Predictions(None, np.arange(21), np.array([0] + [1, 0] * 10), logits)
    result = confidence.reliability_diagram([run] * 10)
    there = result.count > 0
    np.testing.assert_array_equal(result.examples[there], [20, 1])
    np.testing.assert_array_equal(result.count[there], [200, 10])
    pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")
    from heteroscedastic.analysis.plots import panels

    upper = panels.reliability({"as trained": result}, "title").axes[0]
    full, hollow = (line for line in upper.lines if line.get_marker() == "o")
    assert (len(full.get_xdata()), hollow.get_fillstyle()) == (1, "none")
    np.testing.assert_allclose(hollow.get_xdata(), 1 / (1 + np.exp(-5)), rtol=1e-5)


def test_under_a_sigmoid_classes_are_pooled_and_examples_are_resampled():
    run, targets = lists(300)
    result = confidence.reliability_diagram([run])
    assert result.count.sum() == 600
    np.testing.assert_allclose(np.nansum(result.accuracy * result.count), targets.sum())
    probs = special.expit(run.logits.astype(np.float64))
    bins = np.searchsorted(result.edges[1:-1], probs, side="left")
    last = len(result.count) - 1
    by_example = np.stack(
        [np.sum(bins == last, axis=1), np.sum((bins == last) & targets, axis=1)], axis=1
    )
    draws = bootstrap.resampled_sums(by_example.astype(float), 1000)
    low, high = bootstrap.percentile_band(draws[:, 1:] / draws[:, :1])
    np.testing.assert_allclose([result.low[last], result.high[last]], [low[0], high[0]])


def test_the_band_of_tokens_is_that_of_their_sentences():
    sentences, rows = calibrated(80), np.repeat(np.arange(80), 6)
    tokens = sentences._replace(
        ids=np.arange(480),
        labels=sentences.labels[rows],
        logits=sentences.logits[rows],
        groups=rows,
    )
    expected, actual = (confidence.reliability_diagram([p]) for p in (sentences, tokens))
    np.testing.assert_allclose(actual.low, expected.low, rtol=1e-6)
    np.testing.assert_allclose(actual.high, expected.high, rtol=1e-6)


@pytest.mark.parametrize("runs", [[lists(101)[0]], [calibrated(101), calibrated(101, seed=1)]])
def test_blocks_with_a_short_last_one_change_nothing(runs, monkeypatch):
    expected = confidence.reliability_diagram(runs)
    monkeypatch.setattr(
        confidence, "_BLOCK_VALUES", 2 * 15 * 8
    )  # of 101 examples 8 at a time, and 5
    for one, other in zip(confidence.reliability_diagram(runs), expected):
        np.testing.assert_array_equal(one, other)


def test_every_example_is_in_one_group_and_histograms_sum_to_one():
    runs, noisy = (
        [calibrated(200), calibrated(200, seed=1)],
        [RNG.random(200) < 0.2 for _ in range(2)],
    )
    result = confidence.outcomes(runs, noisy)
    assert sum(len(v) for v in result.confidence.values()) == 400
    assert len(result.confidence["noisy"]) == sum(x.sum() for x in noisy)
    for kind, fraction in result.share.items():
        assert fraction.sum() == pytest.approx(1)
        np.testing.assert_allclose(
            fraction,
            np.histogram(result.confidence[kind], result.edges)[0] / len(result.confidence[kind]),
        )
    assert result.confidence["right"].mean() > result.confidence["wrong"].mean()


def test_without_known_noise_there_are_two_groups_and_one_may_be_empty():
    run = calibrated(50)
    confident = run._replace(labels=run.logits.argmax(-1))
    result = confidence.outcomes([confident])
    assert set(result.share) == {"right", "wrong"}
    assert len(result.confidence["wrong"]) == 0
    assert np.isnan(result.share["wrong"]).all()


def test_risk_coverage_ranks_by_confidence():
    run, targets = lists(100)
    probs = special.expit(run.logits.astype(np.float64)).ravel()
    expected = selective.risk_coverage(
        np.maximum(probs, 1 - probs), (probs > 0.5) == targets.ravel()
    )
    np.testing.assert_allclose(confidence.risk_coverage(run).risk, expected.risk)
    single = calibrated(100)
    probs = special.softmax(single.logits.astype(np.float64), axis=-1)
    expected = selective.risk_coverage(probs.max(-1), probs.argmax(-1) == single.labels)
    np.testing.assert_allclose(confidence.risk_coverage(single).risk, expected.risk)
