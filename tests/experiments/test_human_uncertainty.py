"""Predictions against the distribution of human labels."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, special, stats

from experiments import statistics, study
from experiments.correlated_label_noise import human_uncertainty
from experiments.correlated_label_noise.human_uncertainty import CrossEntropy, Human
from heteroscedastic import files
from heteroscedastic.runs import predictions, provenance
from heteroscedastic.runs.predictions import Predictions


def generated(num_people=50, n=400, k=4, sharpness=1.0):
    """Counts drawn from softmax(logits), and predictions that are too sharp by a factor."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((n, k))
    counts = rng.multinomial(num_people, special.softmax(logits, axis=-1))
    labels, ids = rng.integers(0, k, n), rng.permutation(n)
    human = Human(labels, counts / num_people)
    return counts, human, Predictions(Path("p"), ids, labels[ids], sharpness * logits[ids])


def test_the_cross_entropy_is_the_likelihood_of_all_counts():
    counts, human, run = generated(sharpness=3.0)
    found = human_uncertainty.cross_entropy(run, human)
    probs = special.softmax(run.logits, axis=-1)
    own = counts[run.ids]
    log_likelihood = stats.multinomial.logpmf(own, 50, probs)
    ways = special.gammaln(51) - special.gammaln(own + 1).sum(axis=-1)
    assert found.predicted == pytest.approx(-np.mean(log_likelihood - ways) / 50)
    # The best temperature is the factor by which the predictions are too sharp.
    assert found.temperature == pytest.approx(3.0, rel=0.05)
    whole = optimize.minimize_scalar(
        lambda t: -np.mean(np.sum(own / 50 * special.log_softmax(run.logits / t, -1), axis=-1)),
        bounds=(1.0, 9.0),
        method="bounded",
    )
    assert whole.fun < found.scaled < whole.fun + 1e-3  # each half has the other's temperature
    assert human_uncertainty.entropy(human.shares) < found.scaled < found.predicted


def test_images_in_another_order_are_an_error():
    _, human, run = generated()
    with pytest.raises(ValueError, match="other images than cifar10_h, or another order"):
        human_uncertainty.cross_entropy(run._replace(ids=run.ids[::-1]), human)


def test_human_labels_are_read_by_position(tmp_path):
    shares = np.array([[0.75, 0.25], [0.0, 1.0]], np.float32)
    files.write_arrays(
        tmp_path / "cifar10_h.npz",
        {
            "class_names": np.array(["a", "b"]),
            "test_inputs": np.zeros((2, 3), np.float32),
            "test_labels": np.array([0, 1], np.int32),
            "test_ids": np.arange(2),
            "test_soft_label": shares,
        },
    )
    human = human_uncertainty.human_labels(str(tmp_path))
    np.testing.assert_array_equal(human.shares, shares)
    np.testing.assert_array_equal(human.labels, [0, 1])
    with pytest.raises(FileNotFoundError, match="no data set 'cifar10_h'"):
        human_uncertainty.human_labels(str(tmp_path / "other"))


def test_differences_are_from_the_scaled_reference_of_the_same_seed():
    found = {
        "plain": {0: CrossEntropy(0.9, 0.5, 2.0), 1: CrossEntropy(0.9, 0.7, 2.0)},
        "low_rank": {0: CrossEntropy(0.6, 0.4, 1.5), 1: CrossEntropy(0.8, 0.6, 1.5)},
    }
    plain, low_rank = human_uncertainty.lines("last epoch", found, "plain")
    cells = [cell.strip() for cell in low_rank.split("|")]
    assert cells[5].startswith("+0.1000 ± 0.0000")
    assert cells[7].startswith("-0.1000 ± 0.0000")
    assert plain.split("|")[7].strip() == ""


def test_differences_are_corrected_over_all_of_them_and_have_what_could_be_found():
    rng = np.random.default_rng(0)
    found = {
        row: {s: CrossEntropy(*(rng.normal(0.5, 0.1, 2)), 1.0) for s in range(5)}
        for row in ("plain", "low_rank")
    }
    printed = human_uncertainty.lines("last epoch", found, "plain")
    theirs = {s: x.scaled for s, x in found["plain"].items()}
    compared = [
        statistics.compared({s: getattr(x, field) for s, x in found[row].items()}, theirs)
        for row, field in (
            ("plain", "predicted"),
            ("low_rank", "predicted"),
            ("low_rank", "scaled"),
        )
    ]
    cells = [printed[0].split("|")[5], *(printed[1].split("|")[i] for i in (5, 7))]
    for cell, c, adjusted in zip(cells, compared, statistics.holm([c.p for c in compared])):
        assert cell.strip() == (
            f"{c.mean:+.4f} ± {c.half:.4f} (p {c.p:.2g}, Holm {adjusted:.2g}; {c.detectable:.4f})"
        )


def test_the_command_reads_the_reported_predictions_of_each_run(tmp_path, monkeypatch, capsys):
    """Of two heads, of which one is too sharp; the evaluation that selects has other images."""
    _, human, run = generated(n=60)
    found, results = {}, {}
    for row, factor in (("plain", 3.0), ("diagonal", 1.0)):
        directory = tmp_path / row
        for name, order in (("test", slice(None)), ("valid", slice(None, None, -1))):
            arrays = dict(ids=run.ids, labels=run.labels[order], logits=factor * run.logits[order])
            arrays["logits"] = arrays["logits"].astype(np.float32)
            path = directory / "predictions" / f"{name}.npz"
            files.write_arrays(path, provenance.stamped_arrays(name, arrays, row))
        job = study.Job(row, (), 0, directory, {}, row)
        results[row, 0] = study.JobResult(job, {})
        found[row] = {
            0: human_uncertainty.cross_entropy(predictions.read(directory, "test"), human)
        }
    chosen = study.table("correlated_label_noise", "frozen_features")
    monkeypatch.setattr(study, "run_results", lambda _: {})
    monkeypatch.setattr(study, "tuned_results", lambda *_: results)
    stub = SimpleNamespace(
        table_parser=human_uncertainty.noise_pairs.table_parser,
        table_results=lambda _: (chosen, list(results.values())),
    )
    monkeypatch.setattr(human_uncertainty, "noise_pairs", stub)
    monkeypatch.setattr(human_uncertainty, "human_labels", lambda directory: human)
    monkeypatch.setattr(sys, "argv", ["human_uncertainty"])
    human_uncertainty.main()
    printed = capsys.readouterr().out
    for line in human_uncertainty.lines("last epoch", found, "plain"):
        assert line in printed
    assert f"labels: {human_uncertainty.entropy(human.shares):.4f} nats." in printed
