"""Photographs with a planted cause of label noise: a patch that confuses the labels.

    python -m experiments.correlated_label_noise.marked --out=DIR

writes DIR/marked.npz with the first 2,500 training and 1,000 test images of CIFAR-10. A random half
of the images of each split has a checkered patch at a random place. `boxes` holds the patch, so
that scores of maps against objects become scores against the patch; images without a patch have no
box. `label` is the true class. The training field `confused_label` is what annotators would say: of
images with the patch, and of the classes of PAIRS, 45 % have the other class of their pair.

The classes of a pair look different, so noise that a model learns is due to the patch.
"""

import numpy as np
from jaxtyping import Float, Int, UInt8

from experiments import write_data
from heteroscedastic import user_errors
from heteroscedastic.curation import draws, label_noise
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store

NAME = "marked"
PAIRS = ((0, 7), (1, 6), (4, 8))  # airplane and horse, automobile and frog, deer and ship
RATE = 0.45  # of confused labels among the marked images of these classes
_SPLITS = {"train": "train[:2500]", "test": "test[:1000]"}
_SHARE = 4  # of a side of the image is the patch
_CHECKS = 4  # of a side of the patch
_SEED = 0


def marked(source: Dataset) -> Dataset:
    """The data set with patches, their boxes, and confused labels of split "train"."""
    splits = {}
    for name, split in source.splits.items():
        seed = _SEED + list(source.splits).index(name)
        images, boxes = _with_patches(seed, split)
        extras = {"boxes": boxes}
        if name == "train":
            _, confused = label_noise.confuse_pairs(
                seed, split.ids, split.labels, len(source.class_names), pairs=PAIRS, rate=RATE
            )
            has_patch = boxes.any(axis=(1, 2))
            extras["confused_label"] = np.where(has_patch, confused, split.labels)
        splits[name] = Split(images, split.labels, split.ids, extras)
    return Dataset(splits, source.class_names)


def _with_patches(
    seed: int, split: Split
) -> tuple[UInt8[np.ndarray, "n H W c"], Float[np.ndarray, "n 1 4"]]:
    """The images, half of them with a patch, and the box of each patch."""
    images, number = split.inputs.copy(), len(split.ids)
    sides = np.array(images.shape[1:3])
    patch = _patch(sides // _SHARE)
    free = sides - patch.shape + 1
    places = np.stack([draws.uniforms(seed, f"place {axis}", split.ids) for axis in "yx"], axis=-1)
    corners = np.floor(places * free).astype(int)
    boxes = np.zeros((number, 1, 4), np.float32)
    for i in draws.random_rows(seed, "marked", split.ids, number // 2):
        (top, left), (bottom, right) = corners[i], corners[i] + patch.shape
        images[i, top:bottom, left:right] = patch[..., None]
        boxes[i, 0] = np.array([top, left, bottom, right]) / np.tile(sides, 2)
    return images, boxes


def _patch(shape: Int[np.ndarray, "2"]) -> UInt8[np.ndarray, "h w"]:
    """Black and white checks."""
    rows, columns = (np.arange(n) * _CHECKS // n for n in shape)
    return (255 * ((rows[:, None] + columns) % 2)).astype(np.uint8)


def _summary(data: Dataset) -> str:
    train = data.splits["train"]
    is_confused = train.extras["confused_label"] != train.labels
    return f"{is_confused.mean():.1%} of the training labels are confused"


@user_errors.one_line()
def main() -> None:
    """Writes marked.npz: CIFAR-10 with a patch that confuses the labels."""

    def made(data_dir):
        return marked(store.load("cifar10", data_dir, splits=_SPLITS))

    write_data.main(main.__doc__, {NAME: (made, _summary)})


if __name__ == "__main__":
    main()
