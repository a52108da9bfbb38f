"""The notebooks run from a checkout, print the expected results, and have no saved outputs."""

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


@pytest.mark.slow
def test_learned_covariances_finds_the_planted_noise():
    path = next(p for p in NOTEBOOKS if p.stem == "learned_covariances")
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "planted pairs among the first 3: 3" in text
    pictures = ["image/png" in output.get("data", {}) for output in outputs]
    assert sum(pictures) == 4
    assert pictures[0], "there is output before the first picture"
    assert "'LowRank'" in text  # from a run directory


def test_outside_a_checkout_the_error_says_what_to_set(tmp_path, monkeypatch):
    path = next(p for p in NOTEBOOKS if p.stem == "learned_covariances")
    setup = cells(nbformat.read(path, 4))[0].source.replace("%matplotlib inline", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="set REPO"):
        exec(setup, {})


def test_the_page_shows_the_notebook_as_it_is():
    page = (Path(__file__).parents[1] / "docs" / "learned_covariances.md").read_text()
    path = next(p for p in NOTEBOOKS if p.stem == "learned_covariances")
    for cell in nbformat.read(path, 4).cells:
        assert cell.source in page, "run python docs/notebook.py"
