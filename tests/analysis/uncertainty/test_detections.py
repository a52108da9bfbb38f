"""Intervals of AP of one run, and of several seeds."""

import sys

import numpy as np
import pytest
from random_detections import random_detections
from scipy import stats

from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.uncertainty import detections
from heteroscedastic.calibration import bootstrap
from heteroscedastic.runs import predictions
from heteroscedastic.runs.loaded_run import SavedRun
from heteroscedastic.tasks import coco

pytest.importorskip("pycocotools")


def repeated(arrays, counts):
    """The predictions with each image as often as `counts` says, under its own id."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return {name: x[rows] for name, x in arrays.items()} | {"image_ids": np.arange(len(rows))}


def test_an_interval_is_that_of_the_ap_of_lists_with_repeated_images():
    """As pycocotools computes it, not by way of the matches."""
    run = random_detections(0, 12)
    found = detections.mean_intervals([run], num_resamples=40)
    counts = np.concatenate(list(bootstrap.resampled_counts(12, 40)))
    metrics = [coco.metrics(repeated(run, row)) for row in counts]
    for name, interval in found.items():
        draws = np.array([m[name] for m in metrics])
        expected = bootstrap.corrected_interval(coco.metrics(run)[name], draws)
        np.testing.assert_allclose(interval, expected, atol=1e-6)
        assert interval.low < interval.value < interval.high


def test_images_that_are_all_alike_leave_no_doubt():
    run = repeated(random_detections(3, 1), [9])
    for value, low, high in detections.mean_intervals([run], 20).values():
        assert low == pytest.approx(value) == high


def test_seeds_that_differ_widen_the_interval():
    alike = repeated(random_detections(3, 1), [9])
    other = alike | {"scores": np.where(alike["classes"] == 1, 0.01, alike["scores"])}
    runs = [alike, other, alike | {"classes": np.full_like(alike["classes"], -1)}]
    found = detections.mean_intervals(runs, 200)["ap"]
    values = [coco.metrics(run)["ap"] for run in runs]
    assert found.value == pytest.approx(np.mean(values))
    expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(found[1:], expected, rtol=0.1)


def test_a_resample_without_a_box_is_an_error():
    run = random_detections(0, 3)
    run["true_classes"][1:] = -1  # a resample may have none but these two
    message = r"of 50 resamples of the 3 images have no true box, .*; evaluate more images"
    with pytest.raises(ValueError, match=message):
        detections.mean_intervals([run], 50)


def of_seed(seed):
    """Detections in the same eight images."""
    images = random_detections(0, 8)
    found = random_detections(seed, 8)
    return images | {name: found[name] for name in ("boxes", "classes", "scores")}


def test_runs_of_different_images_are_an_error():
    with pytest.raises(ValueError, match="different images; compare them separately"):
        detections.mean_intervals([random_detections(seed, 8) for seed in (0, 1)], 50)


def saved_runs(monkeypatch, tmp_path, *configs):
    runs = [SavedRun(tmp_path / str(i), c, {}, {}) for i, c in enumerate(configs)]
    by_directory = {run.directory: run for run in runs}
    monkeypatch.setattr(comparison.loaded_run, "read", by_directory.__getitem__)
    monkeypatch.setattr(predictions, "read_detections", lambda path, name: of_seed(int(path.name)))
    arguments = [str(run.directory) for run in runs]
    monkeypatch.setattr(sys, "argv", ["detections", "--num_resamples=50", "--runs", *arguments])


def test_the_command_prints_value_and_ends(monkeypatch, tmp_path, capsys):
    head = {"name": "Deterministic"}
    saved_runs(monkeypatch, tmp_path, dict(seed=0, head=head), dict(seed=1, head=head))
    detections.main()
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "test: 95 % intervals by bootstrap over 8 images and t interval over 2 runs"
    found = detections.mean_intervals([of_seed(0), of_seed(1)], 50)
    value, low, high = found["ap"]
    assert lines[0].split(maxsplit=1) == ["ap", f"{value:.4f} [{low:.4f}, {high:.4f}]"]
    assert [line.split()[0] for line in lines] == ["ap", "ap50", "ap75", "ar100"]


def test_runs_of_two_configs_are_an_error_of_one_line(monkeypatch, tmp_path):
    configs = [dict(seed=0, head={"name": name}) for name in ("Deterministic", "LowRank")]
    saved_runs(monkeypatch, tmp_path, *configs)
    with pytest.raises(SystemExit, match=r"^error: --runs has runs of 2 configs \(0, 1\), but an"):
        detections.main()


def test_a_classifier_is_an_error_of_one_line(without_noise, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["detections", f"--runs={without_noise}"])
    message = r"^error: .*npz has no detections; choose a run of config.task 'detection'\.$"
    with pytest.raises(SystemExit, match=message):
        detections.main()
