import numpy as np
import pytest

from experiments import study
from heteroscedastic.analysis import calibration
from heteroscedastic.training import loop


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    loop.train(study.config("digits_hom", {"training.num_epochs": 4.0, "head.temperature": 0.2}), str(path))
    return path


def test_before_is_what_the_run_said_and_after_is_better_where_it_was_fitted(directory):
    found = calibration.before_and_after(directory, "valid", "valid")
    saved = np.load(directory / "predictions" / "valid.npz")
    accuracy = (saved["logits"].argmax(-1) == saved["labels"]).mean()
    assert found["before"]["accuracy"] == found["after"]["accuracy"] == pytest.approx(accuracy)
    assert found["after"]["nll"] <= found["before"]["nll"]


def test_before_agrees_with_the_results_of_the_run(directory):
    told = calibration.files.read_json(directory / "results.json")["evals"]["test"]
    found = calibration.before_and_after(directory, "valid", "test")["before"]
    for name in ("accuracy", "nll", "brier", "ece"):
        assert found[name] == pytest.approx(told[name], rel=1e-4)


def test_predictions_that_are_missing_or_of_another_kind_are_told(directory, tmp_path):
    with pytest.raises(FileNotFoundError, match="test_best"):
        calibration.before_and_after(directory, "valid", "test_worst")
    (tmp_path / "predictions").mkdir()
    np.savez(tmp_path / "predictions" / "test.npz", ids=[0], labels=[[1, -1]], logits=[[0.0, 1.0]])
    with pytest.raises(ValueError, match="one label an example"):
        calibration.before_and_after(tmp_path, "test", "test")
