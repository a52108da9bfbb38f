import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.tasks.one_vs_rest import log_normalizer
from heteroscedastic.tasks.task import bounded

pytest.importorskip(
    "matplotlib",
    reason="sections hold figures, which require the extra `analysis`",
)

from heteroscedastic.analysis.report import (
    confidence_section,
    entropy_section,
    hardest_section,
    measured,
    results_section,
)
from heteroscedastic.analysis.report.comparison import Group, RunSet
from heteroscedastic.analysis.report.page import Picture
from heteroscedastic.runs.loaded_run import SavedRun
from heteroscedastic.runs.predictions import Predictions
from heteroscedastic.training import evaluate, step

K, N = 2100, 60


def run_set(lists=False, data_dir=None, predict=lambda rng: 3 * rng.normal(size=(N, K))):
    """Two runs that save only the largest logits of each example, and whose data is missing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, N).astype(np.int32)
    labels = np.stack([labels, np.full(N, -1, np.int32)], axis=-1) if lists else labels
    normalizer = log_normalizer if lists else functools.partial(jax.nn.logsumexp, axis=-1)
    runs, predictions = [], []
    for seed in (0, 1):
        logits = predict(rng).astype(np.float32)
        all_logits = step.Predictions(np.arange(N), np.ones(N), labels, jnp.asarray(logits))
        arrays = {
            name: np.asarray(x)
            for name, x in evaluate.arrays(bounded(all_logits, normalizer)).items()
        }
        predictions.append(Predictions(Path(f"seed_{seed}"), **arrays))
        config = {"seed": seed, "data": {"name": "nowhere"}, "evals": {"test": {"split": "test"}}}
        results = {"evals": {"test": {"nll": 1.0 + seed}}, "step": 3}
        runs.append(
            SavedRun(
                Path(f"seed_{seed}"),
                config,
                results,
                {"class_names": [f"class {i}" for i in range(K)]},
            )
        )
    return RunSet(
        [Group("one", tuple(runs))], "test", "test", [predictions], [predictions], data_dir
    )


def notes(section):
    return " ".join(part for part in section.parts if isinstance(part, str))


def test_with_the_largest_logits_of_one_label_only_scaling_and_ensembles_are_missing():
    runs = run_set()
    assert "temperature scaling requires all logits" in notes(confidence_section.reliability(runs))
    (picture,) = (p for p in confidence_section.reliability(runs).parts if isinstance(p, Picture))
    assert picture.name == "reliability"
    assert set(picture.numbers["diagrams"]) == {"one"}
    assert any(isinstance(p, Picture) for p in confidence_section.outcomes(runs).parts)
    assert any(isinstance(p, Picture) for p in confidence_section.selective(runs).parts)
    assert "the mean of an ensemble requires all logits" in notes(entropy_section.entropies(runs))
    result = hardest_section.hardest(runs).numbers["hardest_0_one"]
    losses = np.mean([p.log_normalizer - p.label_logits for p in runs.predictions[0]], axis=0)
    assert [e["id"] for e in result] == np.argsort(-losses)[: len(result)].tolist()
    results = results_section.results(runs, measured.measured(runs))
    assert "scaled" not in notes(results)


def test_with_the_largest_logits_of_label_lists_each_section_says_what_is_missing():
    runs = run_set(lists=True)
    for make in (
        confidence_section.reliability,
        confidence_section.outcomes,
        confidence_section.selective,
    ):
        section = make(runs)
        assert "requires all logits" in notes(section)
        assert not any(isinstance(p, Picture) for p in section.parts)
    result = hardest_section.hardest(runs).numbers[
        "hardest_0_one"
    ]  # the loss needs only the saved logits
    losses = np.mean([p.log_normalizer - p.label_logits[:, 0] for p in runs.predictions[0]], axis=0)
    assert [e["id"] for e in result] == np.argsort(-losses)[: len(result)].tolist()


def test_with_the_largest_logits_of_label_lists_the_hardest_have_their_own_classes():
    def predict(rng):
        hot = np.full((N, K), -20.0)
        hot[:, 1500], hot[:, 1000] = 4.0, 2.0
        return hot

    says = hardest_section.hardest(run_set(lists=True, predict=predict)).numbers["hardest_0_one"][
        0
    ]["says"]
    expected = {1500: 1 / (1 + np.exp(-4)), 1000: 1 / (1 + np.exp(-2))}
    assert {c["class"]: c["probability"] for c in says} == pytest.approx(expected, rel=1e-5)
    assert [c["name"] for c in says] == ["class 1500", "class 1000"]


def test_the_two_most_probable_classes_average_over_runs_and_may_share_a_name():
    hot = np.full((N, K), -20.0)
    hot[:, 3], hot[:, 5] = 1.0, 0.0
    swapped = hot.copy()
    swapped[:, [3, 5]] = hot[:, [5, 3]]
    turns = iter([hot, swapped])
    runs = run_set(predict=lambda rng: next(turns))
    for run in runs.groups[0].runs:
        run.dataset["class_names"][3] = run.dataset["class_names"][5] = "crane"
    says = hardest_section.hardest(runs).numbers["hardest_0_one"][0]["says"]
    assert {c["class"]: c["probability"] for c in says} == pytest.approx({3: 0.5, 5: 0.5}, abs=1e-4)
    assert [c["name"] for c in says] == ["crane", "crane"]
