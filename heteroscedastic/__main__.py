"""The commands of the package: heteroscedastic COMMAND, or python -m heteroscedastic COMMAND.

A command is a module with a function `main` that reads sys.argv. To add one, add a line to
COMMANDS; its description is the docstring of `main`.
"""

import ast
import difflib
import importlib
import sys
from pathlib import Path
from types import ModuleType

import heteroscedastic

COMMANDS = {  # command -> module of the package
    "train": "runs.train",
    "check": "data.inspect.check",
    "embed": "runs.embed",
    "translate": "runs.translate",
    "covariance": "analysis.covariance.summary",
    "report": "analysis.report.build",
    "uncertainty": "analysis.uncertainty.__main__",
    "calibration": "analysis.uncertainty.calibration",
    "by_class": "analysis.uncertainty.by_class",
    "by_token": "analysis.uncertainty.by_token",
    "detections": "analysis.uncertainty.detections",
    "ensemble": "analysis.uncertainty.ensemble",
    "label_errors": "analysis.errors.label_errors",
    "disagreements": "analysis.errors.disagreements",
    "saliency": "analysis.saliency.summary",
    "convert": "models.convert",
    "store": "data.storage.store",
    "vtab": "data.storage.vtab",
    "mask": "data.builders.mask",
    "multilabel": "data.builders.multilabel",
    "tiny_imagenet": "data.builders.tiny_imagenet",
    "iwslt14": "data.text.iwslt14",
}


def main() -> None:
    """Runs the command that the first argument names, with the other arguments."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h"):
        print(_help())
    elif name == "--version":
        print(f"heteroscedastic {heteroscedastic.__version__}")
    elif name in COMMANDS:
        sys.argv = [f"heteroscedastic {name}", *arguments]
        _module(name).main()
    else:
        similar = difflib.get_close_matches(name, COMMANDS, 1)
        remedy = f" (did you mean {similar[0]}?)" if similar else ""
        raise SystemExit(
            f"error: {name!r} is not a command{remedy}; the commands are {', '.join(COMMANDS)}."
        )


def _module(name: str) -> ModuleType:
    """The module of a command, imported only now, as most of them import JAX, which takes seconds.

    Raises:
      SystemExit: a package that the module needs is not installed.
    """
    try:
        return importlib.import_module(f"heteroscedastic.{COMMANDS[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "heteroscedastic":
            raise
        raise SystemExit(
            f"error: heteroscedastic {name} requires {error.name}, which is not installed; install"
            " it, or the extra of heteroscedastic that has it."
        ) from None


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {_description(module)}" for name, module in COMMANDS.items()]
    return "\n".join(
        [
            "usage: heteroscedastic COMMAND [--flag=value ...]",
            "       heteroscedastic COMMAND --help",
            "       heteroscedastic --version",
            "",
            *lines,
        ]
    )


def _description(module: str) -> str:
    """First line of the docstring of a module's `main`, which is read without an import."""
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    (function,) = (
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    )
    return (ast.get_docstring(function) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
