import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import metrics as sklearn_metrics
from small_runs import of_earlier_version

from experiments import metric_values, study
from heteroscedastic import files, metrics
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.calibration import reliability, scores
from heteroscedastic.runs import predictions


def test_before_is_the_accuracy_of_the_run_and_after_has_no_larger_loss_where_fitted(without_noise):
    result = calibration.temperature_scaling(without_noise, "valid", "valid")
    saved = np.load(without_noise / "predictions" / "valid.npz")
    accuracy = (saved["logits"].argmax(-1) == saved["labels"]).mean()
    assert result["before"]["accuracy"] == result["after"]["accuracy"] == pytest.approx(accuracy)
    assert result["after"]["nll"] <= result["before"]["nll"]


def test_before_agrees_with_the_results_of_the_run(without_noise):
    results = files.read_json(without_noise / "results.json")["evals"]["test"]
    result = calibration.temperature_scaling(without_noise, "valid", "test")["before"]
    assert results.keys() <= result.keys()
    for name in metrics.MULTICLASS:
        assert result[name] == pytest.approx(results[name], rel=1e-4)


def test_without_held_out_examples_a_table_has_the_measures_as_predicted(without_noise):
    """Brier's parts are not in results.json; the labels of "test" scale no temperature here."""
    results = files.read_json(without_noise / "results.json")
    job = study.Job("hom", (), 0, without_noise, {}, "")
    value = metric_values.value(
        study.JobResult(job, results), study.Regime(None, "test"), "brier_resolution"
    )
    expected = calibration.temperature_scaling(without_noise, "valid", "test")
    assert value == expected["before"]["brier_resolution"] != expected["after"]["brier_resolution"]


def test_where_objects_are_known_the_deviation_of_the_scaled_confidence_is_measured(monkeypatch):
    logits, labels = random_predictions()
    objectness = np.linspace(0, 1, len(labels), dtype=np.float32)
    saved = predictions.Predictions(
        files.as_path("run"),
        np.arange(len(labels)),
        labels,
        logits,
        extras={"objectness": objectness},
    )
    monkeypatch.setattr(predictions, "read", lambda run, name: saved)
    result = calibration.temperature_scaling("run", "valid", "test")
    for key, temperature in (("before", 1.0), ("after", result["temperature"])):
        confidence = special.softmax(logits / temperature, axis=-1).max(axis=-1)
        expected = np.abs(confidence - objectness).mean()
        assert result[key]["objectness_deviation"] == pytest.approx(expected, rel=1e-5)
    assert result["temperature"] > 1.5


def random_predictions(k=4, n=300):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, k)).astype(np.float32)
    return logits, np.argmax(logits + 2 * rng.gumbel(size=(n, k)), axis=-1)


def test_measures_of_one_label_agree_with_scores_and_sums():
    logits, labels = random_predictions()
    result = calibration.measures(logits, labels, "softmax")
    probs = special.softmax(logits, axis=-1)
    confidence, correct = probs.max(-1), probs.argmax(-1) == labels
    edges = reliability.equal_edges(15)
    parts = scores.brier_parts(probs.astype(np.float64), labels, edges)
    for name, value in parts._asdict().items():
        assert result[f"brier_{name}"] == pytest.approx(value, rel=1e-4)
    errors = sklearn_metrics.roc_auc_score(~correct, 1 - confidence)
    assert result["auroc"] == pytest.approx(errors)

    def error(probs, occurred):
        sums = reliability.sums(
            jnp.asarray(probs), jnp.asarray(occurred, jnp.float32), jnp.ones(len(probs)), edges
        )
        return reliability.expected_calibration_error(sums)

    class_errors = [error(confidence[labels == c], correct[labels == c]) for c in range(4)]
    for name, value in (
        ("mean", np.mean(class_errors)),
        ("min", min(class_errors)),
        ("max", max(class_errors)),
        ("ratio", max(class_errors) / min(class_errors)),
    ):
        assert result[f"class_ece_{name}"] == pytest.approx(value, rel=1e-4)
    against_all = [error(probs[:, c], labels == c) for c in range(4)]
    assert result["one_against_all_ece"] == pytest.approx(np.mean(against_all), rel=1e-4)


def test_a_class_without_examples_has_no_error():
    logits, labels = random_predictions()
    without = calibration.measures(
        np.pad(logits, ((0, 0), (0, 1)), constant_values=-1e4), labels, "softmax"
    )
    with_it = calibration.measures(logits, labels, "softmax")
    for name in ("class_ece_mean", "class_ece_min", "class_ece_max", "brier", "auroc"):
        assert without[name] == pytest.approx(with_it[name], rel=1e-5)


def test_an_example_has_the_temperature_of_the_half_without_it():
    logits, labels = random_predictions()
    temperatures = calibration.temperatures_of_halves(logits, labels, "softmax")
    first = temperatures == temperatures[0]
    assert first.sum() == len(labels) // 2
    for half, other in ((first, ~first), (~first, first)):
        expected = calibration.fit_temperature(logits[other], labels[other], "softmax")
        np.testing.assert_array_equal(temperatures[half], expected)


def test_no_half_divides_a_sentence(monkeypatch):
    logits, labels = random_predictions()
    sentences = np.random.default_rng(1).permutation(len(labels)) // 7
    temperatures = calibration.temperatures_of_halves(logits, labels, "softmax", sentences)
    (of_each,) = np.unique(np.stack([sentences, temperatures], axis=1), axis=0)[:, 1:].T
    assert len(of_each) == sentences.max() + 1  # one temperature a sentence
    assert sorted(np.unique(of_each, return_counts=True)[1]) == [21, 22]

    ids = np.arange(len(labels))
    saved = predictions.Predictions(files.as_path("run"), ids, labels, logits, groups=sentences)
    monkeypatch.setattr(predictions, "read", lambda run, name: saved)
    result = calibration.temperature_scaling("run", calibration.HALVES, "test")
    assert result["temperature"] == temperatures.mean()


def test_one_sentence_has_no_halves():
    logits, labels = random_predictions()
    with pytest.raises(ValueError, match="one group of examples"):
        calibration.temperatures_of_halves(logits, labels, "softmax", np.zeros_like(labels))
    with pytest.raises(ValueError, match="one example"):
        calibration.temperatures_of_halves(logits[:1], labels[:1], "softmax")


def test_halves_scale_the_reported_examples_themselves(without_noise):
    result = calibration.temperature_scaling(without_noise, calibration.HALVES, "test")
    saved = np.load(without_noise / "predictions" / "test.npz")
    logits, labels = saved["logits"], saved["labels"]
    temperatures = calibration.temperatures_of_halves(logits, labels, "softmax")
    assert result["temperature"] == pytest.approx(temperatures.mean())
    log_probs = special.log_softmax(logits / temperatures[:, None].astype(np.float64), axis=-1)
    nll = -log_probs[np.arange(len(labels)), labels].mean()
    assert result["after"]["nll"] == pytest.approx(nll, rel=1e-5)
    assert result["before"] == calibration.unscaled(without_noise, "test")


def test_under_a_sigmoid_the_temperature_divides_the_log_odds(several_labels_run):
    fitted = calibration.temperature_scaling(several_labels_run, "valid", "valid")
    assert fitted["after"]["nll"] <= fitted["before"]["nll"]
    result = calibration.temperature_scaling(several_labels_run, "valid", "test")
    results = files.read_json(several_labels_run / "results.json")["evals"]["test"]
    for name in set(metrics.MULTILABEL) - {"gap", "gap_error"}:
        assert result["before"][name] == pytest.approx(results[name], rel=1e-4)
    assert abs(result["before"]["gap"] - results["gap"]) <= results["gap_error"] + 1e-6
    for name in ("gap", "label_accuracy", "exact", "top1_hit"):  # no temperature changes an order
        assert result["after"][name] == pytest.approx(result["before"][name], abs=1e-4)


def test_measures_of_label_lists_agree_with_scikit_learn():
    logits, labels = random_predictions()
    lists = np.stack([labels, np.full(len(labels), -1)], axis=-1)
    result, hot = calibration.measures(logits, lists, "sigmoid"), np.eye(4)[labels]
    probs = special.expit(logits)
    assert result["gap"] == pytest.approx(
        sklearn_metrics.average_precision_score(hot.ravel(), logits.ravel())
    )
    assert result["nll"] == pytest.approx(
        sum(sklearn_metrics.log_loss(hot[:, c], probs[:, c]) for c in range(4))
    )


def test_missing_or_incomplete_predictions_are_errors(without_noise, tmp_path):
    with pytest.raises(FileNotFoundError, match="test_best"):
        calibration.temperature_scaling(without_noise, "valid", "test_worst")
    (tmp_path / "predictions").mkdir()
    np.savez(
        tmp_path / "predictions" / "test.npz",
        ids=[0],
        labels=[1],
        logits=[[0.0, 1.0]],
        classes=[[0, 1]],
    )
    with pytest.raises(ValueError, match="requires all logits"):
        calibration.temperature_scaling(tmp_path, "test", "test")


def test_the_command_fits_on_held_out_examples_with_the_same_checkpoint(
    without_noise, tmp_path, monkeypatch, capsys
):
    run = shutil.copytree(
        without_noise, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")
    )
    monkeypatch.setattr("sys.argv", ["calibration", f"--run={run}", "--on=test_best"])
    calibration.main()
    result = calibration.temperature_scaling(run, "valid_best", "test_best")
    assert (
        f"temperature {result['temperature']:.3f}, fitted on valid_best" in capsys.readouterr().out
    )
    assert files.read_json(run / "analysis" / "calibration" / "valid_best_test_best.json") == result
    of_earlier_version(run)
    config = files.read_json(run / "config.json")
    del config["evals"]["valid_best"]
    files.write_json(run / "config.json", config)
    with pytest.raises(
        SystemExit,
        match=r"no evaluation of held-out examples with the checkpoint of 'test_best'.*--fit",
    ):
        calibration.main()
