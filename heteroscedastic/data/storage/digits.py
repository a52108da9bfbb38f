"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, which come with the library.

Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI (1998).
"""

import numpy as np

from heteroscedastic import curation
from heteroscedastic.data.dataset import Dataset, Split

_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NUM_TEST = 597
_NUM_GROUPS = 20


def digits() -> Dataset:
    """The digits, one an image: 1,200 for training, 597 for test, the same ones always."""
    images, labels, train, test = _load()

    def split(ids):
        return Split(images[ids], labels[ids], ids.astype(np.int32))

    return Dataset({"train": split(train), "test": split(test)}, _NAMES)


def digits_pairs() -> Dataset:
    """Two digits side by side, 8x16 pixels, labelled with the set of both.

    Every image of a split stands four times on each side, next to a random one of the same
    split, so no image of a test pair was ever seen in training; and of the same of its 20 `groups`,
    so that whole groups can be held out and share no image with the rest. Where both are the same
    digit there is one label.
    """
    images, labels, train, test = _load()

    def split(groups, seed):
        draws = np.random.Generator(np.random.Philox(key=seed))
        left = np.concatenate([draws.permutation(ids) for _ in range(4) for ids in groups])
        right = np.concatenate([draws.permutation(ids) for _ in range(4) for ids in groups])
        hot = np.zeros((len(left), len(_NAMES)), bool)
        hot[np.arange(len(left)), labels[left]] = True
        hot[np.arange(len(left)), labels[right]] = True
        pairs = np.concatenate([images[left], images[right]], axis=2)
        of_pair = np.concatenate(
            [np.full(len(ids), g, np.int32) for _ in range(4) for g, ids in enumerate(groups)]
        )
        ids = np.arange(len(left), dtype=np.int32)
        return Split(pairs, curation.label_lists(hot), ids, {"groups": of_pair})

    groups = np.split(np.random.Generator(np.random.Philox(key=3)).permutation(train), _NUM_GROUPS)
    return Dataset({"train": split(groups, 1), "test": split([test], 2)}, _NAMES)


def _load():
    from sklearn import datasets

    loaded = datasets.load_digits()
    images = np.round(loaded.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = loaded.target.astype(np.int32)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    return images, labels, np.sort(order[_NUM_TEST:]), np.sort(order[:_NUM_TEST])
