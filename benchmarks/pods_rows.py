"""The programs of the paper's tables, each with its TPU slice, and some variants."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shape_stream import canvas, image_size
from experiments import study
from experiments.correlated_label_noise import paper_tables, transfer

# Prefix of a config name -> the paper's slice of TPU v3, and a slice of v5e with as many chips. The
# paper reports no slice for WebVision (32 GPUs), Table 6 and Table 7: WebVision has the smallest
# slice that its batch fills, Table 7 the 32 cores of its public code.
SLICES = {
    "imagenet21k": ("v3:8x8", "v5e:8x8"),
    "imagenet": ("v3:4x4", "v5e:4x4"),
    "jft": ("v3:16x16", "v5e:16x16"),
    "webvision": ("v3:4x4", "v5e:4x4"),
    "vtab": ("v3:2x2", "v5e:2x2"),
    "coco": ("v3:2x2", "v5e:2x2"),
}
# The detector of adaptive label smoothing, in two images a device, and what its other head adds;
# on the canvas of a wide image, and on a square one.
DETECTORS = ("coco_frcnn_hom", "coco_frcnn_het_full")
_NARROW = ", narrow=608"  # of fit
_OF_DETECTORS = {
    "data.extras": ("boxes", "objects/is_crowd"),
    "warm_start.workdir": "runs/classifier",
}
_CLOSED_FORM = {"predictive": dict(name="sigmoid")}
# Variants that the paper did not run, compiled for its slice only: other numbers of samples, and
# predictives without samples.
VARIANTS = {
    "imagenet21k_het_pe": (
        {"predictive.num_samples": 100},
        {"predictive.num_samples": 10_000},
        _CLOSED_FORM,
    ),
    "jft_het_pe": (
        {"predictive.num_samples": 100},
        {"predictive.num_samples": 10_000},
        _CLOSED_FORM,
    ),
    "imagenet_het_full": ({"predictive": dict(name="softmax", num_samples=128, points="sobol")},),
}
# The same step of the largest model with other memory layouts.
LAYOUTS = {
    "imagenet21k_het_pe": (
        {"training": {"parameters": "sharded"}},
        {"training": {"class_shards": 4}},
        {"training": {"microbatches": 2}},
        {"backbone": {"remat": True}},
    )
}


class Program(NamedTuple):
    """One step to compile."""

    name: str  # its config and the differences from it
    tables: tuple[str, ...]  # the paper's tables that contain it; empty for variants
    config: dict[str, Any]
    slices: tuple[str, ...]


def programs() -> list[Program]:
    """All programs; rows that differ only in constants, such as seeds and schedules, share one."""
    by_structure: dict[str, Program] = {}
    rows = [
        (f"{name.replace('_', ' ')}", row, job.config)
        for name, table in {**paper_tables.TABLES, "table_6": transfer.TABLES["table_6"]}.items()
        for row in table.rows
        for job in study.jobs(table._replace(rows=(row,)), "paper", Path("runs"))[:1]
    ]
    for table, row, config in rows:
        _add(by_structure, row.config, row.overrides, config, table)
    for name in DETECTORS:
        config = study.config(name, _OF_DETECTORS)
        square = {"data.train": config["data"]["train"].replace(_NARROW, "")}
        for overrides in ({}, square):
            config = study.config(name, _OF_DETECTORS | overrides)
            _add(by_structure, name, overrides, config, slices=SLICES["coco"])
    for name, all_overrides in VARIANTS.items():
        for overrides in all_overrides:
            _add(by_structure, name, overrides, study.config(name, overrides))
    for name, all_settings in LAYOUTS.items():
        for settings in all_settings:
            config = study.config(name, {})
            for section, values in settings.items():
                config[section] |= values
            _add(by_structure, name, settings, config)
    return list(by_structure.values())


def _add(by_structure, config_name, overrides, config, *tables, slices=None):
    prefix = next(p for p in SLICES if config_name.startswith(p))
    key = json.dumps([_structure(config), prefix], sort_keys=True)
    name = " ".join([config_name, *_differences(config_name, overrides, config)])
    slices = slices or (SLICES[prefix] if tables else SLICES[prefix][:1])
    program = by_structure.get(key, Program(name, (), config, slices))
    merged = tuple(dict.fromkeys([*program.tables, *(_table_number(table) for table in tables)]))
    by_structure[key] = program._replace(tables=merged)


def _structure(config):
    """The settings of a config on which the program depends, without its constants."""
    optimizer = {
        k: v is None if k == "clip_norm" else bool(v)
        for k, v in config["optimizer"].items()
        if k != "name"
    }
    head = {
        k: isinstance(v, (int, float)) if k == "temperature" else v
        for k, v in config["head"].items()
    }
    if config["data"]["name"].startswith("vtab"):
        head["num_classes"] = "few"  # from 2 to 397, negligible compared with 2,048 features
    training = {
        k: v for k, v in config["training"].items() if "num_" not in k and "checkpoint" not in k
    }
    parts = ("backbone", "predictive", "proposals", "smoothing", "loss", "weighting")
    named = {k: config[k] for k in parts if k in config}
    return dict(optimizer=optimizer, head=head, training=training, pixels=canvas(config), **named)


def _differences(config_name, overrides, config):
    """The overrides that are not constants, as text for the program's name."""
    if config_name == "vtab":
        return [f"{image_size(config)} pixels"]
    if "predictive" in overrides:
        chosen = overrides["predictive"]
        return (
            ["closed form"]
            if chosen["name"] == "sigmoid"
            else [f"{chosen['points']} {chosen['num_samples']}"]
        )
    words = []
    for name, value in overrides.items():
        if name == "predictive.num_samples":
            words.append(f"{value:,} samples")
        elif name == "data.train":
            words.append("square canvas")
        elif isinstance(value, dict):
            words += [f"{k}={v}" for k, v in value.items()]
    return words


def _table_number(table):
    """The number in the paper of a table of rows.py."""
    return table.split()[1]
