"""Shapes in signatures are checked on every call of every test."""

import gc
import os
import tempfile

import pytest
from jaxtyping import install_import_hook

install_import_hook("heteroscedastic", "typechecking.checked")

# Most of the time goes into compiling, and what is compiled runs once or twice. XLA's own passes
# are all there; those of LLVM are not, and the older code generator of fusions takes half the time.
# A program is not split into parts to compile side by side, as each core runs a test already.
# `XLA_FLAGS=--xla_backend_optimization_level=3 pytest` tests what users run, and takes longer.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

# What several tests compile, some in processes of their own, is compiled once; no run of the tests
# knows another's.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _COMPILED = tempfile.TemporaryDirectory()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _COMPILED.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.0"

# Modules and collected tests stay to the end, so the garbage collector passes them over. It took a
# fifth of the time of what only traces.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items):
    """Files with slow tests start first, so that no worker waits for the other at the end."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


@pytest.fixture(autouse=True, scope="module")
def _forget_what_was_compiled():
    """Programs of a module are of no use to the next, and fill the memory of a small machine."""
    yield
    import jax

    jax.clear_caches()
