"""The 19 tasks of VTAB-1k, each prepared once as a set of its own.

    python -m heteroscedastic.data.storage.vtab --data_dir=DIR

A task is a set of TFDS with its own label, which may be computed from other fields. The command
writes the set `vtab_TASK` beside it. Its images are stored as in the source. Its split `train` has
the 800 training examples of VTAB-1k followed by its 200 validation examples; its split `test` has
all test examples. Use `train[:800]` and `train[800:]` for tuning, and `train` for reported runs.

Source: Zhai et al. (2019), arXiv:1910.04867. Labels and splits follow its public code
(google-research/task_adaptation): the first 800 examples of its training part and the first 200 of
its validation part.
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
    """A task of VTAB-1k: a set of TFDS, its splits and its label."""

    group: str  # natural, specialized or structured
    source: str  # name of the set in TFDS
    train: str  # slice of a stored split, like valid and test
    valid: str
    test: str
    num_classes: int
    # A field, or a function of all fields.
    label: str | Callable[[Mapping[str, Any]], int] = "label"
    side: int | None = None  # in pixels, if all images are squares of one size
    scale: int = 1  # factor of the pixel values


def count(fields: Mapping[str, Any]) -> int:
    """Number of objects in a scene of CLEVR, minus 3; scenes have 3 to 10 objects."""
    return len(fields["objects"]["size"]) - 3


def object_distance(fields: Mapping[str, Any]) -> int:
    """Class of the distance of the closest object in a scene of CLEVR, by thresholds."""
    return _threshold_index(
        (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0), np.min(fields["objects"]["pixel_coords"][:, 2])
    )


def vehicle_distance(fields: Mapping[str, Any]) -> int:
    """Class of the distance in metres of the closest car, van or truck of KITTI, by thresholds.

    The last class means that there is no vehicle.
    """
    is_vehicle = np.asarray(fields["objects"]["type"]) < 3
    depths = np.asarray(fields["objects"]["location"]).reshape(-1, 3)[is_vehicle, 2]
    return _threshold_index((-100.0, 8.0, 20.0, 999.0), np.min(depths, initial=1000.0))


def x_position(fields: Mapping[str, Any]) -> int:
    """The 32 positions of dSprites, grouped into 16 classes."""
    return int(fields["label_x_position"] // 2)


def orientation(fields: Mapping[str, Any]) -> int:
    """The 40 orientations of dSprites, grouped into 16 classes of 2 or 3."""
    return int(fields["label_orientation"] // 2.5)


def _threshold_index(thresholds: tuple[float, ...], value: float | np.floating) -> int:
    """Index of the last threshold below the value."""
    return (
        int(np.searchsorted(np.asarray(thresholds, np.float32), np.float32(value), side="left")) - 1
    )


def _splits_by_percent(percent: int, test: str = "test") -> tuple[str, str, str]:
    """Training and validation as parts of one stored split, and the test split."""
    return f"train[:{percent}%]", f"train[{percent}%:]", test


_STORED_SPLITS = ("train", "validation", "test")
_DSPRITES = ("train[:80%]", "train[80%:90%]", "train[90%:]")
_REMOTE = ("train[:60%]", "train[60%:80%]", "train[80%:]")
_NORB = ("train", "test[:50%]", "test[50%:]")

TASKS = {
    "caltech101": Task("natural", "caltech101", *_splits_by_percent(90), 102),
    "cifar100": Task("natural", "cifar100", *_splits_by_percent(90), 100, side=32),
    "dtd": Task("natural", "dtd", *_STORED_SPLITS, 47),
    "oxford_flowers102": Task("natural", "oxford_flowers102", *_STORED_SPLITS, 102),
    "oxford_iiit_pet": Task("natural", "oxford_iiit_pet", *_splits_by_percent(80), 37),
    "svhn": Task("natural", "svhn_cropped", *_splits_by_percent(90), 10, side=32),
    "sun397": Task("natural", "sun397/tfds", *_STORED_SPLITS, 397),
    "patch_camelyon": Task("specialized", "patch_camelyon", *_STORED_SPLITS, 2, side=96),
    "eurosat": Task("specialized", "eurosat/rgb", *_REMOTE, 10, side=64),
    "resisc45": Task("specialized", "resisc45", *_REMOTE, 45, side=256),
    "diabetic_retinopathy": Task(
        "specialized", "diabetic_retinopathy_detection/btgraham-300", *_STORED_SPLITS, 5
    ),
    "clevr_count": Task("structured", "clevr", *_splits_by_percent(90, "validation"), 8, count),
    "clevr_distance": Task(
        "structured", "clevr", *_splits_by_percent(90, "validation"), 6, object_distance
    ),
    "dmlab": Task("structured", "dmlab", *_STORED_SPLITS, 6),
    "kitti_distance": Task("structured", "kitti", *_STORED_SPLITS, 4, vehicle_distance),
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
    """The source in TFDS of the set `vtab_TASK`; other names are returned unchanged."""
    task = TASKS.get(name.removeprefix("vtab_")) if name.startswith("vtab_") else None
    return task.source if task else name


def preparation(name: str, data_dir: str) -> str:
    """The commands that prepare a set, one per line; for `vtab_TASK` also that of its source."""
    first = tfds.preparation(source(name), data_dir)
    if source(name) == name:
        return first
    return (
        f"{first}\n  python -m heteroscedastic.data.storage.vtab"
        f" --tasks {name.removeprefix('vtab_')} --data_dir={data_dir}"
    )


def prepare(
    name: str, data_dir: str, *, num_train: int = NUM_TRAIN, num_valid: int = NUM_VALID
) -> None:
    """Writes the set `vtab_NAME` beside its source; an interrupted write leaves no set.

    Args:
      name: name of a task.
      data_dir: directory in which TFDS has prepared the source.
      num_train: number of training examples.
      num_valid: number of validation examples.

    Raises:
      FileNotFoundError: the source is not prepared; says how to prepare it.
      ValueError: the source lacks a field or examples, or has a label outside the classes.
    """
    task = TASKS[name]
    library = tfds.library()
    source = tfds.source_builder(task.source, data_dir, f"task {name!r}")
    sizes = {split: info.num_examples for split, info in source.info.splits.items()}
    train, valid, test = (
        split_spec.parse(part, sizes) for part in (task.train, task.valid, task.test)
    )
    for part, num_examples in ((train, num_train), (valid, num_valid)):
        if part.stop - part.start < num_examples:
            raise ValueError(
                f"{task.source}: {part} has fewer than the {num_examples} examples that VTAB-1k"
                " requires."
            )
    train = train._replace(stop=train.start + num_train)
    valid = valid._replace(stop=valid.start + num_valid)
    features = library.features.FeaturesDict(
        {
            # Grey images are converted to three channels.
            "image": library.features.Image(shape=(task.side, task.side, 3)),
            "label": library.features.ClassLabel(**_classes(source.info.features, task)),
        }
    )
    library.dataset_builders.store_as_tfds_dataset(
        name=f"vtab_{name}",
        version=_VERSION,
        features=features,
        split_datasets={
            "train": _numbered_examples(source, task, train, valid),
            "test": _numbered_examples(source, task, test),
        },
        data_dir=data_dir,
        description=f"Task {name} of VTAB-1k, made from {source.info.full_name}.",
        disable_shuffling=True,
    )


def _classes(features: Any, task: Task) -> dict[str, Any]:
    """Arguments of ClassLabel: class names if the source has them, else their number."""
    if callable(task.label):
        return {"num_classes": task.num_classes}
    feature = dict(features.items()).get(task.label)
    if getattr(feature, "num_classes", None) != task.num_classes:
        raise ValueError(
            f"{task.source} has no field {task.label!r} of {task.num_classes} classes; its fields"
            f" are {sorted(features)}. Prepare a version of the set that has this field."
        )
    return {"names": feature.names}


def _numbered_examples(
    source: Any, task: Task, *parts: split_spec.Slice
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered examples of these parts, in the order of the files."""
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
                    f"{task.source}: example {number} of {part} has label {label}, but the classes"
                    f" are 0 to {task.num_classes - 1}."
                )
            image = fields["image"]
            if task.scale != 1:
                image = np.repeat(image * np.uint8(task.scale), 3 // image.shape[-1], axis=-1)
            yield number, {"image": image, "label": label}
            number += 1


@user_errors.one_line()
def main() -> None:
    """Prepares tasks of VTAB-1k from sets prepared by TFDS; skips tasks that exist."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK"
    )
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of prepared sets"
    )
    flags = parser.parse_args()
    if not flags.data_dir:
        parser.error("give --data_dir or set TFDS_DATA_DIR.")
    failures = []
    for name in flags.tasks:
        folder = files.as_path(flags.data_dir) / f"vtab_{name}"
        if (folder / _VERSION).is_dir():
            print(f"{name}: exists already", flush=True)
            continue
        try:
            prepare(name, str(folder.parent))
            print(f"{name}: wrote {folder}", flush=True)
        except (FileNotFoundError, ValueError) as error:
            failures.append(name)
            print(f"{name}: {error}", flush=True)
    if failures:
        raise SystemExit(
            f"{len(failures)} of {len(flags.tasks)} tasks could not be prepared:"
            f" {', '.join(failures)}"
        )


if __name__ == "__main__":
    main()
