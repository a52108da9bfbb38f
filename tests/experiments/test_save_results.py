import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments import metric_values, run, save_results, study, table
from experiments.study import Regime, Row, Scale, Table
from heteroscedastic import files

TINY = Table(
    claim="Two methods.",
    rows=(Row("hom", "digits_hom"), Row("het_diag", "digits_het_diag")),
    metrics=("accuracy", "nll", "scaled_nll"),
    regimes={
        "best": Regime(select="valid_best", report="test_best"),
        "last": Regime(select="valid", report="test"),
        "last, noisy": Regime(select="valid", report="valid"),
    },
    select_metric="nll",
    grid={"head.temperature": (1.0, 4.0)},
    scales={"cpu": Scale((0, 1), {"training.num_epochs": 1.0})},
    reference="hom",
)


@pytest.fixture
def runs_directory(tmp_path, monkeypatch):
    """The directory of the runs of a study with one table; its saved results are in tmp_path."""
    monkeypatch.setattr(study, "table", lambda study_name, name: TINY)
    monkeypatch.setattr(study, "saved_path", lambda *names: tmp_path / "results" / "tiny.cpu.json")
    return tmp_path / "runs" / "a_study" / "tiny"


def finish(jobs):
    """Writes complete runs, with logits of 50 examples and a metric that no table prints."""
    for i, job in enumerate(jobs):
        rng = np.random.default_rng(i)
        evals = {}
        for name in ("valid", "valid_best", "test", "test_best"):
            logits, labels = rng.normal(size=(50, 10)), rng.integers(10, size=50)
            arrays = dict(logits=logits, labels=labels, ids=np.arange(50))
            files.write_arrays(job.directory / "predictions" / f"{name}.npz", arrays)
            evals[name] = dict(accuracy=rng.uniform(), nll=rng.uniform(), brier=rng.uniform())
        evals["valid"]["nll"] = evals["valid"]["nll"] if i else float("nan")
        files.write_json(job.directory / "config.json", job.config)
        results = dict(
            evals=evals,
            seconds=1.5,
            device="1 x cpu",
            commit="a" * 40,
            versions={"jax": "0.10.2"},
            step=7,
        )
        files.write_json(job.directory / "results.json", results)
        files.write_json(job.directory / "dataset.json", {"class_names": list("0123456789")})


def output(monkeypatch, capsys, module, *flags):
    """The output of a command."""
    monkeypatch.setattr("sys.argv", ["command", "--study=a_study", "--table=tiny", *flags])
    module.main()
    return capsys.readouterr().out


def test_a_table_has_the_same_digits_from_saved_results_as_from_its_runs(
    runs_directory, monkeypatch, capsys
):
    jobs = study.jobs(TINY, "cpu", runs_directory)
    finish(jobs)
    out = f"--out={runs_directory.parents[1]}"
    before = output(monkeypatch, capsys, table, out)
    assert "Missing" not in before
    assert "8 of them new; 0 removed" in output(monkeypatch, capsys, save_results, out)
    shutil.rmtree(runs_directory)
    source = (
        f"8 of the runs are not in {runs_directory.parents[1]}; their results are from"
        f" {study.saved_path()}.\n"
    )
    assert output(monkeypatch, capsys, table, out) == before + source
    saved = json.loads(study.saved_path().read_text())
    assert set(saved) == {job.fingerprint for job in jobs}
    assert "brier" not in json.dumps(saved)  # a metric that the table does not print
    metric_values._calibration.cache_clear()


def test_results_are_added_to_saved_ones_and_only_missing_runs_are_trained(
    runs_directory, monkeypatch, capsys
):
    jobs = study.jobs(TINY, "cpu", runs_directory)
    out = f"--out={runs_directory.parents[1]}"
    finish(jobs[:3])
    assert ": 3 saved results, 3 of them new" in output(monkeypatch, capsys, save_results, out)
    shutil.rmtree(runs_directory)
    finish(jobs[2:5])
    assert ": 5 saved results, 2 of them new; 0 removed" in output(
        monkeypatch, capsys, save_results, out
    )
    started = []
    monkeypatch.setattr(run, "run_all", lambda jobs, *_: started.extend(jobs) or 0)
    shutil.rmtree(runs_directory)
    output(monkeypatch, capsys, run, out, "--skip_saved")
    assert {job.fingerprint for job in started} == {job.fingerprint for job in jobs[5:]}
    started.clear()
    output(monkeypatch, capsys, run, out)
    assert len(started) == 8  # without the flag, saved results do not matter


def test_saved_results_of_another_config_are_removed(runs_directory, monkeypatch, capsys):
    finish(study.jobs(TINY, "cpu", runs_directory))
    out = f"--out={runs_directory.parents[1]}"
    output(monkeypatch, capsys, save_results, out)
    shutil.rmtree(runs_directory)
    longer = TINY._replace(scales={"cpu": Scale((0, 1), {"training.num_epochs": 2.0})})
    monkeypatch.setattr(study, "table", lambda study_name, name: longer)
    rows = "; ".join(f"{row.name}, seeds 0, 1" for row in TINY.rows)
    printed = output(monkeypatch, capsys, table, out)
    assert "Missing: 8 of 8 runs" in printed
    assert f"also has results of other configs than the table's, left out: {rows}." in printed
    saved = output(monkeypatch, capsys, save_results, out)
    assert ": 0 saved results, 0 of them new; 8 removed" in saved
    assert f"These were {rows}." in saved


def test_results_of_a_table_whose_runs_another_uses_are_printed_there_and_not_saved_twice(
    runs_directory, monkeypatch, capsys
):
    another = TINY._replace(
        rows=(*TINY.rows, Row("het_full", "digits_het_full")),
        scales={"cpu": TINY.scales["cpu"]._replace(runs="tiny")},
    )
    tables = {"tiny": TINY, "another": another}
    monkeypatch.setattr(study, "table", lambda _, name: tables[name])
    directory = runs_directory.parents[1] / "results"
    monkeypatch.setattr(study, "saved_path", lambda _, name, scale: directory / f"{name}.json")
    finish(study.jobs(another, "cpu", runs_directory))
    out = f"--out={runs_directory.parents[1]}"
    flags = (out, "--table=another")
    before = output(monkeypatch, capsys, table, *flags)
    output(monkeypatch, capsys, save_results, out)
    assert ": 4 saved results" in output(monkeypatch, capsys, save_results, *flags)
    rows = {saved["row"] for saved in json.loads((directory / "another.json").read_text()).values()}
    assert rows == {"het_full"}
    shutil.rmtree(runs_directory)
    printed = output(monkeypatch, capsys, table, *flags)
    assert printed.startswith(before)
    assert f"4 of the runs are not in {out[6:]}; their results are from {directory}/ano" in printed
    assert f"8 of the runs are not in {out[6:]}; their results are from {directory}/tiny" in printed
    started = []
    monkeypatch.setattr(run, "run_all", lambda jobs, *_: started.extend(jobs) or 0)
    (directory / "another.json").unlink()
    output(monkeypatch, capsys, run, *flags, "--skip_saved")
    assert {job.row for job in started} == {"het_full"}
    # A table that prints more than the other saved has results of its own.
    tables["another"] = another._replace(metrics=(*TINY.metrics, "brier"))
    assert study.shared_results("a_study", tables["another"], "cpu") == {}
    metric_values._calibration.cache_clear()


def test_a_table_tunes_by_another_saved_metric_and_prints_what_that_changes(
    runs_directory, monkeypatch, capsys
):
    chosen = TINY._replace(
        also_select=("brier",),
        rows=(Row("hom", "digits_hom"),),
        metrics=("accuracy",),
        regimes={"last": Regime(select="valid", report="test")},
    )
    monkeypatch.setattr(study, "table", lambda study_name, name: chosen)
    jobs = study.jobs(chosen, "cpu", runs_directory)
    finish(jobs)
    temperatures = (1.0, 4.0, 1.0, 4.0)
    assert [(dict(j.point)["head.temperature"], j.seed) for j in jobs] == list(
        zip(temperatures, (0, 0, 1, 1))
    )
    # NLL chooses 1 in both seeds; the Brier score chooses 4, 0.25 and 0.35 more accurate.
    of_runs = zip((0.5, 0.75, 0.25, 0.6), (0.1, 0.2, 0.1, 0.2), (0.4, 0.3, 0.4, 0.3))
    for job, (accuracy, nll, brier) in zip(jobs, of_runs):
        path = job.directory / "results.json"
        results = json.loads(path.read_text())
        results["evals"]["test"]["accuracy"] = accuracy
        results["evals"]["valid"] |= dict(nll=nll, brier=brier)
        files.write_json(path, results)
    out = f"--out={runs_directory.parents[1]}"
    output(monkeypatch, capsys, save_results, out)
    shutil.rmtree(runs_directory)
    assert "| hom | 2 | 1.0 (2x) | 0.3750 ± " in output(monkeypatch, capsys, table, out)
    printed = output(monkeypatch, capsys, table, out, "--select_metric=brier")
    assert "| hom | 2 | 4.0 (2x) | 0.6750 ± " in printed
    assert "| by brier less by nll | seeds | accuracy |" in printed
    assert "| hom | 2 | +0.3000 ± " in printed
    printed = output(monkeypatch, capsys, table, out, "--held_out")
    assert "| method | seeds | chosen | nll | nll - hom | brier | brier - hom |" in printed
    assert "| hom | 2 | 1.0 (2x) | 0.1000 ± 0.0000 |  | 0.4000 ± 0.0000 |" in printed
    printed = output(monkeypatch, capsys, table, out, "--held_out", "--select_metric=brier")
    assert "| hom | 2 | 4.0 (2x) | 0.2000 ± 0.0000 |  | 0.3000 ± 0.0000 |" in printed
    for flags, words in (
        (["--select_metric=ece"], "ece is not saved for this table beside nll, .* of: brier"),
        (["--select_metric=brier", "--at=1.0"], "leave out --select_metric"),
        (["--held_out", "--crossed"], "leave out --held_out"),
    ):
        with pytest.raises(SystemExit, match=words):
            output(monkeypatch, capsys, table, out, *flags)
    # What was saved before the metric was is missing, and no other metric chooses in its place.
    saved = json.loads(study.saved_path().read_text())
    for content in saved.values():
        del content["evals"]["valid"]["brier"]
    study.saved_path().write_text(json.dumps(saved))
    printed = output(monkeypatch, capsys, table, out, "--select_metric=brier")
    assert "Missing: 4 of 4 runs" in printed
    assert "runs that count as missing: hom without brier; train them again." in printed
    # So is a metric that the table got later.
    with_another = chosen._replace(metrics=("accuracy", "ece"))
    monkeypatch.setattr(study, "table", lambda study_name, name: with_another)
    printed = output(monkeypatch, capsys, table, out)
    assert "runs that count as missing: hom without ece; train them again." in printed
    # Until they have been trained again.
    finish(jobs)
    for job in jobs:
        path = job.directory / "results.json"
        results = json.loads(path.read_text())
        results["evals"]["test"]["ece"] = 0.1
        files.write_json(path, results)
    printed = output(monkeypatch, capsys, table, out)
    assert "| hom | 2 |" in printed
    assert "count as missing" not in printed


def test_a_metric_with_two_values_is_an_error(runs_directory):
    other = TINY._replace(
        regimes=TINY.regimes | {"mixed": Regime(select="valid_best", report="test")}
    )
    jobs = study.jobs(other, "cpu", runs_directory)
    finish(jobs)
    (first, *_) = study.job_results(other, "cpu", runs_directory)
    with pytest.raises(ValueError, match="scaled_nll of test has two values"):
        save_results.table_metrics(other, first)
    metric_values._calibration.cache_clear()


def test_a_fingerprint_depends_on_the_config_and_not_on_directories():
    row = Row("hom", "vtab", {"warm_start.workdir": "{runs}/other/{scale}/seed_{seed}"})
    from_another = TINY._replace(rows=(row,), scales={"cpu": Scale((0, 1))}, grid={})
    here, there = (
        study.jobs(from_another, "cpu", Path(out) / "tiny") for out in ("runs", "/elsewhere")
    )
    assert [job.fingerprint for job in here] == [job.fingerprint for job in there]
    assert here[0].config["warm_start"]["workdir"] == "runs/other/cpu/seed_0"
    assert len({job.fingerprint for job in here}) == 2


def test_the_saved_results_in_the_repository_belong_to_jobs_of_its_tables():
    for path in Path(study.__file__).parent.glob("*/results/*.json"):
        name, scale = path.name.split(".")[:2]
        jobs = study.jobs(study.table(path.parents[1].name, name), scale, Path("runs") / name)
        assert set(study.saved_results(path.parents[1].name, name, scale)) <= {
            job.fingerprint for job in jobs
        }
