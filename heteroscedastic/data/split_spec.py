"""Slices of stored splits in the syntax of TFDS: "train", "train[:25%]", "train[1000:2000]"."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_BOUND = r"(-?\d{1,15}(?:\.\d{1,15})?)?(%)?"  # more digits than any set requires
_EXPRESSION = re.compile(rf"([\w-]+)(?:\[{_BOUND}:{_BOUND}\])?")


class Slice(NamedTuple):
    """Positions `start` to `stop` - 1 of a stored split."""

    split: str
    start: int
    stop: int


def parse(expression: Any, sizes: Mapping[str, int]) -> Slice:
    """Parses an expression for a slice.

    Percentages are rounded to the nearest example, halves to even. A negative bound counts from the
    end. If one bound is a percentage, both are.

    Args:
      expression: name of a stored split, or name[start:stop] in examples or in percent.
      sizes: number of examples of every stored split.

    Raises:
      ValueError: the expression is not valid, names no stored split, or selects no examples.
    """
    match = _EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    split, start, start_unit, stop, stop_unit = match.groups() if match else (None,) * 5
    is_percent = bool(start_unit or stop_unit)
    bounds = [b for b in (start, stop) if b is not None]
    if (
        not match
        or ("[" in expression and not bounds)
        or (start_unit and start is None)
        or (stop_unit and stop is None)
        or (not is_percent and any("." in b for b in bounds))
    ):
        raise ValueError(
            f"{expression!r} is not a slice of a split, such as 'train', 'train[:25%]' or"
            " 'train[1000:2000]'."
        )
    if split not in sizes:
        raise ValueError(
            f"{expression!r} names no stored split; the stored splits are {', '.join(sizes)}."
        )
    size = sizes[split]

    def position(bound, default):
        if bound is None:
            return default
        value = round(float(bound) * size / 100) if is_percent else int(bound)
        return value + size if bound.startswith("-") else value  # -1 % of 40 examples rounds to 0

    first, last = position(start, 0), position(stop, size)
    if not 0 <= first < last <= size:
        raise ValueError(
            f"{expression!r} is {first} to {last} of {size} examples, which is empty or out of"
            " range."
        )
    return Slice(split, first, last)


def shares(expressions: Mapping[str, str]) -> dict[str, str]:
    """Slices with percentages in place of numbers of examples, for a set of another size.

    The bounds keep their order and are evenly spaced: "train[50000:]" and "train[:50000]" become
    "train[50%:]" and "train[:50%]". Percentages and invalid expressions are returned unchanged.

    Args:
      expressions: all slices that a config takes of one set, by name.
    """
    matches = {name: _EXPRESSION.fullmatch(expression) for name, expression in expressions.items()}
    in_examples = {name: m.groups() for name, m in matches.items() if m and not (m[3] or m[5])}
    bounds: dict[str, set[int]] = {}
    for split, start, _, stop, _ in in_examples.values():
        bounds.setdefault(split, set()).update(int(b) for b in (start, stop) if b is not None)

    def percentage(split, bound):
        if bound is None:
            return ""
        ordered = sorted(
            bounds[split], key=lambda b: (b < 0, b)
        )  # negative ones count from the end
        return f"{round(100 * (ordered.index(int(bound)) + 1) / (len(ordered) + 1))}%"

    slices = dict(expressions)
    for name, (split, start, _, stop, _) in in_examples.items():
        if start is not None or stop is not None:
            slices[name] = f"{split}[{percentage(split, start)}:{percentage(split, stop)}]"
    return slices


# name/config:version, as in TFDS.
_DATASET_NAME = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*(:[\w.*]+)?")


class DatasetRef(NamedTuple):
    """A set that a config names, and its splits that the config uses."""

    name: str
    label: str  # field of the labels
    splits: dict[str, str]  # split name -> slice of a stored split; empty takes all stored splits


def own_chains(data: Mapping[str, Any]) -> dict[str, str]:
    """The chains of the splits of config.data that have an `eval` chain of their own."""
    entries = (data.get("splits") or {}).items()
    return {n: e["eval"] for n, e in entries if isinstance(e, Mapping) and "eval" in e}


def data_name(data: Mapping[str, Any], split: str) -> str:
    """The set of a split of config.data."""
    entry = _entry(data, split)
    return data["name"] if isinstance(entry, str) else entry.get("name", data["name"])


def _entry(data: Mapping[str, Any], split: str) -> Any:
    # hold_out makes "valid" of train; text has no such setting.
    name = "train" if split == "valid" and data.get("validation_fraction") else split
    return (data.get("splits") or {}).get(name, name)


def expression(data: Mapping[str, Any], split: str) -> str:
    """The part of a stored split that a split of config.data is, such as "train[5%:]"."""
    entry = _entry(data, split)
    return entry if isinstance(entry, str) else entry["split"]


def stored_split(data: Mapping[str, Any], split: str) -> str:
    """The stored split whose positions are the ids of a split of config.data."""
    return expression(data, split).partition("[")[0]


def dataset_refs(data: Mapping[str, Any]) -> list[DatasetRef]:
    """The sets that config.data names, including those in entries of `splits`.

    Raises:
      ValueError: a name is not valid; see `check_names`.
    """
    check_names(data)
    label = data.get("label", "label")
    refs = {(data["name"], label): {}}
    for split, entry in (data.get("splits") or {}).items():
        if isinstance(entry, str):
            refs[data["name"], label][split] = entry
        else:
            key = (entry.get("name", data["name"]), entry.get("label", label))
            refs.setdefault(key, {})[split] = entry["split"]
    return [DatasetRef(*key, splits) for key, splits in refs.items()]


def check_names(data: Mapping[str, Any]) -> None:
    """Raises a ValueError if a name of a set is not valid, such as a path out of `data_dir`."""
    others = [
        entry.get("name")
        for entry in (data.get("splits") or {}).values()
        if isinstance(entry, Mapping)
    ]
    for name in (data["name"], *(other for other in others if other is not None)):
        if not isinstance(name, str) or not _DATASET_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} in config.data is not a name of a data set; valid names are such as"
                " cifar10 or imagenet21k/any."
            )
