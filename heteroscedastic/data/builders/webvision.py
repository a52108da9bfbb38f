"""WebVision 1.0: search results for the classes of ILSVRC12, labelled by the query."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds

from heteroscedastic.data.storage import archives

_INFO = "info.tar"
_IMAGES = {
    "google": "google_resized_256.tar",
    "flickr": "flickr_resized_256.tar",
    "val": "val_images_256.tar",
}
_SOURCES = {"both": ("google", "flickr"), "google": ("google",), "flickr": ("flickr",)}
_LISTS = {name: f"info/train_filelist_{name}.txt" for name in ("google", "flickr")} | {
    "val": "info/val_filelist.txt"
}
_SYNSETS = "info/synsets.txt"
_VALIDATION = "val_images_256/"  # folder of the file names in the validation list

_DESCRIPTION = """
WebVision 1.0 in the "small version" of the release, resized to 256 pixels: 2.4 million images that
Google and Flickr returned for 1,631 queries made of the 1,000 classes of ILSVRC12. The label of a
training image is that of its query and may be wrong; the 50,000 validation images were labelled by
hand. `file_name` begins with google/ or flickr/, followed by the query, q0001 to q1632.

Class i is class i of `imagenet2012`: the labels in the lists of the release are converted to
WordNet ids by its synsets.txt, so that a model can be evaluated on both sets. Images in no list
have no label and are left out.
"""
_CITATION = """
@article{li2017webvision,
  title={{WebVision} Database: Visual Learning and Understanding from Web Data},
  author={Li, Wen and Wang, Limin and Li, Wei and Agustsson, Eirikur and Van Gool, Luc},
  journal={arXiv:1708.02862},
  year={2017}
}
"""


class Webvision(tfds.core.GeneratorBasedBuilder):
    """WebVision 1.0."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "Google and Flickr parts and validation, resized to 256 pixels."}
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(
            name=name, description=f"Training images from {' and '.join(sources)}."
        )
        for name, sources in _SOURCES.items()
    ]
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"""
    Put these files into manual_dir without unpacking them. They are the resized images of
    WebVision 1.0 and its labels, from
    https://data.vision.ee.ethz.ch/cvl/webvision/download.html:
      {_INFO} (info/synsets.txt, info/train_filelist_google.txt,
        info/train_filelist_flickr.txt, info/val_filelist.txt)
      {_IMAGES["google"]} (16 GB; not for webvision/flickr)
      {_IMAGES["flickr"]} (26 GB; not for webvision/google)
      {_IMAGES["val"]} (0.8 GB)
    """

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(
                names_file=tfds.core.tfds_path("datasets/imagenet2012/labels.txt")
            ),
            "file_name": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage="https://data.vision.ee.ethz.ch/cvl/webvision/dataset2017.html",
            citation=_CITATION,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        directory = dl_manager.manual_dir
        sources = _SOURCES[self.builder_config.name]
        needed = [_INFO, *(_IMAGES[source] for source in (*sources, "val"))]
        archives.check_present(directory, needed, self.MANUAL_DOWNLOAD_INSTRUCTIONS)
        return {
            "train": self._generate_examples(directory, sources),
            "validation": self._generate_examples(directory, ("val",)),
        }

    def _generate_examples(
        self, directory: Any, sources: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        info = directory / _INFO
        synsets = [line.split()[0] for line in _lines(info, _SYNSETS)]
        unknown = sorted(set(synsets) - set(self.info.features["label"].names))
        if unknown:
            raise ValueError(
                f"{info}: {_SYNSETS} has ids that are not classes of ILSVRC12, such as"
                f" {unknown[:3]}."
            )
        for source in sources:
            labels = _labels(info, _LISTS[source], synsets)
            path, missing = directory / _IMAGES[source], set(labels)
            for member in archives.members(path):
                name = member.name.removeprefix(_VALIDATION) if source == "val" else member.name
                if name in missing:
                    missing.remove(name)
                    yield name, {"image": member.read(), "label": labels[name], "file_name": name}
            if missing:
                raise ValueError(
                    f"{path} lacks {len(missing):,} of the {len(labels):,} images of"
                    f" {_LISTS[source]}, such as {sorted(missing)[:3]}; download both again."
                )


def _labels(info: Any, name: str, synsets: Sequence[str]) -> Mapping[str, str]:
    """The WordNet id of every image in a list."""
    labels = {}
    for number, line in enumerate(_lines(info, name), 1):
        image, _, label = line.rpartition(" ")
        if not image or not label.isdigit() or int(label) >= len(synsets):
            raise ValueError(
                f"{info}: line {number} of {name} is {line!r}, but must be an image and its class."
            )
        labels[image] = synsets[int(label)]
    return labels


def _lines(info: Any, name: str) -> list[str]:
    return [
        line.strip() for line in archives.content(info, name).decode().splitlines() if line.strip()
    ]
