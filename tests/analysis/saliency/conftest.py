"""Small finished runs on images with boxes."""

import numpy as np
import pytest
from small_runs import trained_once

from experiments import study
from heteroscedastic.runs import loop

NAMES = ("rows", "columns", "checks")
SIZE, PATCH, CROP = 16, 4, 8


def image_of(rng, label):
    """A patch with the texture of its class on a dark image, and its box."""
    top, left = rng.integers(0, SIZE - PATCH + 1, 2)
    image = rng.integers(0, 40, (SIZE, SIZE, 3))
    y, x = np.mgrid[:PATCH, :PATCH]
    texture = (y % 2, x % 2, (y + x) % 2)[label]
    image[top : top + PATCH, left : left + PATCH] = (55 + 200 * texture)[..., None]
    return image.astype(np.uint8), np.array([top, left, top + PATCH, left + PATCH]) / SIZE


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    directory, rng = tmp_path_factory.mktemp("patches"), np.random.default_rng(0)
    arrays = {"class_names": np.array(NAMES)}
    for split, number in (("train", 120), ("test", 36)):
        labels = rng.integers(0, 3, number)
        images, boxes = zip(*(image_of(rng, label) for label in labels))
        arrays[f"{split}_inputs"], arrays[f"{split}_labels"] = np.stack(images), labels
        arrays[f"{split}_boxes"] = np.stack(boxes)[:, None].astype(np.float32)
    np.savez(directory / "patches.npz", **arrays)
    return str(directory)


def config(
    config_name="digits_het_full", chain=f"central_crop({CROP})|value_range(-1, 1)", **settings
):
    """A config of the images, seen through a crop that loses some boxes."""
    data = dict(
        name="patches",
        train="value_range(-1, 1)",
        eval=chain,
        validation_fraction=0.25,
        extras=("boxes",),
        max_boxes=1,
    )
    overrides = {
        "data": data,
        "curation": "",
        "backbone": dict(name="ConvNet", widths=(8, 16)),
        "training.num_epochs": 3.0,
        "training.checkpoint_epochs": 1.0,
        "training.batch_size": 30,
        "head.num_classes": 3,
    }
    return study.config(config_name, overrides | settings)


@pytest.fixture(scope="session")
def train(data_dir, tmp_path_factory):
    """Trains a config in a directory of this name."""

    def trained(name, *arguments, **settings):
        made = config(*arguments, **settings)
        return trained_once(
            tmp_path_factory, f"saliency/{name}", lambda path: loop.train(made, str(path), data_dir)
        )

    return trained


@pytest.fixture(scope="session")
def noisy(train):
    """A low-rank head that learns its temperature."""
    return train("noisy/seed_0", **{"head.temperature": (1.0, 4.0), "predictive.num_samples": 16})


@pytest.fixture(scope="session")
def plain(train):
    return train("plain/seed_0", "digits_hom")


@pytest.fixture(scope="session")
def mlp(train):
    """A backbone without maps."""
    parts = dict(backbone=dict(name="MLP", widths=(8,)), predictive=dict(name="mean_field"))
    return train("mlp", "digits_het_diag", "value_range(-1, 1)", **parts)
