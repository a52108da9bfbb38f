"""Where the arrays of a run lie: on a mesh of all devices of all hosts, batches cut along it."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

PARAMETERS = ("replicated", "sharded")  # what config.training.parameters may be


class Placement:
    """Shardings of a run over every device that there is.

    Batches are global: they are cut along the mesh whatever the number of devices, so no number
    that a run reports depends on it but for rounding.
    """

    def __init__(self, batch_size: int, parameters: str):
        """Settings of config.training.

        Args:
          batch_size: of the global batch, a multiple of the number of devices.
          parameters: "replicated", or "sharded": parameters and the optimizer's state are cut
            too, each along its longest axis that the devices divide, and gathered where they are used.
        """
        devices = jax.device_count()
        if batch_size % devices:
            raise ValueError(
                f"config.training.batch_size is {batch_size}, but must be a multiple of the {devices} devices."
            )
        self._mesh = jax.make_mesh((devices,), ("batch",), axis_types=(AxisType.Auto,))
        self._parameters = parameters
        self.replicated = NamedSharding(self._mesh, PartitionSpec())
        self.cut = NamedSharding(self._mesh, PartitionSpec("batch"))

    def of_state(self, shapes: Any) -> Any:
        """The sharding of each leaf of a state."""
        if self._parameters == "replicated":
            return jax.tree.map(lambda _: self.replicated, shapes)
        return jax.tree.map(self._longest_axis, shapes)

    def _longest_axis(self, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        fitting = [i for i, size in enumerate(leaf.shape) if size and size % self._mesh.size == 0]
        if not fitting:
            return self.replicated
        axis = max(fitting, key=lambda i: leaf.shape[i])
        return NamedSharding(self._mesh, PartitionSpec(*(None,) * axis, "batch"))

    def put(self, tree: Any, shardings: Any) -> Any:
        """Arrays of the host on the devices; every host holds all of them and keeps its part."""
        if jax.process_count() == 1:
            return jax.device_put(tree, shardings)
        return jax.tree.map(_part, tree, jax.tree.broadcast(shardings, tree))


def _part(array: Any, sharding: NamedSharding) -> jax.Array:
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
