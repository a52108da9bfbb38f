import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic import ensembles

LOGITS = 3 * np.random.default_rng(0).normal(size=(5, 7, 4))


def test_the_mean_is_a_mean_of_probabilities():
    expected = np.mean(special.softmax(LOGITS, axis=-1), axis=0)
    np.testing.assert_allclose(np.exp(ensembles.log_mean(LOGITS)), expected)
    np.testing.assert_allclose(
        special.expit(ensembles.mean_log_odds(LOGITS)), np.mean(special.expit(LOGITS), axis=0)
    )


def test_a_probability_that_underflows_keeps_its_logarithm():
    far = np.array([[[0.0, -2000.0]], [[0.0, -2100.0]]])
    np.testing.assert_allclose(ensembles.log_mean(far)[0], [0.0, -2000.0 - np.log(2)])
    np.testing.assert_allclose(
        ensembles.mean_log_odds(-far[..., 1:])[0, 0], 2000 + np.log(2), rtol=1e-6
    )


def test_one_member_is_its_own_mean():
    np.testing.assert_allclose(
        ensembles.log_mean(LOGITS[:1]), special.log_softmax(LOGITS[0], axis=-1)
    )
    np.testing.assert_allclose(ensembles.mean_log_odds(LOGITS[:1]), LOGITS[0])


@pytest.mark.parametrize("split", [ensembles.entropy_split, ensembles.sigmoid_entropy_split])
def test_the_parts_add_up_to_the_entropy_of_the_mean(split):
    actual = split(LOGITS)
    np.testing.assert_allclose(actual.expected + actual.mutual, actual.total, rtol=1e-12)
    assert np.all(actual.mutual > 0)


def test_the_entropies_agree_with_scipy():
    actual, probs = ensembles.entropy_split(LOGITS), special.softmax(LOGITS, axis=-1)
    np.testing.assert_allclose(actual.total, stats.entropy(probs.mean(0), axis=-1))
    np.testing.assert_allclose(actual.expected, stats.entropy(probs, axis=-1).mean(0))


@pytest.mark.parametrize("split", [ensembles.entropy_split, ensembles.sigmoid_entropy_split])
def test_members_that_agree_have_no_mutual_information(split):
    same = split(np.broadcast_to(LOGITS[0], LOGITS.shape))
    np.testing.assert_allclose(same.mutual, 0, atol=1e-12)
    np.testing.assert_allclose(same.total, same.expected)


def test_certain_members_that_disagree_have_the_largest_mutual_information():
    actual = ensembles.entropy_split(1e3 * np.eye(4)[:, None])
    np.testing.assert_allclose(actual.mutual, np.log(4))
    np.testing.assert_allclose(actual.expected, 0, atol=1e-12)


def test_a_binary_answer_is_a_softmax_of_two_classes():
    both = np.stack([LOGITS, np.zeros_like(LOGITS)], axis=-1)
    for actual, expected in zip(
        ensembles.sigmoid_entropy_split(LOGITS), ensembles.entropy_split(both)
    ):
        np.testing.assert_allclose(actual, expected.sum(-1))


@pytest.mark.parametrize("deepest", [-740.0, -744.4, -750.0, -np.inf])
def test_a_probability_that_underflows_in_one_member_has_no_mutual_information(deepest):
    members = np.array([[0, deepest], [0, -1000.0], [0, -np.inf]])
    parts = ensembles.entropy_split(members)
    assert parts.mutual == pytest.approx(0, abs=1e-300)
    assert parts.total == pytest.approx(parts.expected + parts.mutual, abs=1e-300)


def test_no_member_is_an_error():
    with pytest.raises(ValueError, match="there are no members"):
        ensembles.log_mean(np.zeros((0, 3, 2)))
