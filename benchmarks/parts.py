"""Time of the parts of a config beside the training step: python -m benchmarks.parts

prints three tables. On the device: each loss and its gradient, weighting, smoothing and mixing, as
a fraction of the training step of --model (see train.py), and that fraction less the one of the
default part. On the host: the selection of an epoch as a fraction of its steps, and seconds of the
curation of 14 million labels and of the class-wise sums of 50,000 x 1,000 probabilities. Parts are
timed alone, in turn with the step.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import train
from benchmarks.predictive import seconds as seconds_of
from heteroscedastic import bind, curation, losses, mixing, predictive, selection
from heteroscedastic import smoothing as smoothings
from heteroscedastic import weighting as weightings
from heteroscedastic.calibration import reliability
from heteroscedastic.models import backbones, heads

MODELS = {**train.MODELS, "ResNet8": (None, dict(stem="cifar"), 32, 10, 6, 128)}
_NUM_BOXES = (4, 16, 64)  # of an image
_DEFAULTS = {"loss": "cross_entropy", "weighting": "equal", "smoothing": "hard", "mixing": None}
_LOSSES = (
    dict(name="cross_entropy"),
    dict(name="focal", gamma=2.0),
    dict(name="generalized_cross_entropy", q=0.7),
    dict(name="logit_adjusted", strength=1.0),
)
_WEIGHTINGS = (
    dict(name="equal"),
    dict(name="inverse_frequency"),
    dict(name="effective_number", beta=0.9999),
)
_SMOOTHINGS = (
    dict(name="hard"),
    dict(name="uniform", rate=0.1, over="all"),
)
_MIXINGS = (
    dict(name="mixup", alpha=0.2, draws="batch"),
    dict(name="cutmix", alpha=1.0, probability=1.0, draws="batch"),
    dict(name="ricap", beta=0.3, draws="batch"),
    dict(
        name="mixup_or_cutmix",
        mixup_alpha=0.2,
        cutmix_alpha=1.0,
        cutmix_probability=0.5,
        draws="batch",
    ),
)
_CURATIONS = (
    "exponential(ratio=100)",
    "step(ratio=100)",
    "undersample()",
    "subset(fraction=0.1)",
    "permute_labels(rate=0.4)",
    "symmetric(rate=0.4)",
    "transitions(moves=((9, 1), (2, 0)), rate=0.4)",
    "rising_noise(highest=0.5)",
)
_NUM_LABELS, _NUM_LABEL_CLASSES = 14_000_000, 1000
_NUM_ROWS, _NUM_COLUMNS = 50_000, 1_000


def device_parts(
    batch: Any, num_classes: int
) -> dict[tuple[str, str], tuple[Callable, tuple[Any, ...]]]:
    """By section and name: a function of arrays, and its arguments."""
    counts = jnp.asarray(np.geomspace(1, 1000, num_classes), jnp.float32)
    draws = np.random.default_rng(1)
    logits = jnp.asarray(draws.normal(size=(len(batch.labels), num_classes)), jnp.float32)
    targets, key = smoothings.hard(batch, num_classes), jax.random.key(0)

    def gradient(loss):
        def total(logits, targets):
            return jnp.sum(loss(logits, targets, counts))

        return jax.value_and_grad(total)

    parts = {}
    for settings in _LOSSES:
        loss = bind.bind(losses, **settings)
        parts["loss", settings["name"]] = gradient(loss), (logits, targets)
    for settings in _WEIGHTINGS:
        weighting = bind.bind(weightings, **settings)
        parts["weighting", settings["name"]] = (
            functools.partial(weighting, class_counts=counts),
            (targets,),
        )
    for settings in _SMOOTHINGS:
        smoothing = functools.partial(bind.bind(smoothings, **settings), num_classes=num_classes)
        parts["smoothing", settings["name"]] = smoothing, (batch,)
    for number in _NUM_BOXES:
        boxes = {"boxes": batch.extras["boxes"][:, :number]}
        adaptive = functools.partial(smoothings.adaptive, num_classes=num_classes)
        name = f"adaptive, {number} boxes"
        parts["smoothing", name] = adaptive, (batch._replace(extras=boxes),)
    for settings in _MIXINGS:
        function = bind.bind(mixing, **settings)
        parts["mixing", settings["name"]] = function, (key, batch.inputs, targets, batch.weights)
    return parts


def host_times(seconds_per_step: float, batch_size: int, repeats: int) -> list[tuple[str, ...]]:
    """The rows of the table of the host: part, seconds, fraction of the steps of an epoch."""
    ids = np.arange(50_000)
    pool = selection.Pool(ids, ids % 10, np.full(10, 5_000.0))
    epoch = seconds_per_step * len(ids) / batch_size
    rng = np.random.default_rng(0)
    chosen = statistics.median(
        seconds_of(lambda: selection.balanced(rng, pool)) for _ in range(repeats)
    )
    rows = [("balanced, 50,000 examples", f"{chosen:.4f}", f"{chosen / epoch:.2%}")]
    ids = np.arange(_NUM_LABELS)
    labels = (ids % _NUM_LABEL_CLASSES).astype(np.int32)
    for text in _CURATIONS:
        (link,) = bind.chain(curation, text)
        seconds = seconds_of(functools.partial(link, 0, ids, labels, _NUM_LABEL_CLASSES))
        rows.append((f"{text}, {_NUM_LABELS:,} labels", f"{seconds:.2f}", ""))
    logits = rng.normal(0, 3, (_NUM_ROWS, _NUM_COLUMNS)).astype(np.float32)
    probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    targets = rng.integers(0, _NUM_COLUMNS, (_NUM_ROWS, 1)) == np.arange(_NUM_COLUMNS)
    edges = reliability.equal_edges(15)
    seconds = statistics.median(
        seconds_of(lambda: reliability.sums_one_against_all(probs, targets, edges))
        for _ in range(repeats)
    )
    rows.append((f"class-wise sums, {_NUM_ROWS:,} x {_NUM_COLUMNS:,}", f"{seconds:.3f}", ""))
    return rows


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", choices=MODELS, default="ResNet8")
    parser.add_argument("--batch", type=int, help="defaults to 128 for ResNet8; see train.py")
    parser.add_argument("--repeats", type=int, default=9)
    flags = parser.parse_args()
    _, settings, pixels, num_classes, _, cpu_batch = MODELS[flags.model]
    size = flags.batch or cpu_batch
    corners = np.sort(np.random.default_rng(0).random((size, max(_NUM_BOXES), 2, 2)), axis=2)
    batch = train.random_batch(size, pixels, num_classes)._replace(
        extras={"boxes": jnp.asarray(corners.reshape(size, -1, 4), jnp.float32)}
    )
    backbone, head = getattr(backbones, flags.model)(**settings), heads.Deterministic(num_classes)
    step = train.TimedStep("step", *train.ours(backbone, head, predictive.deterministic, batch))
    calls = {
        name: functools.partial(jax.jit(function), *arguments)
        for name, (function, arguments) in device_parts(batch, num_classes).items()
    }
    times: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    for turn in range(flags.repeats + 1):
        step.run()
        for name, call in calls.items():
            seconds = seconds_of(call)
            if turn:  # the first compiles
                times[name].append(seconds)
    del step.seconds[0]
    whole = statistics.median(step.seconds)
    device = jax.devices()[0].device_kind
    print(f"{flags.model}, batch {size}, {pixels} pixels, {num_classes:,} classes, on {device}:")
    print(f"a step takes {1e3 * whole:.1f} ms.\n")
    print("| section | part | ms | of a step | above the default |\n|" + " --- |" * 5)
    fractions = {name: statistics.median(t) / whole for name, t in times.items()}
    for (section, name), fraction in fractions.items():
        default = fractions.get((section, _DEFAULTS[section]), 0.0)
        print(
            f"| {section} | {name} | {1e3 * fraction * whole:.2f} | {fraction:.2%} |"
            f" {fraction - default:+.2%} |"
        )
    print("\n| on the host | seconds | of the steps of an epoch |\n| --- | --- | --- |")
    for row in host_times(whole, size, flags.repeats):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
