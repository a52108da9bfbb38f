"""What classes are called where they are shown: in pictures, tables and on the console."""

from collections.abc import Mapping
from typing import Any

from heteroscedastic import files


def of_classes(description: Mapping[str, Any]) -> list[str]:
    """The class names of a dataset.json, each of one line; anybody may have written them."""
    return [files.printable(str(name)) for name in description["class_names"]]


def short(name: str, longest: int = 22) -> str:
    """A name of so many letters at most."""
    return name if len(name) <= longest else name[: longest - 1].rstrip() + "…"
