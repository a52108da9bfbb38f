import re
import shutil
import sys

import numpy as np
import pytest
from random_detections import random_detections

from experiments import crossed, run, save_results, study, table
from experiments.study import Regime, Row, Scale, Table
from heteroscedastic import files
from heteroscedastic.runs import predictions, provenance
from heteroscedastic.tasks import coco

SETTINGS = {
    "backbone": dict(name="MLP", widths=(4,)),
    "training.num_epochs": 1.0,
    "training.checkpoint_epochs": 1.0,
    "training.batch_size": 300,
}
SMALL = Table(
    claim="Two learning rates.",
    rows=(
        Row("fast", "digits_hom", {"schedule.learning_rate": 0.5}),
        Row("slow", "digits_hom", {"schedule.learning_rate": 0.001}),
        Row("unsaved", "digits_hom", {"schedule.learning_rate": 0.1}),
    ),
    metrics=("accuracy", "nll"),
    regimes={"last": Regime(select=None, report="test")},
    select_metric="nll",
    scales={"cpu": Scale((0, 1), SETTINGS)},
    reference="slow",
)


def test_saved_intervals_are_printed_without_the_runs(tmp_path, monkeypatch, capsys):
    path, saved = tmp_path / "saved" / "small.cpu.json", {}
    monkeypatch.setattr(study, "table", lambda *_: SMALL)
    monkeypatch.setattr(study, "saved_path", lambda *_: path)
    monkeypatch.setattr(study, "saved_results", lambda *_: saved)
    jobs = study.jobs(SMALL, "cpu", tmp_path / "runs" / "study" / "small")
    for job in jobs:
        assert run.run(job, None) is None
        saved[job.fingerprint] = files.read_json(job.directory / "results.json")
    for job in jobs:
        if job.row == "unsaved":
            shutil.rmtree(job.directory)

    def call(module, *flags):
        words = ["--study=study", "--table=small", f"--out={tmp_path / 'runs'}", *flags]
        monkeypatch.setattr(sys, "argv", [module.__name__, *words])
        module.main()
        return capsys.readouterr().out

    def printed(*flags):
        text = call(table, *flags)
        (line,) = re.findall(r"\| fast .*", text)
        assert ("predictions: unsaved." in text) == ("--crossed" in flags)
        return line

    with_runs = printed("--crossed", "--save")
    assert len(re.findall(r"\[[+-]\d\.\d{4}, [+-]\d\.\d{4}\]", with_runs)) == 2
    assert printed() != with_runs
    shutil.rmtree(tmp_path / "runs")
    assert printed("--crossed") == with_runs
    with pytest.raises(SystemExit, match="requires the predictions of slow, unsaved and of"):
        printed("--crossed", "--reference=fast")
    with pytest.raises(SystemExit, match="add --crossed"):
        printed("--save")

    # A change of what configs say identifies the runs by other names.
    renamed = {job.fingerprint: f"old {job.fingerprint}" for job in jobs}
    old = [dict(row=job.row, point={}, seed=job.seed) for job in jobs]
    files.write_json(path, dict(zip(renamed.values(), old)))
    of_pairs = crossed.path(path)
    files.write_json(of_pairs, crossed.identified_again(files.read_json(of_pairs), renamed))
    with pytest.raises(SystemExit, match="requires the predictions"):
        printed("--crossed")
    call(save_results, "--rekey")
    assert printed("--crossed") == with_runs
    # A command that was killed before it wrote the last file can be repeated.
    files.write_json(path, dict(zip(renamed.values(), old)))
    call(save_results, "--rekey")
    assert printed("--crossed") == with_runs

    # Where each seed holds out examples that select, seeds are other examples.
    held_out = {"held out": study.Regime("test", "test")}
    monkeypatch.setattr(study, "table", lambda *_: SMALL._replace(regimes=SMALL.regimes | held_out))
    text = call(table, "--crossed")
    assert "Intervals over seeds alone, as the same examples select: held out." in text
    assert text.count(with_runs) == 1


def test_each_evaluation_of_two_rows_has_its_own_saved_intervals(tmp_path, monkeypatch):
    path = tmp_path / "small.cpu.json"
    monkeypatch.setattr(study, "saved_path", lambda *_: path)
    sides = [
        {0: study.JobResult(study.Job(row, (), 0, tmp_path / row, {}, row), None)}
        for row in ("fast", "slow")
    ]
    saved = {"valid": [1.0, 0.0, 2.0], "test": [3.0, 2.0, 4.0], "diverged": [np.nan] * 3}
    entries = [
        dict(row="fast", evaluation=name, runs=[["fast"], ["slow"]], differences=dict(nll=interval))
        for name, interval in saved.items()
    ]
    files.write_json(crossed.path(path), entries)
    found = crossed.Crossed("study", "small", "cpu")
    for name, interval in saved.items():
        regime = Regime(select=None, report=name)
        np.testing.assert_equal([*found.differences(*sides, regime)["nll"]], interval)
    assert not found.differences(*sides, Regime(select=None, report="shifted"))


def test_detectors_are_compared_by_ap_on_the_same_images(tmp_path):
    pytest.importorskip("pycocotools")

    def jobs(row, *runs):
        made = []
        for seed, arrays in enumerate(runs):
            directory = tmp_path / row / f"seed_{seed}"
            stamped = provenance.stamped_arrays("test", arrays, row)
            files.write_arrays(directory / "predictions" / "test.npz", stamped)
            made.append(study.Job(row, (), seed, directory, {"task": "detection"}, row))
        return made

    images = random_detections(0, 8)
    scores = images["scores"]
    better = [images, images | {"scores": np.sqrt(scores)}]
    worse = [x | {"scores": np.where(x["scores"] > 0.5, 0.01, x["scores"])} for x in better]
    first, second = jobs("better", *better), jobs("worse", *worse)
    found = crossed._differences([first, second], "test")
    for name in ("ap", "ap50", "ap75", "ar100"):
        own, other = (np.mean([coco.metrics(x)[name] for x in runs]) for runs in (better, worse))
        assert found[name].value == pytest.approx(own - other)
        assert found[name].low <= found[name].value <= found[name].high
    assert found["ap"].value != 0
    assert found["ap"].high > found["ap"].low
    same = crossed._differences([first, first], "test")
    assert {tuple(interval) for interval in same.values()} == {(0.0, 0.0, 0.0)}
    with pytest.raises(ValueError, match="better and others of seed 1 were evaluated on different"):
        crossed._differences([first, jobs("others", better[0], random_detections(5, 8))], "test")
    own = jobs("own", images, random_detections(5, 8))
    with pytest.raises(ValueError, match="each seed of own has its own images in 'test'"):
        crossed._differences([own, own], "test")
    with pytest.raises(ValueError, match="has detections, not one prediction per example"):
        predictions.read(first[0].directory, "test")


def test_classifiers_of_other_examples_are_not_crossed(monkeypatch):
    first_ids = {"rows": (0, 0), "own": (0, 8), "others": (0, 1)}

    def read(directory, name):
        ids = first_ids[directory.parent.name][int(directory.name)] + np.arange(8)
        return predictions.Predictions(None, ids, ids % 2, np.eye(8, 2, dtype=np.float32))

    def jobs(row):
        config = {"task": "one_label"}
        return [study.Job(row, (), s, files.as_path(f"{row}/{s}"), config, row) for s in (0, 1)]

    monkeypatch.setattr(predictions, "read", read)
    assert crossed._differences([jobs("rows"), jobs("rows")], "valid")["nll"].value == 0
    with pytest.raises(ValueError, match="each seed of own has its own examples in 'valid'"):
        crossed._differences([jobs("own"), jobs("own")], "valid")
    with pytest.raises(ValueError, match="rows and others of seed 1 were evaluated on different"):
        crossed._differences([jobs("rows"), jobs("others")], "valid")
