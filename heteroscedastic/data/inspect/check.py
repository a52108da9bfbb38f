"""Checks that the data sets of a config are present and match it.

    python -m heteroscedastic.data.inspect.check --config=configs/X.py --data_dir=DIR --out=OUT

The command prints version, examples and classes of every set that the config names, and how to
prepare the missing ones. It draws OUT/X.png: examples as evaluation sees them, beside several draws
of the training augmentation, with their stored labels, before curation. It exits with status 1 if a
set is missing or does not match the config. Nothing is downloaded. --config.a.b=c changes a
setting, as for main.py.
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
    """The state of the data of a config."""

    lines: list[str]  # description of the sets
    problems: list[str]  # reasons why the config cannot run


class _SetInfo(NamedTuple):
    """A set that exists."""

    name: str  # name, location and version
    sizes: Mapping[str, int]
    num_classes: int


def report(config: Mapping[str, Any], data_dir: str | None) -> Report:
    """Inspects every set that a config names.

    Raises:
      ValueError: the config names sentence pairs.
    """
    if config["data"].get("pipeline") == "text":
        raise ValueError(
            "config.data.pipeline is 'text', but this command shows images and features; main.py"
            " says what is wrong with sentence pairs before it trains."
        )
    lines, problems = [], []
    for ref in split_spec.dataset_refs(config["data"]):
        try:
            if _is_streaming(config):
                info = _stream_info(ref, data_dir, with_background=config["task"] == "detection")
            else:
                info = _stored_info(ref, data_dir)
        except FileNotFoundError as error:
            lines.append(f"{ref.name}: MISSING")
            problems.append(f"{ref.name}: {error}{_manual_download(ref.name, data_dir)}")
            continue
        except ModuleNotFoundError as error:
            problems.append(
                f"{ref.name}: requires TensorFlow Datasets:"
                f' pip install -e ".[tensorflow]" ({error})'
            )
            continue
        except ValueError as error:
            problems.append(str(error))
            continue
        lines.append(
            f"{info.name}: {_counts(info.sizes)}; {info.num_classes:,} classes by {ref.label!r}"
        )
        for split, expression in (ref.splits or {name: name for name in info.sizes}).items():
            try:
                part = split_spec.parse(expression, info.sizes)
                lines.append(f"  {split} = {expression}: {part.stop - part.start:,} examples")
            except ValueError as error:
                problems.append(f"{ref.name}: split {split}: {error}")
        max_classes = config["data"].get("max_classes") or info.num_classes
        num_classes = min(info.num_classes, max_classes)
        config_classes = config["head"].get("num_classes")
        if config_classes is not None and config_classes != num_classes:
            problems.append(
                f"{ref.name} has {num_classes:,} classes, but config.head.num_classes is"
                f" {config_classes}."
            )
    return Report(lines, problems)


def _is_streaming(config: Mapping[str, Any]) -> bool:
    return config["data"].get("pipeline") == "streaming"


def _counts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {size:,}" for split, size in sizes.items()) + " examples"


def _stored_info(ref: DatasetRef, data_dir: str | None) -> _SetInfo:
    stored = store.stored_dataset(ref.name, data_dir)
    fields = stored.read(Slice(next(iter(stored.sizes)), 0, 1)).fields
    if ref.label not in fields:
        raise ValueError(
            f"{stored.where} has no label field {ref.label!r}; its fields are {', '.join(fields)}."
        )
    version = f", version {stored.version}" if isinstance(stored, tfds.PreparedDataset) else ""
    return _SetInfo(f"{stored.where}{version}", stored.sizes, len(stored.class_names))


def _stream_info(ref: DatasetRef, data_dir: str | None, *, with_background: bool) -> _SetInfo:
    from heteroscedastic.data.streaming import records  # requires TensorFlow

    stored = records.Records(ref.name, data_dir, with_background=with_background)
    num_classes = len(stored.class_names(ref.label))
    return _SetInfo(f"{stored.full_name} in {data_dir}", stored.sizes, num_classes)


def _manual_download(name: str, data_dir: str | None) -> str:
    """Instructions for the manual download of a set, if it requires one."""
    try:
        instructions = tfds.instructions(vtab.source(name))
    except ModuleNotFoundError:
        return ""
    if not instructions:
        return ""
    manual_dir = files.as_path(data_dir or "DIR") / "downloads" / "manual"
    return f"\nManual download, into {manual_dir} (manual_dir):\n{instructions}"


@user_errors.one_line()
def main() -> None:
    """Prints the data sets of a config and whether they are present."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--config", required=True, help="config, by name or as a file")
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of data sets"
    )
    parser.add_argument(
        "--out", help="directory for the sheet of examples; none is drawn by default"
    )
    flags, rest = parser.parse_known_args()
    if unknown := [word for word in rest if not word.startswith("--config.")]:
        parser.error(f"unknown arguments {unknown}.")
    config = config_file.read([f"--config={flags.config}", *rest])
    files.reach(files.as_path(flags.data_dir or "."))
    lines, problems = report(config, flags.data_dir)
    if flags.out:
        path = files.as_path(flags.out) / f"{Path(flags.config).stem}.png"
        try:
            content = views.sheet(config, flags.data_dir)
            files.write_atomically(path, lambda file: file.write(content))
            lines.append(f"wrote {path}")
        except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
            problems = problems or [str(error)]
    print("\n".join(lines))
    if problems:
        raise SystemExit("\n\n".join(problems))


if __name__ == "__main__":
    main()
