"""A task says what is asked; every other part only declares what it suits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from gaussians import key
from small_runs import small

from heteroscedastic import losses, metrics, predictive, smoothing, tasks, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.bind import _choices, declared_settings
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import suits
from heteroscedastic.runs import assembly, schema
from heteroscedastic.tasks.task import Task, check_parts
from heteroscedastic.training import evaluate
from heteroscedastic.training.objective import objective

ALL = [getattr(tasks, name)() for name in tasks.__all__]
CLASSIFIERS = [task for task in ALL if task.rows == "example"]
PARTS = {
    "predictive": predictive.deterministic,
    "smoothing": smoothing.hard,
    "weighting": weighting.equal,
}


def examples(lists, n=7, k=5):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, k, (n, 2) if lists else n).astype(np.int32)
    if lists:
        labels[::2, 1] = -1
    logits = jnp.asarray(rng.normal(size=(n, k)), jnp.float32)
    weights = jnp.ones(n).at[-1].set(0.0)
    return logits, Batch(None, jnp.asarray(labels), weights, jnp.arange(n), {})


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_a_task_has_the_name_of_its_config_and_the_whole_protocol(task):
    assert isinstance(task, Task)
    assert schema.task({"task": task.name}).name == task.name


@pytest.mark.parametrize(
    "module", [losses, predictive, smoothing, weighting], ids=lambda m: m.__name__
)
def test_every_function_that_a_config_may_name_declares_what_it_suits(module):
    for function in _choices(module).values():
        assert set(function.suits.links) <= {"softmax", "sigmoid"}, function.__name__


def test_a_loss_is_of_the_softmax_alone_if_a_shift_of_all_logits_changes_nothing():
    logits, targets = jnp.array([[0.3, -1.0, 2.0]]), jnp.array([[0.0, 1.0, 0.0]])
    for name, function in _choices(losses).items():
        settings = {"focal": dict(gamma=2.0)}.get(name, {})
        value, shifted = (
            float(function(x, targets, jnp.ones(3), **settings)[0]) for x in (logits, logits + 1)
        )
        link = "softmax" if value == pytest.approx(shifted, rel=1e-5) else "sigmoid"
        assert set(function.suits.links) == {link}, name


def test_a_predictive_is_of_the_softmax_alone_if_a_shift_of_all_utilities_changes_nothing():
    loc, scale = jnp.array([[0.3, -1.0, 2.0]]), jnp.array([[0.5, 1.0, 2.0]])
    functions = _choices(predictive)
    assert functions.pop("deterministic").suits.links == ("softmax", "sigmoid")
    for name, function in functions.items():
        settings = {"num_samples": 8} if "num_samples" in declared_settings(function) else {}
        logits, shifted = (
            function(key(), LatentGaussian(x, scale), **settings) for x in (loc, loc + 1)
        )
        link = "softmax" if np.allclose(logits, shifted, atol=1e-5) else "sigmoid"
        assert function.suits.links == (link,), name


@pytest.mark.parametrize("module", [losses, weighting], ids=lambda m: m.__name__)
def test_a_loss_or_weighting_depends_on_the_class_counts_if_and_only_if_it_declares_so(module):
    required = {"focal": dict(gamma=2.0), "effective_number": dict(beta=0.9)}
    targets = jnp.eye(3)
    arguments = (targets,) if module is weighting else (2 * targets, targets)
    for name, function in _choices(module).items():
        few, many = (
            function(*arguments, jnp.array(counts), **required.get(name, {}))
            for counts in ([1.0, 2.0, 3.0], [30.0, 2.0, 3.0])
        )
        assert function.suits.class_counts == bool((few != many).any()), name


def test_a_loss_of_one_link_under_a_task_of_the_other_is_an_error():
    for task in ALL:
        suited, other = losses.cross_entropy, losses.sigmoid_cross_entropy
        if task.link == "sigmoid":
            suited, other = other, suited
        check_parts(task, {**PARTS, "loss": suited})
        with pytest.raises(
            ValueError, match=rf"config\.task .{task.name}. has the link {task.link}"
        ):
            check_parts(task, {**PARTS, "loss": other})


def test_a_new_sigmoid_loss_on_lists_of_labels_with_the_softmax_predictive_is_an_error():
    @suits("sigmoid")
    def focal_sigmoid(logits, targets, class_counts):
        return jnp.sum(logits * targets, axis=-1)

    parts = {**PARTS, "loss": focal_sigmoid, "predictive": predictive.softmax}
    with pytest.raises(ValueError, match=r"config\.predictive .softmax. is of the link softmax"):
        check_parts(tasks.multilabel(), parts)


def test_a_function_that_does_not_declare_its_link_is_an_error():
    parts = {**PARTS, "loss": lambda logits, targets, class_counts: logits[..., 0]}
    with pytest.raises(ValueError, match="does not declare its link"):
        check_parts(tasks.multiclass(), parts)


def test_what_needs_one_label_is_an_error_under_lists():
    parts = {"smoothing": smoothing.uniform, "weighting": weighting.inverse_frequency}
    for section, function in parts.items():
        check_parts(tasks.one_vs_rest(), {section: function})
        with pytest.raises(ValueError, match=rf"config\.{section} .* needs one label per example"):
            check_parts(tasks.multilabel(), {section: function})


@pytest.mark.parametrize("task", CLASSIFIERS, ids=lambda task: task.name)
def test_the_sums_of_an_evaluation_give_the_metrics_that_validation_may_choose_by(task):
    logits, batch = examples(task.labels == "list")
    found = metrics.means(task.evaluation_sums(logits, batch, None))
    assert set(task.validation_metrics) <= set(found)


def test_any_label_of_a_list_is_right_where_the_evaluation_says_so():
    logits, batch = examples(lists=True)
    for task in (tasks.multiclass(), tasks.one_vs_rest()):
        found = metrics.means(task.evaluation_sums(logits, batch, "any"))
        right = [row.argmax() in labels for row, labels in zip(logits[:-1], batch.labels[:-1])]
        assert found == {"accuracy": pytest.approx(np.mean(right))}
    for task in (tasks.multiclass(), tasks.one_vs_rest()):
        record = task.predictions(logits, batch, "any")
        assert record.labels is None
        np.testing.assert_array_equal(record.right_labels, batch.labels)


@pytest.mark.parametrize("k", [5, 2100])
@pytest.mark.parametrize("task", CLASSIFIERS, ids=lambda task: task.name)
def test_the_distance_of_confidence_and_objectness_is_that_of_the_largest_probability(task, k):
    logits, batch = examples(task.labels == "list", k=k)
    objectness = np.linspace(0, 1, len(logits), dtype=np.float32)
    extras = {"boxes": np.zeros((len(logits), 2, 4)), "objectness": objectness}
    record = jax.tree.map(np.asarray, task.predictions(logits, batch, None))
    probs = jax.nn.softmax(logits) if task.link == "softmax" else jax.nn.sigmoid(logits)
    expected = np.mean(np.abs(probs.max(axis=-1) - objectness))
    assert task.extra_results(evaluate.arrays(record._replace(extras=extras))) == {
        "objectness": pytest.approx(0.5),
        "objectness_deviation": pytest.approx(float(expected), rel=1e-5),
    }
    assert task.extra_results(evaluate.arrays(record)) == {}


def test_a_task_that_the_labels_do_not_suit_is_an_error_that_names_those_they_suit():
    config = small(task="multilabel", curation="", predictive=dict(name="sigmoid"))
    config |= {"loss": dict(name="sigmoid_cross_entropy")}
    with pytest.raises(
        ValueError,
        match=r"config\.task is .multilabel., but digits has one label per example, which suits"
        " multiclass, one_vs_rest",
    ):
        assembly.build(config)


@pytest.mark.parametrize(
    ("answers", "message"),
    [("any", "has one label per example; remove the setting"), ("all", "choose one of any")],
)
def test_answers_that_the_labels_do_not_have_are_an_error(answers, message):
    config = small()
    config["evals"]["test"] = dict(split="test", answers=answers)
    with pytest.raises(ValueError, match=message):
        assembly.build(config)


class _Dropped(nn.Module):
    """Features with dropout, which are the logits."""

    @nn.compact
    def __call__(self, inputs, present, train=False):
        return nn.Dropout(0.5)(inputs, deterministic=not train)


def test_the_loss_sees_targets_and_counts_and_dropout_draws_by_the_key():
    logits, batch = examples(lists=False)
    batch, counts = batch._replace(inputs=logits), jnp.array([3.0, 1, 1, 1, 1])
    seen = []

    def counted(logits, targets, class_counts):
        return losses.cross_entropy(logits, targets) * (targets @ class_counts)

    def found(number):
        return objective(
            {},
            {},
            batch,
            key(number),
            model=_Dropped(),
            smoothing=functools.partial(smoothing.uniform, rate=0.1),
            weighting=weighting.equal,
            predictive=lambda key, latent: seen.append(key) or latent,
            loss=counted,
            class_counts=counts,
        )

    (loss, one), (_, same), (_, other) = found(0), found(0), found(1)
    targets = 0.9 * np.eye(5)[np.asarray(batch.labels)] + 0.02
    np.testing.assert_allclose(one.targets, targets, rtol=1e-6)
    log_probs = jax.nn.log_softmax(one.logits)
    expected = -np.sum(targets * log_probs, axis=-1) * (targets @ np.asarray(counts))
    np.testing.assert_allclose(one.losses, expected, rtol=1e-5)
    assert float(loss) == pytest.approx(
        float(np.mean(expected[:-1])), rel=1e-5
    )  # the last is absent
    assert 0 < np.mean(one.logits == 0) < 1
    np.testing.assert_array_equal(one.logits, same.logits)
    assert np.any((one.logits == 0) != (other.logits == 0))
    assert jnp.array_equal(*map(jax.random.key_data, (seen[0], key(0))))  # the noise has the key
