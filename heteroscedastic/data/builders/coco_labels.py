"""COCO 2017 with a list of labels per image, a public alternative to private sets such as JFT."""

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

_SOURCE = "coco/2017"
_SPLITS = ("train", "validation")  # the other splits have no labels

_DESCRIPTION = """
The labels of an image are the categories of COCO 2017 that it shows, out of 80, in increasing
order and including crowds; the list may be empty. The set is made from `coco/2017` of the same
data_dir, which is downloaded (25 GB) and prepared if it is missing. The schema is that of all sets
with lists of labels, see heteroscedastic/data/builders/multilabel.py.
"""
_CITATION = """
@inproceedings{lin2014microsoft,
  title={Microsoft {COCO}: Common Objects in Context},
  author={Lin, Tsung-Yi and Maire, Michael and Belongie, Serge and Hays, James and Perona, Pietro
    and Ramanan, Deva and Doll{\\'a}r, Piotr and Zitnick, C. Lawrence},
  booktitle={ECCV},
  year={2014}
}
"""


class CocoLabels(tfds.core.GeneratorBasedBuilder):
    """Categories of COCO per image."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "Train and validation of COCO 2017."}

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "labels": tfds.features.Sequence(tfds.features.ClassLabel(num_classes=80)),
            "file_name": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "labels"),
            homepage="https://cocodataset.org",
            citation=_CITATION,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        source = tfds.builder(_SOURCE, data_dir=self.data_dir_root)
        source.download_and_prepare()
        self.info.features["labels"].feature.names = source.info.features["objects"]["label"].names
        return {split: self._generate_examples(source, split) for split in _SPLITS}

    def _generate_examples(
        self, source: tfds.core.DatasetBuilder, split: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        undecoded = {"image": tfds.decode.SkipDecoding()}
        for example in tfds.as_numpy(source.as_dataset(split=split, decoders=undecoded)):
            labels = sorted({int(label) for label in example["objects"]["label"]})
            name = example["image/filename"].decode()
            yield name, {"image": example["image"], "labels": labels, "file_name": name}
