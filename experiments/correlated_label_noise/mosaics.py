r"""Images with several labels: mosaics of four Tiny-ImageNet images.

    python -m experiments.correlated_label_noise.mosaics --out=DIR
    python -m heteroscedastic.runs.embed --data=tiny_imagenet_mosaics --data_dir=DIR \
        --backbone=EfficientNetLite0 --weights=pretrained --size=224 --out=DIR

The first writes DIR/tiny_imagenet_mosaics.npz: each mosaic has four random images in two rows, and
their classes as its labels. No image is in two mosaics. Training mosaics are of training images,
test mosaics of validation images.
"""

import numpy as np
from jaxtyping import UInt8

from experiments import write_data
from heteroscedastic import user_errors
from heteroscedastic.curation import draws
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store

NAME = "tiny_imagenet_mosaics"
_SIZES = {"train": 10_000, "test": 2_500}  # of 40,000 and 10,000 images
_SPLITS = {"train": "train", "test": "validation"}
_SIDE = 2  # images in a row, and rows
_SEED = 0


def mosaics(split: Split, number: int, seed: int) -> Split:
    """Mosaics of random images, and the classes in each: int [number, 4], sorted, -1 as padding.

    Args:
      split: images of one size with one label each.
      number: of mosaics.
      seed: of the choice of images.

    Raises:
      ValueError: the split has fewer than four images a mosaic.
    """
    per_mosaic = _SIDE**2
    if len(split.ids) < per_mosaic * number:
        raise ValueError(
            f"{number} mosaics need {per_mosaic * number} images, but the split has"
            f" {len(split.ids)}; ask for fewer."
        )
    order = np.argsort(draws.uniforms(seed, "mosaics", split.ids), kind="stable")
    rows = order[: per_mosaic * number].reshape(number, per_mosaic)
    labels = np.sort(split.labels[rows].astype(np.int32), axis=1)
    padding = np.iinfo(labels.dtype).max
    labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = padding
    labels = np.sort(labels, axis=1)
    labels[labels == padding] = -1
    return Split(_in_rows(split.inputs, rows), labels, np.arange(number, dtype=np.int32), {})


def _in_rows(images: UInt8[np.ndarray, "n h w c"], rows: np.ndarray) -> UInt8[np.ndarray, "..."]:
    height, width, channels = images.shape[1:]
    result = np.empty((len(rows), _SIDE * height, _SIDE * width, channels), np.uint8)
    for place in range(rows.shape[1]):
        top, left = np.multiply(divmod(place, _SIDE), (height, width))
        result[:, top : top + height, left : left + width] = images[rows[:, place]]
    return result


def _of_tiny_imagenet(data_dir: str | None) -> Dataset:
    source = store.load("tiny_imagenet", data_dir, splits=_SPLITS)
    splits = {
        name: mosaics(source.splits[name], number, _SEED + i)
        for i, (name, number) in enumerate(_SIZES.items())
    }
    return Dataset(splits, source.class_names)


def _summary(data: Dataset) -> str:
    return f"{np.mean((data.splits['train'].labels >= 0).sum(axis=1)):.2f} labels a mosaic"


@user_errors.one_line()
def main() -> None:
    """Writes tiny_imagenet_mosaics.npz: four images of Tiny-ImageNet in one, with their labels."""
    write_data.main(main.__doc__, {NAME: (_of_tiny_imagenet, _summary)})


if __name__ == "__main__":
    main()
