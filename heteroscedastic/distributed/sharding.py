"""Sharding of the arrays of a run over a mesh of all devices of all hosts."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from heteroscedastic.distributed.class_padding import ClassAxis
from heteroscedastic.training.state import TrainState

PARAMETERS = ("replicated", "sharded")  # choices of config.training.parameters


class Placement:
    """Shardings of a run over a mesh of all devices, with axes `batch` and `class`.

    Batches are global, so results do not depend on the number of devices, up to rounding.

    With several class shards, everything that the head computes per class in training stays on its
    shard: parameters, utilities and noise. The compiler propagates this from the sharding of the
    parameters. Devices exchange maxima and sums over classes, one number per example and sample
    (with noise on the features, one per feature). Evaluation gathers the logits of a batch, without
    samples.
    """

    def __init__(
        self,
        batch_size: int,
        parameters: str = "replicated",
        class_shards: int = 1,
        num_microbatches: int = 1,
        devices: Sequence[jax.Device] | None = None,
    ):
        """Takes settings of config.training, and the devices.

        Args:
          batch_size: size of the global batch; each of its microbatches is a multiple of the number
            of devices that divide the batch.
          parameters: "replicated", or "sharded": each array of parameters and optimizer state is
            divided along its longest axis that the devices divide, and gathered when it is used.
          class_shards: number of devices that divide the class axis; the others divide the batch.
          num_microbatches: number of consecutive parts of a batch; a device computes its own
            examples of each part.
          devices: devices of the mesh; None is all devices of this run. Devices of another machine
            serve to compile for it.
        """
        number = jax.device_count() if devices is None else len(devices)
        if number % class_shards:
            raise ValueError(
                f"config.training.class_shards is {class_shards}, but must divide the number of"
                f" devices, {number}; a run may continue with another number of shards."
            )
        cutting = number // class_shards
        if batch_size % cutting:
            raise ValueError(
                f"config.training.batch_size is {batch_size}, but must be a multiple of {cutting},"
                f" the {number} devices over class_shards."
            )
        if batch_size // cutting % num_microbatches:
            raise ValueError(
                f"config.training.microbatches is {num_microbatches}, but must divide the"
                f" {batch_size // cutting} examples that each of {cutting} devices has of a batch"
                f" of {batch_size}."
            )
        shape = (cutting, class_shards)
        self._mesh = jax.make_mesh(
            shape, ("batch", "class"), axis_types=(AxisType.Auto,) * 2, devices=devices
        )
        self._parameters, self._class_shards = parameters, class_shards
        self.replicated = NamedSharding(self._mesh, PartitionSpec())
        self.cut = NamedSharding(self._mesh, PartitionSpec("batch"))

    def of_state(self, shapes: TrainState, classes: ClassAxis | None) -> TrainState:
        """The sharding of each leaf of a state, with or without padding classes."""
        if classes is None:
            sharding = jax.tree.map(lambda x: self._of_leaf(x, -1), shapes)
        else:
            sharding = jax.tree.map(self._of_leaf, shapes, classes.axes)
        # Every host reads the scores of all examples.
        scores = jax.tree.map(lambda _: self.replicated, shapes.scores)
        return sharding._replace(scores=scores)

    def _of_leaf(self, leaf: jax.ShapeDtypeStruct, class_axis: int) -> NamedSharding:
        cuts: list[Any] = [None] * len(leaf.shape)
        over, any_axis = ("batch", "class"), self._parameters == "sharded"
        if class_axis >= 0 and self._class_shards > 1:
            if leaf.shape[class_axis] % self._class_shards == 0:
                # Divided over the devices of the batch too, its results would be exchanged, one
                # number per example and class.
                cuts[class_axis], any_axis = "class", False
            else:  # without padding; a single device could not hold the array
                any_axis = True
        number = math.prod(self._mesh.shape[name] for name in over)
        fitting = [
            i for i, size in enumerate(leaf.shape) if not cuts[i] and size and size % number == 0
        ]
        if any_axis and fitting:
            cuts[max(fitting, key=lambda i: leaf.shape[i])] = over
        return NamedSharding(self._mesh, PartitionSpec(*cuts))

    def put(self, tree: Any, shardings: Any) -> Any:
        """Puts arrays on the devices; every host passes full arrays, and its devices take parts."""
        if jax.process_count() == 1:
            return jax.device_put(tree, shardings)
        return jax.tree.map(_part, tree, jax.tree.broadcast(shardings, tree))

    def slots(self, batch_size: int) -> np.ndarray:
        """The rows of a global batch that devices of this process hold, in order."""
        cuts = self.cut.addressable_devices_indices_map((batch_size,)).values()
        return np.unique(np.concatenate([np.arange(batch_size)[cut] for cut in cuts]))

    def feed(self, part: Any, batch_size: int) -> Any:
        """The global feed of a step, of which each process passes its rows.

        Scalars are the same on all processes.
        """

        def put(x):
            if not x.ndim:
                return self.put(x, self.replicated)
            return jax.make_array_from_process_local_data(self.cut, x, (batch_size, *x.shape[1:]))

        return jax.tree.map(put, part)


def _part(array: Any, sharding: NamedSharding) -> jax.Array:
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
