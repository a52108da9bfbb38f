import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from experiments import study
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis import covariance, finished
from heteroscedastic.data import augment
from heteroscedastic.training import loop


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    settings = {"training.num_epochs": 8.0, "head.temperature": (1.0, 4.0), "training.batch_size": 50}
    loop.train(study.config("digits_het_full", settings), str(path))
    return path


def temperature(found):
    """What the parameter says, written in plain numpy."""
    return 1.0 + 3.0 / (1.0 + np.exp(-np.asarray(found.state.params["head"]["temperature"])))


def test_results_tell_the_temperature_that_was_learned(directory):
    found = finished.load(directory)
    assert found.results["temperature"] == pytest.approx(temperature(found), rel=1e-6)
    assert abs(found.results["temperature"] - 2.5) > 0.01  # it starts in the middle


def test_measures_are_plain_averages_in_units_of_the_utilities(directory):
    found = finished.load(directory, "best")
    head = found.state.params["head"] | {"temperature": jnp.float32(0.7)}  # whatever the last one learned
    found = found._replace(state=found.state._replace(params=found.state.params | {"head": head}))
    split = found.run.dataset.splits["valid"]
    inputs = jnp.stack([augment.value_range(jax.random.key(0), jnp.asarray(x), low=-1, high=1) for x in split.inputs])
    latent = found.run.model.apply({"params": found.state.params}, inputs, jnp.ones(len(inputs), bool))
    latent = latent_lib.temper(latent, 1 / float(temperature(found)))  # the temperature taken back
    averaged = covariance.measures(found, "valid")
    expected = np.mean(latent_lib.covariance(latent), axis=0)
    np.testing.assert_allclose(averaged.covariance, expected, rtol=1e-3, atol=1e-4)
    deviations = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(averaged.correlation, expected / np.outer(deviations, deviations), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(averaged.overlap.sum(), 1.0, rtol=1e-4)  # sum_ij p_i p_j = 1
    # the variance of differences, weighted, within what the noise of p allows
    samples = latent_lib.sample(jax.random.key(1), latent_lib.temper(latent, float(temperature(found))), 2000)
    probs = np.mean(jax.nn.softmax(samples), axis=0)
    seen = np.mean(probs[:, :, None] * probs[:, None] * np.asarray(latent_lib.difference_variance(latent)), axis=0)
    np.testing.assert_allclose(averaged.seen, seen, rtol=0.2, atol=0.1 * seen.max())


def test_the_confusions_are_read_from_the_run(directory):
    found = finished.load(directory)
    shares = covariance.confusions(found.dataset)
    np.testing.assert_array_equal(shares, shares.T)
    assert np.count_nonzero(shares) == 6  # three pairs, either way
    assert shares[shares > 0] == pytest.approx(0.4, abs=0.08)


def test_confusions_are_shares_of_the_examples_of_both_classes():
    noise = [[0, 0, 6], [0, 1, 2], [1, 0, 1], [1, 1, 3], [2, 2, 5]]
    shares = covariance.confusions({"class_names": ["a", "b", "c", "d"], "label_noise": noise})
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = (2 + 1) / (8 + 4)
    np.testing.assert_array_equal(shares, expected)


def symmetric(draws, size):
    half = draws.normal(size=(size, size))
    return np.abs(half + half.T)


def test_the_rank_correlation_is_spearmans_over_pairs():
    draws = np.random.default_rng(0)
    one, other = symmetric(draws, 7), symmetric(draws, 7)
    upper = np.triu_indices(7, 1)
    expected = stats.spearmanr(one[upper], other[upper]).statistic
    assert covariance.rank_correlation(one, other)["rho"] == pytest.approx(expected)


def test_ties_share_their_ranks():
    measure = symmetric(np.random.default_rng(3), 6)
    confusion = (measure > np.median(measure)).astype(float)  # of two values alone
    measure = np.round(measure)
    upper = np.triu_indices(6, 1)
    expected = stats.spearmanr(measure[upper], confusion[upper]).statistic
    assert covariance.rank_correlation(measure, confusion, 9)["rho"] == pytest.approx(expected)


def test_of_equal_matrices_the_correlation_is_one_and_only_the_same_order_is_as_good():
    one = symmetric(np.random.default_rng(1), 10)
    found = covariance.rank_correlation(one, 3 * one, num_permutations=999)
    assert found["rho"] == pytest.approx(1)
    assert found["p"] == 1 / 1000


def test_of_unrelated_matrices_p_is_uniform():
    draws = np.random.default_rng(2)
    p = [covariance.rank_correlation(symmetric(draws, 6), symmetric(draws, 6), 199)["p"] for _ in range(200)]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_where_nothing_is_confused_there_is_no_correlation():
    assert np.isnan(covariance.rank_correlation(np.eye(3) + 1.0, np.zeros((3, 3)))["rho"])


def test_several_labels_an_example_are_told(directory):
    found = finished.load(directory)
    splits = {"test": found.run.dataset.splits["test"]._replace(labels=np.zeros((1, 2), int))}
    run = dataclasses.replace(found.run, dataset=found.run.dataset._replace(splits=splits))
    with pytest.raises(ValueError, match="one label an example"):
        covariance.measures(found._replace(run=run))


def test_a_run_that_is_not_complete_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="no complete run"):
        finished.load(tmp_path)


def test_agreement_is_the_auc_of_the_ranking():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(-4, 5, (8, 8)).astype(float)  # with ties
        pairs = rng.random((8, 8)) < 0.3
        upper = np.triu_indices(8, 1)
        found = covariance.agreement(scores, pairs)
        assert found["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(pairs[upper], np.abs(scores[upper])))


def test_agreement_at_its_ends():
    pairs = np.zeros((5, 5), bool)
    pairs[0, 1] = pairs[2, 3] = True
    assert covariance.agreement(-10.0 * pairs, pairs) == {"first": 2.0, "auc": 1.0}
    assert covariance.agreement(1.0 - pairs, pairs) == {"first": 0.0, "auc": 0.0}
    tied = covariance.agreement(np.ones((5, 5)), pairs)
    assert tied["auc"] == 0.5
    assert tied["first"] == pytest.approx(2 * 2 / 10)  # as many as chance would give
    assert np.isnan(covariance.agreement(np.ones((5, 5)), np.zeros((5, 5), bool))["auc"])
