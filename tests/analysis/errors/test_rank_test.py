import itertools
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from heteroscedastic.analysis.errors import rank_test


def test_ranks_are_places_among_the_other_classes_by_size():
    values = np.array([[5.0, -3.0, 1.0, 0.5], [2.0, 2.0, -9.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    found = rank_test.ranks(values, np.array([0, 1, 3]))
    np.testing.assert_array_equal(found, [[0, 1, 2, 3], [2, 0, 1, 3], [2, 2, 2, 0]])


def test_many_examples_are_ranked_a_block_at_a_time():
    rng = np.random.default_rng(0)
    values, true = rng.integers(-50, 50, (300, 7000)).astype(np.float32), rng.integers(0, 7000, 300)
    tracemalloc.start()
    found = rank_test.ranks(values, true)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        peak < found.nbytes + 60 * 2**20
    )  # of a block; at once it would be 17 bytes or more a value
    for row, own, told in zip(values, true, found):
        np.testing.assert_array_equal(
            np.delete(told, own), stats.rankdata(-np.abs(np.delete(row, own)))
        )


def partners(rng, k):
    """Classes in pairs that are taken for one another, and never for others."""
    first, second = rng.permutation(k).reshape(2, -1)
    habit = np.zeros((k, k))
    habit[first, second] = habit[second, first] = 1
    return habit


def drawn(rng, n, k, null):
    """Images that are taken for other classes by chance, as a habit of their class; covariances
    know nothing of it.
    """
    true = rng.integers(0, k, n)
    if null == "a class is taken for few":
        common, habit = rng.normal(size=(k, k)), np.exp(3 * rng.normal(size=(k, k)))
    elif null == "symmetric":
        common, habit = rng.normal(size=(k, k)), partners(rng, k)
        common = common + common.T
    else:  # some classes have large covariances with all, and some are what all are taken for
        scaled = rng.normal(size=(k, 5)) * np.exp(0.7 * rng.normal(size=(k, 1)))
        common, habit = scaled @ scaled.T, np.tile(np.exp(rng.normal(size=k)), (k, 1))
    np.fill_diagonal(habit, 0)
    taken = np.array([rng.choice(k, p=habit[t] / habit[t].sum()) for t in true])
    return rank_test.ranks(common[true] + 0.1 * rng.normal(size=(n, k)), true), true, taken


@pytest.mark.parametrize("missing", [(), (2, 4)], ids=["every class has images", "two have none"])
def test_chance_is_over_every_joint_renaming_that_keeps_the_classes_with_images(missing):
    rng = np.random.default_rng(0)
    k, n = 6, 30
    true = rng.choice([c for c in range(k) if c not in missing], n)
    taken = (true + rng.integers(1, k, n)) % k
    ranked = rank_test.ranks(rng.normal(size=(n, k)), true)
    means = []
    for naming in itertools.permutations(range(k)):
        if all(naming[c] in missing for c in missing):
            mine = np.array(naming)
            of_class = [float(ranked[true == mine[t], mine[c]].mean()) for t, c in zip(true, taken)]
            means.append(np.mean(of_class))
    told = rank_test.chance(ranked, true, taken)
    assert told.expected == pytest.approx(np.mean(means), abs=5 * np.std(means) / 100)
    assert told.deviation == pytest.approx(np.std(means), rel=0.05)
    assert told.mean == pytest.approx(np.mean(ranked[np.arange(n), taken]))
    of_classes = [ranked[true == t, c].mean() for t, c in zip(true, taken)]
    assert told.of_classes == pytest.approx(np.mean(of_classes, dtype=float))
    p = np.mean(np.array(means) <= told.of_classes + 1e-6)
    assert told.p == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p)) / 100)


@pytest.mark.parametrize("null", ["a class is taken for few", "symmetric", "class scales"])
def test_by_chance_p_is_uniform(null):
    rng = np.random.default_rng(1)
    p = np.array(
        [rank_test.chance(*drawn(rng, 200, 10, null), num_permutations=199).p for _ in range(400)]
    )
    assert stats.binomtest(int(np.sum(p <= 0.05)), len(p), 0.05).pvalue > 0.01
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_the_test_of_many_classes_is_quick_and_renames_less():
    rng = np.random.default_rng(2)
    true, k = rng.integers(0, 30, 100), 30_000
    taken = true + k - 100
    values = rng.normal(size=(100, k)).astype(np.float32)
    values[np.arange(100), taken] = 9
    told = rank_test.chance(rank_test.ranks(values, true), true, taken)
    assert told.p == pytest.approx(1 / 1000)
    assert told.mean == 1


def test_copies_of_the_same_images_are_no_more_evidence():
    ranked, true, taken = drawn(np.random.default_rng(2), 40, 6, "symmetric")
    once = rank_test.chance(ranked, true, taken)
    often = rank_test.chance(*(np.concatenate([x] * 5) for x in (ranked, true, taken)))
    np.testing.assert_allclose(often, once)


def test_where_the_covariance_knows_it_all_every_rank_is_the_first():
    rng = np.random.default_rng(3)
    _, true, taken = drawn(rng, 200, 10, "class scales")
    values = 0.1 * rng.normal(size=(200, 10))
    values[np.arange(200), taken] = -5
    told = rank_test.chance(rank_test.ranks(values, true), true, taken)
    assert told.mean == 1
    assert told.p == pytest.approx(1e-4)
