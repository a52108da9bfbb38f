"""The command heteroscedastic, and configs by name."""

import ast
import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from subprocesses import ROOT, run_without

import heteroscedastic
from heteroscedastic import __main__ as commands
from heteroscedastic.files import config_file
from heteroscedastic.runs import provenance

PACKAGE = ROOT / "heteroscedastic"
BY_NAME = "--config=digits_het_full"
BY_PATH = f"--config={ROOT.resolve()}/configs/digits_het_full.py"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["heteroscedastic", *arguments])
    commands.main()


def test_every_program_of_the_package_is_a_command():
    programs = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.glob("*/**/*.py")
        for node in ast.parse(path.read_text()).body
        if getattr(node, "name", "") == "main"
    }
    assert set(commands.COMMANDS.values()) == programs


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_datasets") is None,
    reason="two commands need TensorFlow Datasets",
)
def test_every_command_answers_help_and_is_listed_with_what_it_does(monkeypatch, capsys):
    program = """
import contextlib, io, json
from heteroscedastic import __main__ as commands
helps = {}
for name, module in [*commands.COMMANDS.items()][:1]:  # absl takes flags once
    sys.argv, output = ["heteroscedastic", name, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            commands.main()
    except SystemExit as error:
        main = sys.modules[f"heteroscedastic.{module}"].main
        helps[name] = [error.code, output.getvalue(), main.__doc__]
sys.argv, output = ["heteroscedastic", "--help"], io.StringIO()
with contextlib.redirect_stdout(output):
    commands.main()
print(json.dumps([helps, output.getvalue()]))
"""
    done = run_without(set(), program)
    assert done.returncode == 0, done.stderr
    helps, listing = json.loads(done.stdout.splitlines()[-1])
    for name, module in [*commands.COMMANDS.items()][1:]:
        with pytest.raises(SystemExit) as left:
            run(monkeypatch, name, "--help")
        main = sys.modules[f"heteroscedastic.{module}"].main
        helps[name] = [left.value.code, capsys.readouterr().out, main.__doc__]
    assert list(helps) == list(commands.COMMANDS)
    for name, (code, text, description) in helps.items():
        assert code == 0, name
        assert f"heteroscedastic {name} " in text
        # Without white space, as lines break at spaces and hyphens.
        assert "".join(description.splitlines()[0].split()) in "".join(text.split())
        assert re.search(rf"^  {name} +{re.escape(description.splitlines()[0])}$", listing, re.M)


def test_the_list_of_commands_imports_no_package():
    program = """
import runpy
before = set(sys.modules)
sys.argv = ["heteroscedastic", "--help"]
runpy.run_module("heteroscedastic", run_name="__main__")
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {"heteroscedastic"}))
"""
    done = run_without(set(), program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("tran", "error: 'tran' is not a command (did you mean train?); the commands are train, "),
        ("zzz", "error: 'zzz' is not a command; the commands are train, "),
        ("--verson", "error: '--verson' is not a command; "),
    ],
)
def test_an_unknown_command_is_an_error_that_lists_the_commands(monkeypatch, word, line):
    with pytest.raises(SystemExit, match=f"^{re.escape(line)}") as caught:
        run(monkeypatch, word)
    assert all(name in str(caught.value) for name in commands.COMMANDS)
    assert len(str(caught.value).splitlines()) == 1


def test_a_command_without_its_package_is_an_error_that_names_the_package():
    program = """
sys.argv = ["heteroscedastic", "mask", "--help"]
from heteroscedastic import __main__ as commands
commands.main()
"""
    done = run_without({"tensorflow", "tensorflow_datasets"}, program)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: heteroscedastic mask requires tensorflow")


def test_the_version_is_that_of_the_changelog_and_the_citation(monkeypatch, capsys):
    run(monkeypatch, "--version")
    assert capsys.readouterr().out == f"heteroscedastic {heteroscedastic.__version__}\n"
    changelog = re.findall(r"^## \[(\S+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    citation = re.search(
        r"^version: (\S+)\ndate-released: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M
    )
    assert changelog[0] == (heteroscedastic.__version__, citation[2])
    assert citation[1] == heteroscedastic.__version__


def test_the_script_of_the_package_is_the_main_of_the_package():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["heteroscedastic"].partition(":")
    assert getattr(sys.modules[module], function) is commands.main


@pytest.mark.parametrize("overrides", [[], ["--config.seed=3", "--config.head.temperature", "2"]])
def test_a_config_by_name_is_the_config_by_path(tmp_path, monkeypatch, overrides):
    monkeypatch.chdir(tmp_path)
    assert config_file.read([BY_NAME, *overrides]) == config_file.read([BY_PATH, *overrides])
    assert config_file.before_overrides([BY_NAME, *overrides]) == config_file.before_overrides(
        [BY_PATH, *overrides]
    )
    assert config_file.with_path([BY_NAME, *overrides]) == [BY_PATH, *overrides]
    name = BY_NAME.partition("=")[2]
    assert config_file.with_path(["--config", name]) == ["--config", BY_PATH.partition("=")[2]]
    assert config_file.with_path([f"-config={name}:x"]) == [f"{BY_PATH.removeprefix('-')}:x"]
    assert config_file.with_path([f"--workdir={name}"]) == [f"--workdir={name}"]


@pytest.mark.parametrize(
    "words", [["--config.optimizer.clip_norm=None"], ["-config.head.name", "None"]]
)
def test_an_override_can_be_none_whatever_the_type_of_the_setting(words):
    plain = config_file.read([BY_NAME])
    section, setting = words[0].partition("=")[0].rpartition("config.")[2].split(".")
    assert config_file.without_nones(["main.py", BY_NAME, *words, "rest"]) == [
        "main.py",
        BY_NAME,
        "rest",
    ]
    changed = config_file.read([BY_NAME, *words, "--config.seed=3"])
    assert changed == plain | {"seed": 3, section: plain[section] | {setting: None}}
    both = config_file.read([BY_NAME, *words, f"--config.{section}=None"])
    assert both == plain | {section: None}
    last = config_file.read(
        [BY_NAME, *words, f"--config.{section}.{setting}={plain[section][setting]}"]
    )
    assert last == plain
    with pytest.raises(ValueError, match=f"{section}=None leaves out the section of which .*sets"):
        config_file.read([BY_NAME, f"--config.{section}=None", *words])
    with pytest.raises(ValueError, match=r"config\.optimizer\.clipnorm is not a setting of"):
        config_file.read([BY_NAME, "--config.optimizer.clipnorm=None"])


def test_a_file_precedes_a_config_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits_het_full").mkdir()  # such as the directory of a run
    assert config_file.read([BY_NAME])["seed"] == 0
    (tmp_path / "digits_het_full").rmdir()
    own = Path(BY_PATH.partition("=")[2]).read_text().replace("c.seed = 0", "c.seed = 17")
    (tmp_path / "digits_het_full").write_text(own)
    assert config_file.read([BY_NAME])["seed"] == 17


def test_training_finds_a_config_by_name_outside_of_a_checkout(tmp_path):
    """The command ends before JAX is imported."""
    program = """
import os
from heteroscedastic import __main__ as commands
os.chdir(sys.argv[1])
sys.argv = ["heteroscedastic", "train", *sys.argv[2:]]
commands.main()
"""
    cases = {
        ("--config=digits_het_full",): "error: give --config=NAME and --workdir=DIR",
        ("--config=digit_het_full", "--workdir=x"): "error: --config is digit_het_full, .* did you"
        " mean digits_het_full",
        (BY_NAME, "--workdir=x", "--config.data.crop=3"): "error: config.data.crop is not a"
        " setting of digits_het_full;",
        (BY_NAME, "--workdir=x", "--config.data.crop=None"): "error: config.data.crop is not a"
        " setting of digits_het_full;",
        (BY_NAME, "--workdir=x", "--config.seed=3", "extra"): "error: unknown arguments",
    }
    for words, line in cases.items():
        done = run_without({"jax", "flax"}, program, str(tmp_path), *words)
        assert re.match(line, done.stderr), done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_digest_of_the_code_does_not_depend_on_where_the_configs_are(tmp_path, monkeypatch):
    digests = []
    for configs in ("configs", "heteroscedastic/configs"):
        root = tmp_path / configs.replace("/", "_")
        for name in ("heteroscedastic/a.py", "heteroscedastic/runs/b.py", f"{configs}/c.py"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name.rpartition("/")[2])
        monkeypatch.setattr(heteroscedastic, "__file__", f"{root}/heteroscedastic/__init__.py")
        digests.append(provenance._code())
    assert digests[0] == digests[1]
    (root / "heteroscedastic" / "runs" / "b.py").write_text("changed")
    assert provenance._code() != digests[1]
