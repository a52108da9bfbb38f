"""Time of prioritized epochs: python -m benchmarks.prioritization

trains --model (see parts.py) on random images with each fraction, with scores of training steps
and with fresh scores, and prints the seconds of an epoch beside those of an epoch of all examples
in the same run. Then tables of a forward pass, fresh scores and a training step by batch, without
and with a noise head, timed in turns of rotating order; and the seconds of choosing among 1.28
million examples.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks import parts
from experiments import study
from heteroscedastic import selection
from heteroscedastic.data.dataset import Dataset, Split
from heteroscedastic.data.storage import store
from heteroscedastic.runs import assembly, loop, prioritization

_NUM_EPOCHS, _WARMUP = 14, 3
_NUM_SCORES = 1_280_000
_FRACTIONS = (0.3, 0.2, 0.1)


def random_data(path: Path, num_examples: int, pixels: int, num_classes: int) -> None:
    """Writes random images as a data set."""
    rng = np.random.default_rng(0)

    def split(number):
        images = rng.integers(0, 256, (number, pixels, pixels, 3), np.uint8)
        return Split(images, rng.integers(0, num_classes, number), np.arange(number))

    names = tuple(map(str, range(num_classes)))
    store.write(path, Dataset({"train": split(num_examples), "test": split(64)}, names))


def config(
    flags: argparse.Namespace, fraction: float, base: str = "cifar10_resnet34_hom", **settings
) -> dict:
    """A prioritized run of the data set `random`, on a base config."""
    _, of_model, _, num_classes, _, batch = parts.MODELS[flags.model]
    return study.config(
        base,
        {
            "backbone": dict(name=flags.model, **of_model),
            "head.num_classes": num_classes,
            "data.name": "random",
            "data.splits": None,
            "data.validation_fraction": 0.0,
            "training.batch_size": flags.batch or batch,
            "training.num_epochs": float(_NUM_EPOCHS),
            "training.checkpoint_epochs": 1e6,
            "selection.fraction": fraction,
            "prioritization.warmup_epochs": _WARMUP,
            "evals": dict(test=dict(split="test", checkpoint="last", answers=None)),
        }
        | settings,
    )


def epochs(flags: argparse.Namespace, data_dir: str, fraction: float, **settings) -> list[dict]:
    """The lines of epochs.jsonl of a run, without the first epoch, which compiles."""
    with tempfile.TemporaryDirectory() as directory:
        loop.train(config(flags, fraction, **settings), f"{directory}/run", data_dir)
        return prioritization.lines_of(Path(directory) / "run")[1:]


def _seconds(line: dict) -> float:
    return line["seconds_scores"] + line["seconds_steps"]


def print_epochs(flags: argparse.Namespace, data_dir: str) -> None:
    """Prints the seconds of epochs by fraction and source of scores."""
    print("| scores | examples | steps | s of scoring | s of steps | of a full epoch |")
    print("|" + " --- |" * 6)
    for source, every in (("training", 1), ("evaluation", 1), ("evaluation", 2), ("evaluation", 5)):
        for fraction in _FRACTIONS:
            overrides = {
                "prioritization.scores": source,
                "prioritization.every_epochs": every,
            }
            lines = epochs(flags, data_dir, fraction, **overrides)
            full = statistics.median(map(_seconds, lines[: _WARMUP - 1]))
            # The first pass compiles; the epochs up to the next choice after it are left out.
            rest = lines[_WARMUP - 1 + (every if source == "evaluation" else 0) :]
            rest = rest[: len(rest) // every * every]
            means = {
                name: statistics.mean(line[name] for line in rest)
                for name in ("num_steps", "seconds_scores", "seconds_steps")
            }
            total = means["seconds_scores"] + means["seconds_steps"]
            name = source if every == 1 else f"{source}, every {every} epochs"
            print(
                f"| {name} | {fraction:.0%} | {means['num_steps']:.0f} |"
                f" {means['seconds_scores']:.3f} | {means['seconds_steps']:.3f} |"
                f" {total / full:.1%} |",
                flush=True,
            )


def print_passes(flags: argparse.Namespace, data_dir: str, base: str) -> None:
    """Prints the time of a batch: forward pass, fresh scores, training step."""
    run = assembly.build(config(flags, 0.1, base), data_dir)
    state, key = jax.jit(run.init)(run.root_key), jax.random.key(0)
    split = jax.device_put(run.pipeline.arrays["train"])
    feed = jax.device_put(run.pipeline.example("train", training=False))
    scores = state.scores.values

    def forward(params, model_state, split, feed, key):
        return run.latents(params, model_state, split, feed)[0].loc

    arguments = state.params, state.model_state, split, feed, key
    calls = {
        "forward pass": (jax.jit(forward), arguments),
        "fresh scores": (jax.jit(run.score_step), (*arguments, scores)),
        "training step": (jax.jit(run.train_step), (state, split, feed, run.root_key)),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(flags.repeats + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            call, values = calls[name]
            start = time.perf_counter()
            jax.block_until_ready(call(*values))
            if turn:
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(t) for name, t in times.items()}
    print(
        f"\n{base}:\n\n| a batch | ms | images/s of a forward pass | of a step |\n|" + " --- |" * 4
    )
    for name, seconds in medians.items():
        speed = medians["forward pass"] / seconds
        share = seconds / medians["training step"]
        print(f"| {name} | {1e3 * seconds:.2f} | {speed:.3f} | {share:.3f} |")


def print_choices(repeats: int) -> None:
    """Prints the seconds of choosing among many examples."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 1000, _NUM_SCORES)
    scores, other = rng.random((2, _NUM_SCORES), np.float32)
    pool = selection.Pool(
        np.arange(_NUM_SCORES), labels, np.bincount(labels).astype(np.float32), 0.5, scores, other
    )
    choices = {name: dict(fraction=0.1) for name in ("largest", "smallest", "spread", "excess")}
    choices |= {"random": dict(fraction=0.1), "pruned": dict(rate=0.5)}
    print(f"\n| a choice among {_NUM_SCORES:,} | s |\n| --- | --- |")
    for name, settings in choices.items():
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            getattr(selection, name)(rng, pool, **settings)
            times.append(time.perf_counter() - start)
        print(f"| {name} | {statistics.median(times):.3f} |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", choices=parts.MODELS, default="ResNet8")
    parser.add_argument("--batch", type=int, help="defaults to 128 for ResNet8; see train.py")
    parser.add_argument("--examples", type=int, default=6400)
    parser.add_argument("--repeats", type=int, default=9)
    flags = parser.parse_args()
    _, _, pixels, num_classes, _, batch = parts.MODELS[flags.model]
    print(
        f"{flags.model}, {flags.examples:,} images of {pixels} pixels, batches of"
        f" {flags.batch or batch}, on {jax.devices()[0].device_kind}:\n"
    )
    with tempfile.TemporaryDirectory() as data_dir:
        random_data(Path(data_dir) / "random.npz", flags.examples, pixels, num_classes)
        print_epochs(flags, data_dir)
        for base in ("cifar10_resnet34_hom", "cifar10_resnet34_het_full"):
            print_passes(flags, data_dir, base)
    print_choices(flags.repeats)


if __name__ == "__main__":
    main()
