"""What makes a run what it is, and the configs of earlier versions."""

from collections.abc import Mapping
from typing import Any

from heteroscedastic import bind
from heteroscedastic.links import Link
from heteroscedastic.runs import sections

# The value that the code had before a setting existed, by section, or by section and part where it
# differs between parts. Entries never change, also when a default does. A setting with this value
# is no part of the identity, so that digests of older runs and saved results stay valid.
_BEFORE: dict[str, dict[str, Any]] = {
    "backbone": {
        "dtype": "float32",
        "group_size": None,
        "padding": "VALID",
        "remat": False,
        "start": "identity",
        "stem": "imagenet",
    },
    "head": {"edward2": False, "hidden_width": 0, "noise_on": "utilities", "zero_start": False},
    "backbone.ResNet": {
        "bottleneck": True,
        "stage_sizes": (3, 4, 6, 3),
        "stem_width": 64,
        "version": 1,
        "width": 64,
    },
    **{
        f"backbone.{name}": {"stem": "cifar"}
        for name in ("ResNet8", "ResNet20", "ResNet32", "ResNet44", "ResNet56", "WideResNet28x10")
    },
    "predictive": {"chunk_size": None, "min_factor": 0.01, "points": "independent"},
    "predictive.shortlist": {"num_classes": 32},
    "predictive.sigmoid": {"num_samples": None, "points": None},
    "predictive.softmax_exact": {"num_nodes": 32},
    "proposals.RegionProposals": {
        "channels": 512,
        "num_anchors": 256,
        "num_candidates": (12000, 6000),
        "num_proposals": (2000, 300),
        "num_regions": 256,
        "ratios": (0.5, 1.0, 2.0),
        "sizes": (64.0, 128.0, 256.0, 512.0),
    },
    "score": {"points": "independent"},
    "selection.pruned": {"full_fraction": 0.125},
    "smoothing": {"over": "all"},
    "smoothing.adaptive": {"beta": 1.0, "over": "wrong", "objectness": "own"},
    "mixing": {"draws": "batch"},
    "mixing.cutmix": {"alpha": 1.0, "probability": 1.0},
    "mixing.mixup_or_cutmix": {"cutmix_alpha": 1.0, "cutmix_probability": 0.5},
    "mixing.ricap": {"beta": 0.3},
    "loss.generalized_cross_entropy": {"q": 0.7},
    "loss.logit_adjusted": {"strength": 1.0},
    "optimizer": {"decay_biases": True, "decay_normalization": False, "fixed": ()},
    "schedule": {"warmup_epochs": 0.0, "warmup_steps": 0},
    "data": {
        "extras": (),
        "label": "label",
        "max_classes": None,
        "max_examples": None,
        "pipeline": "resident",
        "seed": None,
        "splits": None,
        "standardize": False,
        "window": 128,
        "with_boxes": False,
    },
    "training": {"microbatches": 1},
    "evals": {
        "answers": None,
        "beam_size": None,
        "checkpoint": "last",
        "length_penalty": 1.0,
        "max_tokens": 200,
        "num_largest": 100,
    },
    "warm_start": {"weights": None, "workdir": None},
}
# The same for settings that every config states, and that were always part of the identity.
_STATED: dict[str, dict[str, Any]] = {
    "backbone": {"widths": (128, 128)},
    "backbone.ConvNet": {"widths": (16, 32, 64)},
    "head": {"num_factors": 15, "temperature": 1.0},
    "optimizer": {
        "clip_norm": None,
        "covariance_l2": None,
        "l2": 0.0,
        "momentum": 0.9,
        "nesterov": False,
    },
    "schedule": {"factor": 0.1},
    "training": {"num_epochs": None, "num_steps": None},
    "warm_start": {"checkpoint": "last", "head": False},
}
# Settings that change no result beyond rounding.
_NO_RESULT = {
    "training": (*sections.LAYOUT, *sections.CACHING, *sections.PROFILING),
    "data": sections.LIMITS,
}
_IF_ABSENT = {"training": {}, "data": {}, "curation": "", "validation": None}
_FORMER_NAMES = (("data", "reader_shards", "lanes"),)  # section, setting, its former name


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that makes a run what it is.

    It leaves out where arrays lie, what is profiled, and the limits beyond which a run stops. It
    also leaves out a setting with the value that the code had before the setting existed: configs
    with and without it are then the same run. Sections and settings have their first names.
    """
    found = former_identity(config)
    for section, settings in found.items():
        if section == "evals" and isinstance(settings, dict):
            values = _BEFORE["evals"]
            found[section] = {name: _without(entry, values) for name, entry in settings.items()}
        else:
            current = "warm_start" if section == "init" else section
            found[section] = _without(settings, _values(_BEFORE, current, settings))
    start = found.get("init")
    if "init" in found and not (isinstance(start, dict) and {"workdir", "weights"} & set(start)):
        del found["init"]
    return found


def former_identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a config as earlier versions found it, for the digests that they recorded.

    It holds every setting that the config states, except those that change no result.
    """
    found = without_layout({**_IF_ABSENT, **config})
    for section, name, former in _FORMER_NAMES:
        if isinstance(found[section], dict) and name in found[section]:
            found[section][former] = found[section].pop(name)
    if "warm_start" in found:
        found["init"] = found.pop("warm_start")
    if _link_before(config) is not None:
        found.pop("task", None)  # data of one label or of lists decides between two tasks
    if isinstance(found.get("evals"), dict):  # the data decides it, too
        found["evals"] = {
            name: {k: v for k, v in entry.items() if k != "answers"}
            if isinstance(entry, dict)
            else entry
            for name, entry in found["evals"].items()
        }
    return found


def without_layout(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without the settings that change no result beyond rounding."""
    return {
        section: {k: v for k, v in settings.items() if k not in _NO_RESULT.get(section, ())}
        if isinstance(settings, dict)
        else settings
        for section, settings in config.items()
    }


def updated(config: Mapping[str, Any], results: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config of a run of an earlier version, in the present form.

    A setting that it lacks has the value that the code had before the setting existed.

    Args:
      config: content of config.json.
      results: content of results.json, from which the task follows if the config does not state
        one; None leaves the task out.
    """
    updated = {section: _copy(settings) for section, settings in config.items()}
    for section, name, former in _FORMER_NAMES:
        if isinstance(updated.get(section), dict) and former in updated[section]:
            updated[section][name] = updated[section].pop(former)
    if "warm_start" not in updated:
        updated["warm_start"] = updated.pop("init", None) or {}
    if "task" not in updated and results is not None:
        updated |= _task_and_answers(updated, results)
    try:
        declarations = sections.declarations(updated)
    except (AttributeError, KeyError, TypeError, ValueError):
        return updated  # it is damaged, or names code that no longer exists
    for (section, *rest), target in declarations.items():
        settings = updated[section][rest[0]] if rest else updated[section]
        if isinstance(settings, dict):
            values = _values(_STATED, section, settings) | _values(_BEFORE, section, settings)
            declared = bind.declared_settings(target)
            missing = {k: v for k, v in values.items() if k in declared and k not in settings}
            settings |= missing
    return updated


def _task_and_answers(config: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """The task and the evaluations of a run that was made before configs stated a task."""
    # Only lists of labels have this metric; dataset.json need not say how labels lie.
    has_lists = any("label_accuracy" in metrics for metrics in results["evals"].values())
    is_softmax = _link_before(config) != "sigmoid"
    evals = {
        name: settings | {"answers": "any"}
        if set(results["evals"].get(name, ())) == {"accuracy"}
        else settings
        for name, settings in config["evals"].items()
    }
    task = "multiclass" if is_softmax else "multilabel" if has_lists else "one_vs_rest"
    return {"task": task, "evals": evals}


def _link_before(config: Mapping[str, Any]) -> Link | None:
    """The link that the loss implied before `task` existed; None for a newer loss."""
    loss = config.get("loss")
    links: dict[Any, Link] = {"cross_entropy": "softmax", "sigmoid_cross_entropy": "sigmoid"}
    return links.get(loss.get("name")) if isinstance(loss, Mapping) else None


def _values(table: Mapping[str, dict], section: str, settings: Any) -> dict[str, Any]:
    """The entries of a table for a section and the part that it names."""
    part = settings.get("name") if isinstance(settings, dict) else None
    return table.get(section, {}) | table.get(f"{section}.{part}", {})


def _without(settings: Any, values: Mapping[str, Any]) -> Any:
    """The settings that differ from these values."""
    if not isinstance(settings, dict):
        return settings
    return {k: v for k, v in settings.items() if k not in values or _plain(v) != _plain(values[k])}


def _plain(value: Any) -> Any:
    """JSON turns tuples into lists."""
    return list(value) if isinstance(value, tuple) else value


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value
