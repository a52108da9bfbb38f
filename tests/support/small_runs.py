"""Small runs and their outcomes."""

import fcntl
import json
import os
import shutil

import jax
import numpy as np

from experiments import study
from heteroscedastic.models.transformer import TransformerSmall
from heteroscedastic.runs import loop


def small(**overrides):
    """A config that trains in a second or two."""
    settings = {
        "training.num_epochs": 4.0,
        "training.checkpoint_epochs": 1.0,
        "predictive.num_samples": 8,
    }
    return study.config("digits_het_pe", settings | overrides)


def plain(**overrides):
    """The cheapest config that trains: no noise, no validation, one checkpoint, one evaluation."""
    settings = {"training.num_epochs": 4.0, "training.checkpoint_epochs": 4.0}
    made = study.config("digits_hom", settings | overrides)
    evals = {"test": dict(split="test", checkpoint="last", answers=None)}
    return made | {"validation": None, "evals": evals}


def small_detector(**overrides):
    """A detector with a low-rank head on 16 mosaics, in two epochs of four steps."""
    settings = {
        "data.train": "with_mirrored|sample_boxes(3)|value_range(-1, 1)",
        "data.max_examples": 16,
        "backbone": dict(name="ResNet", stage_sizes=(1, 1), width=4, stem_width=4, start="keras"),
        "head": dict(name="LowRank", num_classes=11, num_factors=2),
        "predictive": dict(name="softmax", num_samples=4),
        "proposals.sizes": (12.0,),
        "proposals.channels": 8,
        "proposals.num_candidates": (64, 32),
        "proposals.num_proposals": (16, 8),
        "proposals.num_anchors": 16,
        "proposals.num_regions": 8,
        "training.batch_size": 8,
        "training.num_epochs": 2.0,
        "training.checkpoint_epochs": 1.0,
        "schedule.warmup_epochs": 0.0,
    }
    config = study.config("mosaic_frcnn_hom", settings | overrides)
    config["backbone"] |= dict(bottleneck=False, stem="cifar")
    return config


def trained_once(tmp_path_factory, name, train):
    """A copy of the run that `train(directory)` makes, which one worker trains for all of them."""
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    run, unfinished, locked = (
        common / "trained_once" / f"{name}{suffix}" for suffix in ("", ".unfinished", ".lock")
    )
    run.parent.mkdir(parents=True, exist_ok=True)
    with locked.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not run.exists():
            train(unfinished)
            unfinished.rename(run)
    copy = tmp_path_factory.getbasetemp() / "copies" / name
    shutil.rmtree(copy, ignore_errors=True)  # of an earlier module
    return shutil.copytree(run, copy)


NUM_WORDS = (48, 48)  # of source and target


def translator(name="multi30k_hom", **overrides):
    """A config that translates spelled numbers, for `tiny_transformer`."""
    settings = {
        "data.name": "numbers",
        "data.splits": None,
        "data.max_examples": 64,
        "data.num_merges": 60,
        "data.row_length": 32,
        "backbone.num_source_words": NUM_WORDS[0],
        "head.num_classes": NUM_WORDS[1],
        "training.batch_size": 8,
        "training.microbatches": 2,
        "training.num_epochs": 2.0,
        "schedule.warmup_steps": 2,
    }
    return study.config(name, settings | overrides)


def tiny_transformer(monkeypatch, cache):
    """Makes the transformer of `translator` tiny; prepared text is saved in the folder `cache`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for name, value in (("num_layers", 1), ("width", 8), ("hidden_width", 8)):
        monkeypatch.setattr(TransformerSmall, name, value)


def noisy_translation(monkeypatch, tmp_path_factory):
    """A run that translates, whose head has noise. Transformers are tiny from here on."""
    tiny_transformer(monkeypatch, tmp_path_factory.getbasetemp() / "cache")
    settings = {
        "head.num_factors": 2,
        "predictive": {"name": "mean_field"},
        "training.microbatches": 1,
        "training.num_epochs": 1.0,
    }
    config = translator("multi30k_het_pe", **settings) | {"validation": None}
    return trained_once(
        tmp_path_factory, "translation/run", lambda path: loop.train(config, str(path))
    )


def outcome(directory):
    """The results, metrics and predictions of a run, without times."""
    results = json.loads((directory / "results.json").read_text())
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    predictions = {p.name: _arrays(p) for p in sorted((directory / "predictions").glob("*.npz"))}
    return {k: results[k] for k in ("evals", "step", "best_step")}, lines, predictions


def of_earlier_version(directory):
    """Rewrites a run in the format without owner and digests, so that a test can edit its files."""
    dataset, results = (
        json.loads((directory / f"{name}.json").read_text()) for name in ("dataset", "results")
    )
    dataset["fingerprint"] = dataset.pop("examples_fingerprint", dataset["fingerprint"])
    for name, content in (("dataset", dataset), ("results", results)):
        new = {"owner", "digest", "config_digest", "metrics_digest"}
        (directory / f"{name}.json").write_text(
            json.dumps({k: v for k, v in content.items() if k not in new})
        )
    for path in (directory / "predictions").glob("*.npz"):
        np.savez(path, **_arrays(path))
    return directory


def assert_same_bits(a, b):
    assert a[:2] == b[:2]
    jax.tree.map(np.testing.assert_array_equal, a[2], b[2])


def _arrays(path):
    with path.open("rb") as file, np.load(file) as arrays:
        return {name: array for name, array in arrays.items() if name not in ("owner", "digest")}
