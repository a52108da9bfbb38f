"""In translation a token is an example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import tasks
from heteroscedastic.batch import Batch
from heteroscedastic.models import heads
from heteroscedastic.training import evaluate

SHAPE, K = (3, 5), 7


def examples(num_classes=K):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(*SHAPE, num_classes)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, num_classes, SHAPE), jnp.int32)
    weights = jnp.asarray(rng.integers(0, 2, SHAPE), jnp.float32)
    return logits, Batch(None, labels, weights, jnp.arange(15).reshape(SHAPE), {})


def test_metrics_are_those_of_the_tokens_that_are_present():
    logits, batch = examples()
    present = np.asarray(batch.weights) > 0
    flat = Batch(None, *(x[present] for x in batch[1:4]), {})
    task, sums = tasks.translation(), jax.jit(tasks.translation().evaluation_sums, static_argnums=2)
    rows = task.means(sums(logits, batch, None))
    assert rows == pytest.approx(task.means(sums(logits[present], flat, None)), rel=1e-5)
    log_probs = jax.nn.log_softmax(logits[present])
    own = np.take_along_axis(np.asarray(log_probs), np.asarray(flat.labels)[:, None], -1)
    assert rows["nll"] == pytest.approx(-own.mean(), rel=1e-5)


@pytest.mark.parametrize("num_largest", [3, 8])
def test_the_record_has_a_line_for_each_token_and_above_2000_words_the_largest_logits(num_largest):
    logits, batch = examples(2001)

    def step(feed, key):
        return jnp.sum(feed), tasks.translation().predictions(logits, batch, None, num_largest)

    _, record = evaluate.evaluate(step, [jnp.ones(1)], jax.random.key(0))
    present = np.asarray(batch.weights) > 0
    np.testing.assert_array_equal(record.ids, np.arange(15)[present.ravel()])
    flat = np.asarray(logits)[present]
    np.testing.assert_array_equal(record.logits, -np.sort(-flat, axis=-1)[:, :num_largest])
    own = flat[np.arange(len(flat)), record.labels]
    np.testing.assert_array_equal(record.label_logits, own)
    np.testing.assert_allclose(record.log_normalizer, np.log(np.exp(flat).sum(-1)), rtol=1e-6)


@pytest.mark.parametrize("settings", [dict(hidden_width=4), dict(zero_start=True)])
def test_a_head_whose_kernel_is_no_embedding_is_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"config\.head\.{name} is .*; set it to (0|False)\."):
        tasks.translation().model(heads.Deterministic(K), heads.Deterministic(K, **settings))
