from pathlib import Path

import numpy as np
import pytest
from scipy import special

pytest.importorskip("matplotlib", reason="reports hold figures, which require the extra `analysis`")

from heteroscedastic.analysis.report import headline, measured, results_section
from heteroscedastic.analysis.report.comparison import Group, RunSet
from heteroscedastic.analysis.report.headline import Labels
from heteroscedastic.calibration import reliability
from heteroscedastic.runs.loaded_run import SavedRun
from heteroscedastic.runs.predictions import Predictions

N, K = 500, 3
NOISE = [[0, 0, 60], [0, 1, 40], [1, 1, 100]]  # 20 % of the training labels are wrong
CLEAN = Labels("images", {"test": 0.0, "valid": 0.25})


def predictions(rng, labels, accuracy, logit=1.5):
    """Predictions that are right for a fixed fraction of the examples, at one confidence."""
    right = np.arange(N) < accuracy * N
    predicted = np.where(right, labels, (labels + 1) % K)
    logits = logit * np.eye(K)[predicted] + 1e-3 * rng.normal(size=(N, K))
    return Predictions(None, np.arange(N), labels, logits.astype(np.float32))


def metrics(p):
    probs = special.softmax(p.logits.astype(np.float64), axis=-1)
    confidence, right = probs.max(-1), probs.argmax(-1) == p.labels
    bins = np.searchsorted(reliability.equal_edges(15)[1:-1], confidence.astype(np.float32))
    gap = sum(abs(np.sum((right - confidence)[bins == b])) for b in range(15)) / N
    return {"accuracy": right.mean(), "ece": gap, "confidence": confidence.mean()}


def run_set(accuracies, seeds=((0,), (0,)), noise=NOISE, heads=("Deterministic", "LowRank")):
    """Groups of runs with a given accuracy on the same examples."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, N).astype(np.int32)
    groups, saved = [], []
    for name, head, accuracy, own in zip("ab", heads, accuracies, seeds):
        saved.append([predictions(rng, labels, accuracy + 0.01 * s) for s in own])
        runs = []
        for seed, p in zip(own, saved[-1]):
            config = {"seed": seed, "head": {"name": head}, "data": {"name": "somewhere"}}
            config["evals"] = {name: {"split": name} for name in ("test", "valid")}
            results = {"evals": {"test": metrics(p), "valid": {"ece": 0.01}}}
            dataset = {"class_names": list("xyz"), "label_noise": noise}
            runs.append(SavedRun(Path("run"), config, results, dataset))
        groups.append(Group(name, tuple(runs)))
    return RunSet(groups, "test", "valid", saved, None)


def text(runs, labels=CLEAN):
    written = headline.headline(runs, measured.measured(runs), labels)
    return written.replace("\u00a0", " ")


def test_the_headline_states_the_difference_in_points_with_its_interval():
    runs = run_set((0.8, 0.87))
    words = text(runs)
    ours, theirs = (p[0].logits.argmax(-1) == p[0].labels for p in runs.predictions[::-1])
    rows = np.random.default_rng(1).integers(N, size=(4000, N))  # independent of the package
    low, high = np.quantile(100 * (1.0 * ours - theirs)[rows].mean(axis=1), [0.025, 0.975])
    assert words.startswith(
        '<p class="headline">The low-rank head is right on 7.0 points more of the clean test images'
        " than the plain head (95 % interval "
    )
    assert "paired bootstrap over 500 images): 87.0 % against 80.0 %.</p>" in words
    ends = words.split("interval ")[1].split(",")[0].split(" to ")
    np.testing.assert_allclose([float(x) for x in ends], [low, high], atol=0.5)


def test_a_worse_head_is_right_on_fewer_and_the_ends_keep_their_order():
    words = text(run_set((0.87, 0.80)))
    assert "is right on 7.0 points fewer of" in words
    low, high = map(float, words.split("interval ")[1].split(",")[0].split(" to "))
    assert 0 < low < 7 < high


def test_a_difference_within_noise_is_not_called_significant():
    assert "not statistically significant" not in text(run_set((0.8, 0.87)))
    runs = run_set((0.8, 0.8))
    assert "not statistically significant" in text(runs)


def test_one_group_is_stated_alone():
    runs = run_set((0.8,), heads=("LowRank",))
    words = text(runs)
    assert "The low-rank head is right on 80.0 % of the clean test images (95 % interval" in words
    assert "paired" not in words


def test_several_seeds_are_part_of_the_bootstrap():
    words = text(run_set((0.8, 0.87), seeds=((0, 1, 2), (2, 1, 5))))
    assert "paired bootstrap over 500 images and t interval over 2 seeds" in words


def test_the_noise_of_training_explains_a_calibration_error_on_clean_labels():
    words = text(run_set((0.8, 0.87)))
    assert "20.0 % of the training labels are wrong, but the labels of test are clean." in words
    confidence = 100 * np.exp(1.5) / (np.exp(1.5) + 2)
    assert f"the low-rank head is {confidence:.1f} % confident and 87.0 % right (ECE 0.1" in words
    assert "On the held-out labels of valid, 25.0 % of which are wrong too, ECE is 0.010" in words


def test_overconfidence_is_not_blamed_on_the_labels():
    assert "confidence stays below" not in text(run_set((0.3, 0.4)))


@pytest.mark.parametrize("labels", [Labels(), Labels("images", {"test": 0.1})])
def test_labels_that_may_be_wrong_are_not_called_clean(labels):
    words = text(run_set((0.8, 0.87)), labels)
    assert "clean" not in words
    assert "20.0 % of the training labels are wrong." in words


def test_without_known_noise_nothing_is_said_about_it():
    words = text(run_set((0.8, 0.87), noise=None))
    assert "wrong" not in words
    assert "of the test images" in words


def test_groups_with_the_same_head_have_their_own_names():
    assert "b is right on 7.0 points more" in text(run_set((0.8, 0.87), heads=("LowRank",) * 2))


def test_main_metrics_have_intervals_and_the_others_are_folded():
    runs = run_set((0.8, 0.87))
    (table, *folded) = results_section.results(runs, measured.measured(runs)).parts
    rows = table.split("<tr>")[2:]
    assert [row.split("<")[1].split(">")[1].split("\u00a0")[0] for row in rows] == [
        "accuracy",
        "ece",
    ]
    assert all(row.count(" to ") == 3 for row in rows)
    (others,) = (part for part in folded if "Other metrics" in part)
    assert others.startswith("<details>")
    assert "confidence" in others


def test_an_arrow_shows_the_better_direction_where_there_is_one():
    names = ("accuracy", "nll, scaled", "objectness_deviation", "confidence", "beam_confidence")
    names += "detection_ece", "objectness"
    arrows = [results_section._arrow(name)[len(name) :].strip() for name in names]
    assert arrows == ["↑", "↓", "↓", "", "", "↓", ""]
