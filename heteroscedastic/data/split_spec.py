"""Which part of a stored split: "train", "train[:25%]", "train[1000:2000]", as TFDS reads it."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_BOUND = r"(-?\d{1,15}(?:\.\d{1,15})?)?(%)?"  # more digits than any set needs
_EXPRESSION = re.compile(rf"([\w-]+)(?:\[{_BOUND}:{_BOUND}\])?")


class Slice(NamedTuple):
    """Places from `start` up to, not including, `stop` of a stored split."""

    split: str
    start: int
    stop: int


def parse(expression: Any, sizes: Mapping[str, int]) -> Slice:
    """The slice that an expression names.

    A percentage is rounded to the nearest example, halves to even; a negative bound counts from
    the end; % at one bound goes for both.

    Args:
      expression: the name of a stored split, or name[from:to] in examples or in percent.
      sizes: examples of every stored split.

    Raises:
      ValueError: it is no such expression, or names nothing that is there.
    """
    found = _EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    split, start, start_unit, stop, stop_unit = found.groups() if found else (None,) * 5
    is_share = bool(start_unit or stop_unit)
    bounds = [b for b in (start, stop) if b is not None]
    if (
        not found
        or ("[" in expression and not bounds)
        or (start_unit and start is None)
        or (stop_unit and stop is None)
        or (not is_share and any("." in b for b in bounds))
    ):
        raise ValueError(
            f"{expression!r} is no part of a split such as 'train', 'train[:25%]' or"
            " 'train[1000:2000]'."
        )
    if split not in sizes:
        raise ValueError(f"{expression!r} names no stored split; there are {', '.join(sizes)}.")
    size = sizes[split]

    def place(bound, default):
        if bound is None:
            return default
        value = round(float(bound) * size / 100) if is_share else int(bound)
        return value + size if value < 0 else value

    first, last = place(start, 0), place(stop, size)
    if not 0 <= first < last <= size:
        raise ValueError(
            f"{expression!r} is {first} to {last} of {size} examples, so none or beyond them."
        )
    return Slice(split, first, last)


def shares(expressions: Mapping[str, str]) -> dict[str, str]:
    """The same parts of sets of another size: bounds in examples become shares, evenly spaced in
    the same order.

    Of "train[50000:]" and "train[:50000]" come "train[50%:]" and "train[:50%]". What is a share or
    no such expression stays.

    Args:
      expressions: by what they are called; all that are taken of one set.
    """
    found = {name: _EXPRESSION.fullmatch(expression) for name, expression in expressions.items()}
    counted = {name: m.groups() for name, m in found.items() if m and not (m[3] or m[5])}
    bounds: dict[str, set[int]] = {}
    for split, start, _, stop, _ in counted.values():
        bounds.setdefault(split, set()).update(int(b) for b in (start, stop) if b is not None)

    def share(split, bound):
        ordered = sorted(
            bounds[split], key=lambda b: (b < 0, b)
        )  # those below zero count from the end
        return (
            ""
            if bound is None
            else f"{round(100 * (ordered.index(int(bound)) + 1) / (len(ordered) + 1))}%"
        )

    made = dict(expressions)
    for name, (split, start, _, stop, _) in counted.items():
        if start is not None or stop is not None:
            made[name] = f"{split}[{share(split, start)}:{share(split, stop)}]"
    return made


_DATASET_NAME = re.compile(
    r"\w[\w.+-]*(/\w[\w.+-]*)*(:[\w.*]+)?"
)  # as TFDS says it: name/config:version


class DatasetRef(NamedTuple):
    """A set, and what a config takes of it."""

    name: str
    label: str  # field that holds the labels
    splits: dict[str, str]  # our names to slices of stored splits; none are all that are stored


def dataset_refs(data: Mapping[str, Any]) -> list[DatasetRef]:
    """The sets that config.data names: its own, and those that entries of `splits` name.

    Raises:
      ValueError: a name is none, but leads out of where data sets lie.
    """
    check_names(data)
    label = data.get("label", "label")
    found = {(data["name"], label): {}}
    for split, entry in (data.get("splits") or {}).items():
        if isinstance(entry, str):
            found[data["name"], label][split] = entry
        else:
            found.setdefault((entry.get("name", data["name"]), entry.get("label", label)), {})[
                split
            ] = entry["split"]
    return [DatasetRef(*key, splits) for key, splits in found.items()]


def check_names(data: Mapping[str, Any]) -> None:
    """Raises a ValueError where a set is called by what is no name, but leads out of where data
    sets lie.
    """
    others = [
        entry.get("name")
        for entry in (data.get("splits") or {}).values()
        if isinstance(entry, Mapping)
    ]
    for name in (data["name"], *(other for other in others if other is not None)):
        if not isinstance(name, str) or not _DATASET_NAME.fullmatch(name):
            raise ValueError(
                f"config.data names a set {name!r}, but a name is such as cifar10, or"
                " imagenet21k/any."
            )
