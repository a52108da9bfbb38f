import itertools
import tracemalloc

import numpy as np
import pytest
from cases import mostly_extended
from scipy import stats

from heteroscedastic.analysis.errors import rank_test


def test_ranks_order_the_other_classes_by_absolute_value():
    values = np.array([[5.0, -3.0, 1.0, 0.5], [2.0, 2.0, -9.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    result = rank_test.ranks(values, np.array([0, 1, 3]))
    np.testing.assert_array_equal(result, [[0, 1, 2, 3], [2, 0, 1, 3], [2, 2, 2, 0]])


def test_many_examples_are_ranked_in_blocks():
    rng = np.random.default_rng(0)
    values, true = rng.integers(-50, 50, (300, 7000)).astype(np.float32), rng.integers(0, 7000, 300)
    tracemalloc.start()
    result = rank_test.ranks(values, true)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        peak < result.nbytes + 60 * 2**20
    )  # ranking all at once requires 17 bytes or more per value
    for row, own, row_ranks in zip(values, true, result):
        np.testing.assert_array_equal(
            np.delete(row_ranks, own), stats.rankdata(-np.abs(np.delete(row, own)))
        )


def partners(rng, k):
    """Classes in pairs that are confused only with each other."""
    first, second = rng.permutation(k).reshape(2, -1)
    habit = np.zeros((k, k))
    habit[first, second] = habit[second, first] = 1
    return habit


def null_draw(rng, n, k, null):
    """Images whose confusions depend on their class but not on the covariance."""
    true = rng.integers(0, k, n)
    if null == "few confusions":
        common, habit = rng.normal(size=(k, k)), np.exp(3 * rng.normal(size=(k, k)))
    elif null == "symmetric":
        common, habit = rng.normal(size=(k, k)), partners(rng, k)
        common = common + common.T
    else:  # some classes have large covariances with all others, and some are frequent mistakes
        scaled = rng.normal(size=(k, 5)) * np.exp(0.7 * rng.normal(size=(k, 1)))
        common, habit = scaled @ scaled.T, np.tile(np.exp(rng.normal(size=k)), (k, 1))
    np.fill_diagonal(habit, 0)
    predicted = np.array([rng.choice(k, p=habit[t] / habit[t].sum()) for t in true])
    return rank_test.ranks(common[true] + 0.1 * rng.normal(size=(n, k)), true), true, predicted


@pytest.mark.parametrize("missing", [(), (2, 4)], ids=["every class has images", "two have none"])
def test_the_null_distribution_is_over_joint_renamings_of_classes_with_images(missing):
    rng = np.random.default_rng(0)
    k, n = 6, 30
    true = rng.choice([c for c in range(k) if c not in missing], n)
    predicted = (true + rng.integers(1, k, n)) % k
    class_ranks = rank_test.ranks(rng.normal(size=(n, k)), true)
    means = []
    for naming in itertools.permutations(range(k)):
        if all(naming[c] in missing for c in missing):
            mine = np.array(naming)
            of_class = [
                float(class_ranks[true == mine[t], mine[c]].mean()) for t, c in zip(true, predicted)
            ]
            means.append(np.mean(of_class))
    test = rank_test.permutation_test(class_ranks, true, predicted)
    assert test.expected == pytest.approx(np.mean(means), abs=5 * np.std(means) / 100)
    assert test.deviation == pytest.approx(np.std(means), rel=0.05)
    assert test.mean == pytest.approx(np.mean(class_ranks[np.arange(n), predicted]))
    of_classes = [class_ranks[true == t, c].mean() for t, c in zip(true, predicted)]
    assert test.of_classes == pytest.approx(np.mean(of_classes, dtype=float))
    p = np.mean(np.array(means) <= test.of_classes + 1e-6)
    assert test.p == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p)) / 100)


@pytest.mark.parametrize(
    "null", mostly_extended(["few confusions", "symmetric", "class scales"], ["class scales"])
)
def test_p_is_uniform_under_the_null_hypothesis(null):
    rng = np.random.default_rng(1)
    p = np.array(
        [
            rank_test.permutation_test(*null_draw(rng, 200, 10, null), num_permutations=199).p
            for _ in range(400)
        ]
    )
    assert stats.binomtest(int(np.sum(p <= 0.05)), len(p), 0.05).pvalue > 0.01
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_many_classes_use_fewer_permutations():
    rng = np.random.default_rng(2)
    true, k = rng.integers(0, 30, 100), 30_000
    predicted = true + k - 100
    values = rng.normal(size=(100, k)).astype(np.float32)
    values[np.arange(100), predicted] = 9
    test = rank_test.permutation_test(rank_test.ranks(values, true), true, predicted)
    assert test.p == pytest.approx(1 / 1000)
    assert test.mean == 1


def test_copies_of_images_add_no_evidence():
    class_ranks, true, predicted = null_draw(np.random.default_rng(2), 40, 6, "symmetric")
    once = rank_test.permutation_test(class_ranks, true, predicted)
    often = rank_test.permutation_test(
        *(np.concatenate([x] * 5) for x in (class_ranks, true, predicted))
    )
    np.testing.assert_allclose(often, once)


def test_if_the_covariance_determines_the_mistake_every_rank_is_first():
    rng = np.random.default_rng(3)
    _, true, predicted = null_draw(rng, 200, 10, "class scales")
    values = 0.1 * rng.normal(size=(200, 10))
    values[np.arange(200), predicted] = -5
    test = rank_test.permutation_test(rank_test.ranks(values, true), true, predicted)
    assert test.mean == 1
    assert test.p == pytest.approx(1e-4)
