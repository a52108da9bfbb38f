import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import metrics as sklearn_metrics

from heteroscedastic import metrics
from heteroscedastic.calibration import reliability

# Compiled, because each operation alone would be a program.
multiclass, multiclass_sigmoid, ranked_multilabel, any_label = map(
    jax.jit,
    (metrics.multiclass, metrics.multiclass_sigmoid, metrics.ranked_multilabel, metrics.any_label),
)


def single(n=40, k=8, seed=0):
    """Logits, one label per example, and integer weights that stand for repeated examples."""
    rng = np.random.default_rng(seed)
    logits = np.float32(2 * rng.normal(size=(n, k)))
    labels = rng.integers(0, k, n).astype(np.int32)
    return logits, labels, np.float32(rng.integers(0, 3, n))


def label_lists(n=40, k=6, seed=0):
    """Logits, lists of labels padded with -1, and integer weights, some of them zero."""
    rng = np.random.default_rng(seed)
    logits = np.float32(2 * rng.normal(size=(n, k)))
    hot = rng.random((n, k)) < special.expit(logits)
    lists = np.full((n, k), -1, np.int32)
    for i, row in enumerate(hot):
        lists[i, : row.sum()] = np.flatnonzero(row)
    return logits, lists, np.float32(rng.integers(0, 3, n))


CASES = [
    (multiclass, single),
    (multiclass_sigmoid, single),
    (ranked_multilabel, label_lists),
    (any_label, label_lists),
]


def multilabel_reference(logits, labels, weights):
    """The metrics in plain numpy, one example at a time."""
    names = ("nll", "brier", "label_accuracy", "exact", "top1_hit")
    totals = dict.fromkeys(names, 0.0)
    for row, own, weight in zip(
        np.asarray(logits, np.float64), np.asarray(labels), np.asarray(weights)
    ):
        holds = np.isin(np.arange(len(row)), own)
        probs = special.expit(row)
        right = (probs > 0.5) == holds
        values = (
            -np.log(np.where(holds, probs, 1 - probs)).sum(),
            np.square(probs - holds).sum(),
            right.mean(),
            right.all(),
            holds[np.argmax(row)],
        )
        for name, value in zip(names, values):
            totals[name] += weight * value
    return {name: total / float(np.sum(weights)) for name, total in totals.items()}


@pytest.mark.parametrize("seed", [0, 1])
def test_multiclass_metrics_agree_with_scikit_learn_and_numpy(seed):
    logits, labels, weights = single(seed=seed)
    result = metrics.means(multiclass(logits, labels, weights))
    probs = special.softmax(np.asarray(logits, np.float64), axis=-1)
    classes = np.arange(8)
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(labels, probs.argmax(-1), sample_weight=weights),
        "top5_accuracy": sklearn_metrics.top_k_accuracy_score(
            labels, probs, k=5, labels=classes, sample_weight=weights
        ),
        "nll": sklearn_metrics.log_loss(labels, probs, labels=classes, sample_weight=weights),
        "brier": np.average(np.square(probs - np.eye(8)[labels]).sum(-1), weights=weights),
    }
    np.testing.assert_allclose(
        [result[name] for name in expected], list(expected.values()), rtol=1e-5
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_one_label_under_a_sigmoid_ranks_as_a_softmax_and_sums_over_classes(seed):
    logits, labels, weights = single(seed=seed)
    result = metrics.means(multiclass_sigmoid(logits, labels, weights))
    softmax = metrics.means(multiclass(logits, labels, weights))
    by_class = multilabel_reference(logits, labels[:, None], weights)
    confidence = special.expit(np.asarray(logits, np.float64)).max(axis=-1)
    expected = {
        "accuracy": softmax["accuracy"],
        "top5_accuracy": softmax["top5_accuracy"],
        "nll": by_class["nll"],
        "brier": by_class["brier"],
        "confidence": np.average(confidence, weights=weights),
    }
    assert result["accuracy"] == by_class["top1_hit"]
    np.testing.assert_allclose(
        [result[name] for name in expected], list(expected.values()), rtol=1e-5
    )


def test_log_odds_are_ranked_where_float32_probabilities_saturate():
    logits = jnp.array([[30.0, 40.0, 20.0]])
    for label, right in enumerate([0, 1, 0]):
        assert (
            metrics.means(multiclass_sigmoid(logits, jnp.array([label]), jnp.ones(1)))["accuracy"]
            == right
        )


def test_calibration_uses_the_probability_of_the_predicted_class():
    logits, labels, weights = single()
    result = metrics.means(multiclass(logits, labels, weights))
    confidence = special.softmax(logits, axis=-1).max(axis=-1)
    right = (np.argmax(logits, axis=-1) == labels).astype(np.float32)
    sums = functools.partial(reliability.sums, edges=reliability.equal_edges(15))
    binned = jax.jit(sums)(confidence, right, weights)
    expected = {
        "ece": reliability.expected_calibration_error(binned),
        "mce": reliability.maximum_calibration_error(binned),
        "confidence": np.average(confidence, weights=weights),
        "overconfidence": np.average(confidence, weights=weights * (1 - right)),
        "underconfidence": 1 - np.average(confidence, weights=weights * right),
    }
    np.testing.assert_allclose(
        [result[name] for name in expected], list(expected.values()), rtol=1e-5
    )


def test_calibration_by_bin_centre_is_pycalibs_without_its_errors():
    logits, labels, weights = single(n=400, k=8)
    result = metrics.means(multiclass(logits, labels, weights))
    confidence = special.softmax(logits.astype(np.float64), axis=-1).max(axis=-1)
    right = np.argmax(logits, axis=-1) == labels
    for num_bins, names in ((15, ("ece_center",)), (100, ("ece_center_100", "mce_center_100"))):
        counts, _ = np.histogram(confidence, num_bins, (1 / 8, 1), weights=weights)
        hits, _ = np.histogram(confidence, num_bins, (1 / 8, 1), weights=weights * right)
        points = np.linspace(1 / 8 + 1 / (2 * num_bins), 1 - 1 / (2 * num_bins), num_bins)
        held = counts > 0
        gaps = np.abs(hits[held] / counts[held] - points[held])
        expected = (np.average(gaps, weights=counts[held]), gaps.max())
        for name, value in zip(names, expected):
            assert abs(result[name] - value) <= 1 / (2 * 8 * num_bins) + 1e-5


@pytest.mark.parametrize("seed", [0, 1])
def test_multilabel_metrics_agree_with_numpy(seed):
    case = label_lists(seed=seed)
    result = metrics.means(ranked_multilabel(*case))
    expected = multilabel_reference(*case)
    np.testing.assert_allclose(
        [result[name] for name in expected], list(expected.values()), rtol=1e-5
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_global_average_precision_pools_all_examples_and_classes(seed):
    logits, labels, weights = label_lists(n=400, seed=seed)
    result = metrics.means(ranked_multilabel(logits, labels, weights))
    holds = (labels[:, :, None] == np.arange(6)).any(axis=1)
    repeated_weights = np.repeat(np.asarray(weights), 6)
    expected = sklearn_metrics.average_precision_score(
        np.ravel(holds), np.ravel(logits), sample_weight=repeated_weights
    )
    assert abs(result["gap"] - expected) <= result["gap_error"] < 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_a_prediction_is_correct_if_the_list_contains_it(seed):
    logits, lists, weights = label_lists(seed=seed)
    hits = [
        row.argmax() in labels
        for row, labels in zip(np.asarray(logits), np.asarray(lists).tolist())
    ]
    result = metrics.means(any_label(logits, lists, weights))
    np.testing.assert_allclose(result["accuracy"], np.average(hits, weights=weights), rtol=1e-6)


def test_lists_of_one_label_give_the_accuracy_of_single_labels():
    logits, labels, weights = single()
    tied = logits.copy()
    tied[:10], tied[10:15, 0] = 0.0, np.nan
    lists = np.pad(labels[:, None], ((0, 0), (0, 2)), constant_values=-1)
    one, other = (
        metrics.means(metric(tied, answers, weights))
        for metric, answers in ((multiclass, labels), (any_label, lists))
    )
    assert other["accuracy"] == one["accuracy"]


@pytest.mark.parametrize(("metric", "case"), CASES)
def test_parts_of_a_data_set_merge_by_addition(metric, case):
    batch = case()
    parts = [metric(*(x[s] for x in batch)) for s in (slice(0, 20), slice(20, None))]
    merged, direct = metrics.means(jax.tree.map(np.add, *parts)), metrics.means(metric(*batch))
    assert merged.keys() == direct.keys()
    np.testing.assert_allclose(list(merged.values()), list(direct.values()), rtol=1e-5)


@pytest.mark.parametrize(("metric", "case"), CASES)
@pytest.mark.parametrize("logit", [0.0, jnp.nan, jnp.inf, -jnp.inf])
def test_padding_changes_nothing_for_any_logits(metric, case, logit):
    logits, labels, weights = case()
    padding = ((0, 3), (0, 0))
    padded = metric(
        np.pad(logits, padding, constant_values=logit),
        np.concatenate([labels, labels[:3]]),
        np.pad(weights, padding[0]),
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        padded,
        metric(logits, labels, weights),
    )


@pytest.mark.parametrize(("metric", "case"), CASES)
def test_an_integer_weight_is_that_many_examples(metric, case):
    logits, labels, weights = case()
    rows = np.repeat(np.arange(len(labels)), np.asarray(weights, int))
    repeated = metrics.means(metric(logits[rows], labels[rows], np.ones(len(rows), np.float32)))
    weighted = metrics.means(metric(logits, labels, weights))
    np.testing.assert_allclose(list(weighted.values()), list(repeated.values()), rtol=1e-5)


@pytest.mark.parametrize(("num_tied", "in_top5"), [(2, True), (5, True), (6, False), (8, False)])
def test_ties_count_against_the_label(num_tied, in_top5):
    logits = np.where(np.arange(8) < num_tied, np.float32(3), np.float32(0))
    for label in range(num_tied):  # wherever the label stands among those tied
        result = metrics.means(multiclass(logits[None], jnp.array([label]), jnp.ones(1)))
        assert result["accuracy"] == 0
        assert result["top5_accuracy"] == in_top5


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_logits_that_differ_are_no_ties_though_their_log_probabilities_are_rounded_alike(dtype):
    logits = jnp.array([[1e-8, 0.0]], dtype)
    rounded = jax.nn.log_softmax(logits)
    assert rounded[0, 0] == rounded[0, 1]
    for label, accuracy in ((0, 1), (1, 0)):
        result = metrics.means(multiclass(logits, jnp.array([label]), jnp.ones(1)))
        assert result["accuracy"] == accuracy


@pytest.mark.parametrize("k", [1, 4, 5])
def test_with_five_classes_or_fewer_the_label_is_always_in_the_top_five(k):
    logits, labels, _ = single(k=k)
    assert metrics.means(multiclass(logits, labels, jnp.ones(len(labels))))["top5_accuracy"] == 1


@pytest.mark.parametrize("label", [0, 1])
def test_nan_logits_are_never_correct(label):
    logits = jnp.array([[jnp.nan, jnp.nan, jnp.nan], [5.0, 5.0, jnp.nan]])
    result = metrics.means(multiclass(logits, jnp.full(2, label), jnp.ones(2)))
    assert result["accuracy"] == 0
    assert np.isnan(result["nll"])
    one = metrics.means(multiclass(jnp.array([[jnp.nan]]), jnp.zeros(1, int), jnp.ones(1)))
    assert one["accuracy"] == one["top5_accuracy"] == 0
    sigmoid = metrics.means(multiclass_sigmoid(logits[1:], jnp.zeros(1, int), jnp.ones(1)))
    assert sigmoid["accuracy"] == sigmoid["top5_accuracy"] == 0
    listed = metrics.means(metrics.multilabel(logits, jnp.array([[label], [-1]]), jnp.ones(2)))
    assert listed["exact"] == listed["top1_hit"] == 0
    assert listed["label_accuracy"] == 0  # 5 says that it is a label, and is not


@pytest.mark.parametrize("logits", [[0.0, 0.0, 0.0], [1e30, -1e30, 0.0]])
def test_an_example_without_labels_is_correct_only_if_no_class_is_predicted(logits):
    labels = jnp.full((1, 2), -1)
    result = metrics.means(ranked_multilabel(jnp.array([logits]), labels, jnp.ones(1)))
    assert result["top1_hit"] == 0
    assert result["exact"] == (max(logits) <= 0)


@pytest.mark.parametrize(("metric", "case"), CASES)
def test_metrics_without_examples_are_nan(metric, case):
    logits, labels, weights = case()
    for empty in (metric(logits[:0], labels[:0], weights[:0]), metric(logits, labels, 0 * weights)):
        assert np.isnan(list(metrics.means(empty).values())).all()


@pytest.mark.parametrize(
    ("metric", "case", "names"),
    [
        (multiclass, single, metrics.MULTICLASS),
        (multiclass_sigmoid, single, metrics.MULTICLASS),
        (ranked_multilabel, label_lists, metrics.MULTILABEL),
    ],
)
def test_the_declared_names_are_those_of_the_means(metric, case, names):
    assert tuple(metrics.means(metric(*case()))) == names


def test_the_metrics_that_are_not_lower_for_better_models_are_those_of_accuracy_and_confidence():
    others = {name for name in metrics.MULTICLASS if name not in metrics.LOWER_IS_BETTER}
    assert others == {"accuracy", "top5_accuracy", "confidence"}
    others = {name for name in metrics.MULTILABEL if name not in metrics.LOWER_IS_BETTER}
    assert others == {"label_accuracy", "exact", "top1_hit", "gap"}
