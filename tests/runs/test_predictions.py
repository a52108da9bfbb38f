import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats
from small_runs import plain

from experiments import study
from heteroscedastic import files
from heteroscedastic.analysis.uncertainty import calibration, intervals
from heteroscedastic.data.storage import store
from heteroscedastic.runs import loaded_run, loop, predictions, run_record
from heteroscedastic.tasks.one_vs_rest import log_normalizer
from heteroscedastic.tasks.task import bounded
from heteroscedastic.training import evaluate, step

RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.normal(size=(40, 2500))).astype(np.float32)
LABELS = np.where(RNG.random(40) < 0.5, LOGITS.argmax(-1), RNG.integers(0, 2500, 40)).astype(
    np.int32
)
LISTS = np.stack([LABELS, np.where(RNG.random(40) < 0.5, (LABELS + 1) % 2500, -1)], axis=-1).astype(
    np.int32
)


def saved(tmp_path, labels=LABELS, logits=LOGITS):
    """Predictions as a run saves them."""
    ids = np.arange(len(labels), dtype=np.int32)
    arrays = evaluate.arrays(
        bounded(
            step.Predictions(ids, np.ones(len(labels)), labels, jnp.asarray(logits)),
            log_normalizer if labels.ndim == 2 else functools.partial(jax.nn.logsumexp, axis=-1),
        )
    )
    (tmp_path / "predictions").mkdir(exist_ok=True)
    np.savez(tmp_path / "predictions" / "test.npz", **arrays)
    return predictions.read(tmp_path, "test")


def unbounded(labels=LABELS, logits=LOGITS):
    return predictions.Predictions(None, np.arange(len(labels)), labels, logits)


def test_the_largest_logits_give_the_same_values_as_all_logits(tmp_path):
    largest, every = saved(tmp_path), unbounded()
    assert largest.classes is not None
    for function in (predictions.losses, predictions.confidence, predictions.is_correct):
        np.testing.assert_allclose(function(largest), function(every), rtol=1e-5)
    np.testing.assert_array_equal(
        predictions.predicted_classes(largest), predictions.predicted_classes(every)
    )


def test_under_a_sigmoid_the_largest_logits_give_the_loss_and_the_predicted_class(tmp_path):
    lists = np.concatenate([LISTS, LISTS[:, :1]], axis=-1)  # a repeated label counts once
    largest, every = saved(tmp_path, lists), unbounded(lists)
    assert largest.classes is not None
    for function in (predictions.losses, predictions.predicted_classes):
        np.testing.assert_allclose(function(largest), function(every), rtol=1e-5)


def test_probabilities_agree_with_scipy():
    predicted, probs = unbounded(), special.softmax(LOGITS.astype(np.float64), axis=-1)
    np.testing.assert_allclose(predictions.confidence(predicted), probs.max(-1))
    np.testing.assert_allclose(predictions.losses(predicted), -np.log(probs[np.arange(40), LABELS]))
    np.testing.assert_array_equal(predictions.is_correct(predicted), LOGITS.argmax(-1) == LABELS)
    cooled = special.softmax(LOGITS.astype(np.float64) / 2.5, axis=-1).max(-1)
    np.testing.assert_allclose(predictions.confidence(predicted, 2.5), cooled)


def test_a_tie_is_an_error():
    tied = unbounded(np.array([0, 1]), np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]], np.float32))
    np.testing.assert_array_equal(predictions.is_correct(tied), [False, True])


def test_of_one_saved_logit_the_label_need_not_have_it():
    predicted = predictions.Predictions(
        None,
        np.arange(2),
        labels=np.array([0, 1]),
        logits=np.array([[2.0], [3.0]], np.float32),
        classes=np.array([[0], [0]]),
        label_logits=np.array([2.0, 1.0], np.float32),
    )
    np.testing.assert_array_equal(predictions.is_correct(predicted), [True, False])


def test_lists_of_labels_are_a_binary_prediction_for_each_class():
    predicted = unbounded(LISTS[:, :], LOGITS)
    probs, targets = predictions.binary_predictions(predicted)
    assert [sorted(np.flatnonzero(row)) for row in targets] == [
        sorted(x for x in row if x >= 0) for row in LISTS
    ]
    np.testing.assert_allclose(
        predictions.losses(predicted), -stats.bernoulli.logpmf(targets, probs).sum(-1), rtol=1e-4
    )


def test_functions_that_require_all_logits_or_one_label_say_so(tmp_path):
    with pytest.raises(
        ValueError, match="more than 2,000 classes; temperature scaling requires all logits"
    ):
        predictions.confidence(saved(tmp_path), 2.0)
    with pytest.raises(ValueError, match="the probability of each class requires all logits"):
        predictions.binary_predictions(saved(tmp_path, LISTS))
    with pytest.raises(ValueError, match="requires one label per example"):
        predictions.confidence(saved(tmp_path, LISTS))
    with pytest.raises(ValueError, match="has one label per example"):
        predictions.binary_predictions(unbounded())


def test_without_all_logits_calibration_names_the_setting_that_keeps_them(tmp_path, monkeypatch):
    config = study.config("multi30k_hom", {})
    results = {"evals": {name: {} for name in config["evals"]}, "step": 1}
    dataset = {"class_names": [f"word {i}" for i in range(LOGITS.shape[1])]}
    for name, content in dict(config=config, results=results, dataset=dataset).items():
        files.write_json(tmp_path / f"{name}.json", content)
    saved(tmp_path)
    monkeypatch.setattr("sys.argv", ["calibration", f"--run={tmp_path}"])
    flags = (rf"--config\.evals\.{name}\.num_largest=2500" for name in ("test", "valid"))
    with pytest.raises(SystemExit, match=f"another directory with {' '.join(flags)}\\.$"):
        calibration.main()


def test_a_label_is_noisy_if_it_differs_from_the_clean_label():
    ids = np.array([7, 3, 5])
    predicted = predictions.Predictions(None, ids, np.array([0, 1, 2]), np.eye(3, dtype=np.float32))
    clean = {3: np.int32(1), 5: np.int32(0), 7: np.int32(0), 9: np.int32(1)}
    np.testing.assert_array_equal(predictions.is_noisy(predicted, clean), [False, False, True])
    lists = predicted._replace(labels=np.array([[0, 1], [2, -1], [-1, -1]]))
    clean = {7: np.array([1, 0]), 3: np.array([2, 1]), 5: np.array([0, -1])}
    np.testing.assert_array_equal(
        predictions.is_noisy(lists, clean),
        [[False] * 3, [False, True, False], [True, False, False]],
    )
    # One label per example under a sigmoid is a list of one label; its clean label is an integer.
    ones, clean = (
        lists._replace(labels=np.array([[0], [1], [2]])),
        {7: np.int32(0), 3: np.int32(1), 5: np.int32(0)},
    )
    np.testing.assert_array_equal(
        predictions.is_noisy(ones, clean), [[False] * 3, [False] * 3, [True, False, True]]
    )
    unknown = {7: np.int32(-1), 3: np.int32(1), 5: np.int32(-1)}
    assert not predictions.is_noisy(ones, unknown).any()


def test_a_missing_damaged_or_incompatible_file_is_an_error(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"\(test.npz is missing\); remove the run's results"
    ):
        predictions.read(tmp_path, "test")
    saved(tmp_path)
    assert predictions.names(tmp_path) == ["test"]
    with pytest.raises(FileNotFoundError, match="choose one of its evaluations: test"):
        predictions.read(tmp_path, "valid")
    path = tmp_path / "predictions" / "test.npz"
    np.savez(path, ids=[0], right_labels=[[1, 0]], logits=[[1.0, 0.0]])
    with pytest.raises(
        ValueError, match="lists of correct labels, but the model predicts one label per example"
    ):
        predictions.read(tmp_path, "test")
    np.savez(path, ids=[0], probabilities=[[1.0]])
    with pytest.raises(
        ValueError,
        match=r"missing arrays: \['labels', 'logits'\]; unknown arrays: \['probabilities'\]",
    ):
        predictions.read(tmp_path, "test")
    path.write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="is damaged"):
        predictions.read(tmp_path, "test")


def test_a_run_without_evaluations_has_no_predictions_and_can_be_loaded(tmp_path):
    config = plain(**{"training.num_epochs": None, "training.num_steps": 1})
    config["evals"], config["validation"] = {}, None
    results = loop.train(config, str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"config.evals is empty; choose a run that has"):
        predictions.read(tmp_path, "test")
    assert int(loaded_run.load(tmp_path).state.step) == results["step"] == 1


def test_lists_of_which_one_label_is_right_are_no_answers_of_an_earlier_version(
    tmp_path, monkeypatch
):
    saved(tmp_path, LISTS)
    config = {"evals": {"test": {"answers": "any"}}, "data": {}}
    record = run_record.RunRecord(config, {}, {"class_names": ["a"] * LOGITS.shape[1]})
    monkeypatch.setattr(predictions.run_record, "read_if_complete", lambda _: record)
    with pytest.raises(ValueError, match=r"only the accuracy in results.json is defined"):
        predictions.read(tmp_path, "test")


def test_detections_of_a_stream_are_in_the_order_of_the_images(tmp_path, monkeypatch):
    (tmp_path / "predictions").mkdir()
    arrays = dict(image_ids=np.array([7, 2, 5]), scores=np.array([[0.7], [0.2], [0.5]]))
    np.savez(tmp_path / "predictions" / "test.npz", **arrays)
    for pipeline, order in (("streaming", [1, 2, 0]), ("resident", [0, 1, 2])):
        record = run_record.RunRecord({"data": {"pipeline": pipeline}}, {}, {})
        monkeypatch.setattr(predictions.run_record, "read_if_complete", lambda _, r=record: r)
        found = predictions.read_detections(tmp_path, "test")
        for name, x in arrays.items():
            np.testing.assert_array_equal(found[name], x[order])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(labels=np.array([0, -5, 1])), "id 1 has label -5, but there are 2 classes"),
        (dict(labels=np.array([0, 1, 2])), "id 2 has label 2, but there are 2 classes"),
        (dict(labels=np.array([[0, -1], [1, -2], [0, 1]])), "id 1 has label -2"),
        (dict(logits=np.array([[0, 1], [np.nan, 0], [0, 1]])), "logits of id 1 are not finite"),
        (dict(logits=np.array([[0, 1], [0, 1], [0, -np.inf]])), "logits of id 2 are not finite"),
        (dict(labels=np.array([0, 1])), "labels have shape"),
        (dict(ids=np.array([0, 1, 1])), "an id occurs twice"),
        (dict(labels=np.array([0.0, 1.0, 0.0])), "labels are float64, not integers"),
    ],
)
def test_invalid_arrays_are_a_one_line_error(tmp_path, change, message):
    (tmp_path / "predictions").mkdir()
    arrays = dict(ids=np.arange(3), labels=np.array([0, 1, 0]), logits=np.eye(3, 2))
    np.savez(tmp_path / "predictions" / "test.npz", **arrays)
    predictions.read(tmp_path, "test")
    np.savez(tmp_path / "predictions" / "test.npz", **arrays | change)
    with pytest.raises(
        ValueError, match=rf"test.npz is damaged \({message}.*remove the run's results.json"
    ):
        predictions.read(tmp_path, "test")


def test_extras_that_the_config_names_are_saved_with_the_predictions(tmp_path):
    digits = store.load("digits", max_examples=40)
    splits = {
        name: split._replace(
            extras={"age": 3 * split.ids, "groups": split.ids // 4, "unnamed": split.ids}
        )
        for name, split in digits.splits.items()
    }
    store.write(tmp_path / "mine.npz", digits._replace(splits=splits))
    settings = {"data.name": "mine", "data.extras": ("age", "groups"), "training.num_epochs": 1.0}
    loop.train(plain(**settings), str(tmp_path / "run"), str(tmp_path))
    found = predictions.read(tmp_path / "run", "test")
    assert set(found.extras) == {"age", "groups"}
    np.testing.assert_array_equal(found.extras["age"], 3 * found.ids)
    np.testing.assert_array_equal(found.groups, found.ids // 4)
    assert intervals.units(found) == f"{len(set(found.ids // 4))} groups"


def test_an_unknown_group_is_alone_and_one_group_divides_nothing():
    found = predictions.group_numbers(np.array([3, -1, 3, -1, 0], np.int32))
    assert found[0] == found[2]
    assert len(set(found)) == 4
    assert predictions.group_numbers(np.zeros(5, np.int32)) is None
    assert predictions.group_numbers(None) is None


def test_runs_of_the_same_examples_share_the_groups_of_one():
    groups = np.array([0, 0, 1])
    runs = [
        predictions.Predictions(None, np.arange(3), np.zeros(3, int), np.zeros((3, 2)), groups=g)
        for g in (None, groups)
    ]
    assert predictions.shared_groups(runs) is groups
    assert predictions.shared_groups(runs[:1]) is None
