"""Trains two steps of several configs: python .ci/smoke.py configs/A.py configs/B.py."""

import os
import sys
from pathlib import Path

import jax
from absl import logging

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments import study
from heteroscedastic.runs import loop, smoke

logging.set_verbosity(logging.WARNING)
for name in [Path(path).stem for path in sys.argv[1:]]:
    print(f"== {name}", flush=True)
    config, data_dir = smoke.smoke(study.config(name, {}), os.environ.get("TFDS_DATA_DIR"))
    loop.train(config, f"smoke/{name}", data_dir)
    jax.clear_caches()
