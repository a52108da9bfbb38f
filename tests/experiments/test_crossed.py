import re
import shutil
import sys

import pytest

from experiments import crossed, run, save_results, study, table
from experiments.study import Regime, Row, Scale, Table
from heteroscedastic import files

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

    def call(module, *flags):
        words = ["--study=study", "--table=small", f"--out={tmp_path / 'runs'}", *flags]
        monkeypatch.setattr(sys, "argv", [module.__name__, *words])
        module.main()
        return capsys.readouterr().out

    def printed(*flags):
        (line,) = re.findall(r"\| fast .*", call(table, *flags))
        return line

    with_runs = printed("--crossed", "--save")
    assert len(re.findall(r"\[[+-]\d\.\d{4}, [+-]\d\.\d{4}\]", with_runs)) == 2
    assert printed() != with_runs
    shutil.rmtree(tmp_path / "runs")
    assert printed("--crossed") == with_runs
    with pytest.raises(SystemExit, match="requires the predictions of slow and fast"):
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
