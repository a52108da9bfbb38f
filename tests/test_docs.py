"""What the pages and README say can be done: every block of Python runs, every command is one."""

import ast
import functools
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import row, study
from heteroscedastic import smoothing, tasks
from heteroscedastic.__main__ import COMMANDS
from heteroscedastic.files import config_file
from heteroscedastic.models.backbones import ResNet
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.heads import Deterministic
from heteroscedastic.runs import loaded_run

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("experiments/*/README.md")),
]
WITH_PYTHON = [p for p in PAGES if "```python" in p.read_text()]


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_every_block_of_python_runs(page):
    everything = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    if "KERAS_BACKEND" in page.read_text():  # which counts before the first import of keras
        subprocess.run([sys.executable, "-c", "".join(blocks)], check=True, cwd=ROOT)
        return
    for block in blocks:  # one that raises, or whose own assertions fail, fails here
        block = block.replace("max_iter=20)", "max_iter=2, num_samples=16)")  # README's
        block = block.replace("max_iter=20,", "max_iter=20, num_samples=16,")  # in place of 128
        exec(compile(block, name(page), "exec"), everything)
    arrays = [x for x in everything.values() if isinstance(x, jax.Array)]
    floats = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)]
    assert all(np.isfinite(x).all() for x in floats), name(page)
    assert blocks


def blocks_with(text, page):
    """The blocks of Python on a page that need what a reader has, such as a run."""
    blocks = re.findall(r"```py\n(.*?)```", page.read_text(), re.DOTALL)
    return [block for block in blocks if text in block]


def test_the_blocks_that_make_tables_of_targets_write_what_their_sentences_say(
    tmp_path, monkeypatch
):
    page, rng = ROOT / "docs" / "guide" / "training.md", np.random.default_rng(0)
    of_run, of_people = blocks_with('"table.npy"', page)
    monkeypatch.chdir(tmp_path)
    labels, logits = np.repeat(np.arange(10), 2), rng.normal(size=(20, 10))
    Path("runs/digits_hom/predictions").mkdir(parents=True)
    arrays = dict(ids=np.arange(20), labels=labels, logits=logits)
    np.savez("runs/digits_hom/predictions/valid.npz", **arrays)
    exec(compile(of_run, name(page), "exec"), {})
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    table = smoothing.class_table("table.npy", 10)
    np.testing.assert_allclose(table[3], probs[6:8].mean(axis=0), rtol=1e-6)
    answers = labels, labels, np.zeros_like(labels)  # two are right, and one is class 0
    fields = {f"train_random_label{i + 1}": answer for i, answer in enumerate(answers)}
    images = np.zeros((20, 2, 2, 3), np.uint8)
    names = np.arange(10).astype(str)
    Path("DIR").mkdir()
    np.savez(
        "DIR/cifar10_n.npz", class_names=names, train_inputs=images, train_labels=labels, **fields
    )
    exec(compile(of_people, name(page), "exec"), {})
    expected = 2 / 3 * np.eye(10) + 1 / 3 * np.eye(10)[0]
    np.testing.assert_allclose(smoothing.class_table("table.npy", 10), expected, rtol=1e-6)


def test_the_block_that_writes_a_backbone_for_torchvision_does(tmp_path, monkeypatch):
    page = ROOT / "docs" / "guide" / "detection.md"
    (block,) = blocks_with("convert.to_torch", page)
    backbone = ResNet(stage_sizes=(1, 1), bottleneck=False, stem_width=4, width=4, stem="imagenet")
    model = Classifier(backbone=backbone, head=Deterministic(num_classes=3))
    inputs = jnp.zeros((1, 32, 32, 3)), jnp.ones(1, bool)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs))
    variables = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes)
    params = variables.pop("params")
    run = SimpleNamespace(state=SimpleNamespace(params=params, model_state=variables))
    monkeypatch.setattr(loaded_run, "load", lambda directory, data_dir: run)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, name(page), "exec"), {})
    saved = {key: array.shape for key, array in np.load("resnet50.npz").items()}
    assert saved["conv1.weight"] == (4, 3, 7, 7)
    assert saved["layer2.0.bn1.running_var"] == (8,)
    assert not [key for key in saved if key.startswith("fc.")]


def commands(page):
    """The arguments of python, in sh blocks and in code in lines.

    A command of the package has those of its module.
    """
    text = page.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:python|heteroscedastic) [^`]+)`", text)
    variables = {}
    for line in lines:
        assigned = re.fullmatch(r"([A-Z]+)=(\S+)", line)
        if assigned:
            variables[assigned[1]] = assigned[2]
        for variable, value in variables.items():
            line = line.replace(f"${variable}", value)
        for part in line.split("&&"):
            words = shlex.split(part)
            if words and words[0] in ("python", ".venv/bin/python"):
                yield words[1:]
            elif words[:1] == ["heteroscedastic"] and words[1] not in ("COMMAND", "--help"):
                yield ["-m", f"heteroscedastic.{COMMANDS[words[1]]}", *words[2:]]


def test_there_are_commands():
    assert len([c for page in PAGES for c in commands(page)]) > 60


def test_the_documentation_names_every_config():
    text = "".join(page.read_text() for page in PAGES)
    missing = [p.stem for p in (ROOT / "configs").glob("*.py") if f"{p.stem}" not in text]
    assert not missing, missing


def test_the_documentation_lists_every_task_command_and_extra():
    training, install = (
        (ROOT / "docs" / page).read_text() for page in ("guide/training.md", "install.md")
    )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {x for x in tasks.__all__ if f"| `{x}` |" not in training} == set()
    assert {x for x in (*COMMANDS, *extras) if f"| `{x}` |" not in install} == set()


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(
            r"^\[\w+\]: (\S+)", text, re.M
        )
        for link in links:
            if not link.startswith(("http", "mailto:")):
                assert (page.parent / link).exists(), (name(page), link)


@pytest.mark.parametrize(
    "page",
    [
        p
        for p in PAGES
        if p.parent.name == "results" and p.stem not in ("index", "claims", "paper_tables")
    ],
    ids=name,
)
def test_every_table_of_results_has_a_question_and_a_verdict(page):
    sections = [s for s in page.read_text().split("\n## ") if "| --- |" in s]
    parts = ("Question.", "Command.", "Verdict.", "What would change the verdict.")
    for section in sections:
        missing = [part for part in parts if f"**{part}**" not in section]
        assert not missing, (section.splitlines()[0], missing)
    assert sections


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    assert max(map(len, lines)) <= 100


def test_ci_reads_the_test_command_of_the_readme():
    (line,) = re.findall(r"^tests=.*$", (ROOT / ".ci" / "run").read_text(), re.M)
    script = f'{line}\nprintf %s "$tests"'
    command = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True
    ).stdout
    steps = command.split(" && ")
    assert [shlex.split(step)[0] for step in steps] == [
        "python3",
        ".venv/bin/pip",
        ".venv/bin/pytest",
    ], command


@functools.cache
def flags_of(path):
    """The flags that a program declares: itself, with absl in a neighbour that it imports, or in a
    module whose function `main`, `add_flag` or `add_flags`, or whose parser, it calls.
    """
    flags, calls = set(), set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        function = getattr(node, "func", None)
        called = getattr(function, "attr", "")
        if called.startswith(("add_argument", "DEFINE_")):
            flags.update(
                argument.value.lstrip("-")
                for argument in node.args[: None if called.startswith("add") else 1]
                if isinstance(argument, ast.Constant)
            )
        elif called in ("argument_parser", "add_flag", "add_flags", "main"):
            calls.add(function.value.id)
        elif getattr(function, "id", "").endswith("parser"):
            calls.add(function.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = ROOT.joinpath(*node.module.split("."))
            imported = {package / f"{alias.name}.py": alias.name in calls for alias in node.names}
            imported[package.with_suffix(".py")] = any(a.name in calls for a in node.names)
            for module, is_called in imported.items():
                if not module.exists():
                    continue
                is_neighbour = module.parent == path.parent
                if is_called or (is_neighbour and "flags.DEFINE_" in module.read_text()):
                    flags |= flags_of(module)
    return flags


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_is_one(page):
    for words in commands(page):
        if words[0] == "-c":
            compile(words[1], name(page), "exec")
            continue
        if words[0] == "-m":
            module = words[1]
            if not module.startswith(("heteroscedastic", "experiments", "benchmarks", "launch")):
                continue
            path, rest = Path(importlib.util.find_spec(module).origin), words[2:]
            if path.name == "__init__.py":  # a package runs its __main__
                path = path.with_name("__main__.py")
        else:
            path, rest = ROOT / words[0], words[1:]
        assert path.exists(), words
        config = next((w.split("=")[1] for w in rest if w.startswith("--config=")), None)
        for word in rest:
            flag = word.lstrip("-").split("=")[0]
            if word.startswith("--config."):
                study.config(Path(config).stem, {flag.removeprefix("config."): None})
            elif word.startswith("--") and flag != "config":
                assert flag in flags_of(path), (words, flag)
            elif flag == "config" and "X" not in word:
                file, _, of_table = config.partition(":")
                assert file in config_file.names() or (ROOT / file).exists(), words
                if of_table:
                    assert row.get_config(of_table).to_dict()


def docstrings(path):
    """What the site shows of a file: the docstrings of the module and of its public functions and
    classes.
    """
    named = (ast.FunctionDef, ast.ClassDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, *named)) and not getattr(node, "name", "").startswith("_"):
            yield getattr(node, "name", "the module"), ast.get_docstring(node) or ""


def test_no_line_of_a_docstring_starts_as_markup():
    wrong = [
        f"{name(path)}: {what}: {line.strip()}"
        for path in sorted((ROOT / "heteroscedastic").rglob("*.py"))
        for what, text in docstrings(path)
        for line in text.splitlines()
        if re.match(
            r"\s*(\w+: +)?(>|#|[-*+] |\d+\. )", line
        )  # of an argument, what follows its name is a text too
    ]
    assert not wrong, wrong


def test_files_that_docstrings_name_exist():
    wrong = [
        f"{name(path)}: {what}: {file}"
        for path in sorted((ROOT / "heteroscedastic").rglob("*.py"))
        for what, text in docstrings(path)
        for file in re.findall(r"\b(?:benchmarks|configs|docs|tests)/\w[\w/]*\.(?:py|md)", text)
        if not (ROOT / file).exists() and "/X." not in file
    ]
    assert not wrong, wrong
