"""Imports point down: the picture of the design, as a table."""

import ast
import sys
from pathlib import Path

import pytest
from subprocesses import EXTRAS, MAIN, run_without

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "heteroscedastic"
MATHEMATICS = {"jax", "numpy", "scipy", "jaxtyping"}
ROOMS = {  # room -> packages of others, rooms of ours
    "root": (MATHEMATICS, {"root"}),
    "predictive": (MATHEMATICS, {"root", "predictive"}),
    "calibration": (MATHEMATICS, {"root", "calibration"}),
    "models": (MATHEMATICS | {"flax"}, {"root", "predictive", "models"}),
    "data": (MATHEMATICS | {"PIL", "sklearn", "tensorflow", "tensorflow_datasets"}, {"root", "data"}),
    "training": (
        MATHEMATICS | {"flax", "optax", "orbax", "clu", "tensorflow"},
        {"root", "predictive", "calibration", "models", "data", "training"},
    ),
    "analysis": (
        MATHEMATICS | {"cleanlab", "matplotlib"},
        {"root", "predictive", "calibration", "models", "data", "training", "analysis"},
    ),
}
FILES = sorted(PACKAGE.rglob("*.py"))


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


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    packages, rooms = ROOMS[room(path)]
    # metrics.py reads calibration errors off its sums
    rooms = rooms | ({"calibration"} if path.name == "metrics.py" else set())
    # files.py reaches into buckets, where a path names one
    packages = packages | ({"etils", "fsspec"} if path.name == "files.py" else set())
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "heteroscedastic":
            target = rest[0] if rest and (PACKAGE / rest[0]).is_dir() else "root"
            assert target in rooms, f"{path.name} imports {name}"
        else:
            assert first in packages or first in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_files_are_of_one_subject():
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 300}
    assert not long


def test_the_head_imports_with_jax_and_flax_alone():
    absent = EXTRAS | {"optax", "orbax", "clu", "ml_collections", "absl"}
    program = """
import heteroscedastic
from heteroscedastic import latent, losses, metrics, predictive
print(sorted(m for m in sys.modules if m.split(".")[0] in %r))
"""
    done = run_without(absent, program % absent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_it_trains_from_an_npz_without_the_extras(tmp_path):
    from heteroscedastic.data import store

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
    program = "from heteroscedastic.data import store; store.load('digits')"
    done = run_without(EXTRAS, program)
    assert "pip install scikit-learn" in done.stderr
    assert "heteroscedastic.data.store --name=digits" in done.stderr
