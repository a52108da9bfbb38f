import numpy as np
import pytest

from heteroscedastic.analysis.errors import confusions
from heteroscedastic.runs.predictions import Predictions

LABELS = np.array([0, 0, 0, 1, 2, 2])
PREDICTED = np.array([0, 1, 1, 1, 0, 2])
MATRIX = np.array([[1, 2, 0], [0, 1, 0], [1, 0, 1]])


def run(labels=LABELS, predicted=PREDICTED, num_classes=3):
    return Predictions(None, np.arange(len(labels)), labels, np.eye(num_classes)[predicted])


def test_rows_are_true_classes_and_columns_predictions_of_all_runs():
    np.testing.assert_array_equal(confusions.confusion_matrix([run()], 3), MATRIX)
    np.testing.assert_array_equal(confusions.confusion_matrix([run(), run()], 3), 2 * MATRIX)
    np.testing.assert_allclose(
        confusions.rates(MATRIX), [[1 / 3, 2 / 3, 0], [0, 1, 0], [0.5, 0, 0.5]]
    )
    assert np.isnan(confusions.rates(np.zeros((2, 2), int))).all()


def test_the_largest_confusions_are_ranked_by_rate():
    assert confusions.largest(MATRIX, 5) == [(0, 1, 2, 2 / 3), (2, 0, 1, 0.5)]
    assert confusions.largest(MATRIX, 1) == [(0, 1, 2, 2 / 3)]
    assert not confusions.largest(np.eye(3, dtype=int), 5)


def test_a_group_of_classes_has_the_largest_confusions():
    matrix = np.diag([10] * 6)
    matrix[4, 1], matrix[2, 5] = 9, 1
    np.testing.assert_array_equal(confusions.group_of_classes(matrix, 3), [1, 2, 4])
    np.testing.assert_array_equal(confusions.group_of_classes(matrix, 6), np.arange(6))


def test_lists_of_labels_have_no_confusion_matrix():
    with pytest.raises(ValueError, match="requires one label per example"):
        confusions.confusion_matrix([run(labels=LABELS[:, None])], 3)
