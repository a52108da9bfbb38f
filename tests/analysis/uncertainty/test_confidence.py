import numpy as np
import pytest
from scipy import special

from heteroscedastic.analysis.uncertainty import confidence
from heteroscedastic.calibration import bootstrap, selective
from heteroscedastic.runs.predictions import Predictions

RNG = np.random.default_rng(0)


def calibrated(n, seed=0, sharper=1.0):
    """Predictions whose labels are drawn from the probabilities; with `sharper` they say too much."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 4))
    labels = np.argmax(logits + rng.gumbel(size=(n, 4)), axis=-1)
    return Predictions(None, np.arange(n), labels, (sharper * logits).astype(np.float32))


def lists(n, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 2))
    holds = rng.random((n, 2)) < special.expit(logits)
    labels = np.where(holds, np.arange(2), -1)
    return Predictions(None, np.arange(n), labels, logits.astype(np.float32)), holds


def test_a_diagram_is_means_of_bins():
    runs = [calibrated(200), calibrated(200, seed=1)]
    found = confidence.reliability_diagram(runs)
    probs = np.concatenate([special.softmax(p.logits, axis=-1) for p in runs])
    sure = probs.max(-1)
    right = probs.argmax(-1) == np.concatenate([p.labels for p in runs])
    assert found.count.sum() == 400
    for low, high, count, stated, accuracy in zip(
        found.edges, found.edges[1:], found.count, found.confidence, found.accuracy
    ):
        inside = (sure > low) & (sure <= high)
        assert count == inside.sum()
        expected = [sure[inside].mean(), right[inside].mean()] if count else np.nan
        np.testing.assert_allclose([stated, accuracy], expected, rtol=1e-5)
    there = found.count > 0
    gaps = np.abs(found.accuracy - found.confidence)[there]
    assert found.error == pytest.approx(np.average(gaps, weights=found.count[there]), rel=1e-5)


def test_bands_hold_what_is_true_of_calibrated_predictions_and_not_of_sharper_ones():
    def held(told):
        found = confidence.reliability_diagram([told])
        many = found.count >= 30
        return np.mean(
            (found.low <= found.confidence)[many] & (found.confidence <= found.high)[many]
        )

    assert held(calibrated(4000)) > 0.75
    assert held(calibrated(4000, sharper=3.0)) < 0.3


def test_scaling_with_the_temperature_that_was_taken_makes_them_calibrated_again():
    plain = confidence.reliability_diagram([calibrated(2000)])
    back = confidence.reliability_diagram([calibrated(2000, sharper=3.0)], [3.0])
    np.testing.assert_allclose(back.accuracy, plain.accuracy)
    assert back.error == pytest.approx(plain.error, rel=1e-4)


def test_the_runs_of_an_example_are_resampled_together():
    one = confidence.reliability_diagram([calibrated(500)])
    thrice = confidence.reliability_diagram([calibrated(500)] * 3)
    np.testing.assert_allclose(
        thrice.low, one.low
    )  # three times the same is not more that is known
    np.testing.assert_allclose(thrice.high, one.high)


def test_ten_runs_of_one_example_are_one_example_and_have_no_band():
    logits = np.array([[5.0, 0.0], *[[0.0, 0.5]] * 20], np.float32)
    told = Predictions(None, np.arange(21), np.array([0] + [1, 0] * 10), logits)
    found = confidence.reliability_diagram([told] * 10)
    there = found.count > 0
    np.testing.assert_array_equal(found.examples[there], [20, 1])
    np.testing.assert_array_equal(found.count[there], [200, 10])
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, of the extra `analysis`")
    from heteroscedastic.analysis.plots import panels

    upper = panels.reliability({"as trained": found}, "title").axes[0]
    full, hollow = (line for line in upper.lines if line.get_marker() == "o")
    assert (len(full.get_xdata()), hollow.get_fillstyle()) == (1, "none")
    np.testing.assert_allclose(hollow.get_xdata(), 1 / (1 + np.exp(-5)), rtol=1e-5)


def test_of_several_labels_each_answer_is_stated_and_an_example_stays_whole():
    told, holds = lists(300)
    found = confidence.reliability_diagram([told])
    assert found.count.sum() == 600
    np.testing.assert_allclose(np.nansum(found.accuracy * found.count), holds.sum())
    probs = special.expit(told.logits.astype(np.float64))
    bins = np.searchsorted(found.edges[1:-1], probs, side="left")
    last = len(found.count) - 1
    by_example = np.stack(
        [np.sum(bins == last, axis=1), np.sum((bins == last) & holds, axis=1)], axis=1
    )
    draws = bootstrap.resampled_sums(by_example.astype(float), 1000)
    low, high = bootstrap.percentile_band(draws[:, 1:] / draws[:, :1])
    np.testing.assert_allclose([found.low[last], found.high[last]], [low[0], high[0]])


@pytest.mark.parametrize("told", [[lists(101)[0]], [calibrated(101), calibrated(101, seed=1)]])
def test_blocks_and_a_short_last_one_change_nothing(told, monkeypatch):
    whole = confidence.reliability_diagram(told)
    monkeypatch.setattr(
        confidence, "_BLOCK_VALUES", 2 * 15 * 8
    )  # of 101 examples 8 at a time, and 5
    for one, other in zip(confidence.reliability_diagram(told), whole):
        np.testing.assert_array_equal(one, other)


def test_kinds_part_the_examples_and_each_adds_up():
    runs, noisy = (
        [calibrated(200), calibrated(200, seed=1)],
        [RNG.random(200) < 0.2 for _ in range(2)],
    )
    found = confidence.outcomes(runs, noisy)
    assert sum(len(v) for v in found.confidence.values()) == 400
    assert len(found.confidence["noisy"]) == sum(x.sum() for x in noisy)
    for kind, share in found.share.items():
        assert share.sum() == pytest.approx(1)
        np.testing.assert_allclose(
            share,
            np.histogram(found.confidence[kind], found.edges)[0] / len(found.confidence[kind]),
        )
    assert found.confidence["right"].mean() > found.confidence["wrong"].mean()


def test_without_known_noise_there_are_two_kinds_and_a_kind_may_be_empty():
    told = calibrated(50)
    sure = told._replace(labels=told.logits.argmax(-1))
    found = confidence.outcomes([sure])
    assert set(found.share) == {"right", "wrong"}
    assert len(found.confidence["wrong"]) == 0
    assert np.isnan(found.share["wrong"]).all()


def test_risk_is_of_the_surest_answers():
    told, holds = lists(100)
    probs = special.expit(told.logits.astype(np.float64)).ravel()
    expected = selective.risk_coverage(np.maximum(probs, 1 - probs), (probs > 0.5) == holds.ravel())
    np.testing.assert_allclose(confidence.risk_coverage(told).risk, expected.risk)
    single = calibrated(100)
    probs = special.softmax(single.logits.astype(np.float64), axis=-1)
    expected = selective.risk_coverage(probs.max(-1), probs.argmax(-1) == single.labels)
    np.testing.assert_allclose(confidence.risk_coverage(single).risk, expected.risk)
