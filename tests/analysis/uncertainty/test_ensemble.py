import itertools
import json
import math
import shutil

import numpy as np
import pytest
from scipy import special
from small_runs import of_earlier_version

from heteroscedastic import files
from heteroscedastic.analysis.uncertainty import calibration, ensemble
from heteroscedastic.runs import predictions

LOGITS = 2 * np.random.default_rng(0).normal(size=(5, 60, 4)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 4, 60).astype(np.int32)


def member_predictions(logits=LOGITS, labels=LABELS):
    return [predictions.Predictions(None, np.arange(len(labels)), labels, x) for x in logits]


def test_one_member_is_the_run_itself(digit_runs, several_labels_run):
    for run in (*digit_runs, several_labels_run):
        own = files.read_json(run / "results.json")["evals"]["test"]
        result = ensemble.metrics(ensemble.members([run]).predictions)
        if "gap" in result:  # of a run it is from bins, with a bound
            assert abs(result.pop("gap") - own["gap"]) <= own["gap_error"] + 1e-6
            del result["one_against_all_ece"]
        for name, value in result.items():
            assert value == pytest.approx(own[name], rel=1e-5, abs=1e-6), name


def test_one_member_after_scaling_is_the_run_after_scaling(digit_runs, several_labels_run):
    for run, second in ((digit_runs[0], "ece"), (several_labels_run, "one_against_all_ece")):
        alone = ensemble.members([run])
        result = ensemble.metrics(alone.predictions, alone.fit_predictions)
        after = calibration.temperature_scaling(run, "valid", "test")["after"]
        assert {name for name in result if name.startswith("scaled_")} == {
            "scaled_nll",
            f"scaled_{second}",
        }
        assert result["scaled_nll"] == pytest.approx(after["nll"])
        assert result[f"scaled_{second}"] == pytest.approx(after[second])
        assert result["nll"] == ensemble.metrics(alone.predictions)["nll"]


def test_one_temperature_is_fitted_to_the_mean_of_the_members():
    mean = np.log(special.softmax(LOGITS[:3].astype(np.float64), axis=-1).mean(0))
    rows, held, rest = np.arange(30), slice(0, 30), slice(30, 60)
    of = lambda part, t: -special.log_softmax(mean[part] / t, axis=-1)[rows, LABELS[part]].mean()  # noqa: E731
    best = min(np.geomspace(0.5, 100, 40_001), key=lambda t: of(held, t))
    parts = [member_predictions(LOGITS[:3, part], LABELS[part]) for part in (rest, held)]
    result = ensemble.metrics(*parts)
    assert result["scaled_nll"] == pytest.approx(of(rest, best), abs=1e-5)
    fitted = ensemble.metrics(parts[1], parts[1])
    assert fitted["scaled_nll"] <= fitted["nll"]
    for subset in ensemble.size_results(parts[0], fit_predictions=parts[1])[-1:]:
        assert subset.mean == pytest.approx(result)


def test_members_with_other_held_out_examples_have_no_temperature(digit_runs):
    assert ensemble.members(digit_runs).fit_predictions is None  # the seed determines validation
    same = [digit_runs[0], digit_runs[2]]  # two of one seed
    result = ensemble.members(same)
    assert (result.fit, len(result.fit_predictions)) == ("valid", 2)
    best = ensemble.members(same, "test_best")
    assert best.fit == "valid_best"
    paths = [run.directory / "predictions" / "valid_best.npz" for run in best.runs]
    assert [predicted.source for predicted in best.fit_predictions] == paths
    assert ensemble.members(same, "test_best", "valid").fit == "valid"
    with pytest.raises(FileNotFoundError, match="no predictions of 'nothing'"):
        ensemble.members(same, fit="nothing")


def test_the_nll_of_an_ensemble_is_at_most_the_mean_nll_of_its_members(digit_runs):
    for members in (member_predictions(), ensemble.members(digit_runs).predictions):
        nll = [size.mean["nll"] for size in ensemble.size_results(members)]
        # Over all subsets each size is a mean of the one below it, so Jensen's inequality holds
        # size by size.
        assert all(b <= a + 1e-6 for a, b in itertools.pairwise(nll))
        assert nll[-1] < nll[0]


def test_an_ensemble_is_the_mean_of_probabilities():
    probs = special.softmax(LOGITS[:3].astype(np.float64), axis=-1).mean(0)
    own = probs[np.arange(60), LABELS]
    result = ensemble.metrics(member_predictions()[:3])
    assert result["nll"] == pytest.approx(-np.log(own).mean(), rel=1e-6)
    assert result["accuracy"] == pytest.approx((probs.argmax(-1) == LABELS).mean())
    assert result["brier"] == pytest.approx(
        ((probs - np.eye(4)[LABELS]) ** 2).sum(-1).mean(), rel=1e-6
    )


def test_an_ensemble_of_label_lists_is_the_mean_of_class_probabilities():
    lists = np.stack([LABELS, np.full(60, -1)], axis=-1).astype(np.int32)
    probs = special.expit(LOGITS.astype(np.float64)).mean(0)
    hot = np.eye(4)[LABELS]
    nll = -(hot * np.log(probs) + (1 - hot) * np.log1p(-probs)).sum(-1).mean()
    assert ensemble.metrics(member_predictions(labels=lists))["nll"] == pytest.approx(nll, rel=1e-6)


def test_the_order_of_members_changes_nothing(digit_runs):
    one, other = (ensemble.members(runs) for runs in (digit_runs, digit_runs[::-1]))
    assert ensemble.size_results(one.predictions, 2) == ensemble.size_results(other.predictions, 2)


def test_a_size_uses_all_subsets_or_a_random_draw_of_distinct_ones():
    sizes = ensemble.size_results(member_predictions(), max_subsets=6)
    assert [size.num_subsets for size in sizes] == [5, 6, 6, 5, 1]
    assert [size.every_subset for size in sizes] == [True, False, False, True, True]
    assert math.isnan(sizes[-1].std["nll"])
    assert (
        ensemble.size_result(member_predictions(), 2, 6, seed=1)
        != sizes[1]
        == ensemble.size_result(member_predictions(), 2, 6)
    )
    every = ensemble.size_result(member_predictions(), 2)
    pairs = [
        ensemble.metrics([member_predictions()[i], member_predictions()[j]])["nll"]
        for i in range(5)
        for j in range(i)
    ]
    assert every.mean["nll"] == pytest.approx(np.mean(pairs))
    assert every.std["nll"] == pytest.approx(np.std(pairs, ddof=1))
    with pytest.raises(ValueError, match="an ensemble of 6 members requires more than 5 runs"):
        ensemble.size_result(member_predictions(), 6)


def test_runs_that_form_no_ensemble_are_refused(digit_runs, several_labels_run, tmp_path):
    with pytest.raises(ValueError, match="given twice"):
        ensemble.members([digit_runs[0], digit_runs[0]])
    with pytest.raises(ValueError, match=r"on different examples in 'valid'.*--on=test"):
        ensemble.members(digit_runs, "valid")
    with pytest.raises(ValueError, match="one uses a softmax, the other a sigmoid"):
        ensemble.members([digit_runs[0], several_labels_run])
    with pytest.raises(FileNotFoundError, match="holds no complete run"):
        ensemble.members([digit_runs[0], tmp_path])
    other = tmp_path / "other"
    of_earlier_version(
        shutil.copytree(digit_runs[2], other, ignore=shutil.ignore_patterns("checkpoints"))
    )
    for name, change in (
        ("dataset", {"fingerprint": "0" * 64}),
        ("config", {"weighting": {"name": "inverse_frequency"}}),
    ):
        files.write_json(other / f"{name}.json", files.read_json(other / f"{name}.json") | change)
    with pytest.raises(ValueError, match="same seed but saw different data"):
        ensemble.members([digit_runs[2], other])


def test_lists_of_correct_labels_under_a_softmax_are_refused(digit_runs, tmp_path):
    run = shutil.copytree(
        digit_runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")
    )
    of_earlier_version(run)
    arrays = dict(np.load(run / "predictions" / "test.npz"))
    np.savez(run / "predictions" / "test.npz", **arrays | {"labels": arrays["labels"][:, None]})
    with pytest.raises(ValueError, match="lists of correct labels"):
        ensemble.members([run])


def test_predictions_with_only_the_largest_logits_are_refused():
    largest = [p._replace(classes=np.zeros((60, 4), np.int32)) for p in member_predictions()]
    for members in (largest, largest[:1]):
        with pytest.raises(ValueError, match=r"more than 2,000 classes; .* requires all logits"):
            ensemble.metrics(members)


def test_the_command_writes_what_it_prints(digit_runs, tmp_path, monkeypatch, capsys):
    runs = [str(run) for run in digit_runs]
    monkeypatch.setattr("sys.argv", ["ensemble", "--runs", *runs, f"--out={tmp_path}"])
    ensemble.main()
    printed = capsys.readouterr().out
    assert "3 runs on test, 597 examples" in printed
    assert "trained on 2 different sets" in printed  # two of the three share a seed
    assert (
        "There are no results after temperature scaling, because the runs have no predictions of"
        " the same held-out examples." in printed
    )
    result = json.loads((tmp_path / "ensemble_test.json").read_text())
    assert result["fit"] is None
    assert [size["num_members"] for size in result["by_size"]] == [1, 2, 3]
    lines = (tmp_path / "ensemble_test.csv").read_text().splitlines()
    assert len(lines) == 4
    assert f"{result['by_size'][2]['mean']['accuracy']:.4f}" in printed
    monkeypatch.setattr("sys.argv", ["ensemble", "--runs", *runs, "--on=valid"])
    with pytest.raises(SystemExit, match="different examples"):
        ensemble.main()
