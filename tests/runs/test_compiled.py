import collections
import functools

import full_text
import jax
import numpy as np
import pytest
from small_runs import small

from experiments import study
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs import assembly, compiled


def test_what_was_traced_to_check_shapes_is_what_is_compiled(monkeypatch):
    traced = collections.Counter()

    def counted(name, method):
        @functools.wraps(method)
        def wrapped(*args, **kwargs):
            traced[name] += 1
            return method(*args, **kwargs)

        return wrapped

    for name in ("init", "train_step", "eval_step"):
        monkeypatch.setattr(assembly.Run, name, counted(name, getattr(assembly.Run, name)))
    run = assembly.build(small())
    placement = Placement(run.steps.batch_size, **run.layout)
    shapes = compiled.check_shapes(run, placement)
    evals = run.config["evals"].values()
    splits = {settings["split"] for settings in evals}
    once = {"init": 1, "train_step": 1, "eval_step": len(splits)}
    assert traced == once

    programs, batch_size = compiled.programs(run, placement), run.steps.batch_size
    arrays = placement.put(run.pipeline.arrays, placement.replicated)
    programs.start.lower(run.root_key, {})
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    state = placement.put(zeros, placement.of_state(shapes, run.class_axis))
    feed = placement.feed(run.pipeline.example("train", training=True), batch_size)
    programs.train_step.lower(state, arrays["train"], feed, jax.random.key(3))
    for settings in evals:
        feed = run.pipeline.example(settings["split"], training=False)
        programs.eval_step.lower(
            state.params,
            state.model_state,
            arrays[settings["split"]],
            placement.feed(feed, batch_size),
            jax.random.fold_in(jax.random.key(1), 2),
            **compiled.static(run, settings),
        )
    assert traced == once


def test_an_evaluation_records_as_many_logits_as_its_setting_says():
    config = study.config("multi30k_hom", {"evals.valid.num_largest": 5})
    run = assembly.build(config, pipeline=full_text.text(config))
    for name, number in (("valid", 5), ("test", 8)):
        settings = run.config["evals"][name]
        step = functools.partial(run.eval_step, **compiled.static(run, settings))
        split, key = settings["split"], jax.random.key(0)
        data = run.pipeline.arrays[split], run.pipeline.example(split, training=False)
        _, record = jax.eval_shape(step, run.shapes.params, run.shapes.model_state, *data, key)
        assert record.logits.shape[-1] == number


def test_chains_that_give_examples_of_other_shapes_are_an_error_that_names_both():
    config = small() | {}
    config["data"] = config["data"] | {"eval": "resize(4)|value_range(-1, 1)"}
    message = r"examples of split 'test' do not fit the parameters, .*: For parameter \"kernel\""
    with pytest.raises(ValueError, match=message):
        compiled.check_shapes(assembly.build(config))
