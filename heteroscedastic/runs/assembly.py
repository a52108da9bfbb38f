"""A config becomes functions.

Every name, setting and value is checked here, before anything runs.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import PRNGKeyArray

from heteroscedastic import losses, metrics, predictive, smoothing, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.bind import bind, within
from heteroscedastic.data import resident
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.distributed import class_padding
from heteroscedastic.distributed.class_padding import ClassAxis
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.runs import pipelines, schema
from heteroscedastic.training import optimizer as optimizers
from heteroscedastic.training import schedules
from heteroscedastic.training.objective import objective
from heteroscedastic.training.state import TrainState
from heteroscedastic.training.step import eval_step, train_step

_MODULES = {  # by the section that names a part of one
    "backbone": backbones,
    "head": heads,
    "predictive": predictive,
    "smoothing": smoothing,
    "loss": losses,
    "weighting": weighting,
    "optimizer": optimizers,
    "schedule": schedules,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a config stands for."""

    config: dict[str, Any]  # with head.num_classes, whether it was given or is that of the data
    pipeline: Pipeline
    dataset: Dataset  # in memory; of a stream, each split once it is asked for
    description: dict[str, Any]  # of the data, for dataset.json
    model: nn.Module
    predictive: Callable
    init: Callable[[], TrainState]  # as it is saved
    class_axis: ClassAxis | None  # how the state at work differs from it; None where it does not
    train_step: Callable  # (state at work, split, feed) -> state, sums, values
    eval_step: Callable  # (params and model_state at work, split, feed, key) -> sums, predictions
    latents: Callable  # (params, model_state, split, feed) -> latent, batch
    features: Callable  # (params, model_state, split, feed) -> features, batch
    schedule: Callable  # step -> learning rate
    batch_size: int
    num_microbatches: int  # parts of a batch that follow each other
    layout: dict[str, Any]  # how it lies on several devices, see placement.py
    steps_per_epoch: int
    total_steps: int
    checkpoint_steps: int


def build(
    config: dict[str, Any], data_dir: str | None = None, pipeline: Pipeline | None = None
) -> Run:
    """The functions that a config names, bound and checked.

    Args:
      config: nested dicts and plain values.
      data_dir: where data sets lie.
      pipeline: in place of the one that the config names, where its data is not there.

    Raises:
      ValueError, FileNotFoundError: says which section, what was found and what was expected.
    """
    config = _with_tuples(config)
    schema.check(config)
    seed = config["seed"]
    pipeline = pipelines.build(config, data_dir) if pipeline is None else pipeline
    num_classes = len(pipeline.class_names)
    config = _with_num_classes(config, num_classes)
    schema.check_task(config, pipeline)

    parts, training = _parts(config), config["training"]
    num_places = class_padding.places(num_classes, training.get("class_shards", 1))
    model = Classifier(backbone=parts["backbone"], head=parts["head"])
    model_at_work = _with_places(model, num_places).clone(num_classes=num_classes)
    average = parts["predictive"]
    yes_no = schema.answers_yes_or_no(config)
    train_metric = metrics.of_training(pipeline.is_single, yes_no)

    batch_size = training["batch_size"]
    num_microbatches = training.get("microbatches", 1)
    steps_per_epoch = resident.steps_per_epoch(pipeline.sizes["train"], batch_size)
    total_steps = training.get("num_steps") or max(
        1, round(training["num_epochs"] * steps_per_epoch)
    )
    schema.check_steps(training, total_steps)
    checkpoint_steps = max(1, round(training["checkpoint_epochs"] * steps_per_epoch))
    schedule = functools.partial(
        parts["schedule"], total_steps=total_steps, steps_per_epoch=steps_per_epoch
    )
    jax.eval_shape(schedule, 0)  # its settings are checked before the model is traced
    optimizer = parts["optimizer"](schedule)

    def predicted(key, latent):
        return average(key, latent)[..., :num_classes]

    loss_of = functools.partial(
        objective,
        model=model_at_work,
        smoothing=parts["smoothing"],
        weighting=parts["weighting"],
        predictive=predicted,
        loss=parts["loss"],
        class_counts=jnp.asarray(pipeline.class_counts, jnp.float32),
    )

    def init_of(number):
        def init():
            key, example = key_for(seed, "init"), pipeline.example("train", training=True)
            inputs = pipeline.training_batch(key, pipeline.arrays["train"], example)
            variables = _with_places(model, number).init(key, inputs.inputs, inputs.weights > 0)
            params = variables.pop("params")
            return TrainState(jnp.zeros((), jnp.int32), params, variables, optimizer.init(params))

        return init

    def one_train_step(state, split, feed):
        return train_step(
            state,
            feed,
            jax.random.fold_in(key_for(seed, "train"), state.step),
            objective=loss_of,
            optimizer=optimizer,
            metric=train_metric,
            batch_of=functools.partial(pipeline.training_batch, key_for(seed, "augment"), split),
            num_microbatches=num_microbatches,
        )

    def applied(params, model_state, split, feed, model=model, method="__call__"):
        batch = pipeline.batch(key_for(seed, "eval"), split, feed)
        variables = {"params": params, **model_state}
        return model.apply(
            variables, batch.inputs, batch.weights > 0, train=False, method=method
        ), batch

    def one_eval_step(params, model_state, split, feed, key):
        latent, batch = applied(params, model_state, split, feed, model_at_work)
        metric = metrics.of_evaluation(pipeline.is_single, yes_no, batch.labels)
        return eval_step(latent, batch, key, predictive=predicted, metric=metric, yes_no=yes_no)

    return Run(
        config=config,
        pipeline=pipeline,
        dataset=pipeline.dataset,
        description=pipeline.description,
        model=model,
        predictive=average,
        init=init_of(num_classes),
        class_axis=class_padding.find(init_of, num_classes, training.get("class_shards", 1)),
        train_step=one_train_step,
        eval_step=one_eval_step,
        latents=applied,
        features=functools.partial(applied, method="features"),
        schedule=schedule,
        batch_size=batch_size,
        num_microbatches=num_microbatches,
        layout={name: training[name] for name in schema.LAYOUT if name in training},
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        checkpoint_steps=checkpoint_steps,
    )


_ANY_NUMBER_OF_CLASSES = 1000  # for a config that takes as many as the data has


def check(config: dict[str, Any]) -> None:
    """Traces what a config names, on two examples of eight features, and builds nothing.

    Raises:
      ValueError: the config is wrong whatever its data; says which section, what was found and what
        was expected.
    """
    config = _with_tuples(config)
    schema.check(config)
    pipelines.check(config)
    num_classes = config["head"].get("num_classes") or _ANY_NUMBER_OF_CLASSES
    config = _with_num_classes(config, num_classes)
    parts, training = _parts(config), config["training"]
    total_steps = (
        training.get("num_steps") or 2**31 - 1
    )  # at most; which it is follows from the data
    schema.check_steps(training, total_steps)
    schedule = functools.partial(parts["schedule"], total_steps=total_steps, steps_per_epoch=1)
    jax.eval_shape(schedule, 0)
    parts["optimizer"](schedule)

    def traced(features):
        key, ones = jax.random.key(0), jnp.ones(len(features))
        latent, _ = parts["head"].init_with_output(key, features)
        targets = parts["smoothing"](
            Batch(None, jnp.zeros(len(features), jnp.int32), ones, ones, {}), num_classes
        )
        weights = parts["weighting"](targets, jnp.ones(num_classes))
        return weights * parts["loss"](parts["predictive"](key, latent), targets)

    jax.eval_shape(traced, jax.ShapeDtypeStruct((2, 8), jnp.float32))


def _with_num_classes(config: dict[str, Any], number: int) -> dict[str, Any]:
    """The config with as many classes as its data has, as if it had said so, where it says
    nothing.
    """
    if config["head"].get("num_classes") is not None:
        return config
    return {**config, "head": {**config["head"], "num_classes": number}}


def _parts(config: dict[str, Any]) -> dict[str, Any]:
    """What each section with a name stands for; an error of a function names its section, whenever
    it is called.
    """

    def part(section, module):
        bound = within(section, bind, module, **config[section])
        return bound if isinstance(bound, nn.Module) else functools.partial(within, section, bound)

    return {section: part(section, module) for section, module in _MODULES.items()}


def _with_places(model: Classifier, number: int) -> Classifier:
    """The model with so many classes."""
    return model.clone(head=model.head.clone(num_classes=number))


def key_for(seed: int, purpose: str) -> PRNGKeyArray:
    """The key of one purpose of a run."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(purpose.encode()))


def num_parameters(state: TrainState) -> int:
    """Trainable numbers of a state, or of the shapes of one."""
    return sum(x.size for x in jax.tree.leaves(state.params))


def temperature(run: Run, state: TrainState) -> float:
    """The temperature of the head in a state, be it a setting or learned."""
    return float(run.model.head.temperature_of(state.params["head"]))


def check_shapes(run: Run) -> TrainState:
    """The shapes of the state; a step of training and of evaluation are traced, none is compiled."""
    saved = jax.eval_shape(run.init)
    state = jax.eval_shape(functools.partial(class_padding.padded, run.class_axis), saved)
    pipeline = run.pipeline
    arrays = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pipeline.arrays)
    jax.eval_shape(run.train_step, state, arrays["train"], pipeline.example("train", training=True))
    evaluated = {settings["split"] for settings in run.config["evals"].values()}
    for name in sorted(evaluated):
        feed = pipeline.example(name, training=False)
        jax.eval_shape(
            run.eval_step, state.params, state.model_state, arrays[name], feed, jax.random.key(0)
        )
    return saved


def _with_tuples(value: Any) -> Any:
    """The config as it was before JSON made lists of its tuples."""
    if isinstance(value, dict):
        return {name: _with_tuples(v) for name, v in value.items()}
    return tuple(_with_tuples(v) for v in value) if isinstance(value, list | tuple) else value
