import jax.numpy as jnp
import numpy as np
from gaussians import key
from scipy import special

from heteroscedastic import metrics
from heteroscedastic.training import evaluate
from heteroscedastic.training.step import Predictions


def predictions(num_examples, num_classes, lists=False, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, (num_examples, 3) if lists else num_examples).astype(np.int32)
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

    def step(rows, key):
        weights = (rows >= 0).astype(np.float32)
        part = Predictions(whole.ids[rows], weights, whole.labels[rows], whole.logits[rows])
        return metrics.multiclass(*map(jnp.asarray, (part.logits, part.labels, part.weights))), part

    def run(size):
        rows = np.pad(np.arange(23), (0, -23 % size), constant_values=-1)
        return evaluate.evaluate(step, rows.reshape(-1, size), key())

    expected = metrics.means(run(23)[0])
    for size in (1, 5, 8):
        sums, found = run(size)
        np.testing.assert_array_equal(found.ids, np.arange(23))
        for name, value in metrics.means(sums).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6)


def test_up_to_2000_classes_every_logit_is_written():
    made = predictions(4, 2000)
    np.testing.assert_array_equal(evaluate.arrays(made)["logits"], made.logits)


def test_above_2000_classes_the_largest_and_the_labels_own_are_enough():
    for lists in (False, True):
        made = predictions(4, 2001, lists)
        written = evaluate.arrays(made)
        assert written["logits"].shape == (4, 100)
        rows = np.arange(4)[:, None]
        np.testing.assert_array_equal(written["logits"], -np.sort(-made.logits)[:, :100])
        np.testing.assert_array_equal(made.logits[rows, written["classes"]], written["logits"])
        np.testing.assert_allclose(written["log_normalizer"], special.logsumexp(made.logits, axis=-1), rtol=1e-6)
        own = written["label_logits"]
        assert own.shape == made.labels.shape
        np.testing.assert_array_equal(np.isnan(own), made.labels < 0)
        exact = np.take_along_axis(made.logits, np.maximum(made.labels.reshape(4, -1), 0), axis=-1)
        np.testing.assert_array_equal(
            own.reshape(4, -1)[made.labels.reshape(4, -1) >= 0], exact[made.labels.reshape(4, -1) >= 0]
        )
