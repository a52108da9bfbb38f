"""The compiled programs of the estimator, and the padding that lets many fits share them.

Examples, features and classes are padded to a few sizes, so that fits of similar size use the same
compiled programs. Padding changes a result by the initial weights alone, which are drawn for the
padded sizes, and by the points of the noise in batches of more than 512 examples: absent examples
have weight 0, further features are 0, and further classes have probability 0.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic import losses, predictive, smoothing, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.bind import bind, declared_settings, lookup
from heteroscedastic.data import resident
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.training import optimizer as optimizer_lib
from heteroscedastic.training.objective import objective
from heteroscedastic.training.state import TrainState
from heteroscedastic.training.step import train_step

_CHUNK_SIZE = 512  # examples of a prediction; also the unit of padding


class Spec(NamedTuple):
    """What is compiled into the programs."""

    head: str
    num_factors: int
    num_padded: int  # classes, with padding
    widths: tuple[int, ...]  # of hidden layers
    link: str
    num_samples: int
    weight_decay: float
    batch_size: int
    loss: str = "cross_entropy"  # of a softmax; files of earlier versions do not name it


class Numbers(NamedTuple):
    """Settings that programs receive as arguments."""

    num_classes: int | Int[Array, ""]
    temperature: float | Float[Array, ""]
    learning_rate: float | Float[Array, ""]
    decay_steps: float | Float[Array, ""]  # length of the cosine; inf for a constant rate


class Examples(NamedTuple):
    """Padded examples; padding has weight 0."""

    inputs: Float[Array, "n d"]
    labels: Int[Array, "n"] | Int[Array, "n m"]
    weights: Float[Array, "n"]


class Epoch(NamedTuple):
    """What an epoch leaves."""

    state: TrainState
    loss: Float[Array, ""]  # mean over the training examples
    held_out_loss: Float[Array, ""]


def padded_classes(number: int) -> int:
    """Number of classes of the programs: 4, 8, 16 or a multiple of 16."""
    return max(4, 2 ** math.ceil(math.log2(number))) if number < 16 else -(-number // 16) * 16


def padded_features(number: int) -> int:
    """Number of features of the programs: a power of two from 16 to 128, or a multiple of 128."""
    return max(16, 2 ** math.ceil(math.log2(number))) if number < 128 else -(-number // 128) * 128


def padded_examples(number: int) -> int:
    """Number of examples of the programs: a chunk times 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, ..."""
    chunks = max(1, -(-number // _CHUNK_SIZE))
    unit = 2 ** max(0, math.ceil(math.log2(chunks)) - 3)
    return -(-chunks // unit) * unit * _CHUNK_SIZE


def examples(
    inputs: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, "n *m"],
    weights: Float[np.ndarray, "n"],
) -> Examples:
    """The examples on the device, with padding."""
    rows = padded_examples(len(inputs)) - len(inputs)
    cols = padded_features(inputs.shape[1]) - inputs.shape[1]
    lists = [(0, 0)] * (labels.ndim - 1)
    return Examples(
        jnp.asarray(np.pad(inputs.astype(np.float32, copy=False), ((0, rows), (0, cols)))),
        jnp.asarray(np.pad(labels.astype(np.int32), [(0, rows), *lists])),
        jnp.asarray(np.pad(weights.astype(np.float32), (0, rows))),
    )


@functools.partial(jax.jit, static_argnames="spec")
def initial_state(
    spec: Spec, key: PRNGKeyArray, inputs: Float[Array, "n d"], numbers: Numbers
) -> TrainState:
    """The state before the first step."""
    model = _model(spec)
    params = model.init(key, inputs[:1], jnp.ones(1, bool))["params"]
    opt_state = _optimizer(spec, numbers).init(params)
    return TrainState(jnp.zeros((), jnp.int32), params, {}, opt_state)


def run_epoch(
    spec: Spec,
    key: PRNGKeyArray,
    state: TrainState,
    data: Examples,
    held_out: Examples,
    order: Int[np.ndarray, "n"],
    numbers: Numbers,
) -> Epoch:
    """Trains on the examples in this order, once each.

    Args:
      spec: static settings.
      key: of the noise of the run; that of a step follows from it.
      state: the last one.
      data: training examples.
      held_out: examples of `held_out_loss`.
      order: rows of the present training examples.
      numbers: further settings.
    """
    batch_size = min(spec.batch_size, len(data.inputs))
    num_steps = resident.steps_per_epoch(len(order), batch_size)
    slots = -(-len(data.inputs) // batch_size) * batch_size
    rows = np.pad(order, (0, slots - len(order))).reshape(-1, batch_size)
    present = (np.arange(slots) < len(order)).astype(np.float32).reshape(rows.shape)
    return _epoch(spec, key, state, data, held_out, rows, present, num_steps, numbers)


@functools.partial(jax.jit, static_argnames="spec")
def _epoch(spec, key, state, data, held_out, rows, present, num_steps, numbers):
    def batch_of(feed):
        chosen, present = feed
        inputs, labels, weights = jax.tree.map(lambda x: x[chosen], data)
        return Batch(inputs, labels, weights * present, chosen, {})

    take_step = functools.partial(
        train_step,
        objective=functools.partial(
            objective,
            model=_model(spec),
            smoothing=smoothing.hard,
            weighting=weighting.equal,
            predictive=functools.partial(_predictive, spec, numbers),
            loss=_loss(spec),
            class_counts=jnp.ones(spec.num_padded),  # equal weights ignore the counts
        ),
        optimizer=_optimizer(spec, numbers),
        metric=lambda outputs, batch: jnp.sum(batch.weights),
        batch_of=batch_of,
    )

    def body(i, carry):
        state, loss, weight = carry
        step_key = jax.random.fold_in(key, state.step)
        state, sums, _ = take_step(state, (rows[i], present[i]), step_key)
        return state, loss + sums.loss, weight + sums.metrics

    zero = jnp.zeros(())
    state, loss, weight = jax.lax.fori_loop(0, num_steps, body, (state, zero, zero))
    return Epoch(state, loss / weight, _mean(_loss(spec), spec, state.params, held_out, numbers))


@functools.partial(jax.jit, static_argnames="spec")
def brier(spec: Spec, params: Any, data: Examples, numbers: Numbers) -> Float[Array, ""]:
    """The Brier score, summed over classes, as a weighted mean; nan without examples."""
    link = jax.nn.softmax if spec.link == "softmax" else jax.nn.sigmoid

    def squared_error(logits, targets):
        return jnp.sum(jnp.square(link(logits) - targets), axis=-1)

    return _mean(squared_error, spec, params, data, numbers)


def _mean(score, spec, params, data, numbers):
    def chunk_sums(chunk):
        logits, _ = _outputs(spec, params, chunk.inputs, numbers)
        batch = Batch(chunk.inputs, chunk.labels, chunk.weights, chunk.labels, {})
        values = score(logits, smoothing.hard(batch, spec.num_padded))
        return losses.weighted_sum(values, chunk.weights), jnp.sum(chunk.weights)

    chunks = jax.tree.map(lambda x: x.reshape(-1, _CHUNK_SIZE, *x.shape[1:]), data)
    total, weight = jax.tree.map(jnp.sum, jax.lax.map(chunk_sums, chunks))
    return total / weight


def log_probs(
    spec: Spec, params: Any, inputs: Float[np.ndarray, "n d"], numbers: Numbers
) -> Float[np.ndarray, "n k"]:
    """The logits of `predictions` alone, without memory for the latents of all examples."""
    parts = [np.asarray(x) for x, _ in _chunk_outputs(spec, params, inputs, numbers)]
    return np.concatenate(parts)[: len(inputs), : numbers.num_classes]


def log_probs_and_loc(
    spec: Spec, params: Any, inputs: Float[np.ndarray, "n d"], numbers: Numbers
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k"]]:
    """The logits and `loc` of `predictions`, without memory for the noise of all examples."""
    outputs = _chunk_outputs(spec, params, inputs, numbers)
    parts = zip(*((np.asarray(x), np.asarray(latent.loc)) for x, latent in outputs))
    log_probs, loc = (np.concatenate(x)[: len(inputs), : numbers.num_classes] for x in parts)
    return log_probs, loc


def predictions(
    spec: Spec, params: Any, inputs: Float[np.ndarray, "n d"], numbers: Numbers
) -> tuple[Float[np.ndarray, "n k"], LatentGaussian]:
    """Logits in NumPy, and latents, without padding.

    The latents are those of the utilities themselves, before the temperature. Fixed points take the
    place of noise, so that a prediction depends on its features only.
    """
    logits, latents = zip(*_chunk_outputs(spec, params, inputs, numbers))

    def present(*arrays):
        return jnp.concatenate(arrays)[: len(inputs), : numbers.num_classes]

    def field(name):
        values = [getattr(latent, name) for latent in latents]
        return None if values[0] is None else present(*values)

    shared = latents[0].shared_loadings
    latent = LatentGaussian(
        **{n: field(n) for n in ("loc", "scale_diag", "factor_loadings", "factor_scale")},
        shared_loadings=None if shared is None else shared[: numbers.num_classes],
    )
    return np.asarray(present(*logits)), latent


def _chunk_outputs(spec, params, inputs, numbers):
    cols = padded_features(inputs.shape[1]) - inputs.shape[1]
    for start in range(0, len(inputs), _CHUNK_SIZE):
        chunk = inputs[start : start + _CHUNK_SIZE].astype(np.float32)
        padding = _CHUNK_SIZE - len(chunk)
        yield _outputs(spec, params, np.pad(chunk, ((0, padding), (0, cols))), numbers)


@functools.partial(jax.jit, static_argnames="spec")
def _outputs(spec, params, inputs, numbers):
    model = _model(spec)
    latent = model.apply({"params": params}, inputs, jnp.ones(len(inputs), bool))
    return _predictive(spec, numbers, None, latent), latent


def _model(spec: Spec) -> Classifier:
    settings = {"num_classes": spec.num_padded}
    if "num_factors" in declared_settings(lookup(heads, spec.head)):
        settings["num_factors"] = spec.num_factors
    return Classifier(
        backbone=backbones.MLP(spec.widths),
        head=bind(heads, name=spec.head, **settings),
    )


def _predictive(spec, numbers, key, latent):
    latent = latent_lib.mask_padding_classes(latent, numbers.num_classes)
    latent = latent_lib.temper(latent, numbers.temperature)
    if spec.link == "sigmoid":
        return predictive.sigmoid(key, latent)
    if latent_lib.has_independent_noise(latent):
        return predictive.softmax_exact(key, latent)
    return predictive.softmax(key, latent, num_samples=spec.num_samples, points="sobol")


def _loss(spec: Spec) -> Any:
    return bind(losses, name=spec.loss) if spec.link == "softmax" else losses.sigmoid_cross_entropy


def _optimizer(spec: Spec, numbers: Numbers) -> optax.GradientTransformation:
    decay = optax.cosine_decay_schedule(1.0, 1)
    return optimizer_lib.adamw(
        lambda step: numbers.learning_rate * decay(step / numbers.decay_steps),
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        weight_decay=spec.weight_decay,
    )
