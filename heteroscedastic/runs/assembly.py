"""A config becomes functions.

Every name, setting and value is checked here, before anything runs.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import boxes, smoothing
from heteroscedastic.batch import Batch
from heteroscedastic.bind import bind, in_section, lookup
from heteroscedastic.data import resident
from heteroscedastic.data.dataset import Dataset, Split, num_degenerate_boxes
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.distributed import class_padding
from heteroscedastic.distributed.class_padding import ClassAxis
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import Suits
from heteroscedastic.models.detector import RegionFeatures
from heteroscedastic.runs import pipelines, provenance, schema, sections
from heteroscedastic.selection import Pool, Selected
from heteroscedastic.tasks.task import NUM_LARGEST, Answers, Task
from heteroscedastic.training import epochs, optimizer
from heteroscedastic.training.epochs import Epoch
from heteroscedastic.training.objective import (
    Loss,
    Mixing,
    Predictive,
    Score,
    Smoothing,
    Weighting,
)
from heteroscedastic.training.state import TrainState, no_scores
from heteroscedastic.training.step import (
    StepSums,
    Values,
    eval_step,
    train_step,
)


class Parts(NamedTuple):
    """The functions that sections of the config name, with their settings bound."""

    predictive: Predictive
    smoothing: Smoothing
    weighting: Weighting
    loss: Loss
    mixing: Mixing | None
    score: Score | None


@dataclasses.dataclass(frozen=True)
class Steps:
    """How a run is divided into steps; see epochs.py for full steps."""

    batch_size: int
    num_microbatches: int  # parts of a batch, one after another
    full_length: int  # steps of an epoch of full length
    total_full: int  # full steps of the run
    total: int  # its steps; an estimate if the scores determine the length of an epoch
    per_checkpoint: int  # full steps
    learning_rate: Callable[[Any], Any]  # of a full step


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A config with its names bound. The loop compiles the methods."""

    config: dict[str, Any]  # complete, with the number of classes of the data
    pipeline: Pipeline
    task: Task
    model: nn.Module
    parts: Parts
    optimizer: optax.GradientTransformation
    steps: Steps
    selection: Callable[[np.random.Generator, Pool], Selected] | None = None

    def __post_init__(self):
        # The shapes of these methods are checked first; then they are compiled. JAX keeps a trace
        # as long as the function object lives, and each access to a method makes a new object.
        for name in ("init", "train_step", "eval_step", "score_step"):
            object.__setattr__(self, name, getattr(self, name))

    @property
    def dataset(self) -> Dataset:
        """The data in memory; a stream reads each split when it is first used."""
        return self.pipeline.dataset

    @property
    def layout(self) -> dict[str, Any]:
        """How arrays lie on several devices; see sharding.py."""
        training = self.config["training"]
        return {name: training[name] for name in sections.LAYOUT}

    @property
    def num_classes(self) -> int:
        return len(self.pipeline.class_names)

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """The data for dataset.json.

        That of the pipeline, the number of boxes without an area in the training examples of a
        detector, and a digest of the table of targets.
        """
        description = dict(self.pipeline.description)
        train = self.pipeline.arrays["train"] if self.task.rows == "region" else None
        if isinstance(train, Split):  # a stream counts them itself
            description["degenerate_boxes"] = num_degenerate_boxes(train)
        settings = self.config["smoothing"]
        setting = _smoothing_reads(self.config).class_table
        if setting is not None:
            read = smoothing.class_table
            table = in_section("smoothing", read, settings[setting], self.num_classes)
            description["class_table"] = provenance.digest_of_arrays({setting: table})
        return description

    @functools.cached_property
    def class_axis(self) -> ClassAxis | None:
        """The padding classes of the state on devices; None where its class axis is not divided."""
        shards = self.config["training"]["class_shards"]
        if shards == 1:
            return None
        return class_padding.class_axis(self.model.head, self.optimizer, self.shapes, shards)

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of the state as it is saved."""
        return jax.eval_shape(self.init, self.root_key)

    @property
    def has_soft_targets(self) -> bool:
        """Whether targets of training are distributions over several classes."""
        return self.config["smoothing"]["name"] != "hard" or self.parts.mixing is not None

    def selected(
        self,
        epoch: int,
        scores: Float[np.ndarray, "n"] | None = None,
        target_scores: Float[np.ndarray, "n"] | None = None,
    ) -> Selected | None:
        """The examples of an epoch, which follow from the seed; None is every example once.

        Args:
          epoch: from 0.
          scores: of the training examples, if the selection reads them.
          target_scores: of the target's last weights, likewise.
        """
        if self.selection is None:
            return None
        rng = np.random.default_rng([self.config["seed"], epoch, zlib.crc32(b"selection")])
        progress = epoch * self.steps.full_length / self.steps.total_full
        pool = _pool(self.pipeline)._replace(
            progress=progress, scores=scores, target_scores=target_scores
        )
        return self.selection(rng, pool)

    @property
    def prioritizes(self) -> bool:
        """Whether the state has scores of the training examples."""
        return "prioritization" in self.config

    @property
    def scores_in_training(self) -> bool:
        """Whether the steps of training compute the scores."""
        settings = self.config.get("prioritization", {})
        is_used = self.scores_are_read or settings.get("record", False)
        return is_used and settings.get("scores") == "training"

    @property
    def scores_are_read(self) -> bool:
        """Whether the selection depends on the scores of examples."""
        return "scores" in sections.selection_reads(self.config)

    @property
    def target_scores_are_read(self) -> bool:
        """Whether the selection depends on those of the target's last weights."""
        return "target_scores" in sections.selection_reads(self.config)

    def equal_epoch(self, step: int) -> Epoch:
        """The epoch of the step after `step` steps, without prioritization."""
        return epochs.equal(step, self.steps.full_length)

    def init(self, root: PRNGKeyArray) -> TrainState:
        """The state of step 0, as it is saved.

        Args:
          root: `root_key`; see `train_step`.
        """
        key = _key_of(root, "init")
        feed = self.pipeline.example("train", training=True)
        batch = jax.eval_shape(
            self.pipeline.training_batch, key, self.pipeline.arrays["train"], feed
        )
        # Only the shapes matter, and the data would become constants of the program.
        inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch.inputs)
        variables = self.model.init(key, inputs, jnp.ones(batch.weights.shape, bool))
        params = variables.pop("params")
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            model_state=variables,
            opt_state=self.optimizer.init(params),
            scores=no_scores(self.pipeline.sizes["train"]) if self.prioritizes else None,
        )

    def train_step(
        self, state: TrainState, split: Any, feed: Any, root: PRNGKeyArray
    ) -> tuple[TrainState, StepSums, Values]:
        """The next state, with padding classes, and the values of its step.

        Args:
          state: with padding classes.
          split: arrays of the pipeline.
          feed: of the whole batch.
          root: `root_key`. As an argument of the compiled program it lets runs of different seeds
            share the program.
        """
        of_task = functools.partial(
            self.task.objective,
            model=self.padded_model,
            smoothing=self.parts.smoothing,
            weighting=self.parts.weighting,
            predictive=self.predictive,
            loss=self.parts.loss,
            class_counts=jnp.asarray(self.pipeline.class_counts, jnp.float32),
            mixing=self.parts.mixing,
        )
        fixed = self.config["optimizer"].get("fixed", ())

        def objective(params, *arguments):
            return of_task(optimizer.without_gradient(fixed, params), *arguments)

        state, sums, values = train_step(
            state,
            feed,
            jax.random.fold_in(_key_of(root, "train"), state.step),
            objective=objective,
            optimizer=self.optimizer,
            metric=self.task.training_sums,
            batch_of=functools.partial(
                self.pipeline.training_batch, _key_of(root, "augment"), split
            ),
            num_microbatches=self.steps.num_microbatches,
            records_divergence=self.has_soft_targets
            and self.task.link == "softmax"
            and self.task.rows == "example",
            score=self.parts.score if self.scores_in_training else None,
            full_length=self.steps.full_length,
        )
        if values.scores is not None:
            former = state.scores
            new = _at_rows(former.values, feed.rows, values.weights, values.scores)
            state = state._replace(scores=former._replace(values=new))
        return state, sums, values

    def eval_step(
        self,
        params: Any,
        model_state: Any,
        split: Any,
        feed: Any,
        key: PRNGKeyArray,
        answers: Answers = None,
        chain_of: str | None = None,
        num_largest: int = NUM_LARGEST,
    ) -> tuple[Any, Any]:
        """Sums over a batch, and the prediction of each example.

        Args:
          params: with padding classes.
          model_state: likewise.
          split: arrays of the pipeline.
          feed: of the whole batch.
          key: of the latent's noise.
          answers: of the evaluation; static.
          chain_of: see data.pipeline.Pipeline.batch; static.
          num_largest: logits that are kept of each example of many classes; static.
        """
        latent, batch = self._applied(self.padded_model, params, model_state, split, feed, chain_of)
        sums, predictions = eval_step(
            latent,
            batch,
            key,
            predictive=functools.partial(self.task.predicted, self.predictive),
            metric=functools.partial(self.task.evaluation_sums, answers=answers),
            record=functools.partial(
                self.task.predictions, answers=answers, num_largest=num_largest
            ),
        )
        if self.task.rows == "region":  # the predictions have what it reads of them
            return sums, predictions
        names = batch.extras.keys() & set(self.config["data"].get("extras", ()))
        extras = {name: batch.extras[name] for name in sorted(names)}
        if "boxes" in extras:
            extras["objectness"] = boxes.objectness(extras["boxes"])
        return sums, predictions._replace(extras=extras)

    def score_step(
        self,
        params: Any,
        model_state: Any,
        split: Any,
        feed: Any,
        key: PRNGKeyArray,
        scores: Float[Array, "n"],
    ) -> Float[Array, "n"]:
        """The scores of a split, with those of a batch replaced by their score in evaluation.

        Args:
          params: with padding classes.
          model_state: likewise.
          split: arrays of the resident pipeline.
          feed: of the whole batch.
          key: of the latent's noise.
          scores: of all examples.
        """
        latent, batch = self._applied(self.padded_model, params, model_state, split, feed, None)
        values = self.parts.score(key, latent, self.predictive(key, latent), batch.labels)
        return _at_rows(scores, feed.rows, batch.weights, values)

    def latents(
        self, params: Any, model_state: Any, split: Any, feed: Any, chain_of: str | None = None
    ) -> tuple[LatentGaussian, Batch]:
        """The latents of a batch in evaluation, of a state as it is saved; and the batch."""
        return self._applied(self.model, params, model_state, split, feed, chain_of)

    def features(
        self, params: Any, model_state: Any, split: Any, feed: Any, chain_of: str | None = None
    ) -> tuple[Float[Array, "*b d"] | RegionFeatures, Batch]:
        """The features of a batch in evaluation, of a state as it is saved; and the batch."""
        return self._applied(
            self.model, params, model_state, split, feed, chain_of, method="features"
        )

    def maps(
        self, params: Any, model_state: Any, split: Any, feed: Any, chain_of: str | None = None
    ) -> tuple[Float[Array, "b h w d"], Batch]:
        """The features of each place of a batch of images, as `features`; and the batch.

        Raises:
          ValueError: the backbone is not convolutional.
        """
        return self._applied(self.model, params, model_state, split, feed, chain_of, method="maps")

    def batch(self, split: Any, feed: Any, chain_of: str | None = None) -> Batch:
        """A batch in evaluation: the examples that the model sees, without the model."""
        return self.pipeline.batch(self._key("eval"), split, feed, chain_of)

    def latent_of_inputs(self, params: Any, model_state: Any, inputs: Any) -> LatentGaussian:
        """The latents of given inputs in evaluation, such as images of which parts are filled."""
        present = jnp.ones(len(jax.tree.leaves(inputs)[0]), bool)
        return self.model.apply({"params": params, **model_state}, inputs, present, train=False)

    def latent_of_features(self, params: Any, features: Float[Array, "*b d"]) -> LatentGaussian:
        """The latents of given features: the head alone."""
        return self.model.apply({"params": params}, features, method="latent")

    def chain_of(self, split: str) -> str | None:
        """The split if it has a chain of its own, else None; see data.pipeline.Pipeline.batch."""
        return split if split in self.pipeline.own_chains else None

    @property
    def padded_model(self) -> nn.Module:
        """The model of a state with padding classes."""
        shards = self.config["training"]["class_shards"]
        padded = _with_classes(
            self.model, class_padding.padded_num_classes(self.num_classes, shards)
        )
        return padded.clone(num_classes=self.num_classes)

    def predictive(self, key: PRNGKeyArray | None, latent: LatentGaussian) -> Float[Array, "*b k"]:
        """The logits of the classes, without padding classes."""
        return self.parts.predictive(key, latent)[..., : self.num_classes]

    def _applied(self, model, params, model_state, split, feed, chain_of, method="__call__"):
        batch = self.batch(split, feed, chain_of)
        variables = {"params": params, **model_state}
        present = batch.weights > 0
        more = self.task.model_inputs(batch)
        result = model.apply(variables, batch.inputs, present, train=False, method=method, **more)
        return result, batch

    @functools.cached_property
    def root_key(self) -> PRNGKeyArray:
        """The key of the seed, from which all keys of the run follow."""
        return jax.random.key(self.config["seed"])

    def _key(self, purpose):
        return key_for(self.config["seed"], purpose)


def build(
    config: dict[str, Any], data_dir: str | None = None, pipeline: Pipeline | None = None
) -> Run:
    """Builds the run of a config: binds every name and checks every setting.

    Args:
      config: nested dicts and plain values.
      data_dir: where data sets lie.
      pipeline: in place of the one that the config names, where its data is not available.

    Raises:
      ValueError, FileNotFoundError: says which section, what was found and what was expected.
    """
    config = schema.checked(_with_tuples(config))
    task = schema.task(config)
    schema.check_start(config, task)
    pipeline = pipelines.build(config, data_dir) if pipeline is None else pipeline
    config = _with_num_classes(config, len(pipeline.class_names))
    schema.check_data(config, task, pipeline)
    bound = _bound(config)
    steps = _steps(config, bound["schedule"], *_epoch_lengths(config, bound, pipeline))
    return Run(
        config=config,
        pipeline=pipeline,
        task=task,
        model=task.model(*(bound[name] for name in task.modules)),
        parts=Parts(**{name: bound.get(name) for name in Parts._fields}),
        optimizer=bound["optimizer"](steps.learning_rate),
        steps=steps,
        selection=bound.get("selection"),
    )


def _pool(pipeline: Pipeline) -> Pool:
    train = pipeline.dataset.splits["train"]
    return Pool(train.ids, train.labels, pipeline.class_counts)


def _at_rows(
    scores: Float[Array, "n"],
    rows: Int[Array, "b"],
    weights: Float[Array, "b"],
    values: Float[Array, "b"],
) -> Float[Array, "n"]:
    """The scores with those of the rows replaced where an example is present.

    An example that is in the batch more than once, as with its mirror image, has the largest of its
    scores, as not every device defines which one is written last.
    """
    # A padding row of -1 would be the last example.
    present = jnp.where(weights > 0, rows, len(scores))
    largest = jnp.full_like(scores, -jnp.inf).at[present].max(values, mode="drop")
    is_new = jnp.zeros(scores.shape, bool).at[present].set(True, mode="drop")
    return jnp.where(is_new, largest, scores)


def _epoch_lengths(
    config: dict[str, Any], bound: dict[str, Any], pipeline: Pipeline
) -> tuple[int, int]:
    """Steps of an epoch of full length, and of an epoch of selected examples.

    Without prioritization every epoch has full length, that of the selection. The selection is made
    once here, from random scores, which also checks its settings. Each example of an epoch counts
    as often as it occurs there.
    """
    full = pipeline.steps_per_epoch
    if "selection" not in bound:
        return full, full
    rng, pool = np.random.default_rng(0), _pool(pipeline)
    scores = rng.standard_normal(len(pool.ids))
    chosen = bound["selection"](rng, pool._replace(scores=scores, target_scores=scores))
    number = pipeline.occurrences * len(chosen.rows)
    short = resident.steps_per_epoch(number, config["training"]["batch_size"])
    return (full if "prioritization" in config else short), short


def _steps(
    config: dict[str, Any], schedule: Callable, full_length: int, short_length: int
) -> Steps:
    """The steps of a run; checks the settings of its schedule before a model is traced."""
    training = config["training"]
    total_full = training["num_steps"] or max(1, round(training["num_epochs"] * full_length))
    warmup = config.get("prioritization", {}).get("warmup_epochs", 0) * full_length
    rest = max(0, total_full - warmup)
    total = total_full - rest + -(-rest * short_length // full_length)
    schema.check_steps(training, total)
    learning_rate = functools.partial(schedule, total_steps=total_full, steps_per_epoch=full_length)
    jax.eval_shape(learning_rate, 0)
    return Steps(
        batch_size=training["batch_size"],
        num_microbatches=training["microbatches"],
        full_length=full_length,
        total_full=total_full,
        total=total,
        per_checkpoint=max(1, round(training["checkpoint_epochs"] * full_length)),
        learning_rate=learning_rate,
    )


_ANY_NUMBER_OF_CLASSES = 1000  # for a config that takes as many as the data has


def check(config: dict[str, Any]) -> None:
    """Traces what a config names, on two examples of eight features, and builds nothing.

    Raises:
      ValueError: the config is wrong whatever its data; says which section, what was found and what
        was expected.
    """
    config = schema.checked(_with_tuples(config))
    task = schema.task(config)
    pipelines.check(config)
    states_no_classes = config["head"]["num_classes"] is None
    num_classes = config["head"]["num_classes"] or _ANY_NUMBER_OF_CLASSES
    config = _with_num_classes(config, num_classes)
    bound = _bound(config)
    training = dict(config["training"])
    if training["num_steps"] is None:  # at most as many; the number follows from the data
        training |= {"num_steps": 2**31 - 1, "num_epochs": None}
    steps = _steps({**config, "training": training}, bound["schedule"], 1, 1)
    bound["optimizer"](steps.learning_rate)
    if states_no_classes and _smoothing_reads(config).class_table is not None:
        bound["smoothing"] = smoothing.hard  # the table has as many rows as the data has classes

    def traced(features):
        key = jax.random.key(0)
        latent, _ = bound["head"].init_with_output(key, features)
        batch = _batch_of_zeros(config, task, len(features))
        targets = bound["smoothing"](batch, num_classes)
        if "mixing" in bound:
            images = jnp.zeros((len(features), 8, 8, 3))
            _, targets, _ = bound["mixing"](key, images, targets, batch.weights)
        counts = jnp.ones(num_classes)
        logits = bound["predictive"](key, latent)
        losses = bound["loss"](logits, targets, counts)
        if "score" in bound:
            losses += bound["score"](key, latent, logits, batch.labels)
        return bound["weighting"](targets, counts) * losses

    jax.eval_shape(traced, jax.ShapeDtypeStruct((2, 8), jnp.float32))


def _batch_of_zeros(config: dict[str, Any], task: Task, size: int) -> Batch:
    """Labels, weights and those extras that the targets depend on."""
    reads = _smoothing_reads(config)
    shapes = {name: (config["data"]["max_boxes"], 4) for name in reads.extras}  # all are boxes
    soft_labels = reads.soft_label_names(config["smoothing"])
    shapes |= dict.fromkeys(soft_labels, (config["head"]["num_classes"],))
    extras = {name: jnp.zeros((size, *shape)) for name, shape in shapes.items()}
    labels = jnp.zeros((size, 1) if task.labels == "list" else size, jnp.int32)
    return Batch(None, labels, jnp.ones(size), jnp.zeros(size, jnp.int32), extras)


def _smoothing_reads(config: dict[str, Any]) -> Suits:
    """What the smoothing of a config declares to read."""
    return lookup(smoothing, config["smoothing"]["name"]).suits


def _with_num_classes(config: dict[str, Any], number: int) -> dict[str, Any]:
    """The config with the number of classes of its data, if it states none."""
    if config["head"]["num_classes"] is not None:
        return config
    return {**config, "head": {**config["head"], "num_classes": number}}


def _bound(config: dict[str, Any]) -> dict[str, Any]:
    """The bound function or module of each named section; its errors name the section."""

    def part(section, module):
        bound = in_section(section, bind, module, **config[section])
        return (
            bound if isinstance(bound, nn.Module) else functools.partial(in_section, section, bound)
        )

    return {
        section: part(section, module) for section, module in sections.named_modules(config).items()
    }


def _with_classes(model: nn.Module, number: int) -> nn.Module:
    """The model with this number of classes."""
    return model.clone(head=model.head.clone(num_classes=number))


def key_for(seed: int, purpose: str) -> PRNGKeyArray:
    """The PRNG key of a run for one purpose."""
    return _key_of(jax.random.key(seed), purpose)


def _key_of(root: PRNGKeyArray, purpose: str) -> PRNGKeyArray:
    return jax.random.fold_in(root, zlib.crc32(purpose.encode()))


def num_parameters(state: TrainState) -> int:
    """Number of parameters of a state, or of its shapes."""
    return sum(x.size for x in jax.tree.leaves(state.params))


def temperature(run: Run, state: TrainState) -> float:
    """The temperature of the head, fixed or learned."""
    return float(run.model.head.temperature_of(state.params["head"]))


def _with_tuples(value: Any) -> Any:
    """The config with tuples in place of the lists that JSON makes of them."""
    if isinstance(value, dict):
        return {name: _with_tuples(v) for name, v in value.items()}
    return tuple(_with_tuples(v) for v in value) if isinstance(value, list | tuple) else value
