"""Any config, shrunk until a laptop runs it in seconds."""

import copy
from typing import Any

import jax

from heteroscedastic.data import store
from heteroscedastic.models import backbones
from heteroscedastic.training.hosts import say

_NUM_CLASSES = 64
_NUM_EXAMPLES = 200  # of every split
_LARGEST = {
    "head": {"num_factors": 4, "hidden_width": 64},
    "predictive": {"num_samples": 16},
    "training": {"batch_size": 8},
}


def smoke(config: dict[str, Any], data_dir: str | None = None) -> dict[str, Any]:
    """The config with two steps of 8 examples, the smallest backbone of its family, less of everything.

    Where its data set is not there, digits that a library ships stand in, with one label or
    several as the data set has.
    """
    config = copy.deepcopy(config)
    if not store.is_there(config["data"]["name"], data_dir):
        say(f"no data set {config['data']['name']!r} in {data_dir or 'any --data_dir'}; digits stand in for it.")
        _stand_in(config)
    if config.pop("init", None):
        say("a smoke run is of another size than what config.init names, so it starts afresh.")
    config["data"]["max_examples"] = _NUM_EXAMPLES
    for section, limits in _LARGEST.items():
        for name, limit in limits.items():
            if config[section].get(name) is not None:
                config[section][name] = min(config[section][name], limit)
    if config["head"]["num_classes"] > _NUM_CLASSES:
        config["head"]["num_classes"] = config["data"]["max_classes"] = _NUM_CLASSES
    for_small_images = config["backbone"].get("stem") == "cifar" and not config["backbone"]["name"].endswith("V2")
    config["backbone"]["name"] = "ResNet8" if for_small_images else backbones.smallest(config["backbone"]["name"])
    devices = jax.device_count()
    batch_size = -(-config["training"]["batch_size"] // devices) * devices
    config["training"] |= {"num_epochs": None, "num_steps": 2, "batch_size": batch_size}
    if devices % config["training"].get("class_shards", 1):  # that it was made for are not here
        del config["training"]["class_shards"]
    return config


def _stand_in(config: dict[str, Any]) -> None:
    several = config["loss"]["name"] == "sigmoid_cross_entropy"
    kept = {name: config["data"][name] for name in ("train", "eval", "validation_fraction")}
    kept["validation_fraction"] = kept["validation_fraction"] or 0.2  # for a split "valid" that it may have had
    config["data"] = {"name": "digits_pairs" if several else "digits", **kept}
    for settings in (*config["evals"].values(), config["validation"] or {}):
        if settings.get("split") not in ("train", "valid", None):
            settings["split"] = "test"
    config["head"]["num_classes"] = 10
