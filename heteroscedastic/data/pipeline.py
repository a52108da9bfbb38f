"""The interface of the resident, the streaming and the text pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from heteroscedastic.batch import Batch
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.links import LabelForm
from heteroscedastic.selection import Selected

# Increasing slots of a global batch, such as those of one host.
Slots = Int[np.ndarray, "part"]


@runtime_checkable
class Pipeline(Protocol):
    """Batches for training and evaluation: the host makes feeds, a step makes batches of them."""

    class_names: tuple[str, ...]
    sizes: Mapping[str, int]  # number of examples of every split
    label_forms: Mapping[str, LabelForm]  # by split: one label per example, or a list of them
    class_counts: Float[np.ndarray, "k"]  # labels in training; 0 where labels were not read
    occurrences: int  # of each training example in an epoch
    steps_per_epoch: int  # of training, of all examples
    description: dict[str, Any]  # for dataset.json
    dataset: Dataset  # in memory, as evaluation sees it
    example_ids: Mapping  # ids by split, including those of examples that cannot be decoded
    clean_labels: (
        Mapping  # arrays by split, in the order of `example_ids`; labels without known noise
    )
    arrays: dict[str, Any]  # by split, arrays that stay on the devices
    chain: Sequence[Any]  # operations of the evaluations
    own_chains: Mapping[str, Any]  # operations of the splits that have a chain of their own

    def training_feeds(
        self, epoch: int, start: int, slots: Slots, selected: Selected | None = None
    ) -> Iterator[Any]:
        """Feeds of an epoch from step `start`: all or the selected examples, `occurrences` times.

        Args:
          epoch: from 0; it and the seed determine the order.
          start: number of steps of the epoch to skip.
          slots: the slots of each batch that this host feeds.
          selected: the examples of the epoch; None is all of them.

        Raises:
          ValueError: the pipeline cannot select.
        """
        ...

    def feeds(self, split: str, slots: Slots) -> Iterator[Any]:
        """Feeds of a split in a fixed order, for these slots of each batch.

        Every example occurs once.
        """
        ...

    def example(self, split: str, training: bool) -> Any:
        """A global feed with the shapes and types of every feed.

        Where images have two canvases, it has those of feeds of one of them.
        """
        ...

    def training_batch(self, key: PRNGKeyArray, arrays: Any, feed: Any) -> Batch:
        """The training batch of a feed; called inside the jitted step."""
        ...

    def batch(
        self, key: PRNGKeyArray, arrays: Any, feed: Any, chain_of: str | None = None
    ) -> Batch:
        """The evaluation batch of a feed; called inside the jitted step.

        Args:
          key: of the operations.
          arrays: of the split.
          feed: of the split.
          chain_of: the split, if it has a chain of its own; static.
        """
        ...

    def left_out(self) -> dict[str, list[int]]:
        """Ids of the examples that this process could not decode, by split."""
        ...

    def leave_out(self, ids: Mapping[str, Sequence[int]]) -> None:
        """Leaves out examples that other hosts or an earlier process could not decode.

        Args:
          ids: ids by split.
        """
        ...
