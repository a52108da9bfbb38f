import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import metrics as sklearn_metrics
from small_runs import of_earlier_version

from heteroscedastic import files, metrics
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.calibration import reliability, scores


def test_before_is_what_the_run_said_and_after_is_better_where_it_was_fitted(without_noise):
    found = calibration.before_and_after(without_noise, "valid", "valid")
    saved = np.load(without_noise / "predictions" / "valid.npz")
    accuracy = (saved["logits"].argmax(-1) == saved["labels"]).mean()
    assert found["before"]["accuracy"] == found["after"]["accuracy"] == pytest.approx(accuracy)
    assert found["after"]["nll"] <= found["before"]["nll"]


def test_before_agrees_with_the_results_of_the_run(without_noise):
    told = files.read_json(without_noise / "results.json")["evals"]["test"]
    found = calibration.before_and_after(without_noise, "valid", "test")["before"]
    assert told.keys() <= found.keys()
    for name in metrics.MULTICLASS:
        assert found[name] == pytest.approx(told[name], rel=1e-4)


def drawn(k=4, n=300):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, k)).astype(np.float32)
    return logits, np.argmax(logits + 2 * rng.gumbel(size=(n, k)), axis=-1)


def test_of_one_label_it_tells_what_scores_and_sums_say():
    logits, labels = drawn()
    found = calibration.measures(logits, labels, "softmax")
    probs = special.softmax(logits, axis=-1)
    confidence, correct = probs.max(-1), probs.argmax(-1) == labels
    edges = reliability.equal_edges(15)
    parts = scores.brier_parts(probs.astype(np.float64), labels, edges)
    for name, value in parts._asdict().items():
        assert found[f"brier_{name}"] == pytest.approx(value, rel=1e-4)
    errors = sklearn_metrics.roc_auc_score(~correct, 1 - confidence)
    assert found["auroc"] == pytest.approx(errors)

    def error(stated, holds):
        sums = reliability.sums(
            jnp.asarray(stated), jnp.asarray(holds, jnp.float32), jnp.ones(len(stated)), edges
        )
        return reliability.expected_calibration_error(sums)

    of_classes = [error(confidence[labels == c], correct[labels == c]) for c in range(4)]
    for name, value in (
        ("mean", np.mean(of_classes)),
        ("min", min(of_classes)),
        ("max", max(of_classes)),
    ):
        assert found[f"class_ece_{name}"] == pytest.approx(value, rel=1e-4)
    against_all = [error(probs[:, c], labels == c) for c in range(4)]
    assert found["one_against_all_ece"] == pytest.approx(np.mean(against_all), rel=1e-4)


def test_a_class_without_examples_has_no_error():
    logits, labels = drawn()
    without = calibration.measures(
        np.pad(logits, ((0, 0), (0, 1)), constant_values=-1e4), labels, "softmax"
    )
    with_it = calibration.measures(logits, labels, "softmax")
    for name in ("class_ece_mean", "class_ece_min", "class_ece_max", "brier", "auroc"):
        assert without[name] == pytest.approx(with_it[name], rel=1e-5)


def test_of_several_labels_the_temperature_is_of_the_log_odds(several_labels_run):
    fitted = calibration.before_and_after(several_labels_run, "valid", "valid")
    assert fitted["after"]["nll"] <= fitted["before"]["nll"]
    found = calibration.before_and_after(several_labels_run, "valid", "test")
    told = files.read_json(several_labels_run / "results.json")["evals"]["test"]
    for name in set(metrics.MULTILABEL) - {"gap", "gap_error"}:
        assert found["before"][name] == pytest.approx(told[name], rel=1e-4)
    assert abs(found["before"]["gap"] - told["gap"]) <= told["gap_error"] + 1e-6
    for name in ("gap", "label_accuracy", "exact", "top1_hit"):  # no temperature changes an order
        assert found["after"][name] == pytest.approx(found["before"][name], abs=1e-4)


def test_of_several_labels_it_tells_what_the_yes_and_no_say():
    logits, labels = drawn()
    lists = np.stack([labels, np.full(len(labels), -1)], axis=-1)
    found, hot = calibration.measures(logits, lists, "sigmoid"), np.eye(4)[labels]
    probs = special.expit(logits)
    assert found["gap"] == pytest.approx(
        sklearn_metrics.average_precision_score(hot.ravel(), logits.ravel())
    )
    assert found["nll"] == pytest.approx(
        sum(sklearn_metrics.log_loss(hot[:, c], probs[:, c]) for c in range(4))
    )


def test_predictions_that_are_missing_or_of_another_kind_are_told(without_noise, tmp_path):
    with pytest.raises(FileNotFoundError, match="test_best"):
        calibration.before_and_after(without_noise, "valid", "test_worst")
    (tmp_path / "predictions").mkdir()
    np.savez(
        tmp_path / "predictions" / "test.npz",
        ids=[0],
        labels=[1],
        logits=[[0.0, 1.0]],
        classes=[[0, 1]],
    )
    with pytest.raises(ValueError, match="needs every one"):
        calibration.before_and_after(tmp_path, "test", "test")


def test_the_command_fits_on_what_is_held_out_by_the_same_weights(
    without_noise, tmp_path, monkeypatch, capsys
):
    run = shutil.copytree(
        without_noise, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")
    )
    monkeypatch.setattr("sys.argv", ["calibration", f"--run={run}", "--on=test_best"])
    calibration.main()
    found = calibration.before_and_after(run, "valid_best", "test_best")
    assert (
        f"temperature {found['temperature']:.3f}, fitted on valid_best" in capsys.readouterr().out
    )
    assert files.read_json(run / "analysis" / "calibration" / "valid_best_test_best.json") == found
    of_earlier_version(run)
    config = files.read_json(run / "config.json")
    del config["evals"]["valid_best"]
    files.write_json(run / "config.json", config)
    with pytest.raises(
        SystemExit, match=r"no held-out examples by the weights of 'test_best'.*--fit"
    ):
        calibration.main()
