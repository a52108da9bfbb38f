"""Errors of commands: one line for an error that a user can correct, a traceback for a bug."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import small
from subprocesses import EXTRAS, ROOT, run_without

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.covariance import summary
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.files import config_file
from heteroscedastic.runs import loop
from heteroscedastic.runs.checkpoint import Checkpoints

DIGITS = "--config=configs/digits_het_full.py"


def run(call, *arguments, debug=False):
    with user_errors.one_line(debug):
        call(*arguments)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda path: loop.train(small(**{"predictive.num_samples": 1000}), str(path)),
            "error: .*num_samples.*1000",
        ),
        (
            lambda path: loop.train(small(**{"head.temperature": 0.0}), str(path)),
            "error: config.head: temperature is 0.0",
        ),
        (lambda path: Checkpoints(path / "none", read_only=True), "error: .*none is missing"),
        (lambda path: files.read_json(path / "none.json"), r"error: \[Errno 2\].*none.json"),
        (lambda path: files.as_path("s3://bucket/x"), "error: s3://bucket/x has the scheme s3://"),
    ],
)
def test_an_error_that_a_user_can_correct_is_one_line(tmp_path, call, line):
    with pytest.raises(SystemExit, match=line) as caught:
        run(call, tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(Exception, match=line.removeprefix("error: ")) as caught:
        run(call, tmp_path, debug=True)
    assert not isinstance(caught.value, SystemExit)


@pytest.mark.parametrize(
    "bug",
    [
        lambda: jnp.ones(2) + jnp.ones(3),
        lambda: jax.jit(lambda x: x.reshape(5))(np.ones(4)),
        lambda: np.zeros(2).reshape(3),
        lambda: {}["a"],
        lambda: int("a"),
    ],
)
def test_a_bug_keeps_its_traceback(bug):
    with pytest.raises((ValueError, TypeError, KeyError)):
        run(bug)


def test_all_commands_report_errors_alike(tmp_path, monkeypatch):
    for module, flag in ((calibration, "--run"), (summary, "--run")):
        monkeypatch.setattr(sys, "argv", ["command", f"{flag}={tmp_path}"])
        with pytest.raises(SystemExit, match=r"^error: .*holds no complete run"):
            module.main()
        monkeypatch.setattr(sys, "argv", ["command", f"{flag}={tmp_path}", "--debug"])
        with pytest.raises(FileNotFoundError, match="holds no complete run"):
            module.main()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "give --config=FILE"),
        (["--config=configs/digit_het_full.py"], "did you mean digits_het_full"),
        (["--config=digit_het_full"], "did you mean digits_het_full"),
        (["--config=zzz"], "--help lists the configs"),
        (
            [DIGITS, "--config.data.crop=3"],
            "config.data.crop is not a setting of configs/digits_het_full.py; the settings of"
            " config.data are .*name",
        ),
        (
            [DIGITS, "--config.haed.name=x"],
            "config.haed is not a setting .*the settings of config are .*head",
        ),
        ([DIGITS, "--config.seed.x=1"], "config.seed is not a section, but the value 0"),
        ([DIGITS, "--config.training.batch_size=abc"], "--config.training.batch_size=abc: .*'abc'"),
        (
            [DIGITS, "--config.training.batch_size", "abc"],
            "--config.training.batch_size=abc: .*'abc'",
        ),
        ([DIGITS, "--config.head=3"], "--config.head=3: .*not a dict"),
        (["--config=main.py"], "main.py: .*no attribute 'get_config'"),
        (["--config=experiments/row.py:a@b"], "experiments/row.py: 'a@b' is not a job of a table"),
    ],
)
def test_an_invalid_config_or_override_is_an_error_of_one_line(words, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises((ValueError, FileNotFoundError), match=line) as caught:
        config_file.read(words)
    assert len(str(caught.value).splitlines()) == 1


def test_valid_overrides_are_applied(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = config_file.read(
        [DIGITS, "--config.seed", "3", "--config.head.temperature=2", "--smoke"]
    )
    assert (config["seed"], config["head"]["temperature"]) == (3, 2.0)


def test_a_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files.write_json("~/x/a.json", 3)
    assert files.read_json(tmp_path / "x" / "a.json") == 3
    with pytest.raises(
        ValueError, match=re.escape("~no-such-user/x is in the home of an unknown user")
    ):
        files.as_path("~no-such-user/x")
    assert files.as_path("a/~b") == ROOT.__class__("a/~b")


def test_an_invalid_command_line_of_a_run_is_an_error_of_one_line():
    """Each command ends before JAX is imported."""
    program = """
import os, runpy
for words in (
    [], ["--worksdir=x"], [*RUN, "extra"], [*RUN, "--num_processes=2"],
    [*RUN, "--debug", "--process_id=0"], [*RUN, "--coordinator=localhost:1"],
    ["--config=configs/digits_hom.py"], [RUN[0] + "x", RUN[1]],
):
    if os.fork():
        os.wait()
        continue
    sys.argv = ["main.py", *words]
    try:
        runpy.run_path("main.py", run_name="__main__")
    except SystemExit as error:
        print(error.code, flush=True)
    os._exit(0)
""".replace("RUN", '("--config=configs/digits_hom.py", "--workdir=none")')
    done = run_without(EXTRAS, program)
    lines = done.stdout.splitlines()
    expected = [
        "give --config",
        "give --config",
        "unknown arguments",
        "--num_processes without --hosts",
    ]
    expected += [
        "--process_id without --hosts",
        "--coordinator without --hosts",
        "give --config",
        "did you mean",
    ]
    assert len(lines) == len(expected), done.stdout + done.stderr
    assert all(
        line.startswith("error: ") and part in line for line, part in zip(lines, expected)
    ), lines
