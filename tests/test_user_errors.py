"""What a user reads of an error: a line where it can be corrected, a traceback where it is a bug."""

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


def ended(call, *arguments, debug=False):
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
        (lambda path: files.as_path("s3://bucket/x"), "error: s3://bucket/x is in s3://"),
    ],
)
def test_what_a_user_can_correct_is_one_line(tmp_path, call, line):
    with pytest.raises(SystemExit, match=line) as caught:
        ended(call, tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(Exception, match=line.removeprefix("error: ")) as caught:
        ended(call, tmp_path, debug=True)
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
        ended(bug)


def test_commands_end_alike(tmp_path, monkeypatch):
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
        (["--config=configs/digit_het_full.py"], "did you mean configs/digits_het_full.py"),
        (["--config=digits_het_full"], "did you mean configs/digits_het_full.py"),
        (["--config=zzz"], "--help lists the configs"),
        (
            [DIGITS, "--config.data.max_classes=3"],
            "config.data.max_classes is not a setting of configs/digits_het_full.py",
        ),
        (
            [DIGITS, "--config.data.max_classes=3"],
            "the settings of config.data are .*name.* can be written into the file",
        ),
        (
            [DIGITS, "--config.haed.name=x"],
            "config.haed is not a setting .*the settings of config are .*head",
        ),
        ([DIGITS, "--config.seed.x=1"], "config.seed is no section, but the value 0"),
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
def test_a_config_or_an_override_that_does_not_fit_is_one_line(words, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises((ValueError, FileNotFoundError), match=line) as caught:
        config_file.read(words)
    assert len(str(caught.value).splitlines()) == 1


def test_overrides_that_fit_are_taken(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = config_file.read(
        [DIGITS, "--config.seed", "3", "--config.head.temperature=2", "--smoke"]
    )
    assert (config["seed"], config["head"]["temperature"]) == (3, 2.0)


def test_a_home_directory_is_found_where_no_shell_replaced_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files.write_json("~/x/a.json", 3)
    assert files.read_json(tmp_path / "x" / "a.json") == 3
    with pytest.raises(
        ValueError, match=re.escape("~no-such-user/x is in the home of a user that is unknown")
    ):
        files.as_path("~no-such-user/x")
    assert files.as_path("a/~b") == ROOT.__class__("a/~b")


def test_the_command_line_of_a_run_says_what_is_wrong_in_one_line():
    """Each ends before jax is imported."""
    program = """
import os, runpy
for words in (
    [], ["--worksdir=x"], [*GIVEN, "extra"], [*GIVEN, "--num_processes=2"], [*GIVEN, "--debug", "--process_id=0"],
    [*GIVEN, "--coordinator=localhost:1"], ["--config=configs/digits_hom.py"], [GIVEN[0] + "x", GIVEN[1]],
):
    if os.fork():
        os.wait()
        continue
    sys.argv = ["main.py", *words]
    try:
        runpy.run_path("main.py", run_name="__main__")
    except SystemExit as ended:
        print(ended.code, flush=True)
    os._exit(0)
""".replace("GIVEN", '("--config=configs/digits_hom.py", "--workdir=none")')
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
        line.startswith("error: ") and what in line for line, what in zip(lines, expected)
    ), lines
