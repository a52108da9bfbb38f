import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import smoothing
from heteroscedastic.batch import Batch


def batch_of(labels, leading=None):
    """A batch with these labels and no inputs."""
    labels = jnp.asarray(labels)
    weights = jnp.ones(labels.shape if leading is None else leading)
    return Batch(None, labels, weights, jnp.arange(weights.size).reshape(weights.shape), {})


@pytest.mark.parametrize(
    ("over", "own", "other"),
    [
        ("all", lambda r, k: 1 - r + r / k, lambda r, k: r / k),
        ("wrong", lambda r, k: 1 - r, lambda r, k: r / (k - 1)),
    ],
)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("k", [2, 5])
def test_targets_follow_the_formula_of_each_convention(over, own, other, rate, k):
    targets = smoothing.uniform(batch_of([1, 0]), k, rate=rate, over=over)
    stated = np.full((2, k), other(rate, k))
    stated[0, 1] = stated[1, 0] = own(rate, k)
    np.testing.assert_allclose(targets, stated, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_the_conventions_agree_at_corresponding_rates(rate, k):
    batch = batch_of(np.arange(k))
    np.testing.assert_allclose(
        smoothing.uniform(batch, k, rate=rate * (k - 1) / k, over="wrong"),
        smoothing.uniform(batch, k, rate=rate, over="all"),
        rtol=1e-5,
    )


@pytest.mark.parametrize("over", ["all", "wrong"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_rows_sum_to_one_under_any_leading_axes(over, rate, shape):
    labels = np.random.default_rng(0).integers(0, 5, size=shape)
    targets = smoothing.uniform(batch_of(labels), 5, rate=rate, over=over)
    assert targets.shape == (*shape, 5)
    np.testing.assert_allclose(targets.sum(axis=-1), np.ones(shape), rtol=1e-6)


def test_rate_zero_gives_hard_targets():
    batch = batch_of([2, 0, 1])
    np.testing.assert_array_equal(smoothing.hard(batch, 3), np.eye(3)[[2, 0, 1]])
    for over in ("all", "wrong"):
        np.testing.assert_array_equal(
            smoothing.uniform(batch, 3, rate=0.0, over=over), smoothing.hard(batch, 3)
        )


def test_targets_of_lists_are_one_at_each_label_and_ignore_padding_and_repeats():
    lists = [[0, 2, -1], [-1, -1, -1], [1, 1, 1], [3, 2, 0]]
    stated = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1]]
    np.testing.assert_array_equal(smoothing.hard(batch_of(lists, (4,)), 4), stated)
    np.testing.assert_array_equal(
        smoothing.hard(batch_of(np.reshape(lists, (2, 2, 3)), (2, 2)), 4),
        np.reshape(stated, (2, 2, 4)),
    )


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_rate_out_of_range_is_an_error(rate):
    with pytest.raises(ValueError, match=r"rate is .*; it must be a finite number >= 0 and < 1"):
        smoothing.uniform(batch_of([0]), 3, rate=rate)


def test_an_unknown_convention_is_an_error_that_lists_the_choices():
    with pytest.raises(ValueError, match=r"over is 'some'; choose 'all' or 'wrong'"):
        smoothing.uniform(batch_of([0]), 3, rate=0.1, over="some")


def test_smoothing_of_lists_of_labels_is_an_error():
    with pytest.raises(ValueError, match="one label per example"):
        smoothing.uniform(batch_of([[0, -1]], (1,)), 3, rate=0.1)
