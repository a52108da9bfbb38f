"""Which data a config needs, what of it is there, and how the rest is prepared.

python -m heteroscedastic.data.check --config=configs/X.py --data_dir=DIR --out=OUT looks at every set that the config
names, tells versions, examples and classes, and draws OUT/X.png: examples with their labels, first as
evaluation sees them, then as training does, drawn several times. It exits with 1 where something is missing or does
not suit the config. Nothing is downloaded.
"""

import argparse
import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from heteroscedastic import files
from heteroscedastic.bind import chain
from heteroscedastic.data import augment, encoded, resident, slices, store, tfds, views, wanted
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.slices import Slice
from heteroscedastic.data.stored import Part, Stored
from heteroscedastic.data.wanted import Wanted

_ROWS, _DRAWS = 8, 6
_SEARCHED = 2000  # examples that those of the first `max_classes` are looked for in


class Report(NamedTuple):
    """What there is to say of the data of a config."""

    lines: list[str]
    problems: list[str]  # each a reason why the config does not run


def report(config: Mapping[str, Any], data_dir: str | None) -> Report:
    """Looks at every set that a config names."""
    lines, problems = [], []
    for one in wanted.sets(config["data"]):
        try:
            found = store.stored(one.name, data_dir)
        except (FileNotFoundError, ValueError) as error:
            lines.append(f"{one.name}: MISSING")
            problems.append(f"{one.name}: {error}{_by_hand(one.name, data_dir)}")
            continue
        told, wrong = _of_set(one, found, config)
        lines += told
        problems += wrong
    return Report(lines, problems)


def _of_set(one: Wanted, found: Stored, config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    sizes = ", ".join(f"{split} {size:,}" for split, size in found.sizes.items())
    num_classes = len(found.class_names)
    version = f", version {found.version}" if getattr(found, "version", None) else ""
    lines, problems = [f"{found.where}{version}: {sizes} examples; {num_classes:,} classes"], []
    for split, expression in (one.splits or {name: name for name in found.sizes}).items():
        try:
            part = slices.parse(expression, found.sizes)
        except ValueError as error:
            problems.append(f"{one.name}: split {split}: {error}")
            continue
        lines.append(f"  {split} = {expression}: {part.stop - part.start:,} examples")
    fields = found.read(Slice(next(iter(found.sizes)), 0, 1)).fields
    if one.label not in fields:
        problems.append(f"{one.name} has no field {one.label!r} of labels; its fields are {', '.join(fields)}.")
    taken = min(num_classes, config["data"].get("max_classes") or num_classes)
    if config["head"].get("num_classes") != taken:
        problems.append(
            f"{one.name} has {taken:,} classes, but config.head.num_classes is {config['head'].get('num_classes')}."
        )
    return lines, problems


def sheet(config: Mapping[str, Any], data_dir: str | None) -> bytes:
    """A PNG file of training examples: one row an example, the view of evaluation and draws of the training chain.

    Raises:
      ValueError, FileNotFoundError: the data cannot be read, or a chain is none.
    """
    data = config["data"]
    train, evaluation = (chain(augment, data[name]) for name in ("train", "eval"))
    found = store.stored(data["name"], data_dir)
    label = data.get("label", "label")
    part = slices.parse((data.get("splits") or {}).get("train", "train"), found.sizes)
    images, labels, ids = _examples(found, part, label, data.get("max_classes"))
    split = Split(images, labels, ids).with_int32()
    rows = np.arange(len(ids))
    seen = [_seen(split, rows, evaluation, 0)] + [_seen(split, rows, train, epoch) for epoch in range(_DRAWS)]
    told = [
        views.Row(f"{i}: {_words(some, found.class_names)}", [column[row] for column in seen])
        for row, (i, some) in enumerate(zip(ids, labels))
    ]
    return views.sheet(f"{data['name']}: {data['train']}", _columns(), told)


def _columns() -> list[str]:
    return ["evaluation", *(f"training {epoch}" for epoch in range(_DRAWS))]


def _words(labels: Any, names: tuple[str, ...]) -> str:
    return "; ".join(names[k] for k in np.atleast_1d(labels) if k >= 0) or "no label"


def _seen(split: Split, rows: np.ndarray, links: list, epoch: int) -> list[np.ndarray]:
    feed = next(resident.feeds(rows, len(rows), epoch))
    batch = resident.batch(jax.random.key(0), split, feed, chain=links)
    return [views.pixels(image, links) for image in np.asarray(batch.inputs)]


def _examples(found: Stored, part: Slice, label: str, max_classes: int | None) -> tuple[np.ndarray, ...]:
    """Some examples of a slice, spread over what is searched: pixels, labels, ids."""
    read: Part = found.read(part._replace(stop=min(part.stop, part.start + _SEARCHED)))
    labels = read.fields[label]
    known = np.flatnonzero((labels.reshape(len(labels), -1) < (max_classes or np.inf)).all(axis=1))
    chosen = known[np.unique(np.linspace(0, len(known) - 1, min(_ROWS, len(known))).astype(int))]
    images = [read.images[row] for row in chosen]
    if isinstance(read.images, list):
        return encoded.decode(images, found.num_channels, found.where), labels[chosen], read.ids[chosen]
    return np.stack(images), labels[chosen], read.ids[chosen]


def _by_hand(name: str, data_dir: str | None) -> str:
    """What must be downloaded by hand for a set, and where it goes."""
    try:
        instructions = tfds.instructions(name)
    except ModuleNotFoundError:
        return ""
    if not instructions:
        return ""
    return f"\nBy hand, into {Path(data_dir or 'DIR') / 'downloads' / 'manual'}, which is manual_dir:\n{instructions}"


def main() -> None:
    """Tells which data a config needs and what of it is there; exits with 1 where something is missing."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", required=True, help="file of configs/")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="where data sets lie")
    parser.add_argument("--out", help="where the sheet of examples goes; none is drawn if not given")
    flags = parser.parse_args()
    config = runpy.run_path(flags.config)["get_config"]().to_dict()
    lines, problems = report(config, flags.data_dir)
    print("\n".join(lines))
    if problems:
        raise SystemExit("\n\n".join(problems))
    if flags.out:
        path = Path(flags.out) / f"{Path(flags.config).stem}.png"
        content = sheet(config, flags.data_dir)
        files.write_whole(path, lambda file: file.write(content))
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
