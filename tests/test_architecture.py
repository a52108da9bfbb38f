"""Imports point down: the picture of the design, as a table."""

import ast
import sys
from pathlib import Path

import pytest
from subprocesses import EXTRAS, MAIN, run_without

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "heteroscedastic"
MATHEMATICS = {"jax", "numpy", "scipy", "jaxtyping"}
ROOMS = {  # from the lowest to the highest: room -> packages of others
    "calibration": MATHEMATICS,
    "root": MATHEMATICS,
    "curation": MATHEMATICS,
    "detection": MATHEMATICS,
    "predictive": MATHEMATICS,
    "outputs": MATHEMATICS,
    "files": MATHEMATICS | {"absl", "etils", "fsspec", "ml_collections"},
    "models": MATHEMATICS | {"flax"},
    "data": MATHEMATICS
    | {"PIL", "absl", "sacremoses", "sklearn", "subword_nmt", "tensorflow", "tensorflow_datasets"},
    "training": MATHEMATICS | {"flax", "optax"},
    "tasks": MATHEMATICS | {"flax", "pycocotools", "sacrebleu"},
    "distributed": MATHEMATICS | {"optax"},
    "runs": MATHEMATICS | {"absl", "flax", "ml_collections", "optax", "orbax", "tensorboard"},
    "estimator": MATHEMATICS | {"optax", "sklearn"},
    "analysis": MATHEMATICS | {"cleanlab", "matplotlib"},
}
# must not know each other
STRANGERS = {("data", "models"), ("training", "data"), ("distributed", "data")}
FILES = sorted(PACKAGE.rglob("*.py"))
LAUNCHERS = sorted((ROOT / "launch").rglob("*.py"))
CODE = [
    ROOT / "main.py",
    *FILES,
    *LAUNCHERS,
    *(p for d in ("experiments", "benchmarks", "docs", ".ci") for p in ROOT.glob(f"{d}/**/*.py")),
]
# What reads a file by running it, or takes words for a program.
UNSAFE_IMPORTS = {
    "pickle",
    "dill",
    "joblib",
    "cloudpickle",
    "shelve",
    "marshal",
    "torch",
    "yaml",
    "runpy",
    "code",
}
UNSAFE_CALLS = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "import_module",
        "exec_module",
        "run_path",
        "run_module",
    ),
    *("system", "popen", "getoutput", "getstatusoutput", "extract", "extractall", "unpack_archive"),
    "DEFINE_config_file",
}
ALLOWED = {  # file and word -> why
    ("heteroscedastic/__main__.py", "import_module"): "of the modules that its own table names",
    (
        "heteroscedastic/runs/train.py",
        "DEFINE_config_file",
    ): "a config is a program, and --config names it",
    ("heteroscedastic/files/config_file.py", "DEFINE_config_file"): "the same",
    ("experiments/study.py", "exec_module"): "the same, of configs/ alone",
    ("experiments/study.py", "import_module"): "of the folders beside it that hold a rows.py",
}


def room(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "root"


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_room_is_in_the_table():
    assert {room(path) for path in FILES} == set(ROOMS)


def modules():
    """Every module of the package by name."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own, order = room(path), list(ROOMS)
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "heteroscedastic":
            target = rest[0] if rest and (PACKAGE / rest[0]).is_dir() else "root"
            assert order.index(target) <= order.index(own), f"{path.name} imports {name}"
            assert (own, target) not in STRANGERS, f"{path.name} imports {name}"
        else:
            assert first in ROOMS[own] or first in sys.stdlib_module_names, (
                f"{path.name} imports {name}"
            )


def test_no_module_imports_itself_by_way_of_others():
    known = modules()
    imported = {
        name: {
            n if n in known else n.rpartition(".")[0]
            for n in imports(path)
            if n.startswith("heteroscedastic.")
        }
        for name, path in known.items()
    }
    while leaves := {name for name, others in imported.items() if not others & set(imported)}:
        imported = {name: others for name, others in imported.items() if name not in leaves}
    assert not imported


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda p: p.name)
def test_launchers_need_no_packages(path):
    """They run where there is gcloud or sbatch, and no jax."""
    for name in imports(path):
        assert name.split(".")[0] in {"launch", *sys.stdlib_module_names}, (
            f"{path.name} imports {name}"
        )


def unsafe(path):
    """Words of a file that can make data, or words, into code."""
    for name in imports(path):
        yield from UNSAFE_IMPORTS & {name.split(".")[0]}
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        settings = {k.arg: ast.unparse(k.value) for k in node.keywords}
        word = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        own = isinstance(node.func, ast.Name) or word not in (
            "eval",
            "exec",
            "compile",
        )  # Image.eval, re.compile
        if word in UNSAFE_CALLS and own:
            yield word
        if settings.get("shell", "False") != "False":
            yield "shell"
        if (
            ast.unparse(node.func) in ("np.load", "numpy.load")
            and settings.get("allow_pickle") != "False"
        ):
            yield "np.load"
        if settings.get("allow_pickle", "False") != "False":
            yield "allow_pickle"


def test_no_file_and_no_word_becomes_code_but_where_it_is_said_why():
    found = {(str(path.relative_to(ROOT)), word) for path in CODE for word in unsafe(path)}
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("import pickle", "pickle"),
        ("from joblib import load", "joblib"),
        ("import numpy as np; np.load('x.npz')", "np.load"),
        ("import numpy as np; np.load('x.npz', allow_pickle=True)", "allow_pickle"),
        ("import numpy as np; np.load('x.npz', allow_pickle=flag)", "np.load"),
        ("eval('1')", "eval"),
        ("import os; os.system('x')", "system"),
        ("import subprocess; subprocess.run('x', shell=True)", "shell"),
        ("tar.extractall('x')", "extractall"),
    ],
)
def test_what_is_unsafe_is_seen(tmp_path, line, word):
    (tmp_path / "a.py").write_text(line)
    assert word in set(unsafe(tmp_path / "a.py"))


def test_the_head_imports_with_jax_and_flax_alone():
    absent = EXTRAS | {"optax", "orbax", "ml_collections", "absl"}
    program = """
import heteroscedastic
from heteroscedastic import latent, losses, metrics, predictive
print(sorted(m for m in sys.modules if m.split(".")[0] in %r))
"""
    done = run_without(absent, program % absent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_it_trains_from_an_npz_without_the_extras(tmp_path):
    from heteroscedastic.data.storage import store

    store.write(tmp_path / "data" / "digits.npz", store.load("digits"))
    done = run_without(
        EXTRAS,
        MAIN,
        "--config=configs/digits_het_full.py",
        f"--workdir={tmp_path / 'run'}",
        f"--data_dir={tmp_path / 'data'}",
        "--smoke",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").exists()


def test_a_data_set_that_needs_an_extra_says_so(tmp_path):
    program = "from heteroscedastic.data.storage import store; store.load('digits')"
    done = run_without(EXTRAS, program)
    assert "pip install scikit-learn" in done.stderr
    assert "heteroscedastic.data.storage.store --name=digits" in done.stderr
