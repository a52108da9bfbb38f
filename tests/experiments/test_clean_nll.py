"""Parts of the NLL on clean labels."""

import numpy as np
import pytest

from experiments.correlated_label_noise import clean_nll
from heteroscedastic import files


def test_the_loss_of_confused_classes_is_that_of_the_pair_and_that_within_it(tmp_path):
    """Classes 0 and 1 are confused, and 2 and 3 are not."""
    probs = np.array([[0.3, 0.5, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]])
    files.write_json(
        tmp_path / "dataset.json",
        {"label_noise": [[0, 0, 6], [0, 1, 4], [1, 0, 4], [1, 1, 6], [2, 2, 9], [3, 3, 9]]},
    )
    files.write_arrays(
        tmp_path / "predictions" / "test.npz",
        {"logits": np.log(probs).astype(np.float32) + 3, "labels": np.array([0, 1, 2])},
    )
    found = dict(zip(clean_nll._COLUMNS, clean_nll.parts(tmp_path, "test")))
    logs = -np.log([0.7, 0.3, 0.6, 0.8, 0.8, 0.3 / 0.8, 0.6 / 0.8])
    assert found == pytest.approx(
        {
            "nll, other classes": logs[0],
            "nll, confused": logs[1:3].mean(),
            "pair": logs[3:5].mean(),
            "within the pair": logs[5:].mean(),
            "accuracy": 0.5,
            "confidence": 0.55,
        },
        rel=1e-5,
    )
