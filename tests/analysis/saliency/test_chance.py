"""Maps of random weights against chance, which is the map of another image."""

from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import study
from heteroscedastic.analysis.saliency import evaluation
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.runs import assembly
from heteroscedastic.runs.loaded_run import LoadedRun

NAMES, SIZE, NUM_IMAGES, SEEDS = ("a", "b", "c"), 16, 300, 3


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Images of noise with a box near the middle; `bright` images are brighter in the box."""
    directory, rng = tmp_path_factory.mktemp("chance"), np.random.default_rng(0)
    images = rng.integers(0, 100, (NUM_IMAGES, SIZE, SIZE, 3))
    corners = np.clip(rng.normal(SIZE / 2 - 3, 2, (NUM_IMAGES, 2)), 0, SIZE - 6).astype(int)
    boxes = np.concatenate([corners, corners + 6], axis=-1)
    bright = images.copy()
    for image, (top, left, bottom, right) in zip(bright, boxes):
        image[top:bottom, left:right] += 150
    labels = rng.integers(0, len(NAMES), NUM_IMAGES)
    for name, values in (("noise", images), ("bright", bright)):
        arrays = {"class_names": np.array(NAMES)}
        for split in ("train", "test"):
            arrays[f"{split}_inputs"] = values.astype(np.uint8)
            arrays[f"{split}_labels"] = labels
            arrays[f"{split}_boxes"] = (boxes / SIZE)[:, None].astype(np.float32)
        np.savez(directory / f"{name}.npz", **arrays)
    return str(directory)


def advantages(data_dir, name, num_seeds):
    """By control and metric: of each image the run's score less the control's, mean over seeds."""
    chain = "value_range(-1, 1)"
    data = dict(name=name, train=chain, eval=chain, extras=("boxes",), max_boxes=1)
    settings = {
        "data": data | {"validation_fraction": 0.25},
        "curation": "",
        "backbone": dict(name="ConvNet", widths=(8, 16)),
        "head.num_classes": len(NAMES),
    }
    run = assembly.build(study.config("digits_het_full", settings), data_dir)
    init = jax.jit(run.init)
    by_seed = []
    for seed in range(num_seeds):
        state = jax.tree.map(np.asarray, init(jax.random.key(seed)))
        one = LoadedRun(Path("run"), run, {}, {"class_names": NAMES}, state)
        found = evaluation.located(one, "test", Question("class", "grad_cam_pp", "label"))
        assert len(found.ids) == NUM_IMAGES
        scores = {kind: evaluation.metrics(x, None) for kind, x in found.by_map.items()}
        own = scores.pop("map")
        by_seed.append(
            {(kind, m): own[m] - other[m] for kind, other in scores.items() for m in own}
        )
    return {key: np.mean([seed[key] for seed in by_seed], axis=0) for key in by_seed[0]}


def in_standard_errors(values):
    return values.mean() / (values.std(ddof=1) / np.sqrt(len(values)))


def test_random_weights_localise_as_chance_and_worse_than_the_centre(data_dir):
    found = advantages(data_dir, "noise", SEEDS)
    for metric in ("pointing", "mass"):  # at 0.2 of the maximum, the box is the entire image
        chance = found["map of another image", metric]
        assert abs(in_standard_errors(chance)) < 3.5, metric
        assert in_standard_errors(found["centred Gaussian", metric]) < -3.5, metric


def test_random_weights_find_an_object_that_is_brighter_than_the_rest(data_dir):
    """So chance is that of objects that do not stand out, and the law above has power."""
    found = advantages(data_dir, "bright", 1)
    for metric in ("pointing", "mass"):
        assert in_standard_errors(found["map of another image", metric]) > 3.5, metric
