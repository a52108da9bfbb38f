"""Memory leaked per checkpoint, measured without a run: python benchmarks/checkpoint_memory.py

Orbax saves 20 small arrays repeatedly; then the TensorStore calls that it makes are repeated alone.
Reported is the growth of resident memory per call after garbage collection, near 0 without a leak.
"""

import gc
import os
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp
import tensorstore as ts


def growth_per_call(call: Callable[[int], object], num_warmup: int, num_calls: int) -> float:
    """Growth of resident memory in bytes per call, after calls that fill caches."""
    for i in range(num_warmup):
        call(i)
    before = _resident_bytes()
    for i in range(num_warmup, num_warmup + num_calls):
        call(i)
    return (_resident_bytes() - before) / num_calls


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Prints the growth of memory per call."""
    print(
        ", ".join(
            f"{name} {metadata.version(name)}" for name in ("orbax-checkpoint", "tensorstore")
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        state = {str(i): jnp.ones((32, 32)) for i in range(20)}
        with ocp.CheckpointManager(Path(directory) / "orbax", options=options) as manager:
            save = growth_per_call(
                lambda step: manager.save(step, args=ocp.args.StandardSave(state)), 100, 500
            )
        spec = ts.KvStore.Spec({"driver": "file", "path": f"{directory}/"})
        print(f"checkpoint of 20 arrays        {save:8.0f} bytes")
        print(
            "Spec.to_json                  "
            f" {growth_per_call(lambda _: spec.to_json(), 2_000, 10_000):8.0f} bytes"
        )
        collect = growth_per_call(
            lambda _: ts.experimental_collect_matching_metrics("/tensorstore/kvstore/"), 300, 2_000
        )
        print(f"collect_matching_metrics       {collect:8.0f} bytes")


if __name__ == "__main__":
    main()
