"""Sets with a list of labels per image, such as JFT: their schema, and a command that writes one.

A set is any folder that TensorFlow Datasets has prepared, DATA_DIR/NAME/VERSION, with the features

    image: Image()                    JPEG or PNG
    labels: Sequence(ClassLabel())    the labels out of K classes, in increasing order; may be empty
    file_name: Text()                 unique in its split

It is opened by its name and requires no code: data.name="my_set", data.label="labels".
config.head.num_classes must be K. `write` creates such a folder from Python, and

    python -m heteroscedastic.data.builders.multilabel --name=my_set --data_dir=DIR
        --split train=FILES-train-* --split validation=FILES-validation-* --split test=FILES-test-*
        --class_names=FILE

creates it from TFRecords of tf.train.Example with image/encoded (bytes), image/class/label (a list
of int64) and optionally image/filename. The configs of JFT use these three splits. For a set with
other splits, such as the public set `coco_labels`, override them:

    python main.py --config=configs/jft_het_pe.py --workdir=runs/coco_het_pe
        --config.data.name=coco_labels --config.head.num_classes=80
        --config.data.splits.train='train[5%:]' --config.data.splits.valid='train[:5%]'
        --config.data.splits.test=validation
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from heteroscedastic import files, user_errors

_IMAGE, _LABELS, _NAME = "image/encoded", "image/class/label", "image/filename"
_FORMATS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def features(class_names: Sequence[str]) -> tfds.features.FeaturesDict:
    """The schema of a set with these classes."""
    return tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "labels": tfds.features.Sequence(tfds.features.ClassLabel(names=list(class_names))),
            "file_name": tfds.features.Text(),
        }
    )


def write(
    name: str,
    data_dir: str | Path,
    splits: Mapping[str, Iterable[tuple[str, bytes, Iterable[int]]]],
    class_names: Sequence[str],
    *,
    version: str = "1.0.0",
    num_shards: int | None = None,
) -> Any:
    """Writes a set; an interrupted write leaves no set.

    Args:
      name: name of the set, in lower case with underscores.
      data_dir: directory of prepared sets.
      splits: per split, (file name, image, labels) of each example; iterated once.
      class_names: names of all classes.
      version: version of the set.
      num_shards: number of files per split; None chooses it by size.

    Returns:
      The folder of the set, with the methods of pathlib.

    Raises:
      FileExistsError: the set exists.
      ValueError: an example is invalid, and named; two have one name; or a split has none.
    """
    folder = tfds.core.Path(data_dir) / name / version
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; remove it, or give another version.")
    valid_splits = {
        split: _valid_examples(split, examples, len(class_names))
        for split, examples in splits.items()
    }
    config = tfds.download.DownloadConfig(num_shards=num_shards) if num_shards else None
    try:
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version=version,
            features=features(class_names),
            split_datasets=valid_splits,
            data_dir=str(data_dir),
            description="Images with lists of labels.",
            download_config=config,
        )
    except AssertionError as error:  # of TFDS, which sorts the examples of a split by their names
        cause = str(error).partition("\n")[0]
        raise ValueError(
            f"{name} cannot be written: {cause} Each split needs examples, and their names must"
            f" differ, which are {_NAME} or else FILE-NUMBER."
        ) from None
    return folder


def examples(paths: Sequence[str | Path]) -> Iterator[tuple[str, bytes, list[int]]]:
    """Reads the examples of TFRecord files: file name, image and labels.

    Raises:
      ValueError: a file is damaged, or a record is invalid; names the file and the record.
    """
    for path in paths:
        records = iter(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        number = 0
        while True:
            where = f"{path}: record {number}"
            try:
                record = next(records)
            except StopIteration:
                break
            except tf.errors.OpError as error:
                raise ValueError(f"{where} is damaged ({error.message}).") from None
            try:
                features = tf.train.Example.FromString(record).features.feature
            except Exception:  # protobuf has several implementations of its errors
                raise ValueError(f"{where} is not a tf.train.Example.") from None
            field_names = sorted(features)  # before indexing, which adds missing fields
            image = features[_IMAGE].bytes_list.value
            if len(image) != 1:
                raise ValueError(
                    f"{where} has {len(image)} values of {_IMAGE}, but must have one; its fields"
                    f" are {field_names}."
                )
            if features[_LABELS].WhichOneof("kind") not in ("int64_list", None):
                raise ValueError(f"{where}: {_LABELS} must be a list of int64.")
            (name,) = features[_NAME].bytes_list.value[:1] or (b"",)
            try:
                name = name.decode() or f"{Path(path).name}-{number}"
            except UnicodeDecodeError:
                raise ValueError(f"{where}: {_NAME} {name!r} is not UTF-8.") from None
            yield name, image[0], list(features[_LABELS].int64_list.value)
            number += 1


def _valid_examples(
    split: str, examples: Iterable[tuple[str, bytes, Iterable[int]]], num_classes: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, image, labels in examples:
        labels = np.unique(np.asarray(list(labels), np.int64))
        if not image.startswith(_FORMATS):
            raise ValueError(f"{split}: the image of {name} is not a JPEG or PNG.")
        if labels.size and not 0 <= labels[0] <= labels[-1] < num_classes:
            raise ValueError(
                f"{split}: {name} has labels {labels.tolist()}, but the classes are 0 to"
                f" {num_classes - 1}."
            )
        yield name, {"image": image, "labels": labels.tolist(), "file_name": name}


@user_errors.one_line()
def main() -> None:
    """Converts TFRecords of images with lists of labels to a set of TensorFlow Datasets."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of prepared sets"
    )
    parser.add_argument(
        "--split",
        action="append",
        required=True,
        metavar="NAME=FILES",
        help="FILES may contain *",
    )
    parser.add_argument("--class_names", help="file with one class name per line")
    parser.add_argument("--num_classes", type=int, help="alternative to --class_names")
    parser.add_argument("--version", default="1.0.0")
    flags = parser.parse_args()
    if not flags.data_dir:
        parser.error("give --data_dir.")
    if (flags.class_names is None) == (flags.num_classes is None):
        parser.error("give either --class_names or --num_classes.")
    if flags.class_names:
        names = files.as_path(flags.class_names).read_text().rstrip("\n").split("\n")
        if "" in names:
            parser.error(
                f"--class_names {flags.class_names}: line {names.index('') + 1} is blank, but each"
                " line names the class of its number; remove it, or name the class."
            )
    else:
        names = list(map(str, range(flags.num_classes)))
    splits = {}
    for argument in flags.split:
        split, _, pattern = argument.partition("=")
        paths = sorted(tf.io.gfile.glob(str(files.as_path(pattern))))
        if not split or not paths:
            parser.error(f"--split {argument} matches no file; write it as train=DIR/train-*.")
        if split in splits:
            parser.error(f"--split {split} is given twice; one pattern must match all its files.")
        splits[split] = examples(paths)
    folder = write(
        flags.name,
        str(files.as_path(flags.data_dir)),
        splits,
        names,
        version=flags.version,
    )
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
