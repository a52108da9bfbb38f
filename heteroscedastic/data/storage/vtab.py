"""The 19 tasks of VTAB-1k, each prepared once as a set of its own: python -m
heteroscedastic.data.storage.vtab --data_dir=DIR

A task is a set of TFDS with a label of its own, maybe computed from other fields. The set
`vtab_TASK` that is written beside has images as the source holds them, and the splits `train`, the
800 training examples of VTAB-1k followed by its 200 of validation, and `test`, all of them. So
`train[:800]` and `train[800:]` tune, and `train` is for the runs that are reported.

Source: Zhai et al. (2019), arXiv:1910.04867; labels and splits are those of its public code
(google-research/task_adaptation): the first 800 and the first 200 of its own training and
validation parts.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from heteroscedastic import files, user_errors
from heteroscedastic.data import split_spec
from heteroscedastic.data.storage import tfds

NUM_TRAIN, NUM_VALID = 800, 200
_VERSION = "1.0.0"


class Task(NamedTuple):
    """What is asked of which set."""

    group: str  # natural, specialized or structured
    source: str  # as TFDS says it
    train: str  # part of a stored split, as are the next two
    valid: str
    test: str
    num_classes: int
    label: str | Callable[[Mapping[str, Any]], int] = (
        "label"  # a field, or a function of all fields
    )
    side: int | None = None  # of images that are squares of one size, in pixels
    scale: int = 1  # that pixels are multiplied by


def count(fields: Mapping[str, Any]) -> int:
    """How many objects there are in a scene of CLEVR, which are 3 to 10, less 3."""
    return len(fields["objects"]["size"]) - 3


def object_distance(fields: Mapping[str, Any]) -> int:
    """The distance of the closest object in a scene of CLEVR, by thresholds."""
    return _above(
        (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0), np.min(fields["objects"]["pixel_coords"][:, 2])
    )


def vehicle_distance(fields: Mapping[str, Any]) -> int:
    """The distance of the closest car, van or truck of KITTI in metres, by thresholds; the last
    class is none.
    """
    is_vehicle = np.asarray(fields["objects"]["type"]) < 3
    depths = np.asarray(fields["objects"]["location"]).reshape(-1, 3)[is_vehicle, 2]
    return _above((-100.0, 8.0, 20.0, 999.0), np.min(depths, initial=1000.0))


def x_position(fields: Mapping[str, Any]) -> int:
    """The 32 positions of dSprites in 16 classes."""
    return int(fields["label_x_position"] // 2)


def orientation(fields: Mapping[str, Any]) -> int:
    """The 40 orientations of dSprites in 16 classes, of 2 or 3 each."""
    return int(fields["label_orientation"] // 2.5)


def _above(thresholds: tuple[float, ...], value: float | np.floating) -> int:
    """The place of the last threshold that is below the value."""
    return (
        int(np.searchsorted(np.asarray(thresholds, np.float32), np.float32(value), side="left")) - 1
    )


def _parts(share: int, test: str = "test") -> tuple[str, str, str]:
    """Training and validation out of one stored split, by percent."""
    return f"train[:{share}%]", f"train[{share}%:]", test


_STORED = ("train", "validation", "test")
_DSPRITES = ("train[:80%]", "train[80%:90%]", "train[90%:]")
_REMOTE = ("train[:60%]", "train[60%:80%]", "train[80%:]")
_NORB = ("train", "test[:50%]", "test[50%:]")

TASKS = {
    "caltech101": Task("natural", "caltech101", *_parts(90), 102),
    "cifar100": Task("natural", "cifar100", *_parts(90), 100, side=32),
    "dtd": Task("natural", "dtd", *_STORED, 47),
    "oxford_flowers102": Task("natural", "oxford_flowers102", *_STORED, 102),
    "oxford_iiit_pet": Task("natural", "oxford_iiit_pet", *_parts(80), 37),
    "svhn": Task("natural", "svhn_cropped", *_parts(90), 10, side=32),
    "sun397": Task("natural", "sun397/tfds", *_STORED, 397),
    "patch_camelyon": Task("specialized", "patch_camelyon", *_STORED, 2, side=96),
    "eurosat": Task("specialized", "eurosat/rgb", *_REMOTE, 10, side=64),
    "resisc45": Task("specialized", "resisc45", *_REMOTE, 45, side=256),
    "diabetic_retinopathy": Task(
        "specialized", "diabetic_retinopathy_detection/btgraham-300", *_STORED, 5
    ),
    "clevr_count": Task("structured", "clevr", *_parts(90, "validation"), 8, count),
    "clevr_distance": Task("structured", "clevr", *_parts(90, "validation"), 6, object_distance),
    "dmlab": Task("structured", "dmlab", *_STORED, 6),
    "kitti_distance": Task("structured", "kitti", *_STORED, 4, vehicle_distance),
    "dsprites_position": Task(
        "structured", "dsprites", *_DSPRITES, 16, x_position, side=64, scale=255
    ),
    "dsprites_orientation": Task(
        "structured", "dsprites", *_DSPRITES, 16, orientation, side=64, scale=255
    ),
    "smallnorb_azimuth": Task("structured", "smallnorb", *_NORB, 18, "label_azimuth", side=96),
    "smallnorb_elevation": Task("structured", "smallnorb", *_NORB, 9, "label_elevation", side=96),
}


def source(name: str) -> str:
    """The set of TFDS that a set is made of: itself, where it is not `vtab_TASK`."""
    task = TASKS.get(name.removeprefix("vtab_")) if name.startswith("vtab_") else None
    return task.source if task else name


def preparation(name: str, data_dir: str) -> str:
    """What prepares a set, a command a line: of `vtab_TASK` that of its source, and its own."""
    first = tfds.preparation(source(name), data_dir)
    if source(name) == name:
        return first
    return f"{first}\n  python -m heteroscedastic.data.storage.vtab --tasks {name.removeprefix('vtab_')} --data_dir={data_dir}"


def prepare(
    name: str, data_dir: str, *, num_train: int = NUM_TRAIN, num_valid: int = NUM_VALID
) -> None:
    """Writes the set `vtab_NAME` beside its source, whole or not at all.

    Args:
      name: of a task.
      data_dir: where TFDS has prepared the source.
      num_train: examples of training that are taken.
      num_valid: of validation.

    Raises:
      FileNotFoundError: the source is not prepared; says what prepares it.
      ValueError: the source has other fields, fewer examples, or labels outside the classes.
    """
    task = TASKS[name]
    library = tfds.library()
    try:
        source = tfds.builder(task.source, data_dir)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"task {name!r} needs {task.source!r}, which is not in"
            f" {tfds.folder(task.source, data_dir)} ({error});"
            f" prepare it with\n  {tfds.preparation(task.source, data_dir)}"
        ) from None
    sizes = {split: info.num_examples for split, info in source.info.splits.items()}
    train, valid, test = (
        split_spec.parse(part, sizes) for part in (task.train, task.valid, task.test)
    )
    for part, wanted in ((train, num_train), (valid, num_valid)):
        if part.stop - part.start < wanted:
            raise ValueError(
                f"{task.source}: {part} has fewer than the {wanted} examples that VTAB-1k takes of"
                " it."
            )
    train = train._replace(stop=train.start + num_train)
    valid = valid._replace(stop=valid.start + num_valid)
    features = library.features.FeaturesDict(
        {
            "image": library.features.Image(
                shape=(task.side, task.side, 3)
            ),  # grey ones become coloured
            "label": library.features.ClassLabel(**_classes(source.info.features, task)),
        }
    )
    library.dataset_builders.store_as_tfds_dataset(
        name=f"vtab_{name}",
        version=_VERSION,
        features=features,
        split_datasets={
            "train": _numbered(source, task, train, valid),
            "test": _numbered(source, task, test),
        },
        data_dir=data_dir,
        description=f"Task {name} of VTAB-1k, of {source.info.full_name}.",
        disable_shuffling=True,
    )


def _classes(features: Any, task: Task) -> dict[str, Any]:
    """What a ClassLabel is made of: names where the source has them."""
    if callable(task.label):
        return {"num_classes": task.num_classes}
    found = dict(features.items()).get(task.label)
    if getattr(found, "num_classes", None) != task.num_classes:
        raise ValueError(
            f"{task.source} has no field {task.label!r} of {task.num_classes} classes, but"
            f" {sorted(features)};"
            " prepare the version that this names."
        )
    return {"names": found.names}


def _numbered(
    source: Any, task: Task, *parts: split_spec.Slice
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The examples of these parts, in the order of the files."""
    library, number = tfds.library(), 0
    decoders = {"image": library.decode.SkipDecoding()} if task.scale == 1 else None
    for part in parts:
        examples = source.as_dataset(
            split=f"{part.split}[{part.start}:{part.stop}]",
            shuffle_files=False,
            decoders=decoders,
            read_config=library.ReadConfig(interleave_cycle_length=1, try_autocache=False),
        )
        for fields in examples.as_numpy_iterator():
            label = task.label(fields) if callable(task.label) else int(fields[task.label])
            if not 0 <= label < task.num_classes:
                raise ValueError(
                    f"{task.source}: example {number} of {part} has label {label} of"
                    f" {task.num_classes}."
                )
            image = fields["image"]
            if task.scale != 1:
                image = np.repeat(image * np.uint8(task.scale), 3 // image.shape[-1], axis=-1)
            yield number, {"image": image, "label": label}
            number += 1


@user_errors.one_line()
def main() -> None:
    """Prepares tasks of VTAB-1k out of sets that TFDS has prepared; those that are there are left
    alone.
    """
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK"
    )
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="where TFDS prepares sets"
    )
    flags = parser.parse_args()
    if not flags.data_dir:
        parser.error("give --data_dir or set TFDS_DATA_DIR.")
    failed = []
    for name in flags.tasks:
        folder = files.as_path(flags.data_dir) / f"vtab_{name}"
        if (folder / _VERSION).is_dir():
            print(f"{name}: there already", flush=True)
            continue
        try:
            prepare(name, str(folder.parent))
            print(f"{name}: wrote {folder}", flush=True)
        except (FileNotFoundError, ValueError) as error:
            failed.append(name)
            print(f"{name}: {error}", flush=True)
    if failed:
        raise SystemExit(
            f"{len(failed)} of {len(flags.tasks)} tasks could not be prepared: {', '.join(failed)}"
        )


if __name__ == "__main__":
    main()
