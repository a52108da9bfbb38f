"""ILSVRC2012 with the bounding boxes of its localisation task."""

import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as imagenet2012

from heteroscedastic.data.builders import archives

_FILES = {
    "train": ("ILSVRC2012_img_train.tar", "ILSVRC2012_bbox_train_v2.tar.gz"),
    "validation": ("ILSVRC2012_img_val.tar", "ILSVRC2012_bbox_val_v3.tgz"),
}
_MOST_DISTORTION = (
    1.02  # between the shapes of image and annotation, which rounding after a resize may cause
)

_DESCRIPTION = """
ILSVRC2012 as `imagenet2012` has it, with the boxes of the object that the label names: about 0.54 of the 1.28 million
training images have any, and all validation images.

`objects/bbox` is ymin, xmin, ymax, xmax in 0 to 1, the pixels of the annotation over the size that it states,
since some images were resized after they were annotated. Boxes are clipped to the image, and left out where nothing
remains or where they are of another class of the challenge. An image has an empty list where there is no
annotation, or one of another shape than the image (by more than 2 %), as it is then unknown what it is about.
"""
_CITATION = """
@article{ILSVRC15,
  title={{ImageNet Large Scale Visual Recognition Challenge}},
  author={Olga Russakovsky and Jia Deng and Hao Su and Jonathan Krause and Sanjeev Satheesh and Sean Ma and
    Zhiheng Huang and Andrej Karpathy and Aditya Khosla and Michael Bernstein and Alexander C. Berg and Li Fei-Fei},
  journal={IJCV},
  year={2015}
}
"""


class Annotation(NamedTuple):
    """What an XML file says."""

    width: int  # of the image that was annotated; 0 if it does not say
    height: int
    boxes: np.ndarray  # float32 [n, 4]: ymin, xmin, ymax, xmax in pixels
    classes: tuple[str, ...]  # of boxes: a WordNet id, or else a word


class Imagenet2012Boxes(tfds.core.GeneratorBasedBuilder):
    """ILSVRC2012 with boxes."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "Boxes of train v2 and validation v3."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = """
    manual_dir must hold, as they come from https://image-net.org/challenges/LSVRC/2012 to those who have registered,
    not unpacked:
      ILSVRC2012_img_train.tar (138 GB), ILSVRC2012_bbox_train_v2.tar.gz (20 MB)
      ILSVRC2012_img_val.tar (6.3 GB), ILSVRC2012_bbox_val_v3.tgz (2.2 MB)
    """

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(
                names_file=tfds.core.tfds_path("datasets/imagenet2012/labels.txt")
            ),
            "file_name": tfds.features.Text(),
            "objects": tfds.features.Sequence({"bbox": tfds.features.BBoxFeature()}),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage="https://image-net.org/challenges/LSVRC/2012",
            citation=_CITATION,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        directory = dl_manager.manual_dir
        needed = [name for names in _FILES.values() for name in names]
        archives.check_present(directory, needed, self.MANUAL_DOWNLOAD_INSTRUCTIONS)
        return {split: self._generate_examples(directory, split) for split in _FILES}

    def _generate_examples(
        self, directory: Any, split: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        images, boxes = (directory / name for name in _FILES[split])
        names = frozenset(self.info.features["label"].names)
        annotations = _annotations(boxes)
        for wnid, file_name, content in (_train if split == "train" else _validation)(images):
            if wnid not in names:
                raise ValueError(
                    f"{images} has {file_name} of {wnid}, which is no class of ILSVRC2012."
                )
            found = annotations.get(_stem(file_name))
            kept = (
                []
                if found is None
                else boxes_within(found, _size(content, file_name, images), wnid, names)
            )
            content = _as_rgb(file_name, content)
            objects = [{"bbox": tfds.features.BBox(*map(float, box))} for box in kept]
            yield (
                file_name,
                {"image": content, "label": wnid, "file_name": file_name, "objects": objects},
            )


def annotation(content: bytes, where: str) -> Annotation:
    """What an annotation in the form of PASCAL VOC says.

    Raises:
      ValueError: it is none.
    """
    try:
        root = ElementTree.fromstring(content)
        objects = root.findall("object")
        boxes = [
            [float(o.find(f"bndbox/{side}").text) for side in ("ymin", "xmin", "ymax", "xmax")]
            for o in objects
        ]
        classes = tuple(o.findtext("name", "") for o in objects)
        width, height = (
            int(float(root.findtext(f"size/{side}") or 0)) for side in ("width", "height")
        )
    except (ElementTree.ParseError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{where} is no annotation of boxes ({error}); download its archive again."
        ) from None
    return Annotation(width, height, np.array(boxes, np.float32).reshape(-1, 4), classes)


def boxes_within(
    found: Annotation, size: tuple[int, int], wnid: str, classes: frozenset[str]
) -> np.ndarray:
    """Boxes of one class in 0 to 1, float32 [n, 4], clipped to the image; see the description of
    the set.

    Args:
      found: the annotation.
      size: width and height of the image itself.
      wnid: whose boxes; those called by no id at all, as some breeds of dogs are, are its own.
      classes: ids of the challenge.
    """
    width, height = (found.width or size[0], found.height or size[1])
    distortion = (width * size[1]) / (height * size[0])
    if not 1 / _MOST_DISTORTION <= distortion <= _MOST_DISTORTION:
        return np.zeros((0, 4), np.float32)
    own = np.array([name == wnid or name not in classes for name in found.classes], bool)
    boxes = np.clip(found.boxes[own] / np.array([height, width, height, width], np.float32), 0, 1)
    return boxes[(boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])]


def _annotations(path: Any) -> Mapping[str, Annotation]:
    """By the name of the image; those inside the files are wrong at times."""
    return {
        _stem(m.name): annotation(m.read(), f"{path}: {m.name}") for m in archives.members(path)
    }


def _train(path: Any) -> Iterator[tuple[str, str, bytes]]:
    for synset in archives.members(path):
        for image in synset.members():
            yield _stem(synset.name), image.name, image.read()


def _validation(path: Any) -> Iterator[tuple[str, str, bytes]]:
    labels = tfds.core.tfds_path("datasets/imagenet2012/validation_labels.txt").read_text().split()
    for image in archives.members(path):
        number = _stem(image.name).rpartition("_")[2]  # of ILSVRC2012_val_00000001.JPEG
        if not number.isdigit() or not 1 <= int(number) <= len(labels):
            raise ValueError(
                f"{path} has {image.name}, which is no image of the validation set of ILSVRC2012."
            )
        yield labels[int(number) - 1], image.name, image.read()


def _size(content: bytes, file_name: str, path: Any) -> tuple[int, int]:
    from PIL import Image  # which no other builder needs

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.size
    except Exception as error:  # damage shows as OSError, SyntaxError, struct.error and others
        raise ValueError(f"{path}: {file_name} is no image ({error}); download it again.") from None


def _as_rgb(file_name: str, content: bytes) -> bytes:
    """As `imagenet2012` has it: 22 images are in CMYK colours, and one is no JPEG."""
    if file_name in imagenet2012.CMYK_IMAGES:
        return tfds.core.utils.jpeg_cmyk_to_rgb(content)
    return tfds.core.utils.png_to_jpeg(content) if file_name in imagenet2012.PNG_IMAGES else content


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]
