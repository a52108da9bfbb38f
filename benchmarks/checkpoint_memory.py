"""Memory that a checkpoint leaves behind, without a run: python benchmarks/checkpoint_memory.py

Orbax alone saves 20 small arrays again and again; then what it asks tensorstore for, call after
call. Told is what the process gains, resident, once the garbage is collected: near 0 where nothing
is lost.
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


def gained(call: Callable[[int], object], before: int, times: int) -> float:
    """Bytes a call, of so many that follow those that fill caches."""
    for i in range(before):
        call(i)
    held = _resident()
    for i in range(before, before + times):
        call(i)
    return (_resident() - held) / times


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Prints bytes by call."""
    print(
        ", ".join(
            f"{name} {metadata.version(name)}" for name in ("orbax-checkpoint", "tensorstore")
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        state = {str(i): jnp.ones((32, 32)) for i in range(20)}
        with ocp.CheckpointManager(Path(directory) / "orbax", options=options) as manager:
            save = gained(
                lambda step: manager.save(step, args=ocp.args.StandardSave(state)), 100, 500
            )
        spec = ts.KvStore.Spec({"driver": "file", "path": f"{directory}/"})
        print(f"a checkpoint of 20 arrays      {save:8.0f} bytes")
        print(
            "Spec.to_json                  "
            f" {gained(lambda _: spec.to_json(), 2_000, 10_000):8.0f} bytes"
        )
        counted = gained(
            lambda _: ts.experimental_collect_matching_metrics("/tensorstore/kvstore/"), 300, 2_000
        )
        print(f"collect_matching_metrics       {counted:8.0f} bytes")


if __name__ == "__main__":
    main()
