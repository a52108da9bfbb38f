import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import distance

from heteroscedastic.analysis.covariance import average, pairs
from heteroscedastic.models import heads

NUM_CLASSES = 9


@pytest.fixture(scope="module")
def averaged():
    head = heads.ParameterEfficient(NUM_CLASSES, num_factors=2)
    params = head.init(jax.random.key(0), jnp.ones((1, 4)))["params"]
    return average.average_covariance(head, params, [np.random.default_rng(0).normal(size=(20, 4))])


def definitions(averaged):
    """Every measure of every pair, by its definition."""
    covariance = average.covariance_rows(averaged, np.arange(NUM_CLASSES))
    own = np.diag(covariance)
    to_centred = np.eye(NUM_CLASSES) - 1 / NUM_CLASSES
    centred = to_centred @ covariance @ to_centred

    def correlation(matrix):
        return matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))

    return {
        "covariance": covariance,
        "correlation": correlation(covariance),
        "centred": centred,
        "centred_correlation": correlation(centred),
        "difference": own[:, None] + own - 2 * covariance,
    }


@pytest.mark.parametrize("name", pairs.MEASURES)
def test_measures_are_their_definitions(averaged, name):
    expected = definitions(averaged)[name]
    some = pairs.group_pairs(averaged, np.arange(NUM_CLASSES))
    result = pairs.measure(name, averaged, some.covariance, some.rows, some.cols)
    np.testing.assert_allclose(
        distance.squareform(result), expected * (1 - np.eye(NUM_CLASSES)), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", pairs.MEASURES)
@pytest.mark.parametrize("num", [1, 5, 1000])
def test_top_pairs_are_those_of_the_matrix_for_any_block_size(averaged, name, num, monkeypatch):
    matrix = definitions(averaged)
    rows, cols = np.triu_indices(NUM_CLASSES, 1)
    order = np.argsort(-np.abs(matrix[name][rows, cols]))[:num]
    for size in (2**20, 8 * NUM_CLASSES * 2, 1):
        monkeypatch.setattr(average, "_BYTES", size)
        result = pairs.top_pairs(averaged, num, name)
        np.testing.assert_array_equal(result.rows, rows[order])
        np.testing.assert_array_equal(result.cols, cols[order])
        np.testing.assert_allclose(
            result.covariance, matrix["covariance"][result.rows, result.cols], rtol=1e-12
        )
    in_memory = pairs.top_matrix_pairs(matrix[name], matrix["covariance"], num)
    np.testing.assert_array_equal(in_memory.rows, result.rows)
    np.testing.assert_array_equal(in_memory.cols, result.cols)
    np.testing.assert_allclose(in_memory.covariance, result.covariance, rtol=1e-12)


@pytest.mark.parametrize("size", [2**20, 8 * 10 * 3, 1])
def test_equal_pairs_are_ordered_by_class(size, monkeypatch):
    """Two kinds of classes, five of each: all pairs of a kind are equal, but for rounding."""
    monkeypatch.setattr(average, "_BYTES", size)
    kernel = np.random.default_rng(1).normal(size=(3, 2, 1))[:, [0, 1] * 5].astype(np.float32)
    head = heads.LowRank(10, num_factors=1)
    params = head.init(jax.random.key(0), jnp.ones((1, 3)))["params"]
    params = {
        **params,
        "factor_loadings": {"kernel": kernel, "bias": np.zeros((10, 1), np.float32)},
    }
    averaged = average.average_covariance(
        head, params, [np.random.default_rng(2).normal(size=(11, 3))]
    )
    result = pairs.top_pairs(averaged, 20)
    first = result.rows[0] % 2  # the kind of the larger
    assert [(i, j) for i, j in zip(result.rows, result.cols)][:10] == [
        (i, j) for i in range(10) for j in range(i + 1, 10) if i % 2 == j % 2 == first
    ]


def test_independent_classes_have_pairs():
    head = heads.Diagonal(4)
    params = head.init(jax.random.key(0), jnp.ones((1, 3)))["params"]
    result = pairs.top_pairs(average.average_covariance(head, params, [np.ones((2, 3))]), 4)
    assert list(zip(result.rows, result.cols)) == [(0, 1), (0, 2), (0, 3), (1, 2)]
    np.testing.assert_array_equal(result.covariance, 0)


def test_the_pairs_of_a_class_are_its_row(averaged):
    row = definitions(averaged)["covariance"][3]
    result = pairs.class_pairs(averaged, 3)
    near = pairs.largest(result, result.covariance, 4)
    expected = [j for j in np.argsort(-np.abs(row)) if j != 3][:4]
    assert near.cols.tolist() == expected
    np.testing.assert_allclose(near.covariance, row[expected])


def test_the_pairs_of_a_group_are_entries_of_the_covariance(averaged):
    result = pairs.group_pairs(averaged, np.array([7, 2, 5]))
    assert list(zip(result.rows, result.cols)) == [(7, 2), (7, 5), (2, 5)]
    expected = definitions(averaged)["covariance"][result.rows, result.cols]
    np.testing.assert_allclose(result.covariance, expected)


def test_a_number_below_one_and_an_unknown_measure_are_errors(averaged):
    with pytest.raises(ValueError, match=">= 1"):
        pairs.top_pairs(averaged, 0)
    with pytest.raises(ValueError, match="choose one of covariance"):
        pairs.top_pairs(averaged, 1, "covariances")


def test_the_first_classes_occur_once():
    some = pairs.Pairs(np.array([4, 1, 4]), np.array([5, 4, 7]), np.zeros(3))
    assert pairs.first_classes(some, 10).tolist() == [4, 5, 1, 7]
    assert pairs.first_classes(some, 3).tolist() == [4, 5, 1]


def test_correlated_classes_are_neighbours():
    kinds = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    correlation = np.where(kinds[:, None] == kinds, 0.9, 0.1) * np.where(np.eye(10), 1, -1)
    order = pairs.cluster_order(correlation[np.triu_indices(10, 1)])
    assert sorted(order) == list(range(10))
    assert (np.diff(kinds[order]) != 0).sum() == 2


def test_a_single_pair_and_a_single_class_have_an_order():
    assert pairs.cluster_order(np.array([0.5])).tolist() == [0, 1]
    assert pairs.cluster_order(np.zeros(0)).tolist() == [0]


def test_classes_are_given_by_name_or_number():
    names = ["crane", "tench, Tinca tinca", "cat", "crane"]
    assert pairs.class_numbers(names, ["tench, Tinca tinca", "crane"]).tolist() == [1, 0]
    assert pairs.class_numbers(names, ["3", "crane", "2"]).tolist() == [3, 0, 2]
    assert pairs.class_numbers(["1", "2", "0"], ["1", "0"]).tolist() == [
        0,
        2,
    ]  # a name takes precedence over a number
    with pytest.raises(ValueError, match="given twice"):
        pairs.class_numbers(names, ["crane", "0"])
    with pytest.raises(ValueError, match=r"no class '4'.* from 0 to 3"):
        pairs.class_numbers(names, ["4"])
    with pytest.raises(ValueError, match=r"no class 'cats'; .* 'cat'"):
        pairs.class_numbers(names, ["cats"])
    with pytest.raises(ValueError, match="given twice"):
        pairs.class_numbers(names, ["cat", "cat"])
