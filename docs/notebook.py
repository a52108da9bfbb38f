"""Runs the notebook and writes it with its outputs as a page: python docs/notebook.py"""

import base64
from pathlib import Path

import nbformat
from nbclient import NotebookClient

_DOCS = Path(__file__).parent
_NOTEBOOK = _DOCS.parent / "notebooks" / "learned_covariances.ipynb"
PAGE = _DOCS / "learned_covariances.md"


def code_block(source: str) -> str:
    """A code cell on the page; tests run the notebook itself, so the block is not one of theirs."""
    return f"```py\n{source}\n```"


def _outputs(cell: nbformat.NotebookNode, pictures: Path) -> list[str]:
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            parts.append(f"```text\n{output.text.rstrip()}\n```")
        png = output.get("data", {}).get("image/png")
        if png:
            path = pictures / f"{len(list(pictures.glob('*.png'))) + 1}.png"
            path.write_bytes(base64.b64decode(png))
            parts.append(f"![Output of the code above]({pictures.name}/{path.name})")
    return parts


def main() -> None:
    notebook = nbformat.read(_NOTEBOOK, 4)
    resources = {"metadata": {"path": _NOTEBOOK.parent}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
    pictures = _DOCS / PAGE.stem
    pictures.mkdir(exist_ok=True)
    for old in pictures.glob("*.png"):
        old.unlink()
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts += [code_block(cell.source), *_outputs(cell, pictures)]
    PAGE.write_text("\n\n".join(parts) + "\n")
    print(f"wrote {PAGE} and {len(list(pictures.glob('*.png')))} pictures")


if __name__ == "__main__":
    main()
