"""Zones, host software and compiler flags for each kind of accelerator.

A kind is the first part of an accelerator type: v3-32 has 32 cores on 16 chips (4x4), v5litepod-32
and v6e-32 have 32 chips. Zones: https://cloud.google.com/tpu/docs/regions-zones (TPU v3 with
several hosts is available in europe-west4-a only). Software:
https://cloud.google.com/tpu/docs/runtimes.

An unknown compiler flag ends a run at its start, and the known flags depend on the version of
jaxlib or libtpu. Therefore only flags are set that are documented, apply to these runs and are not
on by default. These flags are not set:

- xla_tpu_enable_async_collective_fusion_fuse_all_gather and other flags of asynchronous
  all-gathers: on by default, see https://openxla.org/xla/flags_guidance
- xla_tpu_enable_data_parallel_all_reduce_opt: for several slices, whereas a run uses one slice, see
  https://docs.jax.dev/en/latest/xla_flags.html
- xla_tpu_spmd_rng_bit_generator_unsafe, on the same page: noise would depend on the number of
  devices
- xla_gpu_all_reduce_combine_threshold_bytes and other thresholds for joining collectives of GPUs:
  must be measured, see https://docs.jax.dev/en/latest/gpu_performance_tips.html
"""

import re
from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of TPU."""

    zone: str
    version: str  # version of the host software
    environment: Mapping[str, str] = {}


_KINDS = {
    "v3": Kind("europe-west4-a", "tpu-ubuntu2204-base"),
    "v5litepod": Kind(
        "europe-west4-b",
        "v2-alpha-tpuv5-lite",
        # Training communicates sums between chips: gradients and batch statistics. Both flags let
        # an all-reduce of v5e overlap with computation; the first is on by default, the second is
        # not ("v5e/Async" in https://openxla.org/xla/flags_guidance, which recommends both).
        {
            "LIBTPU_INIT_ARGS": "--xla_tpu_enable_async_collective_fusion=true"
            " --xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true"
        },
    ),
    "v6e": Kind("europe-west4-a", "v2-alpha-tpuv6e"),
}

GPU_ENVIRONMENT = {
    # Collectives overlap with computation; off by default:
    # https://docs.jax.dev/en/latest/gpu_performance_tips.html
    "XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true",
}


def tpu(accelerator: str) -> Kind:
    """The kind of an accelerator type such as v3-32.

    Raises:
      ValueError: the type is not valid or its kind is unknown.
    """
    kind, _, size = accelerator.partition("-")
    if kind not in _KINDS or not re.fullmatch(r"[1-9][0-9]{0,4}", size):
        raise ValueError(
            f"--accelerator is {accelerator!r}, but must be one of {', '.join(_KINDS)} and a size,"
            " such as v3-32."
        )
    return _KINDS[kind]
