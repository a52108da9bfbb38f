import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key
from scipy import special

from heteroscedastic import metrics, tasks
from heteroscedastic.batch import Batch
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.tasks import task
from heteroscedastic.training import evaluate, step
from heteroscedastic.training.step import Predictions


def predictions(num_examples, num_classes, lists=False, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, (num_examples, 3) if lists else num_examples).astype(
        np.int32
    )
    if lists:
        labels[::2, 2] = -1
    return Predictions(
        ids=np.arange(num_examples, dtype=np.int32),
        weights=np.ones(num_examples, np.float32),
        labels=labels,
        logits=rng.normal(size=(num_examples, num_classes)).astype(np.float32),
    )


def test_the_metrics_of_a_split_do_not_depend_on_its_batches():
    whole = predictions(23, 7)

    sums_of = jax.jit(metrics.multiclass)

    def one(rows, key):
        weights = (rows >= 0).astype(np.float32)
        part = Predictions(whole.ids[rows], weights, whole.labels[rows], whole.logits[rows])
        return sums_of(*map(jnp.asarray, (part.logits, part.labels, part.weights))), part

    def run(size):
        rows = np.pad(np.arange(23), (0, -23 % size), constant_values=-1)
        return evaluate.evaluate(one, rows.reshape(-1, size), key())

    expected = metrics.means(run(23)[0])
    sums, none = evaluate.evaluate(one, np.arange(23)[None], key(), keeps_predictions=False)
    assert none is None
    assert metrics.means(sums) == expected
    for size in (1, 5, 8):
        sums, found = run(size)
        np.testing.assert_array_equal(found.ids, np.arange(23))
        for name, value in metrics.means(sums).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6)


def test_every_batch_has_a_key_of_its_own_and_another_evaluation_has_the_same_keys():
    keys = []

    def one(rows, batch_key):
        keys.append(tuple(np.asarray(jax.random.key_data(batch_key)).tolist()))
        return np.zeros(()), jax.tree.map(lambda x: x[rows], predictions(6, 2))

    for _ in range(2):
        evaluate.evaluate(one, np.arange(6).reshape(3, 2), key())
    assert keys[:3] == keys[3:]
    assert len(set(keys)) == 3


def test_up_to_2000_classes_every_logit_is_written():
    made = predictions(4, 2000)
    written = evaluate.arrays(task.bounded(made, functools.partial(jax.nn.logsumexp, axis=-1)))
    assert set(written) == {"ids", "labels", "logits"}
    np.testing.assert_array_equal(written["logits"], made.logits)


def plain(ids, labels, logits):
    """What the file holds above 2,000 classes, from all logits of a split at once."""
    lists = labels.reshape(len(labels), -1)
    own = np.where(lists >= 0, np.take_along_axis(logits, np.maximum(lists, 0), axis=-1), np.nan)
    classes = np.argsort(-logits, axis=-1, kind="stable")[:, :100]
    several = np.logaddexp(0, logits.astype(np.float64)).sum(axis=-1)
    return {
        "ids": ids,
        "labels": labels,
        "logits": np.take_along_axis(logits, classes, axis=-1),
        "classes": classes.astype(np.int32),
        "label_logits": own.reshape(labels.shape),
        "log_normalizer": several if labels.ndim == 2 else special.logsumexp(logits, axis=-1),
    }


@pytest.mark.parametrize("lists", [False, True])
def test_above_2000_classes_the_file_is_that_of_all_logits_though_no_batch_keeps_them(lists):
    made = predictions(10, 2001, lists)
    made.logits[:, 5:2000:7] = made.logits[:, :1]  # many are equal
    asked = tasks.multilabel() if lists else tasks.multiclass()

    @jax.jit
    def one(rows, key):
        parts = [jnp.asarray(x)[rows] for x in (made.labels, made.logits)]
        batch = Batch(
            None, parts[0], (rows >= 0).astype(jnp.float32), jnp.asarray(made.ids)[rows], {}
        )
        return step.eval_step(
            LatentGaussian(parts[1]),
            batch,
            key,
            predictive=lambda key, x: x.loc,
            metric=functools.partial(asked.evaluation_sums, answers=None),
            record=functools.partial(asked.predictions, answers=None),
        )

    _, found = evaluate.evaluate(
        one, np.pad(np.arange(10), (0, 2), constant_values=-1).reshape(3, 4), key()
    )
    assert found.logits.shape == (10, 100)
    written, expected = evaluate.arrays(found), plain(made.ids, made.labels, made.logits)
    assert set(written) == set(expected)
    for name, array in expected.items():
        same = dict(rtol=1e-6) if name == "log_normalizer" else dict(rtol=0)
        np.testing.assert_allclose(written[name], array, err_msg=name, **same)
        assert written[name].dtype == (np.float32 if name == "log_normalizer" else array.dtype)


def test_one_label_an_example_under_the_sigmoid_is_written_as_a_list_of_one():
    made = predictions(4, 7)
    batch = Batch(None, *map(jnp.asarray, (made.labels, made.weights, made.ids)), {})
    _, found = step.eval_step(
        LatentGaussian(jnp.asarray(made.logits)),
        batch,
        key(),
        predictive=lambda key, x: x.loc,
        metric=functools.partial(tasks.one_vs_rest().evaluation_sums, answers=None),
        record=functools.partial(tasks.one_vs_rest().predictions, answers=None),
    )
    np.testing.assert_array_equal(found.labels, made.labels[:, None])


def test_lists_of_right_labels_under_a_softmax_are_not_taken_for_answers():
    made = predictions(4, 7, lists=True)
    batch = Batch(None, *map(jnp.asarray, (made.labels, made.weights, made.ids)), {})
    sums, found = step.eval_step(
        LatentGaussian(jnp.asarray(made.logits)),
        batch,
        key(),
        predictive=lambda key, x: x.loc,
        metric=functools.partial(tasks.multiclass().evaluation_sums, answers="any"),
        record=functools.partial(tasks.multiclass().predictions, answers="any"),
    )
    assert set(evaluate.arrays(jax.tree.map(np.asarray, found))) == {
        "ids",
        "right_labels",
        "logits",
    }
    hits = [np.argmax(row) in labels for row, labels in zip(made.logits, made.labels)]
    assert metrics.means(sums)["accuracy"] == np.mean(hits)
