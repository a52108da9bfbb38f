import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments import keep, run, study, table
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
def place(tmp_path, monkeypatch):
    """A study of one table, which keeps its results in a directory of the test; where its runs
    lie.
    """
    monkeypatch.setattr(study, "table", lambda study_name, name: TINY)
    monkeypatch.setattr(study, "kept_at", lambda *names: tmp_path / "results" / "tiny.cpu.json")
    return tmp_path / "runs" / "a_study" / "tiny"


def finish(jobs):
    """Runs as they end, with logits of 50 examples and metrics that a table does not tell."""
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
        told = dict(
            evals=evals,
            seconds=1.5,
            device="1 x cpu",
            commit="a" * 40,
            versions={"jax": "0.10.2"},
            step=7,
        )
        files.write_json(job.directory / "results.json", told)
        files.write_json(job.directory / "dataset.json", {"class_names": list("0123456789")})


def told(monkeypatch, capsys, module, *flags):
    """What a command prints."""
    monkeypatch.setattr("sys.argv", ["command", "--study=a_study", "--table=tiny", *flags])
    module.main()
    return capsys.readouterr().out


def test_a_table_is_printed_from_what_is_kept_as_from_its_runs(place, monkeypatch, capsys):
    jobs = study.jobs(TINY, "cpu", place)
    finish(jobs)
    out = f"--out={place.parents[1]}"
    before = told(monkeypatch, capsys, table, out)
    assert "Missing" not in before
    assert "8 of them new; 0 are" in told(monkeypatch, capsys, keep, out)
    shutil.rmtree(place)
    kept = f"8 of the runs are not in {place.parents[1]}; {study.kept_at()} has what they found.\n"
    assert told(monkeypatch, capsys, table, out) == before + kept
    found = json.loads(study.kept_at().read_text())
    assert set(found) == {job.fingerprint for job in jobs}
    assert "brier" not in json.dumps(found)  # no metric that the table does not tell
    table._calibration.cache_clear()


def test_what_is_kept_is_added_to_and_makes_only_what_is_missing(place, monkeypatch, capsys):
    jobs = study.jobs(TINY, "cpu", place)
    out = f"--out={place.parents[1]}"
    finish(jobs[:3])
    assert "keeps 3 runs, 3 of them new" in told(monkeypatch, capsys, keep, out)
    shutil.rmtree(place)
    finish(jobs[2:5])
    assert "keeps 5 runs, 2 of them new; 0 are" in told(monkeypatch, capsys, keep, out)
    left = []
    monkeypatch.setattr(run, "make", lambda jobs, num_workers, data_dir: left.extend(jobs))
    shutil.rmtree(place)
    told(monkeypatch, capsys, run, out, "--beside_kept")
    assert {job.fingerprint for job in left} == {job.fingerprint for job in jobs[5:]}
    left.clear()
    told(monkeypatch, capsys, run, out)
    assert len(left) == 8  # who wants to see them again is not kept from it


def test_a_run_of_another_config_is_kept_no_longer(place, monkeypatch, capsys):
    finish(study.jobs(TINY, "cpu", place))
    out = f"--out={place.parents[1]}"
    told(monkeypatch, capsys, keep, out)
    shutil.rmtree(place)
    longer = TINY._replace(scales={"cpu": Scale((0, 1), {"training.num_epochs": 2.0})})
    monkeypatch.setattr(study, "table", lambda study_name, name: longer)
    assert "Missing: 8 of 8 runs" in told(monkeypatch, capsys, table, out)
    assert "keeps 0 runs, 0 of them new; 8 are" in told(monkeypatch, capsys, keep, out)


def test_metrics_that_are_told_in_two_ways_are_not_kept(place):
    other = TINY._replace(
        regimes=TINY.regimes | {"mixed": Regime(select="valid_best", report="test")}
    )
    jobs = study.jobs(other, "cpu", place)
    finish(jobs)
    (first, *_) = study.made(other, "cpu", place)
    with pytest.raises(ValueError, match="scaled_nll of test is told in two ways"):
        keep.told(other, first)
    table._calibration.cache_clear()


def test_a_fingerprint_is_of_the_config_and_not_of_where_the_tables_lie():
    row = Row("hom", "vtab", {"init.workdir": "{runs}/other/{scale}/seed_{seed}"})
    from_another = TINY._replace(rows=(row,), scales={"cpu": Scale((0, 1))}, grid={})
    here, there = (
        study.jobs(from_another, "cpu", Path(out) / "tiny") for out in ("runs", "/elsewhere")
    )
    assert [job.fingerprint for job in here] == [job.fingerprint for job in there]
    assert here[0].config["init"]["workdir"] == "runs/other/cpu/seed_0"
    assert len({job.fingerprint for job in here}) == 2


def test_what_the_repository_keeps_is_of_runs_that_its_tables_have():
    for path in Path(study.__file__).parent.glob("*/results/*.json"):
        name, scale = path.name.split(".")[:2]
        jobs = study.jobs(study.table(path.parents[1].name, name), scale, Path("runs") / name)
        assert set(study.kept(path.parents[1].name, name, scale)) <= {
            job.fingerprint for job in jobs
        }
