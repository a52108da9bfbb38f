"""Memory that the process keeps between steps, where the host computes them."""

import ctypes
import os
from pathlib import Path

# Parameters of glibc's mallopt (malloc.h), the environment variable of each, and our value: large
# blocks come from the heap, the heap does not shrink, and all threads use the one heap that can
# hold them.
_SETTINGS = (
    (-4, "MALLOC_MMAP_MAX_", 0),
    (-1, "MALLOC_TRIM_THRESHOLD_", -1),
    (-8, "MALLOC_ARENA_MAX", 1),
)
# On a host of an accelerator, threads that decode images would wait for each other's heap.
_ACCELERATORS = ("nvidiactl", "kfd", "accel0", "vfio")


def keep() -> None:
    """Makes glibc keep freed memory for the next step; called by commands before they compute.

    Otherwise each large array of a step is new memory, which the system clears page by page. Only
    threads that begin after the call use the one heap, and JAX starts its threads at the first
    computation. Does nothing without glibc, beside an accelerator, or for a setting that the
    environment has.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any((Path("/dev") / name).exists() for name in _ACCELERATORS):
        return
    for parameter, variable, value in _SETTINGS:
        if variable not in os.environ:
            mallopt(parameter, value)
