import itertools

import numpy as np
import pytest
from scipy import stats

from heteroscedastic.analysis import rank_test


def test_ranks_are_places_among_the_other_classes_by_size():
    values = np.array([[5.0, -3.0, 1.0, 0.5], [2.0, 2.0, -9.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    found = rank_test.ranks(values, np.array([0, 1, 3]))
    np.testing.assert_array_equal(found, [[0, 1, 2, 3], [2, 0, 1, 3], [2, 2, 2, 0]])


def drawn(rng, n, k):
    """Images of classes that are taken for others by chance, as a habit of the class."""
    true = rng.integers(0, k, n)
    habit = np.array([rng.permutation([c for c in range(k) if c != t])[:2] for t in range(k)])
    taken = habit[true, rng.integers(0, 2, n)]
    common = rng.normal(size=(k, k))  # the covariances of a class are much the same in all its images
    return rank_test.ranks(common[true] + 0.3 * rng.normal(size=(n, k)), true), true, taken


def test_chance_is_the_mean_and_variance_over_every_naming():
    ranked, true, taken = drawn(np.random.default_rng(0), 12, 4)
    means = []
    labels = np.unique(true)
    others = {t: [c for c in range(4) if c != t] for t in labels}
    for namings in itertools.product(itertools.permutations(range(3)), repeat=len(labels)):
        named = {t: dict(zip(others[t], np.array(others[t])[list(p)])) for t, p in zip(labels, namings)}
        means.append(np.mean([ranked[i, named[true[i]][taken[i]]] for i in range(12)]))
    told = rank_test.chance(ranked, true, taken)
    assert told.expected == pytest.approx(np.mean(means)) == pytest.approx(2)
    assert told.deviation == pytest.approx(np.std(means))
    assert told.mean == pytest.approx(np.mean(ranked[np.arange(12), taken]))


def test_by_chance_p_is_uniform_though_images_of_a_class_are_alike():
    rng = np.random.default_rng(1)
    p = [rank_test.chance(*drawn(rng, 300, 12)).p for _ in range(300)]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_copies_of_the_same_images_are_no_more_evidence():
    ranked, true, taken = drawn(np.random.default_rng(2), 40, 6)
    once = rank_test.chance(ranked, true, taken)
    often = rank_test.chance(*(np.concatenate([x] * 5) for x in (ranked, true, taken)))
    np.testing.assert_allclose(often, once)


def test_where_the_covariance_knows_it_all_every_rank_is_the_first():
    rng = np.random.default_rng(3)
    _, true, taken = drawn(rng, 200, 10)
    values = 0.1 * rng.normal(size=(200, 10))
    values[np.arange(200), taken] = -5
    told = rank_test.chance(rank_test.ranks(values, true), true, taken)
    assert told.mean == 1
    assert told.p < 1e-6
