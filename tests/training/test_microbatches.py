"""A batch in parts that follow each other: the step of the whole batch."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gaussians import key
from small_runs import outcome, small
from small_runs import plain as plain_run
from subprocesses import EXTRAS, run_without, with_devices

from heteroscedastic import losses, mixing, predictive, smoothing, weighting
from heteroscedastic.batch import Batch, SentencePairs
from heteroscedastic.data import resident
from heteroscedastic.data.storage import store
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.resnet import ResNet
from heteroscedastic.models.transformer import TransformerSmall, Translator
from heteroscedastic.runs import assembly, compiled, loop, schema
from heteroscedastic.runs.smoke import smoke
from heteroscedastic.training import microbatches, optimizer
from heteroscedastic.training.objective import objective
from heteroscedastic.training.state import TrainState
from heteroscedastic.training.step import train_step

SIZE = 24
PRESENT = np.ones(SIZE, np.float32)
UNEVEN = np.where(np.arange(SIZE) % 4 == 3, 0.0, 1.0).astype(
    np.float32
)  # the last of four parts is absent
UNEVEN[:6] = [2.0, 0.5, 0.0, 0.0, 0.0, 1.0]
PLAIN = Classifier(backbones.MLP(widths=(16,)), heads.Deterministic(5))
assert_same_sums = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def batch(weights):
    rng = np.random.default_rng(0)
    return Batch(
        inputs=jnp.asarray(rng.normal(size=(SIZE, 8, 8, 1)), jnp.float32),
        labels=jnp.asarray(rng.integers(0, 5, SIZE), jnp.int32),
        weights=jnp.asarray(weights),
        ids=jnp.arange(SIZE),
        extras={},
    )


def few_sums(outputs, batch):
    logits, labels, weights = outputs.logits, batch.labels, batch.weights
    return dict(
        weight=jnp.sum(weights), correct=jnp.sum(weights * (jnp.argmax(logits, axis=-1) == labels))
    )


def stepped(model, average, number, batch, weigh=weighting.equal, keys=None, mix=None):
    """The step of a batch in so many parts, from a fixed state; for each of several keys, if they
    are given.
    """
    variables = jax.jit(model.init)(key(), batch.inputs, jnp.ones(batch.weights.shape, bool))
    params = variables.pop("params")
    sgd = optimizer.sgd(optax.constant_schedule(0.1), l2=1e-3, clip_norm=1.0)
    state = TrainState(jnp.zeros((), jnp.int32), params, variables, sgd.init(params))
    loss_of = functools.partial(
        objective,
        model=model,
        smoothing=smoothing.hard,
        weighting=weigh,
        predictive=average,
        loss=losses.cross_entropy,
        class_counts=jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]),
        mixing=mix,
    )

    def step(key):
        return train_step(
            state,
            batch,
            key,
            objective=loss_of,
            optimizer=sgd,
            metric=few_sums,
            num_microbatches=number,
        )

    return jax.jit(step)(key()) if keys is None else jax.jit(jax.vmap(step))(keys)


@functools.cache
def plain(number, is_uneven):
    weigh = weighting.inverse_frequency if is_uneven else weighting.equal
    return stepped(
        PLAIN, predictive.deterministic, number, batch(UNEVEN if is_uneven else PRESENT), weigh
    )


@pytest.mark.parametrize(
    "is_uneven", [False, True], ids=["all present", "unevenly absent, with class weights"]
)
@pytest.mark.parametrize("number", [4, 24])
def test_without_noise_and_batch_statistics_the_step_is_that_of_the_whole_batch(number, is_uneven):
    whole, parts = plain(1, is_uneven), plain(number, is_uneven)
    jax.tree.map(
        assert_same_sums, parts, whole
    )  # state, sums, and the values of each example in their order


class TinyTransformer(TransformerSmall):
    num_layers = 1
    width = 8
    hidden_width = 8


def test_the_step_of_sentences_is_that_of_the_whole_batch_whatever_the_tokens_of_each_part():
    backbone = TinyTransformer(num_source_words=5, dropout=0.0)
    model = Translator(backbone, heads.Deterministic(5, use_bias=False))
    lengths, rng = np.array([[6], [1], [5], [2]]), np.random.default_rng(0)  # 11 and 3 by part
    segments = jnp.asarray(np.arange(6) < lengths, jnp.int32)
    source, previous, labels = jnp.asarray(rng.integers(0, 5, (3, *segments.shape)), jnp.int32)
    of_sentences = Batch(
        inputs=SentencePairs(source, segments, previous, segments),
        labels=labels,
        weights=segments.astype(jnp.float32),
        ids=jnp.arange(segments.size).reshape(segments.shape),
        extras={},
    )
    whole, parts = (stepped(model, predictive.deterministic, n, of_sentences) for n in (1, 2))
    jax.tree.map(assert_same_sums, parts, whole)


def test_batch_statistics_are_those_of_groups_of_a_part():
    def model(group_size):
        backbone = ResNet(
            stage_sizes=(1,),
            bottleneck=False,
            stem="cifar",
            width=4,
            stem_width=4,
            group_size=group_size,
        )
        return Classifier(backbone, heads.Deterministic(5))

    whole = batch(PRESENT)
    by_part = jax.tree.map(
        lambda *x: jnp.concatenate(x), *(microbatches.cut(whole, 4, i) for i in range(4))
    )
    parts = stepped(model(None), predictive.deterministic, 4, whole)
    groups = stepped(model(SIZE // 4), predictive.deterministic, 1, by_part)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, parts[:2], groups[:2])
    # The next state has the statistics that the model returns in training.
    variables = jax.jit(model(None).init)(key(), whole.inputs, jnp.ones(SIZE, bool))
    apply = functools.partial(model(SIZE // 4).apply, train=True, mutable=["batch_stats"])
    _, updated = jax.jit(apply)(variables, by_part.inputs, by_part.weights > 0)
    jax.tree.map(close, groups[0].model_state, updated)


def test_a_part_of_absent_examples_alone_has_no_say_in_batch_statistics():
    model = Classifier(backbones.ConvNet(widths=(4, 8)), heads.Deterministic(5))
    weights = np.where(np.arange(SIZE) % 2, 0.0, 1.0).astype(np.float32)
    half = jax.tree.map(lambda x: x[::2], batch(PRESENT))
    parts = stepped(model, predictive.deterministic, 2, batch(weights))
    alone = stepped(model, predictive.deterministic, 1, half)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), parts[:2], alone[:2]
    )


def test_a_batch_of_absent_examples_alone_changes_no_batch_statistics():
    model = Classifier(backbones.ConvNet(widths=(4, 8)), heads.Deterministic(5))
    absent = batch(np.zeros(SIZE, np.float32))
    whole, parts = (stepped(model, predictive.deterministic, n, absent)[0] for n in (1, 4))
    assert all(jnp.all(x == 1) for x in jax.tree.leaves(_of_name(parts.model_state, "var")))
    jax.tree.map(np.testing.assert_array_equal, parts.model_state, whole.model_state)


def _of_name(tree, name):
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return [x for path, x in flat if jax.tree_util.keystr(path).endswith(f"['{name}']")]


@pytest.mark.parametrize(("number", "previous"), [(1, 23), (4, 20)])
def test_the_partner_of_an_example_is_of_its_part(number, previous):
    mix = functools.partial(mixing.mixup, alpha=1.0)
    before = batch(PRESENT)
    after = before._replace(inputs=before.inputs.at[0].add(1.0))
    one, other = (
        stepped(PLAIN, predictive.deterministic, number, each, mix=mix)[2]
        for each in (before, after)
    )
    # The first example is the partner of the last one of its part.
    np.testing.assert_array_equal(one.ids[one.losses != other.losses], [0, previous])


def test_with_noise_the_step_is_the_same_in_distribution():
    model = Classifier(backbones.MLP(widths=(16,)), heads.LowRank(5, num_factors=2))
    average = functools.partial(predictive.softmax, num_samples=4)
    keys = jax.random.split(key(), 500)

    def moments(number):
        state, sums, values = stepped(model, average, number, batch(UNEVEN), keys=keys)
        reports = np.concatenate(
            [np.reshape(x, (len(keys), -1)) for x in jax.tree.leaves((state.params, sums.loss))], 1
        )
        return np.stack([reports, np.square(reports)]), np.asarray(values.losses)

    (whole, losses_of_whole), (parts, losses_of_parts) = moments(1), moments(4)
    spread = np.sqrt((whole.var(axis=1) + parts.var(axis=1)) / len(keys))
    assert np.all(np.abs(whole.mean(axis=1) - parts.mean(axis=1)) <= 5.5 * spread + 1e-6)
    # Examples at the same place of two parts have noise of their own.
    for of in (losses_of_whole, losses_of_parts):
        assert abs(np.corrcoef(of[:, 0], of[:, 1])[0, 1]) < 0.2


def test_parts_take_every_example_once_and_do_not_depend_on_the_devices():
    feed = resident.Feed(np.arange(24), np.ones(24), np.int32(3))
    parts = [microbatches.cut(feed, 4, i) for i in range(4)]
    assert sorted(np.concatenate([part.rows for part in parts])) == list(range(24))
    assert all(part.epoch == 3 for part in parts)
    for device in np.split(np.arange(24), 3):  # of which each has as many of every part
        assert [len(np.intersect1d(device, part.rows)) for part in parts] == [2] * 4


@pytest.mark.extended
def test_a_run_in_parts_is_the_run_of_whole_batches(tmp_path):
    config = plain_run(backbone=dict(name="MLP", widths=(32,)), **{"training.num_epochs": 2.0})
    loop.train(config, str(tmp_path / "whole"))
    config["training"]["microbatches"] = 4
    loop.train(config, str(tmp_path / "parts"))
    whole, parts = (outcome(tmp_path / name)[0]["evals"]["test"] for name in ("whole", "parts"))
    assert parts["nll"] == pytest.approx(whole["nll"], rel=1e-4)
    assert (
        json.loads((tmp_path / "parts" / "config.json").read_text())["training"]["microbatches"]
        == 4
    )


PROGRAM = """
import itertools, json, sys, jax, numpy as np
from benchmarks import hlo
from experiments import study
from heteroscedastic.data import resident
from heteroscedastic.runs import assembly, compiled
from heteroscedastic.distributed.sharding import Placement
config = study.config("digits_hom", {"backbone": dict(name="MLP", widths=(32,))})
config["training"] |= dict(batch_size=64, microbatches=4)
mixed = dict(
    smoothing=dict(name="adaptive", objectness="next"),
    mixing=dict(name="mixup_or_cutmix", mixup_alpha=0.7, draws="example"),
)
config["data"] |= dict(extras=("boxes",))
for targets, number in itertools.product(({}, mixed), (1, 8)):
    run = assembly.build(config | targets, sys.argv[1])
    placement = Placement(64, num_microbatches=4, devices=jax.devices()[:number])
    shapes = compiled.shapes(run, placement)
    at_work = jax.tree.map(lambda x: x.sharding, shapes[0])
    step = compiled.train_step(run, placement, at_work, donates=False).lower(*shapes).compile()
    state = placement.put(jax.jit(run.init)(run.root_key), at_work)
    arrays = placement.put(run.pipeline.arrays["train"], placement.replicated)
    feed = placement.feed(next(resident.feeds(np.arange(60), 64)), 64)
    key = placement.put(run.root_key, placement.replicated)
    state, sums, values = step(state, arrays, feed, key)
    print(json.dumps(dict(
        devices=len(sums.loss.sharding.device_set), loss=float(sums.loss),
        norm=float(sums.gradient_norm), ids=np.asarray(values.ids).tolist(),
        losses=np.asarray(values.losses).tolist(),
        crossings={kind: x.largest for kind, x in hlo.crossings(step.as_text()).items()},
    )))
"""


@pytest.mark.slow
def test_on_eight_devices_no_example_crosses_and_the_step_is_that_of_one(tmp_path):
    """Under mixing and the targets of the next example, examples cross as partners alone."""
    digits, rng = store.load("digits"), np.random.default_rng(0)
    for name, split in digits.splits.items():
        boxes = np.sort(rng.random((len(split.ids), 1, 2, 2), np.float32), axis=2)
        boxes = {"boxes": boxes.reshape(-1, 1, 4)}
        digits.splits[name] = split._replace(extras=boxes)
    store.write(tmp_path / "digits.npz", digits)
    done = run_without(EXTRAS - {"sklearn"}, PROGRAM, str(tmp_path), env=with_devices(8))
    assert done.returncode == 0, done.stderr
    reports = list(map(json.loads, done.stdout.splitlines()[-4:]))
    crossings = {"all-reduce"}, {"all-reduce", "collective-permute"}  # the first of gradients
    for one, eight, expected in zip(reports[::2], reports[1::2], crossings, strict=True):
        assert (one["devices"], eight["devices"], one["ids"]) == (1, 8, eight["ids"])
        for name in ("loss", "norm", "losses"):
            np.testing.assert_allclose(eight[name], one[name], rtol=1e-4)
        assert not one["crossings"]
        assert set(eight["crossings"]) == expected
    assert reports[0]["losses"] != reports[2]["losses"]


@pytest.mark.parametrize("number", [0, -1, 1.5, "two"])
def test_a_number_of_parts_that_is_none_is_an_error(number):
    config = small()
    config["training"]["microbatches"] = number
    with pytest.raises(ValueError, match=r"microbatches is .* whole number >= 1"):
        schema.checked(config)


def test_parts_that_do_not_divide_the_batch_are_an_error():
    config = small()
    config["training"] |= dict(batch_size=64, microbatches=3)
    with pytest.raises(
        ValueError, match=r"microbatches is 3, but must divide config\.training\.batch_size, 64"
    ):
        schema.checked(config)
    with pytest.raises(
        ValueError,
        match="microbatches is 3, but must divide the 64 examples that each of 1 devices",
    ):
        Placement(64, num_microbatches=3)


def test_smoke_keeps_parts():
    config = small()
    config["training"]["microbatches"] = 32
    shrunk, _ = smoke(config)
    assert (shrunk["training"]["batch_size"], shrunk["training"]["microbatches"]) == (8, 2)
    compiled.check_shapes(assembly.build(shrunk))
