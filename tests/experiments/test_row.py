import numpy as np
import pytest

from experiments import row, run, study
from heteroscedastic import files


@pytest.mark.parametrize("out", ["runs", "/data/of/runs"])
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("planted_noise", "cpu"),
        ("table_3_jft", "paper"),
        ("table_8", "paper"),
        ("table_6", "paper"),
    ],
)
def test_the_config_of_a_run_is_found_by_its_directory(name, scale, out):
    jobs = study.jobs(
        study.table("correlated_label_noise", name),
        scale,
        files.as_path(out) / "correlated_label_noise" / name,
    )
    for job in (jobs[0], jobs[-1]):
        file, _, told = row.name(name, job.directory).partition(":")
        assert file == "experiments/row.py"
        assert row.get_config(told).to_dict() == job.config


def test_a_run_in_a_bucket_starts_from_the_one_that_lies_there():
    pytest.importorskip("gcsfs", reason="buckets are read by gcsfs, of the extra `cloud`")
    out = files.as_path("gs://bucket/runs/correlated_label_noise/table_6")
    job = study.jobs(study.table("correlated_label_noise", "table_6"), "paper", out)[0]
    told = row.name("table_6", job.directory)
    assert told.startswith(
        "experiments/row.py:table_6@gs://bucket/runs/correlated_label_noise/table_6/paper/"
    )
    found = row.get_config(told.partition(":")[2])
    assert found.to_dict() == job.config
    assert found.init.workdir.startswith("gs://bucket/runs/correlated_label_noise/")


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("planted_noise", "is no run of a table"),
        (
            "planted_noise@runs/correlated_label_noise/planted_noise/cpu/hom/T=1/seed_0",
            "has no run runs/",
        ),
        (
            "table_99@runs/correlated_label_noise/planted_noise/cpu/hom/T=1/seed_0",
            "has no table 'table_99'",
        ),
        (
            "planted_noise@runs/study_of_nothing/planted_noise/cpu/hom/T=1/seed_0",
            "no study 'study_of_nothing'",
        ),
    ],
)
def test_a_run_that_no_table_has_is_an_error(told, message):
    with pytest.raises(ValueError, match=message):
        row.get_config(told)


def test_what_is_left_is_printed_and_nothing_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "make", lambda *_: pytest.fail("nothing was to be run"))
    flags = [
        "run",
        "--study=correlated_label_noise",
        "--table=planted_noise",
        f"--out={tmp_path}",
        "--rows",
        "hom",
    ]
    monkeypatch.setattr("sys.argv", [*flags, "--print"])
    run.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(np.unique(lines)) == 70
    config, workdir = lines[0].split()
    assert config.removeprefix(
        "--config=experiments/row.py:planted_noise@"
    ) == workdir.removeprefix("--workdir=")
    assert not list(tmp_path.iterdir())


def test_runs_in_a_bucket_are_not_made_here(monkeypatch):
    pytest.importorskip("gcsfs", reason="buckets are read by gcsfs, of the extra `cloud`")
    monkeypatch.setattr(study, "made", lambda *_: [])
    flags = [
        "run",
        "--study=correlated_label_noise",
        "--table=planted_noise",
        "--out=gs://bucket/runs",
    ]
    monkeypatch.setattr("sys.argv", flags)
    with pytest.raises(SystemExit, match="gs://bucket/runs is in a bucket; --print tells"):
        run.main()
