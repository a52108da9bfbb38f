import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import calibration as sklearn_calibration

from heteroscedastic.calibration import reliability

EDGES = reliability.equal_edges(15)


def labelled(seed=0, n=150, k=4):
    """Probabilities and labels; the last class has no examples, and some examples are absent."""
    rng = np.random.default_rng(seed)
    probs = special.softmax(2 * rng.normal(size=(n, k)), axis=-1).astype(np.float32)
    return probs, rng.integers(0, k - 1, n), rng.integers(0, 2, n).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 1])
def test_sums_by_class_are_those_of_the_examples_of_each_class(seed):
    probs, labels, _ = labelled(seed)
    confidence, correct = probs.max(-1), (probs.argmax(-1) == labels).astype(np.float32)
    actual = reliability.sums_by_class(confidence, correct, labels, EDGES, 4)
    errors = reliability.expected_calibration_error(actual)
    assert np.isnan(errors[3])
    assert np.isnan(reliability.maximum_calibration_error(actual)[3])
    for c in range(3):
        own = labels == c
        of_class = map(jnp.asarray, (confidence[own], correct[own], np.ones(own.sum())))
        np.testing.assert_allclose(
            errors[c],
            reliability.expected_calibration_error(reliability.sums(*of_class, EDGES)),
            rtol=1e-4,
        )
    summed = jax.tree.map(lambda x: x.sum(axis=0), actual)
    complete = reliability.sums(
        *map(jnp.asarray, (confidence, correct, np.ones(len(labels)))), EDGES
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), summed, complete)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_against_all_agrees_with_scikit_learn(seed):
    probs, labels, weights = labelled(seed)
    present, hot = weights > 0, np.eye(4, dtype=np.float32)[labels]
    actual = reliability.expected_calibration_error(
        reliability.sums_one_against_all(probs[present], hot[present] > 0, EDGES)
    )
    for c in range(4):
        holds, stated = hot[present, c], probs[present, c]
        observed, mean = sklearn_calibration.calibration_curve(
            holds, stated, n_bins=15, pos_label=1
        )
        counts = np.bincount(np.searchsorted(np.linspace(0, 1, 16)[1:-1], stated), minlength=15)
        expected = np.sum(counts[counts > 0] * np.abs(observed - mean)) / present.sum()
        np.testing.assert_allclose(actual[c], expected, rtol=1e-4)


def test_one_against_all_is_the_sums_of_each_class():
    rng = np.random.default_rng(2)
    probs = rng.random((200, 4)).astype(np.float32)  # of several labels, so sums are not one
    targets = rng.random((200, 4)) < probs
    probs[:5, 1] = EDGES[:5]  # a bin has its upper edge
    actual = reliability.sums_one_against_all(probs, targets, EDGES)
    for c in range(4):
        of_class = (probs[:, c], targets[:, c].astype(np.float32), np.ones(200, np.float32))
        expected = reliability.sums(*map(jnp.asarray, of_class), EDGES)
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a[c], b, rtol=1e-5, atol=1e-6)
