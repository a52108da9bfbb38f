import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from heteroscedastic.analysis.covariance import known_noise


def test_the_noise_rate_is_a_fraction_of_the_training_labels():
    assert known_noise.noise_rate(
        {"label_noise": [[0, 0, 6], [0, 1, 2], [1, 1, 2]]}
    ) == pytest.approx(0.2)
    assert known_noise.noise_rate({}) is None


def test_confusions_are_fractions_of_the_examples_of_both_classes():
    noise = [[0, 0, 6], [0, 1, 2], [1, 0, 1], [1, 1, 3], [2, 2, 5]]
    rates = known_noise.confusion_matrix(
        {"class_names": ["a", "b", "c", "d"], "label_noise": noise}
    )
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = (2 + 1) / (8 + 4)
    np.testing.assert_array_equal(rates, expected)


def symmetric(draws, size):
    half = draws.normal(size=(size, size))
    return np.abs(half + half.T)


def test_the_rank_correlation_is_spearmans_over_pairs():
    draws = np.random.default_rng(0)
    one, other = symmetric(draws, 7), symmetric(draws, 7)
    upper = np.triu_indices(7, 1)
    expected = stats.spearmanr(one[upper], other[upper]).statistic
    assert known_noise.rank_correlation(one, other)["rho"] == pytest.approx(expected)


def test_ties_share_their_ranks():
    measure = symmetric(np.random.default_rng(3), 6)
    confusion = (measure > np.median(measure)).astype(float)  # only two values
    measure = np.round(measure)
    upper = np.triu_indices(6, 1)
    expected = stats.spearmanr(measure[upper], confusion[upper]).statistic
    assert known_noise.rank_correlation(measure, confusion, 9)["rho"] == pytest.approx(expected)


def test_equal_matrices_have_correlation_one_and_the_smallest_p():
    one = symmetric(np.random.default_rng(1), 10)
    result = known_noise.rank_correlation(one, 3 * one, num_permutations=999)
    assert result["rho"] == pytest.approx(1)
    assert result["p"] == 1 / 1000


def test_p_is_uniform_for_unrelated_matrices():
    draws = np.random.default_rng(2)
    p = [
        known_noise.rank_correlation(symmetric(draws, 6), symmetric(draws, 6), 199)["p"]
        for _ in range(200)
    ]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def related_matrices(rng, num_classes, strength=0.0):
    """A measure and confusions that both follow the overlap, and each other by `strength`."""
    overlap, common, *own = (symmetric_matrix(rng, num_classes) for _ in range(4))
    measure, confusion = (0.6 * overlap + strength * common + x for x in own)
    return np.exp(measure), confusion, overlap


def symmetric_matrix(rng, num_classes):
    values = rng.standard_normal((num_classes, num_classes))
    return values + values.T


def test_the_partial_correlation_is_that_of_residuals_of_ranks():
    measure, confusion, overlap = related_matrices(np.random.default_rng(0), 8, strength=1.0)
    upper = np.triu_indices(8, 1)
    design = np.stack([np.ones(28), stats.rankdata(overlap[upper])], axis=1)

    def residual(x):
        ranks = stats.rankdata(x[upper])
        return ranks - design @ np.linalg.lstsq(design, ranks, rcond=None)[0]

    found = known_noise.rank_correlation(-measure, confusion, 99, given=overlap)
    expected = np.corrcoef(residual(measure), residual(confusion))[0, 1]
    assert found["rho"] == pytest.approx(expected, abs=1e-12)
    whole = known_noise.rank_correlation(measure, confusion, 0)["rho"]
    assert abs(found["rho"] - whole) > 0.05
    nothing = known_noise.rank_correlation(np.exp(overlap), confusion, 9, given=overlap)
    assert np.isnan([*nothing.values()]).all()
    constant = known_noise.rank_correlation(measure, confusion, 0, given=np.ones((8, 8)))
    assert constant["rho"] == pytest.approx(whole)


def test_the_partial_p_is_uniform_without_a_relation_beyond_the_overlap():
    rng = np.random.default_rng(0)
    p, plain = [], []
    for _ in range(150):
        measure, confusion, overlap = related_matrices(rng, 9)
        p.append(known_noise.rank_correlation(measure, confusion, 99, given=overlap)["p"])
        plain.append(known_noise.rank_correlation(measure, confusion, 99)["p"])
    assert stats.kstest(p, "uniform").pvalue > 0.05
    assert stats.kstest(plain, "uniform").pvalue < 1e-6  # both follow the overlap
    measure, confusion, overlap = related_matrices(rng, 12, strength=3.0)
    assert known_noise.rank_correlation(measure, confusion, 99, given=overlap)["p"] < 0.05


def test_classes_are_permuted_within_their_strata():
    strata = np.array([0, 1, 1, 0, 2, 1, 0])
    orders = list(known_noise.permutations(strata, 50))
    for order in orders:
        np.testing.assert_array_equal(strata[order], strata)
        np.testing.assert_array_equal(np.sort(order), np.arange(7))
    assert len({tuple(order) for order in orders}) > 20
    rng, strata = np.random.default_rng(0), np.repeat([0, 1], 8)
    by_stratum = 5.0 * (strata[:, None] + strata)
    one, other = (symmetric(rng, 16) + by_stratum for _ in range(2))
    assert known_noise.rank_correlation(one, other, 99)["p"] <= 0.02
    assert known_noise.rank_correlation(one, other, 99, strata=strata)["p"] > 0.1


def test_without_confusion_there_is_no_correlation():
    assert np.isnan(known_noise.rank_correlation(np.eye(3) + 1.0, np.zeros((3, 3)))["rho"])


def test_agreement_is_the_auc_of_the_ranking():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(-4, 5, (8, 8)).astype(float)  # with ties
        pairs = rng.random((8, 8)) < 0.3
        upper = np.triu_indices(8, 1)
        result = known_noise.agreement(scores, pairs)
        assert result["auc"] == pytest.approx(
            sklearn_metrics.roc_auc_score(pairs[upper], np.abs(scores[upper]))
        )


def test_agreement_at_its_extremes():
    pairs = np.zeros((5, 5), bool)
    pairs[0, 1] = pairs[2, 3] = True
    assert known_noise.agreement(-10.0 * pairs, pairs) == {"first": 2.0, "auc": 1.0}
    assert known_noise.agreement(1.0 - pairs, pairs) == {"first": 0.0, "auc": 0.0}
    tied = known_noise.agreement(np.ones((5, 5)), pairs)
    assert tied["auc"] == 0.5
    assert tied["first"] == pytest.approx(2 * 2 / 10)  # the expectation by chance
    assert np.isnan(known_noise.agreement(np.ones((5, 5)), np.zeros((5, 5), bool))["auc"])


def test_agreements_compare_measures_with_the_known_noise():
    description = {
        "class_names": list("abcd"),
        "label_noise": [[0, 0, 6], [0, 1, 2], [1, 1, 3], [2, 2, 5], [3, 3, 1]],
    }
    measure = np.zeros((4, 4))
    measure[0, 1] = measure[1, 0] = -2.0
    result = known_noise.agreements({"one": measure, "none": np.zeros((4, 4))}, description)
    assert (
        result["one"]["first"]
        == result["one"]["auc"]
        == result["one"]["rho"]
        == result["one"]["to_find"]
        == 1
    )
    assert result["none"]["auc"] == 0.5
    assert (
        known_noise.agreements({"one": measure}, {**description, "label_noise": [[0, 0, 6]]})
        is None
    )


def test_if_every_pair_is_confused_the_most_confused_are_the_target():
    known = symmetric(np.random.default_rng(3), 10)
    np.fill_diagonal(known, 0)
    upper = np.triu_indices(10, 1)
    target = known_noise.most_confused(known)
    assert target[upper].sum() == 5  # a tenth of 45, rounded up
    assert known[upper][target[upper]].min() > known[upper][~target[upper]].max()
    assert known_noise.agreement(known, target) == {"first": 5.0, "auc": 1.0}
    tied = np.round(known, 1) + 0.1 * ~np.eye(10, dtype=bool)
    assert known_noise.most_confused(tied)[upper].sum() >= 5
    assert not known_noise.most_confused(tied).diagonal().any()
    known[0, 1] = known[1, 0] = 0
    np.testing.assert_array_equal(known_noise.most_confused(known), known > 0)
    assert (
        known_noise.most_confused(1 - np.eye(5) + np.diag([1], 4) + np.diag([1], -4)).sum() == 20
    )  # 3 pairs, and ties


def test_agreement_works_if_every_pair_is_confused():
    counts = [[i, j, 50 if i == j else 1 + i * j] for i in range(5) for j in range(5)]
    description = {"class_names": list("abcde"), "label_noise": counts}
    result = known_noise.agreements(
        {"one": known_noise.confusion_matrix(description)}, description
    )["one"]
    assert (result["to_find"], result["first"], result["auc"]) == (3, 3.0, 1.0)
