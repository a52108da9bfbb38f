"""The notebooks run from a checkout, print the expected results, and have no saved outputs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_no_output_is_saved(path):
    assert all(
        not cell.outputs and cell.execution_count is None for cell in cells(nbformat.read(path, 4))
    )


# Less training than the notebook says, in which it finds the same; and no TensorBoard events, as
# TensorFlow takes longer to import than the training.
SHORT = {
    '{"seed": 0}': (
        '{"seed": 0, "training.num_epochs": 20.0, "training.checkpoint_epochs": 10.0,'
        ' "predictive.num_samples": 32}'
    ),
    "random_state=0)": "random_state=0, max_iter=2, num_samples=16)",
    "cv=3": "cv=2",
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.slow),
        pytest.param({}, id="as it is", marks=pytest.mark.extended),
    ],
)
def test_learned_covariances_finds_the_planted_noise(changes):
    path = next(p for p in NOTEBOOKS if p.stem == "learned_covariances")
    notebook = nbformat.read(path, 4)
    for old, new in changes.items():
        assert sum(old in cell.source for cell in cells(notebook)) == 1, old
        for cell in cells(notebook):
            cell.source = cell.source.replace(old, new)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "planted pairs among the first 3: 3" in text
    pictures = ["image/png" in output.get("data", {}) for output in outputs]
    assert sum(pictures) == 5
    assert pictures[0], "there is output before the first picture"
    assert "'LowRank'" in text  # from a run directory


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The first cell, in an empty directory."""
    path = next(p for p in NOTEBOOKS if p.stem == "learned_covariances")
    monkeypatch.chdir(tmp_path)
    return cells(nbformat.read(path, 4))[0].source.replace("%matplotlib inline", "")


def test_outside_a_checkout_the_error_says_what_to_set(setup):
    with pytest.raises(ValueError, match="set REPO"):
        exec(setup, {})


def test_outside_a_checkout_the_project_is_cloned_once_and_installed(setup, tmp_path, monkeypatch):
    commands, root = [], tmp_path / "heteroscedastic_checkout"

    def run(command, check):
        commands.append([str(word) for word in command])
        if command[0] == "git":
            root.mkdir()

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for _ in range(2):
        os.chdir(tmp_path)
        exec(setup.replace('REPO = ""', 'REPO = "/the/project"'), {})
        assert (Path.cwd(), sys.path[0]) == (root, str(root))
    clone, install, again = commands
    assert clone[:2] == ["git", "clone"]
    assert clone[-2:] == ["/the/project", str(root)]
    assert install == again
    assert install[:4] == [sys.executable, "-m", "pip", "install"]
    target, extras = re.fullmatch(r"(.*)\[(.*)\]", install[-1]).groups()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert target == str(root)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_the_page_shows_the_notebook_as_it_is():
    page = (Path(__file__).parents[1] / "docs" / "learned_covariances.md").read_text()
    path = next(p for p in NOTEBOOKS if p.stem == "learned_covariances")
    for cell in nbformat.read(path, 4).cells:
        assert cell.source in page, "run python docs/notebook.py"
