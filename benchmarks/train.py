"""Throughput of a training step, compared with a plain Flax step of the same model.

    python -m benchmarks.train --model=ResNet50

prints for random images on the device (also with --model=ResNet18 and ResNet8): images per second
of our step with the deterministic head, relative to a step of flax.linen and optax alone; the time
that the noise heads add, with independent samples and with Sobol points; the temporary memory that
the compiler reserves and the bytes that it counts; and the floating-point operations per second,
those of single elements included, for known chips also as a fraction of the peak. A second table
has the bytes that the update of the parameters of each head accesses.
Steps are timed in turn, so that changes of the machine's speed affect all of them.

The plain step follows the ImageNet example of Flax (github.com/google/flax, examples/imagenet): no
mask for absent examples, no values per example, batch statistics in one pass, integer labels, the
L2 penalty in the loss, and accuracy as the only metric. Its padding is ours, so that both models
are the same function.
"""

import argparse
import functools
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state

from benchmarks import chips
from heteroscedastic import losses, predictive, smoothing, tasks, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.training import optimizer as optimizers
from heteroscedastic.training.objective import objective
from heteroscedastic.training.state import TrainState
from heteroscedastic.training.step import train_step

# Settings of the plain model, further settings of both, image size, classes, rank, batch on a CPU.
MODELS = {
    "ResNet50": (dict(stage_sizes=(3, 4, 6, 3), bottleneck=True), {}, 224, 1000, 15, 8),
    "ResNet18": (
        dict(stage_sizes=(2, 2, 2, 2), bottleneck=False),
        dict(stem="cifar"),
        32,
        10,
        6,
        64,
    ),
    "ResNet8": (
        dict(stage_sizes=(1, 1, 1), bottleneck=False, width=16),
        dict(stem="cifar"),
        32,
        10,
        6,
        64,
    ),
}
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 1e-3, 0.9, 1e-4
ESTIMATES = {
    "1,000 samples": dict(num_samples=1_000),
    "128 Sobol points": dict(num_samples=128, points="sobol"),
}


class PlainBlock(nn.Module):
    """A residual block of ResNet 1.5."""

    width: int
    strides: int
    bottleneck: bool
    conv: Callable
    norm: Callable

    @nn.compact
    def __call__(self, x):
        shapes = ((self.width, 3, self.strides), (self.width, 3, 1))
        if self.bottleneck:
            shapes = ((self.width, 1, 1), (self.width, 3, self.strides), (4 * self.width, 1, 1))
        y = x
        for i, (channels, kernel, strides) in enumerate(shapes, 1):
            last = i == len(shapes)
            first = nn.initializers.zeros_init() if last else nn.initializers.ones_init()
            y = self.conv(
                channels, (kernel, kernel), strides, padding=(kernel - 1) // 2, name=f"conv{i}"
            )(y)
            y = self.norm(scale_init=first, name=f"norm{i}")(y)
            y = y if last else nn.relu(y)
        if x.shape != y.shape:
            x = self.conv(y.shape[-1], (1, 1), self.strides, name="shortcut")(x)
            x = self.norm(name="shortcut_norm")(x)
        return nn.relu(x + y)


class PlainResNet(nn.Module):
    """ResNet 1.5 with its dense layer."""

    stage_sizes: tuple[int, ...]
    bottleneck: bool
    num_classes: int
    stem: str = "imagenet"
    width: int = 64
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x, train=True):
        he = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype, kernel_init=he)
        norm = functools.partial(
            nn.BatchNorm,
            use_running_average=not train,
            momentum=0.9,
            epsilon=1e-5,
            dtype=self.dtype,
        )
        if self.stem == "imagenet":
            x = nn.relu(
                norm(name="stem_norm")(conv(self.width, (7, 7), 2, padding=3, name="stem")(x))
            )
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        else:
            x = nn.relu(norm(name="stem_norm")(conv(self.width, (3, 3), padding=1, name="stem")(x)))
        for stage, size in enumerate(self.stage_sizes):
            for i in range(size):
                strides = 2 if stage > 0 and i == 0 else 1
                name = f"stage{stage + 1}_block{i + 1}"
                x = PlainBlock(
                    self.width * 2**stage, strides, self.bottleneck, conv, norm, name=name
                )(x)
        x = nn.Dense(self.num_classes, dtype=self.dtype, name="loc")(jnp.mean(x, axis=(1, 2)))
        return x.astype(jnp.float32)


class PlainState(train_state.TrainState):
    """The training state of Flax with batch statistics."""

    batch_stats: Any


def plain_step(state, images, labels):
    """One plain training step; returns the next state, the loss and the accuracy."""

    def loss_of(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updated = state.apply_fn(variables, images, mutable=["batch_stats"])
        loss = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        penalty = sum(jnp.sum(x**2) for x in jax.tree.leaves(params) if x.ndim > 1)
        return loss + WEIGHT_DECAY * 0.5 * penalty, (updated, logits)

    (loss, (updated, logits)), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads, batch_stats=updated["batch_stats"])
    return state, loss, jnp.mean(jnp.argmax(logits, -1) == labels)


def plain(settings, num_classes, dtype, batch):
    """The plain step, its initial state and its other arguments."""
    model = PlainResNet(**settings, num_classes=num_classes, dtype=dtype)
    variables = jax.jit(model.init)(jax.random.key(0), batch.inputs)
    tx = optax.sgd(optax.constant_schedule(LEARNING_RATE), MOMENTUM, nesterov=True)
    state = PlainState.create(apply_fn=model.apply, tx=tx, **variables)
    return plain_step, state, (batch.inputs, batch.labels)


def ours(backbone, head, estimator, batch):
    """Our step, its initial state and its other arguments."""
    model = Classifier(backbone, head)
    variables = jax.jit(model.init)(jax.random.key(0), batch.inputs, batch.weights > 0)
    params = variables.pop("params")
    schedule = optax.constant_schedule(LEARNING_RATE)
    optimizer = optimizers.sgd(schedule, momentum=MOMENTUM, nesterov=True, l2=WEIGHT_DECAY / 2)
    loss_of = functools.partial(
        objective,
        model=model,
        smoothing=smoothing.hard,
        weighting=weighting.equal,
        predictive=estimator,
        loss=losses.cross_entropy,
        class_counts=jnp.ones(head.num_classes),
    )

    def step(state, batch):
        key = jax.random.fold_in(jax.random.key(0), state.step)
        return train_step(
            state,
            batch,
            key,
            objective=loss_of,
            optimizer=optimizer,
            metric=tasks.multiclass().training_sums,
        )

    return (
        step,
        TrainState(jnp.zeros((), jnp.int32), params, variables, optimizer.init(params)),
        (batch,),
    )


def random_batch(size, pixels, num_classes):
    """A batch of random images on the device."""
    draws = np.random.default_rng(0)
    return Batch(
        inputs=jnp.asarray(draws.normal(size=(size, pixels, pixels, 3)), jnp.float32),
        labels=jnp.asarray(draws.integers(num_classes, size=size), jnp.int32),
        weights=jnp.ones(size, jnp.float32),
        ids=jnp.arange(size, dtype=jnp.int32),
        extras={},
    )


def update_bytes(params: Any) -> list[float]:
    """Bytes that an update of parameters accesses, by the compiler's count.

    At least five passes over the parameters: gradient, momentum and parameters are read, and the
    latter two are written.

    Args:
      params: shapes of the parameters.

    Returns:
      The bytes with momentum alone, with the penalty, and with penalty and clipping.
    """
    sizes = []
    for settings in ({}, {"l2": WEIGHT_DECAY / 2}, {"l2": WEIGHT_DECAY / 2, "clip_norm": 1.0}):
        schedule = optax.constant_schedule(LEARNING_RATE)
        optimizer = optimizers.sgd(schedule, momentum=MOMENTUM, nesterov=True, **settings)

        def update(gradient, opt_state, params, optimizer=optimizer):
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        arguments = params, jax.eval_shape(optimizer.init, params), params
        compiled = jax.jit(update).lower(*arguments).compile()
        sizes.append(compiled.cost_analysis()["bytes accessed"])
    return sizes


class TimedStep:
    """A compiled step and its measured times."""

    def __init__(self, name, step, state, arguments):
        self.name, self.state, self.arguments = name, state, arguments
        self.num_parameters = sum(x.size for x in jax.tree.leaves(state.params))
        self.operations = chips.demand(step, state, *arguments).operations
        self.call = jax.jit(step, donate_argnums=0).lower(state, *arguments).compile()
        self.temporaries = self.call.memory_analysis().temp_size_in_bytes
        # By the compiler, which counts the body of a loop over samples once.
        self.bytes = self.call.cost_analysis()["bytes accessed"]
        self.seconds = []

    def run(self):
        """Runs one step and records its wall time."""
        start = time.perf_counter()
        self.state, *_ = jax.block_until_ready(self.call(self.state, *self.arguments))
        self.seconds.append(time.perf_counter() - start)


def main():
    """Prints the table."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", choices=MODELS, default="ResNet50")
    parser.add_argument(
        "--batch", type=int, help="defaults to 256; on a CPU to 8 for ResNet50, 64 for others"
    )
    parser.add_argument(
        "--pixels", type=int, help="image size; defaults to 224 for ResNet50, 32 for others"
    )
    parser.add_argument("--repeats", type=int, default=7 if on_cpu else 50)
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32" if on_cpu else "bfloat16"
    )
    flags = parser.parse_args()
    settings, common, pixels, num_classes, rank, cpu_batch = MODELS[flags.model]
    flags.pixels = flags.pixels or pixels
    flags.batch = flags.batch or (cpu_batch if on_cpu else 256)
    batch = random_batch(flags.batch, flags.pixels, num_classes)
    backbone = getattr(backbones, flags.model)(**common, dtype=flags.dtype)
    steps = [
        TimedStep("plain Flax", *plain({**settings, **common}, num_classes, flags.dtype, batch)),
        TimedStep(
            "Deterministic",
            *ours(backbone, heads.Deterministic(num_classes), predictive.deterministic, batch),
        ),
    ]
    for head in (heads.LowRank, heads.ParameterEfficient):
        for estimate, points in ESTIMATES.items():
            sampled = functools.partial(predictive.softmax, **points)
            step = ours(backbone, head(num_classes, num_factors=rank), sampled, batch)
            steps.append(TimedStep(f"{head.__name__}, {estimate}", *step))
    if steps[0].num_parameters != steps[1].num_parameters:
        raise AssertionError(
            f"the plain model has {steps[0].num_parameters:,} parameters, ours"
            f" {steps[1].num_parameters:,}."
        )
    for _ in range(flags.repeats + 1):
        for step in steps:
            step.run()
    for step in steps:
        del step.seconds[0]  # a warm-up
    print_table(steps, flags, f"{num_classes:,} classes, rank {rank}")
    print_updates([step for step in steps[1:] if not step.name.endswith("samples")])


def print_table(steps, flags, noise):
    """Prints medians over turns, and quartiles of the ratios and differences within turns."""

    def median(function, *steps):
        return statistics.median(map(function, *(step.seconds for step in steps)))

    def spread(text, function, *steps):
        values = list(map(function, *(step.seconds for step in steps)))
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        return f"{middle:{text}} ({low:{text}} to {high:{text}})"

    device = jax.devices()[0]
    chip = chips.chip(device)
    chip_peak = None if chip is None else getattr(chip, flags.dtype)
    print(f"{flags.model}, {flags.pixels} pixels, batch {flags.batch}, {flags.dtype}, {noise},")
    print(
        f"jax {jax.__version__}, {device.device_kind}, {platform.machine()}, {flags.repeats}"
        " turns: medians, quartiles;"
    )
    print(f"a step without noise is {steps[0].operations / 1e9:,.1f} GFLOP")
    columns = [
        "parameters",
        "temporaries, MB",
        "bytes, GB",
        "ms per step",
        "images/s",
        "relative to plain",
        "added by the head",
        "GFLOP/s",
    ]
    columns += [] if chip_peak is None else [f"fraction of the peak of {chip_peak} TFLOP/s"]
    print(f"| step | {' | '.join(columns)} |")
    print("| --- |" + " --- |" * len(columns))
    flax, base = steps[:2]
    for step in steps:
        seconds = median(lambda s: s, step)
        cells = [
            f"{step.num_parameters:,}",
            f"{step.temporaries / 1e6:,.0f}",
            f"{step.bytes / 1e9:,.2f}",
            f"{1e3 * seconds:,.1f}",
        ]
        cells += [
            f"{flags.batch / seconds:,.1f}",
            spread(".3f", lambda other, s: other / s, flax, step),
        ]
        if step in (flax, base):
            rate = flax.operations / seconds
            cells += ["", f"{rate / 1e9:,.0f}"] + (
                [] if chip_peak is None else [f"{rate / chip_peak / 1e12:.1%}"]
            )
        else:
            extra = 1e3 * median(lambda own, s: s - own, base, step)
            fraction = spread("+.1%", lambda own, s: s / own - 1, base, step)
            cells += [f"{extra:+,.1f} ms, {fraction}", ""] + ([] if chip_peak is None else [""])
        print(f"| {step.name} | {' | '.join(cells)} |")


def print_updates(steps):
    """Prints the bytes of the update of each head, compiled alone, and in passes over it."""
    print("\nBytes of the update of the head, MB, and passes over its parameters:")
    print("| head | parameters | momentum | and penalty | and clipping norm |")
    print("| --- |" + " --- |" * 4)
    for step in steps:
        shapes = jax.eval_shape(lambda x: x, {"head": step.state.params["head"]})
        number = sum(x.size for x in jax.tree.leaves(shapes))
        counts = [f"{b / 1e6:,.1f} ({b / (4 * number):.1f})" for b in update_bytes(shapes)]
        print(f"| {step.name.split(',')[0]} | {number:,} | {' | '.join(counts)} |")


if __name__ == "__main__":
    main()
