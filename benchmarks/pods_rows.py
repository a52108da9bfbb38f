"""The programs that the paper's tables compile to, each with the slice that it ran on there, and
some beside them.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.described import pixels
from experiments import study
from experiments.correlated_label_noise import paper_tables, transfer

# By the beginning of a config's name: the paper's slice of TPU v3 in chips, and one of v5e of as
# many. Of WebVision's 32 GPUs, of Table 6 and of Table 7 no slice is told: for the first the
# smallest that the batch fills, for the last the 32 cores of its public code.
SLICES = {
    "imagenet21k": ("v3:8x8", "v5e:8x8"),
    "imagenet": ("v3:4x4", "v5e:4x4"),
    "jft": ("v3:16x16", "v5e:16x16"),
    "webvision": ("v3:4x4", "v5e:4x4"),
    "vtab": ("v3:2x2", "v5e:2x2"),
}
_CLOSED = {"predictive": dict(name="sigmoid")}
# What the paper did not run, compiled for its slice alone: other numbers of samples, and what does
# without them.
BESIDE = {
    "imagenet21k_het_pe": (
        {"predictive.num_samples": 100},
        {"predictive.num_samples": 10_000},
        _CLOSED,
    ),
    "jft_het_pe": ({"predictive.num_samples": 100}, {"predictive.num_samples": 10_000}, _CLOSED),
    "imagenet_het_full": ({"predictive": dict(name="softmax", num_samples=128, points="sobol")},),
}
# The same step elsewhere in memory, of the largest model.
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

    name: str  # its config, and what differs from it
    tables: tuple[str, ...]  # of the paper, that have it; none of those beside them
    config: dict[str, Any]
    slices: tuple[str, ...]


def programs() -> list[Program]:
    """Every program once: rows that differ in seeds, schedules and other plain numbers compile to
    the same.
    """
    found: dict[str, Program] = {}
    rows = [
        (f"{name.replace('_', ' ')}", row, job.config)
        for name, table in {**paper_tables.TABLES, "table_6": transfer.TABLES["table_6"]}.items()
        for row in table.rows
        for job in study.jobs(table._replace(rows=(row,)), "paper", Path("runs"))[:1]
    ]
    for table, row, config in rows:
        _add(found, row.config, row.overrides, config, table)
    for name, all_overrides in BESIDE.items():
        for overrides in all_overrides:
            _add(found, name, overrides, study.config(name, overrides))
    for name, all_settings in LAYOUTS.items():
        for settings in all_settings:
            config = study.config(name, {})
            for section, values in settings.items():
                config[section] |= values
            _add(found, name, settings, config)
    return list(found.values())


def _add(found, config_name, overrides, config, *tables):
    prefix = next(p for p in SLICES if config_name.startswith(p))
    key = json.dumps([_structure(config), prefix], sort_keys=True)
    name = " ".join([config_name, *_told(config_name, overrides, config)])
    slices = SLICES[prefix] if tables else SLICES[prefix][:1]
    before = found.get(key, Program(name, (), config, slices))
    merged = tuple(dict.fromkeys([*before.tables, *(_short(table) for table in tables)]))
    found[key] = before._replace(tables=merged)


def _structure(config):
    """What of a config makes another program: not numbers that are constants of it."""
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
        head["num_classes"] = "few"  # from 2 to 397, beside 2,048 features
    training = {
        k: v for k, v in config["training"].items() if "num_" not in k and "checkpoint" not in k
    }
    named = {k: config[k] for k in ("backbone", "predictive", "smoothing", "loss", "weighting")}
    return dict(optimizer=optimizer, head=head, training=training, pixels=pixels(config), **named)


def _told(config_name, overrides, config):
    """The differences that are not constants, in words."""
    if config_name == "vtab":
        return [f"{pixels(config)} pixels"]
    if "predictive" in overrides:
        chosen = overrides["predictive"]
        return (
            ["closed form"]
            if chosen["name"] == "sigmoid"
            else [f"{chosen['points']} {chosen['num_samples']}"]
        )
    told = []
    for name, value in overrides.items():
        if name == "predictive.num_samples":
            told.append(f"{value:,} samples")
        elif isinstance(value, dict):
            told += [f"{k}={v}" for k, v in value.items()]
    return told


def _short(table):
    """Of a table of rows.py, the paper's number."""
    return table.split()[1]
