"""Trains two steps of every config, on two processes: python .ci/smoke.py configs/*.py"""

import gc
import multiprocessing
import os
import sys
from concurrent import futures
from pathlib import Path

import jax
from absl import logging

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments import study
from heteroscedastic.runs import loop, smoke


def train(name: str) -> None:
    """Trains two steps of a config in smoke/NAME."""
    logging.set_verbosity(logging.WARNING)
    gc.set_threshold(50_000, 20, 20)  # tracing makes many objects, most of which stay
    print(f"== {name}", flush=True)
    try:
        config, data_dir = smoke.smoke(study.config(name, {}), os.environ.get("TFDS_DATA_DIR"))
        loop.train(config, f"smoke/{name}", data_dir)
    except BaseException as error:
        error.add_note(f"of configs/{name}.py")
        raise
    jax.clear_caches()


if __name__ == "__main__":
    names = [Path(path).stem for path in sys.argv[1:]]
    # A process takes the next config when it is free, so that both end together.
    with futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(train, names))  # raises the error of a config
