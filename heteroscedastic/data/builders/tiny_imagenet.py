"""Tiny-ImageNet: 200 classes of ImageNet at 64x64 pixels, each image with the box of its object.

    python -m heteroscedastic.data.builders.tiny_imagenet --archive=tiny-imagenet-200.zip
        --data_dir=DIR

writes the set `tiny_imagenet` from the archive (248 MB) at http://cs231n.stanford.edu, which is not
unpacked. Its splits are `train`, 500 images of each class, and `validation`, 50 of each; the labels
of the test images are not public. `--per_class=200` keeps the training images _0 to _199 of each
class, which are those of the results of this project.

    image: Image(64, 64, 3)      the JPEG of the archive
    label: ClassLabel()          in the order of the WordNet ids, named by the first synonym
    file_name: Text()            unique in its split
    objects: Sequence(bbox)      one box: ymin, xmin, ymax, xmax in 0 to 1

The archive gives the first and the last pixel of an object; the box ends at (last + 1) / 64. Beside
the records is label_wnids.txt, with the WordNet id of each class.
"""

import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from heteroscedastic import files, user_errors

_NAME, _VERSION = "tiny_imagenet", "1.0.0"
_SIZE = 64  # pixels
_ROOT = "tiny-imagenet-200"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)

# File name, WordNet id, path, and the first and last pixel of the box, x before y.
_Image = tuple[str, str, str, list[str]]


def write(archive: Any, data_dir: str | Path, per_class: int | None = None) -> Any:
    """Writes the set; an interrupted write leaves no set.

    Args:
      archive: path of the archive, with the methods of pathlib.
      data_dir: directory of prepared sets.
      per_class: the training images that are kept of each class, the first ones; None keeps all.

    Returns:
      The folder of the set, with the methods of pathlib.

    Raises:
      FileExistsError: the set exists.
      ValueError: the archive is damaged, lacks a file, or describes an image wrongly.
    """
    folder = tfds.core.Path(data_dir) / _NAME / _VERSION
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; remove it.")
    with _Archive(archive) as opened:
        wnids = sorted(opened.lines("wnids.txt"))
        words = dict(line.partition("\t")[::2] for line in opened.lines("words.txt"))
        if unnamed := [wnid for wnid in wnids if wnid not in words]:
            raise opened.error("words.txt", f"it does not name {unnamed[0]}")
        features = {
            "image": tfds.features.Image(shape=(_SIZE, _SIZE, 3), encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=[words[w].partition(",")[0] for w in wnids]),
            "file_name": tfds.features.Text(),
            "objects": tfds.features.Sequence({"bbox": tfds.features.BBoxFeature()}),
        }
        tfds.dataset_builders.store_as_tfds_dataset(
            name=_NAME,
            version=_VERSION,
            features=tfds.features.FeaturesDict(features),
            split_datasets={
                "train": _examples(opened, _train(opened, wnids, per_class), wnids),
                "validation": _examples(opened, _validation(opened), wnids),
            },
            data_dir=str(data_dir),
            description=f"Tiny-ImageNet with boxes, {per_class or 500} training images per class.",
        )
    (folder / "label_wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    return folder


class _Archive:
    """The files of the archive; an error names the one that is damaged."""

    def __init__(self, path: Any):
        self.path = path

    def __enter__(self) -> "_Archive":
        self._file = self.path.open("rb")
        try:
            self._zip = zipfile.ZipFile(self._file)
        except _DAMAGE as error:
            self._file.close()
            raise self.error("", error) from None
        return self

    def __exit__(self, *_) -> None:
        self._zip.close()
        self._file.close()

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return self._zip.read(f"{_ROOT}/{name}")
        except KeyError:
            raise self.error(name, "it is not there") from None
        except _DAMAGE as error:
            raise self.error(name, error) from None

    def lines(self, name: str) -> list[str]:
        """The lines of a text."""
        return self.read(name).decode().splitlines()

    def rows(self, name: str, width: int) -> Iterator[list[str]]:
        """The fields of each line of a table."""
        for line in self.lines(name):
            fields = line.split("\t")
            if len(fields) != width:
                raise self.error(
                    name, f"it has a line of {len(fields)} fields, not {width}: {line}"
                )
            yield fields

    def error(self, name: str, what: object) -> ValueError:
        """The error for a file of the archive, or for all of it."""
        return ValueError(f"{self.path}: {name or 'it'} is damaged ({what}); download it again.")


def _train(archive: _Archive, wnids: list[str], per_class: int | None) -> Iterator[_Image]:
    for wnid in wnids:
        for name, *box in archive.rows(f"train/{wnid}/{wnid}_boxes.txt", 5):
            number = name.removeprefix(f"{wnid}_").removesuffix(".JPEG")
            if not number.isdecimal():
                raise archive.error(f"train/{wnid}", f"an image has the name {name}")
            if per_class is None or int(number) < per_class:
                yield name, wnid, f"train/{wnid}/images/{name}", box


def _validation(archive: _Archive) -> Iterator[_Image]:
    for name, wnid, *box in archive.rows("val/val_annotations.txt", 6):
        yield name, wnid, f"val/images/{name}", box


def _examples(
    archive: _Archive, images: Iterator[_Image], wnids: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    classes = {wnid: k for k, wnid in enumerate(wnids)}
    for name, wnid, path, box in images:
        if wnid not in classes:
            raise archive.error(path, f"its class is {wnid}, which wnids.txt does not list")
        yield (
            name,
            {
                "image": archive.read(path),
                "label": classes[wnid],
                "file_name": name,
                "objects": [{"bbox": _box(archive, path, box)}],
            },
        )


def _box(archive: _Archive, path: str, pixels: list[str]) -> tfds.features.BBox:
    """The box, from the first pixel to the end of the last one."""
    text = " ".join(pixels)
    if not all(pixel.isdecimal() for pixel in pixels):
        raise archive.error(path, f"its box is {text}, not four whole numbers")
    xmin, ymin, xmax, ymax = map(int, pixels)
    if not (xmin <= xmax < _SIZE and ymin <= ymax < _SIZE):
        raise archive.error(path, f"its box is {text}, not within {_SIZE}x{_SIZE} pixels")
    return tfds.features.BBox(
        ymin=ymin / _SIZE, xmin=xmin / _SIZE, ymax=(ymax + 1) / _SIZE, xmax=(xmax + 1) / _SIZE
    )


@user_errors.one_line()
def main() -> None:
    """Writes the set from its archive."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--archive", required=True, help="path of tiny-imagenet-200.zip")
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of prepared sets"
    )
    parser.add_argument(
        "--per_class",
        type=int,
        help="training images of each class, the first ones; all by default",
    )
    flags = parser.parse_args()
    if not flags.data_dir:
        parser.error("give --data_dir.")
    if flags.per_class is not None and flags.per_class < 1:
        parser.error(f"--per_class={flags.per_class} must be at least 1.")
    folder = write(
        files.as_path(flags.archive), str(files.as_path(flags.data_dir)), flags.per_class
    )
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
