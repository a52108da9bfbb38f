"""Generated data sets with the features of the VTAB sources."""

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.testing import mocking


def stored(name, data_dir, examples, splits):
    """Prepares a data set with the features of a source and generated examples.

    Args:
      name: TFDS name of the source, optionally with a config.
      data_dir: directory of prepared data sets.
      examples: number -> examples.
      splits: split name -> number of examples.
    """
    source = tfds.builder(name, data_dir=data_dir / "empty", try_gcs=False)
    tfds.dataset_builders.store_as_tfds_dataset(
        name=source.name,
        config=source.builder_config.name if source.builder_config else None,
        version=source.version,
        features=source.info.features,
        split_datasets={
            split: list(enumerate(examples(number))) for split, number in splits.items()
        },
        data_dir=data_dir,
        disable_shuffling=True,
    )


def random(name, data_dir):
    """A function from a number to this many examples with random fields of a source."""
    features = tfds.builder(name, data_dir=data_dir / "empty", try_gcs=False).info.features
    return lambda number: map(
        _in_order, mocking.RandomFakeGenerator(features, number, constant_dynamic_shape=True)
    )


def _in_order(fields):
    """Sorts the corners of bounding boxes, so that the upper left one is first."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _in_order(value)
        elif name.endswith("bbox"):
            fields[name] = np.sort(np.reshape(value, (-1, 2, 2)), axis=1).reshape(np.shape(value))
    return fields


def clevr(number, varied=False):
    draws = np.random.default_rng(number)
    for i in range(number):
        objects = [
            {
                "3d_coords": np.zeros(3, np.float32),
                "color": 0,
                "material": 0,
                "pixel_coords": np.array([0, 0, 7.9 + 0.5 * (i % 5)], np.float32),
                "rotation": 0.0,
                "shape": 0,
                "size": 1,
            }
        ] * (3 + i % 8)
        image = draws.integers(0, 256, (10 + varied * (i % 3), 12, 3)).astype(np.uint8)
        yield {"file_name": str(i), "image": image, "objects": objects, "question_answer": []}


def dsprites(number):
    for i in range(number):
        image = np.zeros((64, 64, 1), np.uint8)
        image[i] = 1
        labels = {
            "label_shape": 0,
            "label_scale": 0,
            "label_orientation": i % 40,
            "label_x_position": i % 32,
        }
        values = {
            f"value_{n}": 0.0 for n in ("shape", "scale", "orientation", "x_position", "y_position")
        }
        yield {"image": image, "label_y_position": 0, **labels, **values}
