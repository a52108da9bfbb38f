"""What each kind of accelerator needs: a zone that has it, the software of its hosts, and flags of
its compiler.

Zones: https://cloud.google.com/tpu/docs/regions-zones (of TPU v3, more than one host is in
europe-west4-a alone). Software: https://cloud.google.com/tpu/docs/runtimes. A kind is what a type
begins with: v3-32 has 32 cores on 16 chips (4x4), v5litepod-32 and v6e-32 have 32 chips.

An unknown flag ends a run as it starts, and which there are depends on the version of jaxlib or
libtpu; so only those are here that are documented, apply to a run of ours, and are not what the
compiler does anyway. Left out:
- the flags of asynchronous all-gathers (xla_tpu_enable_async_collective_fusion_fuse_all_gather and
others), which are
  on by themselves: https://openxla.org/xla/flags_guidance
- xla_tpu_enable_data_parallel_all_reduce_opt, which is for several slices, and a run here has one:
  https://docs.jax.dev/en/latest/xla_flags.html
- xla_tpu_spmd_rng_bit_generator_unsafe, also there: noise would depend on how many devices there
are.
- thresholds for joining collectives of GPUs (xla_gpu_all_reduce_combine_threshold_bytes and
others), which are to be
  measured: https://docs.jax.dev/en/latest/gpu_performance_tips.html
"""

import re
from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of TPU."""

    zone: str
    version: str  # of the software on its hosts
    environment: Mapping[str, str] = {}


_KINDS = {
    "v3": Kind("europe-west4-a", "tpu-ubuntu2204-base"),
    "v5litepod": Kind(
        "europe-west4-b",
        "v2-alpha-tpuv5-lite",
        # What crosses chips in training are sums: gradients and batch statistics. The first flag is
        # on by itself and the second is not; together they let an all-reduce of v5e run beside
        # computation ("v5e/Async" in https://openxla.org/xla/flags_guidance, which suggests both).
        {
            "LIBTPU_INIT_ARGS": "--xla_tpu_enable_async_collective_fusion=true"
            " --xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true"
        },
    ),
    "v6e": Kind("europe-west4-a", "v2-alpha-tpuv6e"),
}

GPU_ENVIRONMENT = {
    # Collectives run beside computation, which is off by default:
    # https://docs.jax.dev/en/latest/gpu_performance_tips.html
    "XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true",
}


def tpu(accelerator: str) -> Kind:
    """What is known of a type such as v3-32.

    Raises:
      ValueError: it is of no known kind, or no type at all.
    """
    kind, _, size = accelerator.partition("-")
    if kind not in _KINDS or not re.fullmatch(r"[1-9][0-9]{0,4}", size):
        raise ValueError(
            f"--accelerator is {accelerator!r}, but must be {', '.join(_KINDS)} and a size: v3-32."
        )
    return _KINDS[kind]
