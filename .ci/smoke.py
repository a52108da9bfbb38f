"""Trains two steps of configs, on two processes: python .ci/smoke.py configs/*.py

With --cover as few of them as have among them every form of every section, and of the head with
what reads its latent; a form is a section but for its numbers and the name of its data set. A head
reads features of one form, whatever the backbone. tests/test_configs.py traces a step of every
config at full size, of some with `pytest -m extended`.
"""

import gc
import json
import multiprocessing
import os
import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import jax
from absl import logging

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments import study
from heteroscedastic.models import backbones
from heteroscedastic.runs import loop, smoke

_PAIRS = (("head", "predictive"), ("head", "task"))


def train(name: str) -> None:
    """Trains two steps of a config in smoke/NAME."""
    logging.set_verbosity(logging.WARNING)
    gc.set_threshold(50_000, 20, 20)  # tracing makes many objects, most of which stay
    print(f"== {name}", flush=True)
    try:
        config, data_dir = smoke.smoke(study.config(name, {}), os.environ.get("TFDS_DATA_DIR"))
        results = loop.train(config, f"smoke/{name}", data_dir)
        if config["task"] == "detection":
            assert all("ap" in metrics for metrics in results["evals"].values()), results["evals"]
    except BaseException as error:
        error.add_note(f"of configs/{name}.py")
        raise
    jax.clear_caches()


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_numbers(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_numbers(x) for x in value]
    return value if value is None or isinstance(value, (bool, str)) else "a number"


def _forms(name: str) -> set[tuple[str, ...]]:
    """The forms of a config's sections, and of pairs of them."""
    config = study.config(name, {})
    config["backbone"]["name"] = backbones.smallest(config["backbone"]["name"])
    config["data"]["name"] = ""  # digits stand in for most sets
    forms = {k: json.dumps(_without_numbers(v), sort_keys=True) for k, v in config.items()}
    return {*forms.items(), *((a, b, forms[a], forms[b]) for a, b in _PAIRS)}


def cover(names: list[str]) -> list[str]:
    """Few of the configs that have among them all forms of all."""
    forms = {name: _forms(name) for name in names}
    missing, chosen = set().union(*forms.values()), []
    while missing:
        chosen.append(max(names, key=lambda name: len(forms[name] & missing)))
        missing -= forms[chosen[-1]]
    for name in list(chosen):
        if forms[name] <= set().union(*(forms[other] for other in chosen if other != name)):
            chosen.remove(name)
    return chosen


if __name__ == "__main__":
    names = [Path(path).stem for path in sys.argv[1:] if path != "--cover"]
    if "--cover" in sys.argv:
        every, names = names, cover(names)
        print(f"{len(names)} configs have every form of the {len(every)}.", flush=True)
    # A process takes the next config when it is free, so that both end together.
    with futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(train, names))  # raises the error of a config
