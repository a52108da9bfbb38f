import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic.runs import predictions
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


def written(tmp_path, labels=LABELS, logits=LOGITS):
    """Predictions as a run keeps them."""
    ids = np.arange(len(labels), dtype=np.int32)
    kept = evaluate.arrays(
        bounded(
            step.Predictions(ids, np.ones(len(labels)), labels, jnp.asarray(logits)),
            log_normalizer if labels.ndim == 2 else functools.partial(jax.nn.logsumexp, axis=-1),
        )
    )
    (tmp_path / "predictions").mkdir(exist_ok=True)
    np.savez(tmp_path / "predictions" / "test.npz", **kept)
    return predictions.read(tmp_path, "test")


def whole(labels=LABELS, logits=LOGITS):
    return predictions.Predictions(None, np.arange(len(labels)), labels, jnp.asarray(logits))


def test_what_is_told_of_the_kept_logits_is_what_all_of_them_tell(tmp_path):
    kept, every = written(tmp_path), whole()
    assert kept.classes is not None
    for told in (predictions.losses, predictions.confidence, predictions.is_correct):
        np.testing.assert_allclose(told(kept), told(every), rtol=1e-5)
    np.testing.assert_array_equal(predictions.likeliest(kept), predictions.likeliest(every))


def test_of_yes_or_no_answers_the_kept_logits_tell_the_loss_and_the_likeliest(tmp_path):
    lists = np.concatenate([LISTS, LISTS[:, :1]], axis=-1)  # a repeated label is one
    kept, every = written(tmp_path, lists), whole(lists)
    assert kept.classes is not None
    for told in (predictions.losses, predictions.likeliest):
        np.testing.assert_allclose(told(kept), told(every), rtol=1e-5)


def test_it_is_scipys_softmax():
    told, probs = whole(), special.softmax(LOGITS.astype(np.float64), axis=-1)
    np.testing.assert_allclose(predictions.confidence(told), probs.max(-1))
    np.testing.assert_allclose(predictions.losses(told), -np.log(probs[np.arange(40), LABELS]))
    np.testing.assert_array_equal(predictions.is_correct(told), LOGITS.argmax(-1) == LABELS)
    cooled = special.softmax(LOGITS.astype(np.float64) / 2.5, axis=-1).max(-1)
    np.testing.assert_allclose(predictions.confidence(told, 2.5), cooled)


def test_a_tie_is_wrong():
    tied = whole(np.array([0, 1]), np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]], np.float32))
    np.testing.assert_array_equal(predictions.is_correct(tied), [False, True])


def test_lists_of_labels_are_yes_or_no_for_every_class():
    told = whole(LISTS[:, :], LOGITS)
    probs, holds = predictions.answers(told)
    assert [sorted(np.flatnonzero(row)) for row in holds] == [
        sorted(x for x in row if x >= 0) for row in LISTS
    ]
    np.testing.assert_allclose(
        predictions.losses(told), -stats.bernoulli.logpmf(holds, probs).sum(-1), rtol=1e-4
    )


def test_what_needs_every_logit_says_so(tmp_path):
    with pytest.raises(
        ValueError, match="above 2,000 classes; temperature scaling needs every one"
    ):
        predictions.confidence(written(tmp_path), 2.0)
    with pytest.raises(ValueError, match="yes/no answers needs every one"):
        predictions.answers(written(tmp_path, LISTS))
    with pytest.raises(ValueError, match="is of one label an example"):
        predictions.confidence(written(tmp_path, LISTS))
    with pytest.raises(ValueError, match="has one label an example"):
        predictions.answers(whole())


def test_noisy_is_what_differs_from_the_clean_label():
    ids = np.array([7, 3, 5])
    told = predictions.Predictions(None, ids, np.array([0, 1, 2]), np.eye(3, dtype=np.float32))
    clean = {3: np.int32(1), 5: np.int32(0), 7: np.int32(0), 9: np.int32(1)}
    np.testing.assert_array_equal(predictions.is_noisy(told, clean), [False, False, True])
    lists = told._replace(labels=np.array([[0, 1], [2, -1], [-1, -1]]))
    clean = {7: np.array([1, 0]), 3: np.array([2, 1]), 5: np.array([0, -1])}
    np.testing.assert_array_equal(
        predictions.is_noisy(lists, clean),
        [[False] * 3, [False, True, False], [True, False, False]],
    )
    # One label an example, under the sigmoid, is a list of one; what it is copied from is a label.
    ones, clean = (
        lists._replace(labels=np.array([[0], [1], [2]])),
        {7: np.int32(0), 3: np.int32(1), 5: np.int32(0)},
    )
    np.testing.assert_array_equal(
        predictions.is_noisy(ones, clean), [[False] * 3, [False] * 3, [True, False, True]]
    )


def test_files_that_are_missing_damaged_or_of_another_version_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="it has none at all: remove its results"):
        predictions.read(tmp_path, "test")
    written(tmp_path)
    assert predictions.names(tmp_path) == ["test"]
    with pytest.raises(FileNotFoundError, match="it has those of test: choose one"):
        predictions.read(tmp_path, "valid")
    path = tmp_path / "predictions" / "test.npz"
    np.savez(path, ids=[0], right_labels=[[1, 0]], logits=[[1.0, 0.0]])
    with pytest.raises(ValueError, match="lists of labels are right, under a softmax"):
        predictions.read(tmp_path, "test")
    np.savez(path, ids=[0], probabilities=[[1.0]])
    with pytest.raises(
        ValueError, match=r"lacks \['labels', 'logits'\] and has \['probabilities'\]"
    ):
        predictions.read(tmp_path, "test")
    path.write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="is damaged"):
        predictions.read(tmp_path, "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(labels=np.array([0, -5, 1])), "id 1 has label -5, which is none of 2 classes"),
        (dict(labels=np.array([0, 1, 2])), "id 2 has label 2, which is none of 2 classes"),
        (dict(labels=np.array([[0, -1], [1, -2], [0, 1]])), "id 1 has label -2"),
        (dict(logits=np.array([[0, 1], [np.nan, 0], [0, 1]])), "logits of id 1 are not finite"),
        (dict(logits=np.array([[0, 1], [0, 1], [0, -np.inf]])), "logits of id 2 are not finite"),
        (dict(labels=np.array([0, 1])), "labels have shape"),
        (dict(ids=np.array([0, 1, 1])), "an id occurs twice"),
        (dict(labels=np.array([0.0, 1.0, 0.0])), "labels are float64, not whole numbers"),
    ],
)
def test_arrays_that_no_run_writes_are_refused_in_one_line(tmp_path, change, message):
    (tmp_path / "predictions").mkdir()
    arrays = dict(ids=np.arange(3), labels=np.array([0, 1, 0]), logits=np.eye(3, 2))
    np.savez(tmp_path / "predictions" / "test.npz", **arrays)
    predictions.read(tmp_path, "test")
    np.savez(tmp_path / "predictions" / "test.npz", **arrays | change)
    with pytest.raises(
        ValueError, match=rf"test.npz is damaged \({message}.*remove the run's results.json"
    ):
        predictions.read(tmp_path, "test")
