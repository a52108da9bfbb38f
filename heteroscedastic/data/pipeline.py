"""What a run asks of its data, be it resident or a stream."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from heteroscedastic.batch import Batch
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.links import LabelForm

Places = Int[
    np.ndarray, "part"
]  # rising places of a global batch, such as those that one host holds


class Selected(NamedTuple):
    """The examples of an epoch, in any order; an example may occur more than once."""

    rows: Int[np.ndarray, "m"]  # positions in the training split
    weights: Float[np.ndarray, "m"]


@runtime_checkable
class Pipeline(Protocol):
    """Batches in training and evaluation: the host makes feeds, and a step makes batches of them."""

    class_names: tuple[str, ...]
    sizes: Mapping[str, int]  # examples of every split
    label_forms: Mapping[str, LabelForm]  # by split: one label per example, or a list of them
    class_counts: Float[np.ndarray, "k"]  # labels in training; 0 where nobody asked for them
    description: dict[str, Any]  # for dataset.json
    dataset: Dataset  # in memory
    kept: Mapping  # ids of every example, by split, those among them too that cannot be decoded
    clean_labels: Mapping  # arrays, by split, in the order of `kept`: without known noise
    arrays: dict[str, Any]  # by split, what the devices hold all the time

    def training_feeds(
        self, epoch: int, start: int, places: Places, selected: Selected | None = None
    ) -> Iterator[Any]:
        """An epoch from step `start` on: every example once, or the selected ones.

        Args:
          epoch: from 0; the order follows from the seed and it.
          start: steps of the epoch that are left out.
          places: of each batch, that this host feeds.
          selected: the examples of the epoch; None is all of them.

        Raises:
          ValueError: the pipeline cannot select.
        """
        ...

    def feeds(self, split: str, places: Places) -> Iterator[Any]:
        """A split in a fixed order, every example once, at these places of each batch."""
        ...

    def example(self, split: str, training: bool) -> Any:
        """A global feed of the shapes of all others."""
        ...

    def training_batch(self, key: PRNGKeyArray, arrays: Any, feed: Any) -> Batch:
        """What a step of training sees of a feed; inside it."""
        ...

    def batch(self, key: PRNGKeyArray, arrays: Any, feed: Any) -> Batch:
        """What a step of evaluation sees of a feed; inside it."""
        ...

    def left_out(self) -> dict[str, list[int]]:
        """By split, ids of the examples that this process met and could not decode."""
        ...

    def leave_out(self, ids: Mapping[str, Sequence[int]]) -> None:
        """Leaves out what other hosts, or a process before this one, could not decode: ids by
        split.
        """
        ...
