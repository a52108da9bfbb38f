import numpy as np
import pytest

from experiments import row, run, study
from heteroscedastic import files


@pytest.mark.parametrize(
    ("name", "scale", "out"),
    [
        ("planted_noise", "cpu", "runs"),
        ("table_3_jft", "paper", "/data/of/runs"),
        ("table_8", "paper", "runs"),
        ("table_6", "paper", "/data/of/runs"),
    ],
)
def test_a_directory_identifies_the_config_of_a_job(name, scale, out):
    jobs = study.jobs(
        study.table("correlated_label_noise", name),
        scale,
        files.as_path(out) / "correlated_label_noise" / name,
    )
    for job in (jobs[0], jobs[-1]):
        file, _, argument = row.name(name, job.directory).partition(":")
        assert file == "experiments/row.py"
        assert row.get_config(argument).to_dict() == job.config


def test_a_run_in_a_bucket_starts_from_a_run_in_the_same_bucket():
    pytest.importorskip("gcsfs", reason="buckets are read by gcsfs, of the extra `cloud`")
    out = files.as_path("gs://bucket/runs/correlated_label_noise/table_6")
    job = study.jobs(study.table("correlated_label_noise", "table_6"), "paper", out)[0]
    name = row.name("table_6", job.directory)
    assert name.startswith(
        "experiments/row.py:table_6@gs://bucket/runs/correlated_label_noise/table_6/paper/"
    )
    config = row.get_config(name.partition(":")[2])
    assert config.to_dict() == job.config
    assert config.warm_start.workdir.startswith("gs://bucket/runs/correlated_label_noise/")


def test_out_may_be_the_current_directory():
    chosen = study.table("correlated_label_noise", "planted_noise")
    directory = files.as_path("./correlated_label_noise/planted_noise")
    job = study.jobs(chosen, "cpu", directory)[0]
    assert row.get_config(f"planted_noise@{job.directory}").to_dict() == job.config


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("planted_noise", "is not a job of a table"),
        (
            "planted_noise@runs/correlated_label_noise/planted_noise/cpu/hom/T=1/seed_0",
            "has no job runs/",
        ),
        (
            "table_99@runs/correlated_label_noise/planted_noise/cpu/hom/T=1/seed_0",
            "has no table 'table_99'",
        ),
        (
            "planted_noise@runs/study_of_nothing/planted_noise/cpu/hom/T=1/seed_0",
            "'study_of_nothing' is not a study",
        ),
    ],
)
def test_a_directory_without_a_job_is_an_error(argument, message):
    with pytest.raises(ValueError, match=message):
        row.get_config(argument)


def test_print_prints_incomplete_runs_and_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "run_all", lambda *_: pytest.fail("a run was started"))
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


def test_runs_in_a_bucket_are_not_trained_here(monkeypatch):
    pytest.importorskip("gcsfs", reason="buckets are read by gcsfs, of the extra `cloud`")
    monkeypatch.setattr(study, "job_results", lambda *_: [])
    flags = [
        "run",
        "--study=correlated_label_noise",
        "--table=planted_noise",
        "--out=gs://bucket/runs",
    ]
    monkeypatch.setattr("sys.argv", flags)
    with pytest.raises(SystemExit, match="gs://bucket/runs is in a bucket; --print prints"):
        run.main()
