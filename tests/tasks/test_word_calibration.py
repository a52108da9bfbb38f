"""Which words of a translation are right, and their calibration."""

import itertools

import numpy as np
import pytest

from heteroscedastic.tasks import word_calibration

REFERENCE = np.array([5, 6, 5, 7, 8])


def right(hypothesis, reference=REFERENCE):
    hypothesis, reference = (np.array(x, int) for x in (hypothesis, reference))
    return word_calibration.is_right(hypothesis, reference, unknown=99)


def test_one_edit_of_the_reference_makes_no_other_word_wrong():
    assert right(REFERENCE).all()
    for place in range(len(REFERENCE) + 1):
        is_new = np.arange(len(REFERENCE) + 1) == place
        np.testing.assert_array_equal(right(np.insert(REFERENCE, place, 9)), ~is_new)
    for place in range(len(REFERENCE)):
        changed = REFERENCE.copy()
        changed[place] = 9
        np.testing.assert_array_equal(right(changed), np.arange(len(REFERENCE)) != place)
        assert right(np.delete(REFERENCE, place)).all()
    assert not right([], REFERENCE).size
    assert not right(REFERENCE, []).any()


def test_as_many_words_are_right_as_the_longest_common_subsequence_has():
    def subsequences(words):
        return {x for n in range(len(words) + 1) for x in itertools.combinations(words, n)}

    rng = np.random.default_rng(0)
    for _ in range(100):
        hypothesis, reference = (rng.integers(0, 3, rng.integers(0, 7)) for _ in range(2))
        found = tuple(hypothesis[right(hypothesis, reference)].tolist())
        common = subsequences(hypothesis.tolist()) & subsequences(reference.tolist())
        assert found in common
        assert len(found) == max(map(len, common))


def test_of_equal_words_the_last_is_right():
    assert right([9, 9, 5], [9, 5]).tolist() == [False, True, True]
    assert right([5, 9], [9, 5]).tolist() == [True, False]


def test_an_unknown_word_is_never_right():
    assert right([5, 99, 6], [5, 99, 6]).tolist() == [True, False, True]


def test_measures_of_two_confidences():
    log_probs = np.log(np.repeat([0.9, 0.3], [10, 30]))
    is_right = np.arange(40) % 10 < 5
    is_right[10:] = True
    found = word_calibration.measures(log_probs, is_right)
    assert found["beam_accuracy"] == 35 / 40
    assert found["beam_confidence"] == pytest.approx((9 + 9) / 40)
    assert found["beam_ece"] == pytest.approx((10 * 0.4 + 30 * 0.7) / 40)
    empty = word_calibration.measures(np.zeros(0), np.zeros(0, bool))
    assert np.isnan(list(empty.values())).all()
