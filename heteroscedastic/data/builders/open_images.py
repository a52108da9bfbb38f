"""The classes of the mask set of Open Images: leaves of the public hierarchy, dropped and merged.

The paper has 480 classes that it does not list: leaves, where classes with boxes in only a part of
the images and confusing classes are "dropped or merged". This module states the rule that we use:

First, a class is a leaf if it has no subcategory anywhere in bbox_labels_600_hierarchy.json. Parts
are no subcategories: a bicycle is a leaf although a bicycle wheel is a part of it.

Second, the human body and its parts are dropped, because their boxes are not exhaustive: the
description of Open Images says that they were drawn for only 95,335 training images. "Mammal" is
the only other class of which it says so, and no leaf. The parts are those of the hierarchy; we
could not compare them with the list of the release, class-ids-human-body-parts-and-mammal.txt.

Third, `MERGED` lists near-synonyms. The choice is ours.

`report` lists what the rule does to a set.

With the hierarchy of 2018 (601 classes, 525 leaves, 14 of them of the human body), this leaves
503 classes, not 480. We read the hierarchy, names and description in public copies.

Source: "One Size Doesn't Fit All: Adaptive Label Smoothing"; the hierarchy, names and description
of Open Images V4, https://storage.googleapis.com/openimages/web/index.html.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heteroscedastic.data.builders.objects import Classes

HIERARCHY_URL = "https://storage.googleapis.com/openimages/2018_04/bbox_labels_600_hierarchy.json"
_HUMAN_BODY = "/m/02p0tk3"
_PARENT = "have subcategories"  # reasons to drop classes
_BODY = "are the human body and its parts, whose boxes are not exhaustive"
MERGED = {  # class -> the class that takes its boxes, and the reason
    "/m/02p5f1q": ("/m/02jvh9", "Coffee cup, a synonym of Mug"),
    "/m/058qzx": ("/m/04ctx", "Kitchen knife, a kind of Knife; both are leaves"),
    "/m/03hj559": ("/m/04kkgm", "Mixing bowl, a kind of Bowl; both are leaves"),
    "/m/08hvt4": ("/m/054fyh", "Jug, a synonym of Pitcher"),
    "/m/03m3pdh": ("/m/026qbn5", "Sofa bed, a synonym of Studio couch"),
    "/m/0642b4": ("/m/01s105", "Cupboard, a kind of Cabinetry; both are leaves"),
    "/m/0h8n27j": ("/m/099ssp", "Serving tray, confused with Platter"),
    "/m/0cnyhnx": ("/m/01xq0k1", "Bull, a kind of Cattle; both are leaves"),
}


def classes(
    names: Sequence[str], hierarchy: Any, merged: Mapping[str, tuple[str, str]] = MERGED
) -> Classes:
    """The classes of the mask set.

    Args:
      names: all classes with boxes, such as "/m/011k07".
      hierarchy: path of bbox_labels_600_hierarchy.json, with the methods of pathlib.
      merged: see `MERGED`. Entries that name no leaf are ignored.

    Returns:
      The classes that remain, in the order of `names`.

    Raises:
      ValueError: the file is not a hierarchy of all these classes.
    """
    dropped, targets = _changes(names, hierarchy, merged)
    kept = [name for name in names if name not in dropped and name not in targets]
    numbers = {name: k for k, name in enumerate(kept)}
    return Classes(kept, np.array([numbers.get(targets.get(name, name), -1) for name in names]))


def report(
    names: Sequence[str], hierarchy: Any, merged: Mapping[str, tuple[str, str]] = MERGED
) -> str:
    """Lines on the classes that `classes` drops and merges, with the reasons."""
    dropped, targets = _changes(names, hierarchy, merged)
    lines = [
        f"{len(names):,} classes with boxes: {len(dropped):,} dropped, {len(targets):,} merged"
    ]
    for reason, number in Counter(dropped.values()).items():
        lines.append(f"dropped: {number:,} {reason}")
    for name, new in targets.items():
        lines.append(f"merged: {name} into {new}: {merged[name][1]}")
    return "\n".join(lines)


def _changes(
    names: Sequence[str], hierarchy: Any, merged: Mapping[str, tuple[str, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """The dropped classes with their reasons, and the merged ones with those that take them."""
    try:
        nodes = list(_nodes(json.loads(hierarchy.read_text())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{hierarchy} is not a hierarchy of classes ({error!r}); download it from"
            f" {HIERARCHY_URL}."
        ) from None
    known = {node["LabelName"] for node in nodes}
    if missing := [name for name in names if name not in known]:
        raise ValueError(
            f"{hierarchy} lacks {len(missing)} of the {len(names)} classes with boxes, such as"
            f" {missing[0]}; download it from {HIERARCHY_URL}."
        )
    parents = {node["LabelName"] for node in nodes if node.get("Subcategory")}
    body = {
        part["LabelName"]
        for node in nodes
        if node["LabelName"] == _HUMAN_BODY
        for part in _nodes(node)
    }
    dropped = {
        name: _PARENT if name in parents else _BODY for name in names if name in parents | body
    }
    leaves = set(names) - set(dropped)
    return dropped, {old: new for old, (new, _) in merged.items() if {old, new} <= leaves}


def _nodes(node: Any) -> Iterator[Any]:
    """A node of the hierarchy and all nodes below it; classes may occur repeatedly."""
    node["LabelName"]  # a KeyError if it is missing
    yield node
    for kind in ("Subcategory", "Part"):
        for part in node.get(kind, ()):
            yield from _nodes(part)
