"""The mask set: one example per object of a set with boxes.

    python -m heteroscedastic.data.builders.mask --source=coco/2017 --data_dir=DIR

writes `coco_mask` from the prepared set `coco/2017`. A source is any prepared set with images and
one field of boxes; the paper has `imagenet2012_boxes` and `open_images_v4/300k`. Every split with
objects becomes a split with the features

    image: Image()                   bytes of the source, unchanged
    label: ClassLabel()              class of the object
    objects: Sequence({"bbox"})      the object's own box first, then the other boxes of the image
    file_name: Text()                of the image
    groups: int64                    number of the image in its split

The label of an object is the label of its box, or else that of its image. Group-of boxes
(`is_group_of`, or `is_crowd` of COCO) are no objects, but remain among the other boxes of an image.
A box without area is removed. An image without objects is left out.

Examples are shuffled, so two parts of a split may share images. With extras=("boxes", "groups") in
`config.data`, `validation_fraction` holds out whole images.

`--max_per_class` limits the training objects of each class to those with the smallest hashes of
file name and position of the box. A lower limit keeps a subset.

For `open_images_v4`, open_images.py chooses the classes and removes the boxes of all others.
`--hierarchy` is the path of its file bbox_labels_600_hierarchy.json. The command prints which
classes it merges, and how many it drops for which reason.

The source is read twice: the first time to check and count its objects. The command prints the
counts above those of the paper, which differ: the paper does not list its images and classes.

Source: "One Size Doesn't Fit All: Adaptive Label Smoothing".
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as library
from jaxtyping import Int, UInt64

from heteroscedastic import files, user_errors
from heteroscedastic.data.builders import objects, open_images
from heteroscedastic.data.builders.objects import Classes, Layout
from heteroscedastic.data.storage import tfds

_VERSION = "1.0.0"
_COLUMNS = (
    "split",
    "images",
    "objects",
    "classes with objects",
    "largest class",
    "smallest class",
    "most boxes of an image",
)
_PAPER = {  # source -> rows of the table; "-" where the paper has no number
    "imagenet2012_boxes": [("train", "474,000", "528,000", "1,000", "1,349", "190", "-")],
    "open_images_v4": [
        ("train", "1,200,000", "2,200,000 of 6,800,000", "480", "55,000", "28", "-"),
        ("validation", "-", "105,978", "480", "-", "-", "-"),
        ("test", "-", "325,098", "480", "-", "-", "-"),
    ],
}


class Survey(NamedTuple):
    """The objects of a split."""

    num_images: int  # with at least one object that is written
    class_counts: Int[np.ndarray, "k"]  # objects that are written
    num_objects: int  # before the limit of a class
    most_boxes: int  # of an image
    largest_hashes: UInt64[np.ndarray, "k"]  # of the objects that are written


def write(
    source: str,
    data_dir: str,
    *,
    name: str,
    hierarchy: Any = None,
    max_per_class: int | None = None,
) -> tuple[Any, str]:
    """Writes the mask set of a source; an interrupted write leaves no set.

    Args:
      source: name of a prepared set.
      data_dir: directory of prepared sets.
      name: name of the mask set.
      hierarchy: path of the hierarchy of Open Images, for `open_images_v4` only.
      max_per_class: limit on the training objects of a class, at least 1; None for no limit.

    Returns:
      The folder of the set, with the methods of pathlib, and a table of its counts. For Open
      Images, lines on the classes that were dropped and merged follow.

    Raises:
      FileExistsError: the set exists.
      FileNotFoundError: the source is not prepared; says how to prepare it.
      ValueError: the source has no objects, or an example is invalid; names it.
    """
    folder = files.as_path(data_dir) / name / _VERSION
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; remove it, or choose another --name.")
    builder = tfds.source_builder(source, data_dir, f"data set {name!r}")
    places = objects.layout(builder.info.features, f"{source} in {data_dir}")
    classes = _classes(source, builder.info.features, places, hierarchy)
    surveys = {}
    for split in builder.info.splits:
        limit = max_per_class if split == "train" else None
        survey = _survey(builder, split, places, classes, limit)
        if survey.num_images:
            surveys[split] = survey
    if not surveys:
        raise ValueError(f"{source} in {data_dir} has no objects.")
    image = builder.info.features["image"]
    library.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=_VERSION,
        features=library.features.FeaturesDict(
            {
                "image": library.features.Image(
                    shape=image.shape, encoding_format=image.encoding_format
                ),
                "label": library.features.ClassLabel(names=classes.names),
                "objects": library.features.Sequence({"bbox": library.features.BBoxFeature()}),
                "file_name": library.features.Text(),
                "groups": np.int64,
            }
        ),
        split_datasets={
            split: _examples(builder, split, places, classes, survey.largest_hashes)
            for split, survey in surveys.items()
        },
        data_dir=str(files.as_path(data_dir)),
        description=f"One example per object of {builder.info.full_name}.",
    )
    counts = table(source, surveys, classes.names)
    if hierarchy is not None:
        names = objects.value(builder.info.features, places.label).names
        counts += f"\n{open_images.report(names, hierarchy)}"
    return folder, counts


def _classes(source: str, features: Any, places: Layout, hierarchy: Any) -> Classes:
    """The classes of the mask set."""
    names = objects.value(features, places.label).names
    is_open_images = source.partition("/")[0] == "open_images_v4"
    if is_open_images and hierarchy is None:
        raise ValueError(
            f"{source} requires --hierarchy=FILE; download it from {open_images.HIERARCHY_URL}."
        )
    if not is_open_images and hierarchy is not None:
        raise ValueError(f"--hierarchy is for open_images_v4, but the source is {source}.")
    if is_open_images:
        return open_images.classes(names, hierarchy)
    return Classes(list(names), np.arange(len(names)))


def _survey(
    builder: Any, split: str, places: Layout, classes: Classes, max_per_class: int | None
) -> Survey:
    """Reads a split to count its objects."""
    names, labels, hashes, image_numbers, most_boxes = set(), [], [], [], 0
    for name, _, boxes in objects.images(builder, split, places, classes.numbers):
        if name in names:
            raise ValueError(f"{builder.info.full_name}: {split} has two images named {name}.")
        for i in np.flatnonzero(boxes.are_objects):
            labels.append(boxes.labels[i])
            hashes.append(objects.id_hash(boxes.ids[i]))
            image_numbers.append(len(names))
        names.add(name)
        most_boxes = max(most_boxes, len(boxes.rows))
    labels, hashes = np.array(labels, np.int64), np.array(hashes, np.uint64)
    num_classes = len(classes.names)
    largest = objects.largest_hashes(labels, hashes, num_classes, max_per_class)
    written = hashes <= largest[labels]
    return Survey(
        num_images=len(np.unique(np.array(image_numbers)[written])),
        class_counts=np.bincount(labels[written], minlength=num_classes),
        num_objects=len(labels),
        most_boxes=most_boxes,
        largest_hashes=largest,
    )


def _examples(
    builder: Any, split: str, places: Layout, classes: Classes, largest: UInt64[np.ndarray, "k"]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The examples of a split, in the order of the source."""
    images = objects.images(builder, split, places, classes.numbers)
    for number, (name, image, boxes) in enumerate(images):
        rows = [library.features.BBox(*map(float, row)) for row in boxes.rows]
        for i in np.flatnonzero(boxes.are_objects):
            if objects.id_hash(boxes.ids[i]) <= largest[boxes.labels[i]]:
                own_first = [rows[i], *rows[:i], *rows[i + 1 :]]
                yield (
                    boxes.ids[i],
                    {
                        "image": image,
                        "label": int(boxes.labels[i]),
                        "objects": [{"bbox": row} for row in own_first],
                        "file_name": name,
                        "groups": number,
                    },
                )


def table(source: str, surveys: Mapping[str, Survey], names: Sequence[str]) -> str:
    """The counts of every split, above those of the paper."""
    rows = [_COLUMNS]
    for split, survey in surveys.items():
        counts = survey.class_counts
        num_objects = f"{counts.sum():,}"
        if counts.sum() < survey.num_objects:
            num_objects += f" of {survey.num_objects:,}"
        largest, smallest = (
            f"{counts[k]:,} ({names[k]})" for k in (counts.argmax(), counts.argmin())
        )
        num_classes = f"{(counts > 0).sum():,} of {len(names):,}"
        rows.append(
            (
                split,
                f"{survey.num_images:,}",
                num_objects,
                num_classes,
                largest,
                smallest,
                f"{survey.most_boxes:,}",
            )
        )
    paper = _PAPER.get(source.partition("/")[0], ())
    rows += [(f"{split} of the paper", *numbers) for split, *numbers in paper]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines if paper else [*lines, f"The paper has no counts of {source}."])


@user_errors.one_line()
def main() -> None:
    """Writes the mask set of a prepared set: one example per object."""
    parser = user_errors.parser(main.__doc__)
    sources = ", ".join(tfds.MASK_SOURCES.values())
    parser.add_argument("--source", required=True, help=f"such as {sources}")
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of prepared sets"
    )
    parser.add_argument("--name", help="defaults to the name of the source, followed by _mask")
    parser.add_argument("--hierarchy", help="bbox_labels_600_hierarchy.json, for open_images_v4")
    parser.add_argument("--max_per_class", type=int, help="limit on training objects of a class")
    flags = parser.parse_args()
    if not flags.data_dir:
        parser.error("give --data_dir or set TFDS_DATA_DIR.")
    if flags.max_per_class is not None and flags.max_per_class < 1:
        parser.error(f"--max_per_class is {flags.max_per_class}, but must be at least 1.")
    folder, counts = write(
        flags.source,
        flags.data_dir,
        name=flags.name or f"{flags.source.partition('/')[0]}_mask",
        hierarchy=files.as_path(flags.hierarchy) if flags.hierarchy else None,
        max_per_class=flags.max_per_class,
    )
    print(f"wrote {folder}\n{counts}")


if __name__ == "__main__":
    main()
