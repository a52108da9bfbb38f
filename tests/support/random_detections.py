"""Predictions of a detector that are drawn at random, as tasks.detection.Predictions has them."""

import numpy as np


def random_detections(seed, num_images, num_classes=2):
    """Images of up to four boxes and eight detections, some of them near a box of their class."""
    rng = np.random.default_rng(seed)
    corners, sides = rng.uniform(0, 60, (num_images, 4, 2)), rng.uniform(20, 40, (num_images, 4, 2))
    true_boxes = np.concatenate([corners, corners + sides], axis=-1)
    true_classes = rng.integers(1, num_classes + 1, (num_images, 4))
    boxes = np.tile(true_boxes, (1, 2, 1)) + rng.normal(0, 3, (num_images, 8, 4))
    classes = np.tile(true_classes, (1, 2))
    is_other = rng.random(classes.shape) < 0.3
    classes = np.where(is_other, rng.integers(1, num_classes + 1, classes.shape), classes)
    return dict(
        image_ids=np.arange(num_images),
        boxes=boxes.astype(np.float32),
        classes=np.where(rng.random(classes.shape) < 0.2, -1, classes),
        scores=rng.random(classes.shape).astype(np.float32),
        true_boxes=true_boxes.astype(np.float32),
        true_classes=np.where(rng.random(true_classes.shape) < 0.2, -1, true_classes),
        true_crowds=rng.random(true_classes.shape) < 0.15,
        true_areas=np.prod(sides, axis=-1).astype(np.float32),
    )
