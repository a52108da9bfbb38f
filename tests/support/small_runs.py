"""Small runs and their outcomes."""

import json

import jax
import numpy as np

from experiments import study


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
