import functools
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import derived, study
from experiments.derived import Derived

COMMAND = "experiments/correlated_label_noise/noise_pairs.py"
FLAGS = SimpleNamespace(table="planted_noise", scale="cpu")


def job(directory, seed):
    return study.Job("low_rank", (("head.temperature", 2.0),), seed, directory, {}, f"job {seed}")


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    path = tmp_path / "repository" / "results" / "planted_noise.cpu.json"
    monkeypatch.setattr(derived.study, "saved_path", lambda *_: path)
    monkeypatch.setattr(
        derived.study,
        "run_results",
        lambda each: {} if (each.directory / "results.json").exists() else None,
    )
    made = [job(tmp_path / f"seed_{seed}", seed) for seed in range(2)]
    for each in made:
        each.directory.mkdir()
    (made[0].directory / "results.json").touch()
    return made


def test_saved_numbers_are_those_of_the_runs_and_stand_in_for_them(jobs):
    numbers = {"covariance": np.array([0.25, np.nan])}
    of_runs = Derived(COMMAND, FLAGS, jobs)
    computed = of_runs.of(jobs[0], "last epoch", lambda: numbers)
    assert computed["covariance"] == pytest.approx([0.25, np.nan], nan_ok=True)
    assert of_runs.of(jobs[1], "last epoch", lambda: pytest.fail("it is not complete")) is None
    of_runs.save()
    (jobs[0].directory / "results.json").unlink()
    saved = Derived(COMMAND, FLAGS, jobs)
    assert saved.path.parent.name == "noise_pairs"
    again = saved.of(jobs[0], "last epoch", lambda: pytest.fail("the run is gone"))
    assert again["covariance"] == pytest.approx([0.25, np.nan], nan_ok=True)
    assert saved.of(jobs[0], "early stopping", lambda: pytest.fail("the run is gone")) is None
    assert saved.saved["job 0"]["seed"] == 0


def test_rows_without_all_their_runs_are_named(jobs, capsys):
    numbers = Derived(
        COMMAND, FLAGS, [*jobs, jobs[0]._replace(row="diagonal", fingerprint="other")]
    )
    numbers.of(jobs[0], "last epoch", lambda: 1)
    numbers.print_notes()
    assert "saved numbers: 1 of 2 of low_rank, 1 of 1 of diagonal." in capsys.readouterr().out
    whole = Derived(COMMAND, FLAGS, jobs[:1])
    whole.of(jobs[0], "last epoch", lambda: 1)
    whole.print_notes()
    assert not capsys.readouterr().out
    (jobs[1].directory / "results.json").touch()
    parts = Derived(COMMAND, FLAGS, jobs)
    for seed, part in ((0, "last epoch"), (0, "early stopping"), (1, "early stopping")):
        parts.of(jobs[seed], part, lambda: 1)
    parts.print_notes()
    assert "1 of 2 of low_rank." in capsys.readouterr().out


def test_numbers_of_other_commits_than_those_of_the_table_are_named(jobs, monkeypatch, capsys):
    monkeypatch.setattr(study, "run_results", lambda each: {"commit": f"{each.seed}" * 40})
    table = {each.fingerprint: {"commit": "0" * 40} for each in jobs}
    monkeypatch.setattr(study, "saved_results", lambda *_: table)
    numbers = Derived(COMMAND, FLAGS, jobs)
    numbers.of(jobs[0], "last epoch", lambda: 1)
    numbers.print_notes()
    assert "Numbers of other runs" not in capsys.readouterr().out
    numbers.of(jobs[1], "last epoch", lambda: 1)
    numbers.save()
    monkeypatch.setattr(study, "run_results", lambda _: None)
    saved = Derived(COMMAND, FLAGS, jobs)
    for each in jobs:
        assert saved.of(each, "last epoch", lambda: pytest.fail("the run is gone")) == 1
    for derived_numbers in (numbers, saved):
        capsys.readouterr()
        derived_numbers.print_notes()
        text = "saved results: 1 of low_rank (commit 1111111; the table 0000000)."
        assert text in capsys.readouterr().out


def test_numbers_of_several_runs_are_those_of_these_seeds_and_points(jobs):
    (jobs[1].directory / "results.json").touch()
    of_runs = Derived(COMMAND, FLAGS, jobs)
    assert of_runs.of_all(jobs, "ensemble", lambda: 3) == 3
    of_runs.save()
    for each in jobs:
        (each.directory / "results.json").unlink()
    saved = Derived(COMMAND, FLAGS, jobs)
    gone = functools.partial(pytest.fail, "the runs are gone")
    assert saved.of_all(jobs, "ensemble", gone) == 3
    assert saved.of_all(jobs[:1], "ensemble", gone) is None
    tuned_otherwise = jobs[1]._replace(point=(("head.temperature", 4.0),))
    assert saved.of_all([jobs[0], tuned_otherwise], "ensemble", gone) is None


def test_what_was_saved_of_other_parts_and_runs_of_the_table_is_kept(jobs):
    (jobs[1].directory / "results.json").touch()
    whole = Derived(COMMAND, FLAGS, jobs)
    for each in jobs:
        whole.of(each, "last epoch", lambda: 1)
    whole.save()
    some = Derived(COMMAND, FLAGS, jobs)
    some.of(jobs[0], "early stopping", lambda: 2)
    some.save()
    saved = Derived(COMMAND, FLAGS, jobs).saved
    assert saved["job 0"]["numbers"] == {"last epoch": 1, "early stopping": 2}
    assert saved["job 1"]["numbers"] == {"last epoch": 1}


def test_a_run_comes_before_what_was_saved_of_it_and_other_runs_are_dropped(jobs):
    for number in (1.0, 2.0):
        now = Derived(COMMAND, FLAGS, jobs)
        assert now.of(jobs[0], "last epoch", lambda number=number: number) == number
        now.saved["another"] = {}
        now.save()
    assert Derived(COMMAND, FLAGS, jobs).saved.keys() == {"job 0"}


def test_without_runs_and_saved_numbers_the_error_says_what_to_run(jobs):
    with pytest.raises(
        SystemExit, match=r"no run of planted_noise is complete .*--table=planted_noise --scale=cpu"
    ):
        Derived(COMMAND, FLAGS, jobs[1:])
