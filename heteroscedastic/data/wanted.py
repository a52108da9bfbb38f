"""Which data sets a config names."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Wanted(NamedTuple):
    """A set, and what a config takes of it."""

    name: str
    label: str  # field that holds the labels
    splits: dict[str, str]  # our names to slices of stored splits; none are all that are stored


def sets(data: Mapping[str, Any]) -> list[Wanted]:
    """The sets that config.data names: its own, and those that entries of `splits` name."""
    label = data.get("label", "label")
    found = {(data["name"], label): {}}
    for split, entry in (data.get("splits") or {}).items():
        if isinstance(entry, str):
            found[data["name"], label][split] = entry
        else:
            found.setdefault((entry["name"], entry.get("label", label)), {})[split] = entry["split"]
    return [Wanted(*key, splits) for key, splits in found.items()]
