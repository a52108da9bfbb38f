import numpy as np
import pytest
from scipy import stats

from heteroscedastic import digital_nets


def digits_of(generators):
    """The points of each column as 32-bit fractions, from the definition C i (mod 2)."""
    count = generators.shape[1]
    matrix = (generators[:, None, :] >> np.arange(31, -1, -1, dtype=np.uint32)[None, :, None]) & 1
    numbers = (np.arange(2**count)[None] >> np.arange(count)[:, None]) & 1
    bits = (matrix @ numbers) % 2
    return (bits * 2.0 ** -np.arange(1, 33)[None, :, None]).sum(axis=1)


@pytest.mark.parametrize(("digits", "least"), [(0, 1), (1, 1), (5, 10), (7, 30), (10, 64)])
def test_each_column_falls_once_into_each_interval(digits, least):
    columns = digital_nets.columns(digits)
    assert least <= len(columns) <= 64
    intervals = np.sort(np.floor(digits_of(columns) * 2**digits), axis=1)
    np.testing.assert_array_equal(intervals, np.tile(np.arange(2**digits), (len(columns), 1)))


def test_the_first_columns_are_those_of_scipy():
    actual = digits_of(digital_nets.columns(7)[:6])
    expected = stats.qmc.Sobol(6, scramble=False).random(128)
    np.testing.assert_array_equal(np.unique(actual.T, axis=0), np.unique(expected, axis=0))


def test_the_file_holds_the_direction_numbers_of_scipy():
    assert digital_nets._sobol(32).shape == (512, 32)
    engine = stats.qmc.Sobol(512, scramble=False, bits=32)
    expected = np.unique(engine.random(128), axis=0)
    points = digits_of(digital_nets._sobol(7))
    np.testing.assert_array_equal(np.unique(points.T, axis=0), expected)
    np.testing.assert_array_equal(digital_nets._sobol(32), engine._sv)


def test_the_variance_ratio_agrees_with_random_shifts():
    columns = digital_nets.columns(4)[[0, 2]]
    points = (digits_of(columns) * 2**16).astype(int)
    rng = np.random.default_rng(0)
    for judge in digital_nets._TEST_FUNCTIONS:
        table = digital_nets._autocorrelation(judge)
        cells = digital_nets._cells(columns)
        stated = digital_nets._variance_ratios(table, cells[:1], cells[1])
        normals = stats.norm.ppf((np.arange(2**16) + 0.5) / 2**16)
        a, b = (normals[p ^ rng.integers(0, 2**16, (20_000, 1))] for p in points)
        alone = judge(*rng.normal(size=(2, 400_000))).var()
        assert 16 * judge(a, b).mean(axis=1).var() / alone == pytest.approx(stated[0], rel=0.06)


def test_most_pairs_have_a_much_smaller_variance_than_independent_points():
    cells = digital_nets._cells(digital_nets.columns(7))
    for judge in digital_nets._TEST_FUNCTIONS:
        table = digital_nets._autocorrelation(judge)
        ratios = np.array(
            [table[cells[i], cells[j]].sum() for j in range(len(cells)) for i in range(j)]
        )
        assert ratios.max() <= 1.0
        assert np.median(ratios) < 0.45
