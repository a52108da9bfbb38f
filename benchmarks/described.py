"""A stream that is not there: shapes of what the host would send, so that a step can be compiled
without data.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic.batch import Batch
from heteroscedastic.bind import chain
from heteroscedastic.data import augment
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.pipeline import Places
from heteroscedastic.links import LabelForm
from heteroscedastic.runs import schema

_SIZED = re.compile(r"(?:inception_crop|random_crop|resize)\((\d+)")
_NUM_EXAMPLES = 1_000_000  # of every split; the schedule alone knows it
_MAX_LABELS = 16  # of a list, as a stream has them where nothing is said


def pixels(config: dict[str, Any]) -> int:
    """The side of the images that the host sends."""
    return int(_SIZED.findall(config["data"]["train"])[-1])


class Described:
    """The streaming pipeline of a config whose images end at one size, as far as a step sees it."""

    def __init__(self, config: dict[str, Any]):
        """Settings of a config.

        Args:
          config: whose training chain ends with value_range, the one operation of the device.
        """
        data = config["data"]
        *_, last = data["train"].split("|")
        (self._ranged,) = chain(augment, last)
        self._pixels = pixels(config)
        self._batch_size, self._max_labels = (
            config["training"]["batch_size"],
            data.get("max_labels", _MAX_LABELS),
        )
        told = (*config["evals"].values(), config["validation"] or {"split": "train"})
        self.class_names = tuple(f"class {i}" for i in range(config["head"]["num_classes"]))
        self.class_counts = np.ones(len(self.class_names), np.float32)
        self.sizes = dict.fromkeys(
            ["train", *(settings["split"] for settings in told)], _NUM_EXAMPLES
        )
        self.arrays = dict.fromkeys(self.sizes, ())
        task = schema.task(config)
        any_right = {e["split"] for e in config["evals"].values() if e.get("answers") == "any"}
        self.label_forms: dict[str, LabelForm] = {
            split: "list" if split in any_right else task.labels for split in self.sizes
        }
        self.description, self.kept, self.clean_labels = {}, {}, {}
        self.dataset = Dataset({}, self.class_names)

    def training_feeds(self, epoch: int, start: int, places: Places) -> Iterator[Batch]:
        return iter(())

    def feeds(self, split: str, places: Places) -> Iterator[Batch]:
        return iter(())

    def left_out(self) -> dict[str, list[int]]:
        return {}

    def leave_out(self, ids: Any) -> None:
        pass

    def example(self, split: str, training: bool) -> Batch:
        size = self._batch_size
        lists = (self._max_labels,) if self.label_forms[split] == "list" else ()
        images = np.zeros((size, self._pixels, self._pixels, 3), np.uint8)
        ids = np.zeros(size, np.int32)
        return Batch(images, np.zeros((size, *lists), np.int32), np.ones(size, np.float32), ids, {})

    def training_batch(self, key: Any, arrays: Any, feed: Batch) -> Batch:
        inputs = jax.vmap(functools.partial(self._ranged, key))(feed.inputs)
        return jax.tree.map(jnp.asarray, feed._replace(inputs=inputs))

    batch = training_batch
