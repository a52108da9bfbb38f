"""A streaming pipeline without data, with the shapes that are needed to compile a step."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic.batch import Batch
from heteroscedastic.bind import chain
from heteroscedastic.data import augment, resident
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.pipeline import Slots
from heteroscedastic.links import LabelForm
from heteroscedastic.runs import schema

_IMAGE_SIZE = re.compile(r"(?:inception_crop|random_crop|resize|fit)\((\d+)")
_NARROW = re.compile(r"narrow=(\d+)")
_NUM_EXAMPLES = 1_000_000  # of every split; only the schedule depends on it
_CROWDS = "objects/is_crowd"
_MAX_LABELS = 16  # default length of label lists in a stream


def image_size(config: dict[str, Any]) -> int:
    """The side in pixels of the images that the host sends to the device."""
    return int(_IMAGE_SIZE.findall(config["data"]["train"])[-1])


def canvas(config: dict[str, Any]) -> tuple[int, int]:
    """Their height and width; of a wide image where wide and tall ones differ."""
    size = image_size(config)
    narrow = _NARROW.findall(config["data"]["train"])
    return int(narrow[-1]) if narrow else size, size


class ShapeStream:
    """The parts of a streaming pipeline that a training or evaluation step uses, without data."""

    def __init__(self, config: dict[str, Any]):
        """Creates the pipeline of a config.

        Args:
          config: all its images have one size, and its training chain ends with value_range, the
            only operation on the device. Its extras are none, or `boxes`, perhaps with
            `objects/is_crowd`.
        """
        data = config["data"]
        *_, last = data["train"].split("|")
        self.chain = chain(augment, last)
        (self._value_range,) = self.chain
        self._canvas, self._train = canvas(config), data["train"]
        unknown = set(data["extras"]) - {"boxes", _CROWDS}
        if unknown:
            raise ValueError(
                f"ShapeStream has no extras but boxes and {_CROWDS}, not {', '.join(unknown)}."
            )
        self._has_crowds = _CROWDS in data["extras"]
        self._max_boxes = data["max_boxes"] if data["extras"] else None
        self.occurrences = 2 if "with_mirrored" in self._train else 1
        self._batch_size, self._max_labels = (
            config["training"]["batch_size"],
            data.get("max_labels", _MAX_LABELS),
        )
        evaluations = (*config["evals"].values(), config.get("validation") or {"split": "train"})
        self.class_names = tuple(f"class {i}" for i in range(config["head"]["num_classes"]))
        task = schema.task(config)
        self.class_counts = np.ones(len(self.class_names), np.float32)
        self.class_counts[0] = task.rows == "example"  # else the background
        self.sizes = dict.fromkeys(
            ["train", *(settings["split"] for settings in evaluations)], _NUM_EXAMPLES
        )
        self.arrays, self.own_chains = dict.fromkeys(self.sizes, ()), {}
        list_splits = {e["split"] for e in config["evals"].values() if e.get("answers") == "any"}
        self.label_forms: dict[str, LabelForm] = {
            split: "list" if split in list_splits else task.stored_labels for split in self.sizes
        }
        self.description, self.example_ids, self.clean_labels = {}, {}, {}
        self.dataset = Dataset({}, self.class_names)

    @property
    def steps_per_epoch(self) -> int:
        return resident.steps_per_epoch(self.occurrences * self.sizes["train"], self._batch_size)

    def training_feeds(
        self, epoch: int, start: int, slots: Slots, selected: Any = None
    ) -> Iterator[Batch]:
        return iter(())

    def feeds(self, split: str, slots: Slots) -> Iterator[Batch]:
        return iter(())

    def left_out(self) -> dict[str, list[int]]:
        return {}

    def leave_out(self, ids: Any) -> None:
        pass

    def example(self, split: str, training: bool) -> Batch:
        size = self._batch_size
        lists = (self._max_labels,) if self.label_forms[split] == "list" else ()
        is_float = training and ("blend_jitter" in self._train or "lighting" in self._train)
        pixels = (*self._canvas, 3)
        return Batch(
            inputs=np.zeros((size, *pixels), np.float32 if is_float else np.uint8),
            labels=np.zeros((size, *lists), np.int32),
            weights=np.ones(size, np.float32),
            ids=np.zeros(size, np.int32),
            extras={} if self._max_boxes is None else self._extras(training),
        )

    def _extras(self, training: bool) -> dict[str, np.ndarray]:
        size = self._batch_size
        is_alone = training and "mask_others" in self._train
        extras = {"boxes": np.zeros((size, 1 if is_alone else self._max_boxes, 4), np.float32)}
        if "fit(" in self._train:
            sizes = np.tile(np.float32(self._canvas), (size, 1))
            extras |= {"image_size": sizes, "stored_size": sizes}
        if self._has_crowds:
            extras[_CROWDS] = np.zeros(extras["boxes"].shape[:2], bool)
        if training and "context(" in self._train:
            extras["context"] = np.zeros(size, bool)
        return extras

    def training_batch(self, key: Any, arrays: Any, feed: Batch) -> Batch:
        examples = jax.vmap(functools.partial(self._value_range, key))({"image": feed.inputs})
        inputs = examples["image"]
        return jax.tree.map(jnp.asarray, feed._replace(inputs=inputs))

    def batch(self, key: Any, arrays: Any, feed: Batch, chain_of: str | None = None) -> Batch:
        return self.training_batch(key, arrays, feed)
