"""Tiny-ImageNet: 200 classes of ImageNet at 64x64 pixels, each image with the box of its object."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds

from heteroscedastic.data.storage import archives

_SIZE = 64  # pixels
_ARCHIVE = "tiny-imagenet-200.zip"
_ROOT = "tiny-imagenet-200"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError)

_DESCRIPTION = f"""
The labelled images of Tiny-ImageNet: 500 training and 50 validation images of each of 200 classes,
at {_SIZE}x{_SIZE} pixels. The labels of the test images are not public.

Classes are in the order of their WordNet ids, and their names are the first synonym. `objects/bbox`
is (ymin, xmin, ymax, xmax) in 0 to 1. The archive gives the first and last pixel of the object, so
the box ends at (last + 1) / {_SIZE}. `file_name` is unique in its split.
"""
_CITATION = """
@misc{tinyimagenet,
  title={Tiny {ImageNet} Visual Recognition Challenge},
  author={{Stanford CS231n}},
  howpublished={http://cs231n.stanford.edu/tiny-imagenet-200.zip},
  year={2015}
}
"""


class TinyImagenet(tfds.core.GeneratorBasedBuilder):
    """Tiny-ImageNet."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "All labelled images, with boxes."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"""
    Put this file into manual_dir without unpacking it:
      {_ARCHIVE} (248 MB), from http://cs231n.stanford.edu/{_ARCHIVE}
    """

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(_SIZE, _SIZE, 3), encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(),  # named once the archive is read
            "file_name": tfds.features.Text(),
            "objects": tfds.features.Sequence({"bbox": tfds.features.BBoxFeature()}),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage="http://cs231n.stanford.edu",
            citation=_CITATION,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        directory = dl_manager.manual_dir
        archives.check_present(directory, [_ARCHIVE], self.MANUAL_DOWNLOAD_INSTRUCTIONS)
        with _Archive(directory / _ARCHIVE) as archive:
            wnids = sorted(archive.lines("wnids.txt"))
            words = dict(line.partition("\t")[::2] for line in archive.lines("words.txt"))
        if unnamed := [wnid for wnid in wnids if wnid not in words]:
            raise ValueError(f"{archive.path}: words.txt does not name {unnamed[0]}.")
        self.info.features["label"].names = [words[wnid].partition(",")[0] for wnid in wnids]
        return {
            split: self._generate_examples(archive.path, split, wnids)
            for split in ("train", "validation")
        }

    def _generate_examples(
        self, path: Any, split: str, wnids: list[str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        number = {wnid: k for k, wnid in enumerate(wnids)}
        with _Archive(path) as archive:
            for name, (wnid, file, box) in (
                _train(archive, wnids) if split == "train" else _validation(archive)
            ).items():
                if wnid not in number:
                    raise ValueError(f"{path}: {name} is of {wnid}, which wnids.txt does not list.")
                where = f"{path}: the box {' '.join(box)} of {name}"
                yield (
                    name,
                    {
                        "image": archive.read(file),
                        "label": number[wnid],
                        "file_name": name,
                        "objects": [{"bbox": _box(box, where)}],
                    },
                )


class _Archive:
    """The files of the archive, whose damage is an error that names them."""

    def __init__(self, path: Any):
        self.path = path

    def __enter__(self) -> "_Archive":
        try:
            self._file = self.path.open("rb")
            self._zip = zipfile.ZipFile(self._file)
        except _DAMAGE as error:
            raise self._error("", error) from None
        return self

    def __exit__(self, *_) -> None:
        self._zip.close()
        self._file.close()

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return self._zip.read(f"{_ROOT}/{name}")
        except KeyError:
            raise ValueError(f"{self.path} has no {_ROOT}/{name}; download it again.") from None
        except _DAMAGE as error:
            raise self._error(f": {name}", error) from None

    def lines(self, name: str) -> list[str]:
        """The lines of a text."""
        return self.read(name).decode().splitlines()

    def rows(self, name: str, width: int) -> Iterator[list[str]]:
        """The fields of each line of a table."""
        for line in self.lines(name):
            fields = line.split("\t")
            if len(fields) != width:
                raise ValueError(
                    f"{self.path}: {name} has a line of {len(fields)} fields, not {width}: {line!r}"
                )
            yield fields

    def _error(self, name: str, error: Exception) -> ValueError:
        return ValueError(f"{self.path}{name} is damaged ({error}); download it again.")


# File name: WordNet id, path, and the first and last pixel of the box, x before y.
_Images = Mapping[str, tuple[str, str, list[str]]]


def _train(archive: _Archive, wnids: list[str]) -> _Images:
    return {
        name: (wnid, f"train/{wnid}/images/{name}", box)
        for wnid in wnids
        for name, *box in archive.rows(f"train/{wnid}/{wnid}_boxes.txt", 5)
    }


def _validation(archive: _Archive) -> _Images:
    return {
        name: (wnid, f"val/images/{name}", box)
        for name, wnid, *box in archive.rows("val/val_annotations.txt", 6)
    }


def _box(pixels: list[str], where: str) -> tfds.features.BBox:
    """The box from its first to the end of its last pixel.

    Raises:
      ValueError: it is not within the image.
    """
    if not all(pixel.isdigit() for pixel in pixels):
        raise ValueError(f"{where} is not four whole numbers; download the archive again.")
    xmin, ymin, xmax, ymax = map(int, pixels)
    if not (xmin <= xmax < _SIZE and ymin <= ymax < _SIZE):
        raise ValueError(f"{where} is not within {_SIZE}x{_SIZE} pixels; download it again.")
    return tfds.features.BBox(
        ymin=ymin / _SIZE, xmin=xmin / _SIZE, ymax=(ymax + 1) / _SIZE, xmax=(xmax + 1) / _SIZE
    )
