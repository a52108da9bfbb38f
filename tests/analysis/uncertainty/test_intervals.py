import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic import metrics
from heteroscedastic.analysis.uncertainty import intervals
from heteroscedastic.analysis.uncertainty.intervals import Resampled
from heteroscedastic.runs.predictions import Predictions


def run(n=400, seed=0, sharper=1.5, num_classes=4):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, num_classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)
    return Predictions(None, np.arange(n), labels, (sharper * logits).astype(np.float32))


def several_labels(n=300, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 3))
    labels = np.where(rng.random((n, 3)) < special.expit(logits), np.arange(3), -1)
    return Predictions(None, np.arange(n), labels, logits.astype(np.float32))


@pytest.mark.parametrize(
    ("make", "sums"), [(run, metrics.multiclass), (several_labels, metrics.multilabel)]
)
def test_the_values_are_those_that_runs_report(make, sums):
    predicted = make()
    weights = jnp.ones(len(predicted.ids))
    reported = metrics.means(
        sums(jnp.asarray(predicted.logits), jnp.asarray(predicted.labels), weights)
    )
    actual = intervals.resampled([predicted], num_resamples=2)
    assert {"nll", "brier"} < set(actual)
    for name, metric in actual.items():
        np.testing.assert_allclose(metric.values, [reported[name]], rtol=1e-4, err_msg=name)
    assert set(intervals.reported(actual, [reported])) == set(actual)


def test_a_metric_of_another_definition_has_no_interval():
    actual = intervals.resampled([run()], num_resamples=2)
    results = {"accuracy": float(actual["accuracy"].values[0]), "nll": 9.0}
    assert set(intervals.reported(actual, [results])) == {"accuracy"}


def test_a_temperature_divides_the_logits():
    hot, cold = run(), run(sharper=3.0)
    np.testing.assert_allclose(
        intervals.resampled([cold], [2.0], num_resamples=3)["nll"].draws,
        intervals.resampled([hot], num_resamples=3)["nll"].draws,
        rtol=1e-5,
    )


def test_a_resample_has_the_metrics_of_the_examples_that_it_draws():
    predicted, n = run(50), 50
    indices = np.random.Generator(np.random.Philox(key=7)).integers(n, size=(3, n))
    actual = intervals.resampled([predicted], num_resamples=3, seed=7)
    for draw, rows in enumerate(indices):
        drawn = predicted._replace(
            ids=np.arange(n), labels=predicted.labels[rows], logits=predicted.logits[rows]
        )
        expected = intervals.resampled([drawn], num_resamples=1)
        for name, metric in actual.items():
            np.testing.assert_allclose(metric.draws[draw], expected[name].values, rtol=1e-5)


def test_the_interval_of_an_accuracy_has_its_nominal_coverage():
    draws, rate, covered = np.random.default_rng(0), 0.8, 0
    for seed in range(200):
        values = (draws.random(150) < rate).astype(float)
        rows = draws.integers(150, size=(300, 150))
        metric = Resampled(values.mean(keepdims=True), values[rows].mean(axis=1)[:, None])
        interval = intervals.mean(metric, seed)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= rate <= interval.high
    assert 180 <= covered <= 199  # of 200, 190 at 95 %


def test_a_paired_difference_varies_less_than_an_unpaired_one():
    ours, theirs = run(sharper=1.5), run(sharper=1.6)
    resampled = [intervals.resampled([p])["nll"] for p in (ours, theirs)]
    difference = intervals.difference(*resampled, [(0, 0)])
    losses = [-special.log_softmax(p.logits, axis=-1) for p in (ours, theirs)]
    mine, other = (x[np.arange(400), ours.labels] for x in losses)
    assert difference.value == pytest.approx(np.mean(mine - other), rel=1e-4)
    error = np.std(mine - other) / 20
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert 2 * 1.96 * error < 0.5 * (intervals.mean(resampled[0]).high - mine.mean())


def test_a_difference_of_a_run_from_itself_is_zero():
    metric = intervals.resampled([run()])["ece"]
    interval = intervals.difference(metric, metric, [(0, 0)])
    assert interval == (0, 0, 0)
    assert interval.has_zero


def test_only_pairs_of_a_seed_count():
    values = np.array([1.0, 2.0, 30.0])
    metric = Resampled(values, np.tile(values, (500, 1)))
    interval = intervals.difference(
        metric, Resampled(np.array([2.5, 0.5]), np.tile([2.5, 0.5], (500, 1))), [(0, 1), (1, 0)]
    )
    end = stats.t.ppf(0.975, 1) * stats.sem([-0.5, 0.5])
    np.testing.assert_allclose(interval, (0.0, -end, end), rtol=0.05)


def test_intervals_over_several_seeds_contain_the_spread_of_the_seeds():
    values = np.array([0.70, 0.72, 0.74, 0.76])
    steady = Resampled(values, np.tile(values, (4000, 1)))  # the examples add nothing
    interval = intervals.mean(steady)
    width = 2 * stats.t.ppf(0.975, 3) * stats.sem(values)
    assert interval.high - interval.low == pytest.approx(width, rel=0.01)
    low, high = intervals.difference(steady, steady, [])[1:]
    draws = stats.t(3).rvs((2, 100_000), random_state=0) * stats.sem(values)
    expected = np.diff(np.quantile(draws[0] - draws[1], (0.025, 0.975))).item()
    assert high - low == pytest.approx(expected, rel=0.05)


def test_the_interval_of_tokens_is_that_of_their_sentences():
    """A sentence whose tokens are all alike says no more than one of them."""
    sentences = run(60)
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(60), 5))
    ids = 1024 * rows + np.arange(300)
    tokens = Predictions(None, ids, sentences.labels[rows], sentences.logits[rows], groups=rows)
    assert intervals.units(tokens) == "60 sentences"
    expected, actual = (intervals.resampled([p], num_resamples=20) for p in (sentences, tokens))
    assert expected.keys() == actual.keys()
    for name, metric in actual.items():
        np.testing.assert_allclose(metric.values, expected[name].values, rtol=1e-5)
        np.testing.assert_allclose(metric.draws, expected[name].draws, rtol=1e-5, err_msg=name)


def test_a_mean_over_tokens_is_of_the_tokens_that_are_drawn():
    """Of a sentence with one right token and one with three wrong ones."""
    labels = np.array([0, 1, 1, 1])
    logits = np.tile(np.array([4.0, 0.0], np.float32), (4, 1))
    tokens = Predictions(None, np.arange(4), labels, logits, groups=np.array([5, 9, 9, 9]))
    metric = intervals.resampled([tokens], num_resamples=100)["accuracy"]
    assert metric.values == [0.25]
    assert set(np.unique(metric.draws)) == {0.0, 0.25, 1.0}
