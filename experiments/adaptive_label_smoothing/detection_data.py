r"""Small data sets for detectors, in memory.

    python -m experiments.adaptive_label_smoothing.detection_data --out=DIR

writes to DIR

- tiny_imagenet_mosaics_objects.npz: mosaics of 64 pixels of four images of Tiny-ImageNet of 20 to
  31 pixels, with the box of the object in each. The objects are of the second 50 classes, which
  classifiers of `data.max_classes=50` do not know, and have one class. There are several test sets,
  of the same images in other mosaics.
- coco_256.npz: COCO 2017 as it is prepared, in squares of 256 pixels; boxes of crowds are left out.
- coco_256_objects.npz: the same with one class.

Class 0 is the background. Splits are "train" and "test"; of the mosaics "train", "test_0", "test_1"
and so on.
"""

import numpy as np
from jaxtyping import UInt8

from experiments import write_data
from heteroscedastic import user_errors
from heteroscedastic.data import mosaics
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store, tfds

MOSAICS = "tiny_imagenet_mosaics_objects"
COCO, OBJECTS = "coco_256", "coco_256_objects"
FIRST_CLASS, LAST_CLASS = 50, 100  # the second is excluded
NUM_TEST_SETS = 10
# Of 10,000 and 2,500 images.
_NUMBERS = {"train": 3_000} | {f"test_{i}": 600 for i in range(NUM_TEST_SETS)}
_SPLITS = {"train": "train", "test": "validation"}
_SIDE = 256


def mosaic_data(source: Dataset, numbers: dict[str, int]) -> Dataset:
    """Mosaics of the images of classes FIRST_CLASS to LAST_CLASS.

    Args:
      source: Tiny-ImageNet, with one box an image.
      numbers: of mosaics of each split: "train", "test" and so on, each with a number after _ if
        there are several. Images, sizes and places of each are drawn anew.
    """

    def split(seed, name):
        images = source.splits[name.partition("_")[0]]
        images = images.take(np.flatnonzero((images.labels >= FIRST_CLASS) & _has_box(images)))
        return mosaics.mosaics(
            images.inputs,
            images.labels - FIRST_CLASS,
            images.extras["boxes"][:, 0],
            number=numbers[name],
            seed=seed,
            quarter=32,
            smallest=20,
            counts=(4, 4),
            resized=_smaller,
        )

    splits = {name: split(seed, name) for seed, name in enumerate(numbers)}
    return Dataset(splits, ("background", *source.class_names[FIRST_CLASS:LAST_CLASS]))


def _has_box(split: Split) -> np.ndarray:
    return split.extras["boxes"].any(axis=(1, 2))


def _smaller(image: UInt8[np.ndarray, "h w c"], side: int) -> UInt8[np.ndarray, "..."]:
    """An image at a side, bilinearly with antialiasing."""
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def coco(data_dir: str | None) -> Dataset:
    """COCO 2017 in squares of 256 pixels, without boxes of crowds.

    Args:
      data_dir: directory of prepared sets.

    Raises:
      ValueError: there is no directory.
      FileNotFoundError: it does not have the set.
    """
    if not data_dir:
        raise ValueError("give --data_dir, the directory of the prepared set coco/2017.")
    builder = tfds.builder("coco/2017", data_dir)
    splits = {
        name: _split(builder.as_dataset(split=stored, shuffle_files=False))
        for name, stored in _SPLITS.items()
    }
    return Dataset(splits, ("background", *builder.info.features["objects"]["label"].names))


def merged_classes(data: Dataset) -> Dataset:
    """The data with one class, "object", in place of all classes but the background."""
    splits = {
        name: split._replace(labels=np.minimum(split.labels, 1))
        for name, split in data.splits.items()
    }
    return Dataset(splits, ("background", "object"))


def _split(examples) -> Split:
    images, labels, boxes = [], [], []
    for example in examples.as_numpy_iterator():
        objects = example["objects"]
        is_object = ~objects["is_crowd"]
        images.append(_smaller(example["image"], _SIDE))
        labels.append(objects["label"][is_object] + 1)
        boxes.append(objects["bbox"][is_object])
    most = max(map(len, labels))
    padded_labels = [np.pad(x, (0, most - len(x)), constant_values=-1) for x in labels]
    padded_boxes = [np.pad(x, ((0, most - len(x)), (0, 0))) for x in boxes]
    ids = np.arange(len(images), dtype=np.int32)
    extras = {"boxes": np.stack(padded_boxes)}
    return Split(np.stack(images), np.stack(padded_labels).astype(np.int32), ids, extras)


def _objects_of_tiny_imagenet(data_dir: str | None) -> Dataset:
    source = store.load(
        "tiny_imagenet", data_dir, splits=_SPLITS, max_classes=LAST_CLASS, extras=("boxes",)
    )
    return merged_classes(mosaic_data(source, _NUMBERS))


def _summary(data: Dataset) -> str:
    number = sum((split.labels > 0).sum() for split in data.splits.values())
    return f"{number:,} boxes of {len(data.class_names) - 1} classes"


@user_errors.one_line()
def main() -> None:
    """Writes mosaics of Tiny-ImageNet with their boxes, and COCO at 256 pixels."""
    made = {
        MOSAICS: _objects_of_tiny_imagenet,
        COCO: coco,
        OBJECTS: lambda data_dir: merged_classes(coco(data_dir)),
    }
    write_data.main(main.__doc__, {name: (x, _summary) for name, x in made.items()})


if __name__ == "__main__":
    main()
