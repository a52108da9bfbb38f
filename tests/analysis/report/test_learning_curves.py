import numpy as np
import pytest

from heteroscedastic.analysis.report import comparison, curves_section
from heteroscedastic.runs.loaded_run import SavedRun


def curve(tmp_path, *lines):
    (tmp_path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return curves_section.read_metrics(tmp_path)


def test_columns_are_the_quantities_of_the_lines(tmp_path):
    result = curve(
        tmp_path,
        '{"step": 5, "epoch": 1.0, "train/nll": 2.0}',
        '{"step": 9, "epoch": 2.0, "valid/nll": NaN}',
    )
    np.testing.assert_array_equal(result["step"], [5, 9])
    np.testing.assert_array_equal(result["train/nll"], [2.0, np.nan])
    assert set(result) == {"step", "epoch", "train/nll", "valid/nll"}


def test_the_validation_curve_is_that_of_the_split_of_the_config(tmp_path):
    curve(tmp_path, *(f'{{"step": {i}, "epoch": {i}, "dev/nll": {3 - i}.0}}' for i in (1, 2)))
    run = SavedRun(tmp_path, {"validation": dict(split="dev")}, {}, {})
    run_set = comparison.RunSet([comparison.Group("ours", (run,))], "test", None, [], None)
    section = curves_section.curves(run_set)
    assert "ours has its best valid value, 1.000, after epoch 2" in section.parts[0].finding


def test_several_runs_share_their_common_epochs():
    one = {"epoch": np.array([1.0, 2.0, 3.0]), "nll": np.array([3.0, 2.0, 1.0])}
    other = {"epoch": np.array([3.0, 2.0]), "nll": np.array([10.0, np.nan])}
    epochs, values = curves_section.common_epochs([one, other], "nll")
    np.testing.assert_array_equal(epochs, [3.0])
    np.testing.assert_array_equal(values, [[1.0], [10.0]])
    assert (
        curves_section.common_epochs(
            [one, {"epoch": np.array([4.0]), "nll": np.array([1.0])}], "nll"
        )
        is None
    )
    assert curves_section.common_epochs([one, {}], "nll") is None


def test_a_missing_file_and_a_damaged_line_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl is missing"):
        curves_section.read_metrics(tmp_path)
    with pytest.raises(ValueError, match="damaged in line 2"):
        curve(tmp_path, '{"step": 1}', '{"step": ')
