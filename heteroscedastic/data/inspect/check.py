"""Which data a config needs, what of it is there, and how the rest is prepared.

python -m heteroscedastic.data.inspect.check --config=configs/X.py --data_dir=DIR --out=OUT looks at every set that the config
names, tells versions, examples and classes, and draws OUT/X.png: examples with their labels, first
as evaluation sees them, then as training does, drawn several times; their labels are the stored
ones, before curation. It exits with 1 where something is missing or does not suit the config.
Nothing is downloaded. --config.a.b=c changes a setting, as for main.py.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heteroscedastic import files, user_errors
from heteroscedastic.data import split_spec
from heteroscedastic.data.inspect import views
from heteroscedastic.data.split_spec import DatasetRef, Slice
from heteroscedastic.data.storage import store, tfds, vtab
from heteroscedastic.files import config_file


class Report(NamedTuple):
    """What there is to say of the data of a config."""

    lines: list[str]
    problems: list[str]  # each a reason why the config does not run


class _Found(NamedTuple):
    """A set that is there."""

    told: str  # what it is called, where it lies
    sizes: Mapping[str, int]
    num_classes: int


def report(config: Mapping[str, Any], data_dir: str | None) -> Report:
    """Looks at every set that a config names."""
    lines, problems = [], []
    for one in split_spec.dataset_refs(config["data"]):
        try:
            found = (_of_stream if _is_streaming(config) else _of_stored)(one, data_dir)
        except FileNotFoundError as error:
            lines.append(f"{one.name}: MISSING")
            problems.append(f"{one.name}: {error}{_by_hand(one.name, data_dir)}")
            continue
        except ModuleNotFoundError as error:
            problems.append(
                f'{one.name}: needs TensorFlow Datasets: pip install -e ".[tensorflow]" ({error})'
            )
            continue
        except ValueError as error:
            problems.append(str(error))
            continue
        lines.append(
            f"{found.told}: {_counts(found.sizes)}; {found.num_classes:,} classes by {one.label!r}"
        )
        for split, expression in (one.splits or {name: name for name in found.sizes}).items():
            try:
                part = split_spec.parse(expression, found.sizes)
                lines.append(f"  {split} = {expression}: {part.stop - part.start:,} examples")
            except ValueError as error:
                problems.append(f"{one.name}: split {split}: {error}")
        taken = min(found.num_classes, config["data"].get("max_classes") or found.num_classes)
        ours = config["head"].get("num_classes")
        if ours is not None and ours != taken:
            problems.append(
                f"{one.name} has {taken:,} classes, but config.head.num_classes is {ours}."
            )
    return Report(lines, problems)


def _is_streaming(config: Mapping[str, Any]) -> bool:
    return config["data"].get("pipeline") == "streaming"


def _counts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {size:,}" for split, size in sizes.items()) + " examples"


def _of_stored(one: DatasetRef, data_dir: str | None) -> _Found:
    stored = store.stored(one.name, data_dir)
    fields = stored.read(Slice(next(iter(stored.sizes)), 0, 1)).fields
    if one.label not in fields:
        raise ValueError(
            f"{stored.where} has no field {one.label!r} of labels; its fields are"
            f" {', '.join(fields)}."
        )
    version = f", version {stored.version}" if isinstance(stored, tfds.Prepared) else ""
    return _Found(f"{stored.where}{version}", stored.sizes, len(stored.class_names))


def _of_stream(one: DatasetRef, data_dir: str | None) -> _Found:
    from heteroscedastic.data.streaming import records  # by TensorFlow

    found = records.Records(one.name, data_dir)
    return _Found(
        f"{found.full_name} in {data_dir}", found.sizes, len(found.class_names(one.label))
    )


def _by_hand(name: str, data_dir: str | None) -> str:
    """What must be downloaded by hand for a set, and where it goes."""
    try:
        instructions = tfds.instructions(vtab.source(name))
    except ModuleNotFoundError:
        return ""
    if not instructions:
        return ""
    manual = files.as_path(data_dir or "DIR") / "downloads" / "manual"
    return f"\nBy hand, into {manual}, which is manual_dir:\n{instructions}"


@user_errors.one_line()
def main() -> None:
    """Tells which data a config needs and what of it is there; exits with 1 where something is
    missing.
    """
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--config", required=True, help="file of configs/")
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="where data sets lie"
    )
    parser.add_argument(
        "--out", help="where the sheet of examples goes; none is drawn if not given"
    )
    flags, rest = parser.parse_known_args()
    if unread := [word for word in rest if not word.startswith("--config.")]:
        parser.error(f"nobody reads {unread}.")
    config = config_file.read([f"--config={flags.config}", *rest])
    files.reach(files.as_path(flags.data_dir or "."))
    lines, problems = report(config, flags.data_dir)
    if flags.out:
        path = files.as_path(flags.out) / f"{Path(flags.config).stem}.png"
        try:
            content = views.sheet(config, flags.data_dir)
            files.write_whole(path, lambda file: file.write(content))
            lines.append(f"wrote {path}")
        except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
            problems = problems or [str(error)]
    print("\n".join(lines))
    if problems:
        raise SystemExit("\n\n".join(problems))


if __name__ == "__main__":
    main()
