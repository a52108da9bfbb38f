"""Any config, shrunk until a laptop runs it in seconds."""

import copy
from typing import Any

_LARGEST = {
    "head": {"num_factors": 4, "num_classes": 64},
    "predictive": {"num_samples": 16},
    "training": {"batch_size": 8},
}


def smoke(config: dict[str, Any]) -> dict[str, Any]:
    """The config with two steps of 8 examples, at most 64 classes, 4 factors and 16 samples."""
    config = copy.deepcopy(config)
    for section, limits in _LARGEST.items():
        for name, limit in limits.items():
            if config[section].get(name) is not None:
                config[section][name] = min(config[section][name], limit)
    if config["head"].get("num_classes") == _LARGEST["head"]["num_classes"]:
        config["data"]["max_classes"] = config["head"]["num_classes"]
    config["training"] |= {"num_epochs": None, "num_steps": 2}
    return config
