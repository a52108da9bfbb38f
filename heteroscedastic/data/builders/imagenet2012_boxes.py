"""ILSVRC2012 with the bounding boxes of its localisation task."""

import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Float
from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as imagenet2012

from heteroscedastic.data.storage import archives

_FILES = {
    "train": ("ILSVRC2012_img_train.tar", "ILSVRC2012_bbox_train_v2.tar.gz"),
    "validation": ("ILSVRC2012_img_val.tar", "ILSVRC2012_bbox_val_v3.tgz"),
}
# Maximum ratio of the aspect ratios of image and annotation; resizing and rounding change it.
_MAX_DISTORTION = 1.02

_DESCRIPTION = """
The images and labels of `imagenet2012` with the bounding boxes of the labelled objects: about 0.54
of the 1.28 million training images have boxes, and all validation images.

`objects/bbox` is (ymin, xmin, ymax, xmax) in 0 to 1: the pixels of the annotation, divided by the
image size that it states, as some images were resized after annotation. Boxes are clipped to the
image. Empty boxes, and boxes of another class of the challenge, are removed. The list is empty if
there is no annotation, or if the aspect ratio of the annotation differs by more than 2 %, as it may
then belong to another image.
"""
_CITATION = """
@article{ILSVRC15,
  title={{ImageNet Large Scale Visual Recognition Challenge}},
  author={Olga Russakovsky and Jia Deng and Hao Su and Jonathan Krause and Sanjeev Satheesh
    and Sean Ma and Zhiheng Huang and Andrej Karpathy and Aditya Khosla and Michael Bernstein
    and Alexander C. Berg and Li Fei-Fei},
  journal={IJCV},
  year={2015}
}
"""


class Annotation(NamedTuple):
    """The content of an XML annotation."""

    width: int  # of the annotated image; 0 if not stated
    height: int
    boxes: Float[np.ndarray, "n 4"]  # float32: ymin, xmin, ymax, xmax in pixels
    classes: tuple[str, ...]  # of each box: a WordNet id, or else a word


class Imagenet2012Boxes(tfds.core.GeneratorBasedBuilder):
    """ILSVRC2012 with boxes."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "Boxes of train v2 and validation v3."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = """
    Put these files into manual_dir without unpacking them. They can be downloaded after
    registration from https://image-net.org/challenges/LSVRC/2012:
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
                    f"{images} has {file_name} of {wnid}, which is not a class of ILSVRC2012."
                )
            annotation = annotations.get(_stem(file_name))
            valid_boxes = (
                []
                if annotation is None
                else class_boxes(annotation, _size(content, file_name, images), wnid, names)
            )
            content = _as_rgb(file_name, content)
            objects = [{"bbox": tfds.features.BBox(*map(float, box))} for box in valid_boxes]
            yield (
                file_name,
                {"image": content, "label": wnid, "file_name": file_name, "objects": objects},
            )


def parse_annotation(content: bytes, where: str) -> Annotation:
    """Parses an annotation in the format of PASCAL VOC.

    Raises:
      ValueError: the content is not a valid annotation.
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
            f"{where} is not a valid annotation ({error}); download its archive again."
        ) from None
    return Annotation(width, height, np.array(boxes, np.float32).reshape(-1, 4), classes)


def class_boxes(
    annotation: Annotation, size: tuple[int, int], wnid: str, classes: frozenset[str]
) -> Float[np.ndarray, "n 4"]:
    """Boxes of one class, clipped to the image; float32 in 0 to 1.

    See the description of the set for which boxes are removed.

    Args:
      annotation: the annotation of the image.
      size: width and height of the image.
      wnid: WordNet id of the class; boxes with another name than that of one of `classes`, as of
        some breeds of dogs, belong to it too.
      classes: WordNet ids of the challenge.
    """
    width, height = (annotation.width or size[0], annotation.height or size[1])
    distortion = (width * size[1]) / (height * size[0])
    if not 1 / _MAX_DISTORTION <= distortion <= _MAX_DISTORTION:
        return np.zeros((0, 4), np.float32)
    is_own = np.array([name == wnid or name not in classes for name in annotation.classes], bool)
    scale = np.array([height, width, height, width], np.float32)
    boxes = np.clip(annotation.boxes[is_own] / scale, 0, 1)
    return boxes[(boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])]


def _annotations(path: Any) -> Mapping[str, Annotation]:
    """Annotations by file name, as the image names in the XML files are sometimes wrong."""
    return {
        _stem(m.name): parse_annotation(m.read(), f"{path}: {m.name}")
        for m in archives.members(path)
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
                f"{path} has {image.name}, which is not a validation image of ILSVRC2012."
            )
        yield labels[int(number) - 1], image.name, image.read()


def _size(content: bytes, file_name: str, path: Any) -> tuple[int, int]:
    from PIL import Image  # not required by other builders

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.size
    except Exception as error:  # damage shows as OSError, SyntaxError, struct.error and others
        raise ValueError(
            f"{path}: {file_name} is not a valid image ({error}); download it again."
        ) from None


def _as_rgb(file_name: str, content: bytes) -> bytes:
    """Converts to RGB JPEG, like `imagenet2012`: 22 images are in CMYK, and one is a PNG."""
    if file_name in imagenet2012.CMYK_IMAGES:
        return tfds.core.utils.jpeg_cmyk_to_rgb(content)
    return tfds.core.utils.png_to_jpeg(content) if file_name in imagenet2012.PNG_IMAGES else content


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]
