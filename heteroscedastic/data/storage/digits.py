"""The handwritten digits that scikit-learn contains: 1,797 images of 8x8 pixels.

Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI (1998).
"""

import numpy as np

from heteroscedastic import label_lists
from heteroscedastic.data import mosaics
from heteroscedastic.data.dataset import Dataset, Split

_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NUM_TEST = 597
_NUM_GROUPS = 20


def digits() -> Dataset:
    """One digit per image, in a fixed split of 1,200 training and 597 test images."""
    images, labels, train, test = _load()

    def split(ids):
        return Split(images[ids], labels[ids], ids.astype(np.int32))

    return Dataset({"train": split(train), "test": split(test)}, _NAMES)


def digits_pairs() -> Dataset:
    """Two digits side by side, 8x16 pixels, labelled with both digits.

    Two equal digits have one label. Every image of a split occurs four times on each side, beside a
    random image of the same split, so no image of a test pair occurs in training. Training images
    are divided into 20 `groups`, and pairs are drawn within a group, so that held-out groups share
    no image with the rest.
    """
    images, labels, train, test = _load()

    def split(groups, seed):
        generator = np.random.Generator(np.random.Philox(key=seed))
        left = np.concatenate([generator.permutation(ids) for _ in range(4) for ids in groups])
        right = np.concatenate([generator.permutation(ids) for _ in range(4) for ids in groups])
        hot = np.zeros((len(left), len(_NAMES)), bool)
        hot[np.arange(len(left)), labels[left]] = True
        hot[np.arange(len(left)), labels[right]] = True
        pairs = np.concatenate([images[left], images[right]], axis=2)
        group_of_pair = np.concatenate(
            [np.full(len(ids), g, np.int32) for _ in range(4) for g, ids in enumerate(groups)]
        )
        ids = np.arange(len(left), dtype=np.int32)
        return Split(pairs, label_lists.from_multi_hot(hot), ids, {"groups": group_of_pair})

    groups = np.split(np.random.Generator(np.random.Philox(key=3)).permutation(train), _NUM_GROUPS)
    return Dataset({"train": split(groups, 1), "test": split([test], 2)}, _NAMES)


def digits_mosaics() -> Dataset:
    """Two to four digits of 8 to 15 pixels in an image of 32x32 pixels, with their boxes.

    Images of a split show digits of that split alone, each about twice; see `mosaics`.
    """
    images, labels, train, test = _load()

    def split(ids, seed):
        return mosaics.mosaics(
            images[ids],
            labels[ids],
            np.tile([0.0, 0.0, 1.0, 1.0], (len(ids), 1)),
            number=len(ids) * 2 // 3,
            seed=seed,
            quarter=16,
            smallest=8,
            counts=(2, 4),
            resized=_nearest,
        )

    names = ("background", *_NAMES)
    return Dataset({"train": split(train, 4), "test": split(test, 5)}, names)


def _nearest(digit, side):
    """A digit at another size."""
    nearest = np.arange(side) * len(digit) // side
    return digit[nearest][:, nearest]


def _load():
    from sklearn import datasets

    digits = datasets.load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int32)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    return images, labels, np.sort(order[_NUM_TEST:]), np.sort(order[:_NUM_TEST])
