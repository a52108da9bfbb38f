"""Class axes that several devices divide: no samples by class cross, and no result changes."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mostly_extended
from small_runs import outcome, small
from subprocesses import EXTRAS, MAIN, run_without, with_devices

from experiments import study
from heteroscedastic.data import resident
from heteroscedastic.data.storage import store
from heteroscedastic.distributed import class_padding
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.models import heads
from heteroscedastic.runs import assembly, loaded_run, loop
from heteroscedastic.training import evaluate, optimizer
from heteroscedastic.training.state import TrainState

HEADS = ["digits_hom", "digits_het_full", "digits_het_pe", "digits_het_xl"]


def built(config, shards=4, overrides=()):
    return assembly.build(
        study.config(config, dict(overrides)) | {"training": {**TRAINING, "class_shards": shards}}
    )


TRAINING = dict(batch_size=64, num_steps=2, checkpoint_epochs=1.0)


@pytest.mark.parametrize("config", HEADS)
def test_what_is_padded_and_trimmed_is_as_it_was(config):
    run = built(config)
    state = jax.jit(run.init)(run.root_key)
    padded = class_padding.padded(run.class_axis, state)
    # 10 classes are padded to 12, and every axis that has one of them has all.
    assert padded.params["head"]["loc"]["kernel"].shape == (128, 12)
    jax.tree.map(
        np.testing.assert_array_equal, class_padding.trimmed(run.class_axis, padded), state
    )
    assert sum(x.size for x in jax.tree.leaves(padded.params)) > assembly.num_parameters(state)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("head", "settings"),
    [
        (heads.Deterministic, dict(hidden_width=6, temperature=(0.5, 2.0))),
        *itertools.product(
            (heads.Diagonal, heads.LowRank, heads.ParameterEfficient),
            (
                dict(noise_on=noise_on, edward2=edward2)
                for noise_on in ("utilities", "features")
                for edward2 in (False, True)
            ),
        ),
    ],
)
def test_the_declared_axes_are_those_that_one_more_class_makes_longer(head, settings, momentum):
    sgd = optimizer.sgd(optax.constant_schedule(0.1), momentum=momentum, clip_norm=1.0)

    def init(num_classes):
        params = {"backbone": {"loc": jnp.ones((5, 5))}}  # of another module, whatever its name
        made = head(num_classes, **settings)
        params["head"] = made.init(jax.random.key(0), jnp.ones((2, 5)))["params"]
        return TrainState(jnp.int32(0), params, {"mean": jnp.ones(5)}, sgd.init(params))

    def longer(one, other):
        return next((i for i, (a, b) in enumerate(zip(one.shape, other.shape)) if a != b), -1)

    five, six = (jax.eval_shape(functools.partial(init, n)) for n in (5, 6))
    found = class_padding.class_axis(head(5, **settings), sgd, five, 4)
    assert found.axes == jax.tree.map(longer, five, six)
    assert (found.num_classes, found.padded_num_classes) == (5, 8)


@pytest.mark.parametrize(
    "config", mostly_extended(["digits_het_pe", "digits_het_xl"], ["digits_het_pe"])
)
def test_classes_that_only_make_room_change_nothing_and_get_nothing(config):
    few = {"predictive.num_samples": 8}
    one, many = built(config, 1, few), built(config, 4, few)
    state = jax.jit(one.init)(one.root_key)
    feed = next(resident.feeds(np.arange(60), 64))  # of which four are absent
    data = one.dataset.splits["train"]
    alone, sums, _ = jax.jit(one.train_step)(state, data, feed, one.root_key)
    at_work, other_sums, _ = jax.jit(many.train_step)(
        class_padding.padded(many.class_axis, state), data, feed, many.root_key
    )
    saved = class_padding.trimmed(many.class_axis, at_work)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        (alone, sums),
        (saved, other_sums),
    )
    jax.tree.map(
        np.testing.assert_array_equal, at_work, class_padding.padded(many.class_axis, saved)
    )


_MEASURED = """
import json, sys
from benchmarks import class_shards
print(json.dumps(class_shards.measure(**json.loads(sys.argv[1]))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_classes", "head", "class_shards"),
    mostly_extended(
        [(2_047, "LowRank", 4), (4_000, "ParameterEfficient", 8)], [(2_047, "LowRank", 4)]
    ),
)
def test_no_array_of_samples_and_classes_crosses_and_a_step_is_that_of_one_device(
    num_classes, head, class_shards
):
    settings = dict(
        num_classes=num_classes,
        head=head,
        class_shards=class_shards,
        points="sobol",
        num_samples=32,
    )
    done = run_without(EXTRAS, _MEASURED, json.dumps(settings), env=with_devices(8))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report["uncut"]
    assert report["padding_is_zero"]
    assert report["difference"] < 1e-4
    assert set(report["crossings"]) == {"all-reduce"}
    for shape in report["crossings"]["all-reduce"]:
        # Gradients are summed over the batch's shards; but for those, nothing with an axis of
        # classes.
        is_gradient = class_shards < 8 and int(np.prod(shape)) in report["sizes"]
        assert is_gradient or max(shape, default=0) < num_classes // class_shards, shape
    alone = report["temporaries_on_one"]
    print(f"{alone / report['temporaries']:.1f} times less memory")
    assert report["temporaries"] < alone / (0.6 * class_shards)


@pytest.mark.extended
def test_a_run_with_cut_classes_is_that_of_one_device_and_is_read_on_one(tmp_path):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    store.write(data_dir / "digits.npz", store.load("digits"))
    settings = {
        "training": {
            "batch_size": 64,
            "num_epochs": 4.0,
            "num_steps": None,
            "checkpoint_epochs": 1.0,
        }
    }
    config = small(**{"head.temperature": 2.0}) | settings
    loop.train(config, str(tmp_path / "one"), str(data_dir))
    (tmp_path / "config.py").write_text(
        "import json\nfrom ml_collections import ConfigDict\n"
        f"def get_config():\n    c = ConfigDict(json.loads({json.dumps(config)!r}))\n"
        "    c.training.class_shards, c.training.parameters = 4, 'sharded'\n    return c\n"
    )
    arguments = (
        f"--config={tmp_path}/config.py",
        f"--workdir={tmp_path}/eight",
        f"--data_dir={data_dir}",
    )
    done = run_without(EXTRAS, MAIN, *arguments, env=with_devices(8))
    assert "on 8 x" in done.stdout, done.stderr
    one, eight = (outcome(tmp_path / name)[0]["evals"]["test"] for name in ("one", "eight"))
    assert eight["nll"] == pytest.approx(one["nll"], rel=1e-3)

    # Its checkpoints know nothing of the devices: the same run is continued on one.
    (tmp_path / "eight" / "results.json").unlink()
    again = loop.train(config, str(tmp_path / "eight"), str(data_dir))
    assert again["evals"]["test"]["nll"] == pytest.approx(eight["nll"], rel=1e-4)
    found = loaded_run.load(tmp_path / "eight", data_dir=str(data_dir))
    assert found.state.params["head"]["loc"]["kernel"].shape == (128, 10)
    run, split = found.run, found.run.dataset.splits["test"]
    state = class_padding.padded(run.class_axis, found.state)

    def step(feed, key):
        return jax.jit(run.eval_step)(state.params, state.model_state, split, feed, key)

    feeds = resident.feeds(np.arange(len(split.ids)), run.steps.batch_size)
    _, predictions = evaluate.evaluate(
        step, feeds, assembly.key_for(run.config["seed"], "eval test")
    )
    written = dict(np.load(tmp_path / "eight" / "predictions" / "test.npz"))
    np.testing.assert_allclose(predictions.logits, written["logits"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shards", [0, -1, 1.5, "two"])
def test_a_number_of_shards_that_is_none_is_an_error(shards):
    with pytest.raises(ValueError, match=r"class_shards is .* whole number >= 1"):
        built("digits_hom", shards)


def test_shards_that_do_not_divide_the_devices_are_an_error():
    with pytest.raises(
        ValueError, match="class_shards is 3, but must divide the number of devices, 1"
    ):
        Placement(64, class_shards=3)


def test_the_least_multiple():
    assert [class_padding.padded_num_classes(21_843, n) for n in (1, 2, 8, 21_843, 21_844)] == [
        21_843,
        21_844,
        21_848,
        21_843,
        21_844,
    ]
