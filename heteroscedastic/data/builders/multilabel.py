"""Sets of several labels an image, public or private (JFT): their schema, and the command that
writes one.

A set is any folder that TensorFlow Datasets has prepared, DATA_DIR/NAME/VERSION, with the features

    image: Image()                    JPEG or PNG, as it comes
    labels: Sequence(ClassLabel())    which of the K classes hold, in rising order; the list may be
    empty file_name: Text()                 unique in its split

and is opened by its name, without code of its own: data.name="my_set", data.label="labels". K is
that of the set, and head.num_classes must be the same. `write` makes such a folder from Python, and

    python -m heteroscedastic.data.builders.multilabel --name=my_set --data_dir=DIR
        --split train=FILES-train-* --split validation=FILES-validation-* --split test=FILES-test-*
        --class_names=FILE

from TFRecords of tf.train.Example with image/encoded (bytes), image/class/label (a list of int64)
and, if it has one, image/filename. A config of JFT takes these three splits; those of another set
are told as those of `coco_labels`, which is a public one of this form:

    python main.py --config=configs/jft_het_pe.py --workdir=runs/coco_het_pe --config.data.name=coco_labels
        --config.head.num_classes=80 --config.data.splits.train='train[5%:]'
        --config.data.splits.valid='train[:5%]' --config.data.splits.test=validation
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
    """The schema, for these classes."""
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
    """Writes a set; one that is interrupted leaves nothing under its name.

    Args:
      name: of the set, in lower case with underscores.
      data_dir: where sets lie.
      splits: file name, image and labels of each example; read once, and never held as a whole.
      class_names: of all classes.
      version: of the set.
      num_shards: files of each split; by its size if not given.

    Returns:
      Where it lies, with the methods of pathlib.

    Raises:
      FileExistsError: there is such a set.
      ValueError: an example is not as it must be; names it.
    """
    folder = tfds.core.Path(data_dir) / name / version
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; remove it, or give another version.")
    checked = {
        split: _checked(split, examples, len(class_names)) for split, examples in splits.items()
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=version,
        features=features(class_names),
        split_datasets=checked,
        data_dir=str(data_dir),
        description="Images of several labels.",
        download_config=tfds.download.DownloadConfig(num_shards=num_shards) if num_shards else None,
    )
    return folder


def examples(paths: Sequence[str | Path]) -> Iterator[tuple[str, bytes, list[int]]]:
    """The examples of TFRecords.

    Raises:
      ValueError: a file is damaged, or a record is not as it must be; names them.
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
                found = tf.train.Example.FromString(record).features.feature
            except Exception:  # of protobuf, which has several homes
                raise ValueError(f"{where} is no tf.train.Example.") from None
            fields, image = (
                sorted(found),
                found[_IMAGE].bytes_list.value,
            )  # which adds the field, where there is none
            if len(image) != 1:
                raise ValueError(
                    f"{where} has {len(image)} values of {_IMAGE}, but must have one; it has"
                    f" {fields}."
                )
            if found[_LABELS].WhichOneof("kind") not in ("int64_list", None):
                raise ValueError(f"{where}: {_LABELS} must be a list of int64.")
            names = found[_NAME].bytes_list.value
            name = names[0].decode() if names else f"{Path(path).name}-{number}"
            yield name, image[0], list(found[_LABELS].int64_list.value)
            number += 1


def _checked(
    split: str, given: Iterable[tuple[str, bytes, Iterable[int]]], num_classes: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, image, labels in given:
        labels = np.unique(np.asarray(list(labels), np.int64))
        if not image.startswith(_FORMATS):
            raise ValueError(f"{split}: the image of {name} is no JPEG or PNG.")
        if labels.size and not 0 <= labels[0] <= labels[-1] < num_classes:
            raise ValueError(
                f"{split}: {name} has labels {labels.tolist()}, but classes are 0 to"
                f" {num_classes - 1}."
            )
        yield name, {"image": image, "labels": labels.tolist(), "file_name": name}


@user_errors.one_line()
def main() -> None:
    """Writes TFRecords of images with several labels as a set of TensorFlow Datasets."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="where the set goes"
    )
    parser.add_argument(
        "--split",
        action="append",
        required=True,
        metavar="NAME=FILES",
        help="FILES may have * in it",
    )
    parser.add_argument("--class_names", help="file with the name of a class a line")
    parser.add_argument("--num_classes", type=int, help="in place of --class_names")
    parser.add_argument("--version", default="1.0.0")
    flags = parser.parse_args()
    if not flags.data_dir:
        parser.error("give --data_dir.")
    if (flags.class_names is None) == (flags.num_classes is None):
        parser.error("give --class_names or --num_classes, one of them.")
    names = (
        files.as_path(flags.class_names).read_text().split("\n")
        if flags.class_names
        else map(str, range(flags.num_classes))
    )
    splits = {}
    for given in flags.split:
        split, _, pattern = given.partition("=")
        paths = sorted(tf.io.gfile.glob(str(files.as_path(pattern))))
        if not split or not paths:
            parser.error(f"--split {given} names no file; write it as train=DIR/train-*.")
        splits[split] = examples(paths)
    folder = write(
        flags.name,
        str(files.as_path(flags.data_dir)),
        splits,
        [n for n in names if n],
        version=flags.version,
    )
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
