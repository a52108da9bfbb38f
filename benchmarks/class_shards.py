"""A training step with classes sharded over devices: memory, communication and correctness.

python -m benchmarks.class_shards prints one line per number of classes and devices: the temporary
memory that the compiler reserves on each device; the collective operations (their number and the
largest array of each kind); the largest difference of a parameter after one step from a step on one
device, relative to the largest value of its array; and the time of a step. The devices are virtual
devices of this machine's CPU and share its cores, so times show no speed-up.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import hlo

ROOT = Path(__file__).parents[1]
SIZES = ((21_843, "LowRank"), (100_000, "ParameterEfficient"))
LAYOUTS = ((1, 1), (2, 2), (4, 4), (8, 8), (8, 4), (8, 2))  # devices, class shards


def measure(num_classes, head, class_shards, points, num_samples, parameters="replicated"):
    """One step on all devices, compared with one step on the first device."""
    import tempfile

    import jax
    import numpy as np

    from heteroscedastic.data import resident
    from heteroscedastic.data.dataset import Dataset, Split
    from heteroscedastic.data.storage import store
    from heteroscedastic.distributed import class_padding
    from heteroscedastic.distributed.sharding import Placement
    from heteroscedastic.runs import assembly

    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, 16)
    split = Split(rng.integers(0, 256, (16, 8, 8, 1), np.uint8), labels, np.arange(16))
    names = tuple(f"class {i}" for i in range(num_classes))
    config = dict(
        seed=0,
        task="multiclass",
        data=dict(
            name="noise",
            train="value_range(-1, 1)",
            eval="value_range(-1, 1)",
            validation_fraction=0.0,
        ),
        curation="",
        backbone=dict(name="MLP", widths=(64,)),
        head=dict(name=head, num_classes=num_classes, num_factors=15, temperature=1.0),
        predictive=dict(name="softmax", num_samples=num_samples, points=points),
        smoothing=dict(name="hard"),
        loss=dict(name="cross_entropy"),
        weighting=dict(name="equal"),
        optimizer=dict(
            name="sgd", momentum=0.9, nesterov=True, l2=1e-4, covariance_l2=None, clip_norm=1.0
        ),
        schedule=dict(name="constant", learning_rate=0.1),
        validation=None,
        evals=dict(test=dict(split="test")),
    )
    with tempfile.TemporaryDirectory() as directory:
        store.write(f"{directory}/noise.npz", Dataset({"train": split, "test": split}, names))

        def build(shards):
            training = dict(
                batch_size=16,
                num_steps=1,
                checkpoint_epochs=1.0,
                class_shards=shards,
                parameters=parameters,
            )
            return assembly.build({**config, "training": training}, directory)

        one, many = build(1), build(class_shards)
    feed = next(resident.feeds(np.arange(16), 16))
    before = jax.jit(one.init)(one.root_key)
    arguments = before, one.dataset.splits["train"], feed, one.root_key
    step = jax.jit(one.train_step).lower(*arguments).compile()
    reference, _, _ = step(*arguments)
    temporaries_on_one = step.memory_analysis().temp_size_in_bytes

    placement, classes = Placement(16, **many.layout), many.class_axis
    padded = class_padding.padded(classes, before)
    shardings = placement.of_state(jax.eval_shape(lambda: padded), classes)
    state = placement.put(padded, shardings)
    data = placement.put(many.dataset.splits["train"], placement.replicated)
    placed = placement.put(
        feed, resident.Feed(*[placement.cut] * 2, placement.replicated, placement.cut)
    )
    step = jax.jit(many.train_step, out_shardings=(shardings, placement.replicated, None))
    arguments = state, data, placed, many.root_key
    compiled = step.lower(*arguments).compile()
    after, _, _ = jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - began)
    saved = jax.tree.map(np.asarray, class_padding.trimmed(classes, after))

    def relative_difference(one, other):
        return float(np.abs(np.asarray(one) - other).max() / np.abs(one).max())

    differences = jax.tree.map(relative_difference, reference.params, saved.params)
    padding_is_zero = jax.tree.map(
        lambda x, y: np.array_equal(x, y), after, class_padding.padded(classes, saved)
    )
    head = compiled.output_shardings[0].params["head"]
    return dict(
        temporaries=compiled.memory_analysis().temp_size_in_bytes,
        temporaries_on_one=temporaries_on_one,
        crossings=shapes_by_kind(hlo.collective_outputs(compiled.as_text())),
        uncut=[
            jax.tree_util.keystr(k)
            for k, x in jax.tree.leaves_with_path(head)
            if "class" not in x.spec
        ],
        difference=max(jax.tree.leaves(differences)),
        padding_is_zero=all(jax.tree.leaves(padding_is_zero)),
        sizes=[
            math.prod(x.sharding.shard_shape(x.shape))
            for x in jax.tree.leaves(state.params["head"])
        ],
        seconds=min(times),
    )


def shapes_by_kind(outputs):
    """The shapes of the outputs of collective operations: kind -> shapes."""
    return {
        kind: [x.shape for x in outputs if x.kind == kind]
        for kind in sorted({x.kind for x in outputs})
    }


def measure_in_subprocess(num_devices, **settings):
    """The result of `measure` in a process with a number of virtual devices."""
    devices = f"--xla_force_host_platform_device_count={num_devices}"
    flags = f"{devices} {os.environ.get('XLA_FLAGS', '')}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.class_shards", "--measure", json.dumps(settings)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--points", default="sobol")
    parser.add_argument("--num_samples", type=int, default=32)
    parser.add_argument("--measure", type=json.loads, help="settings of one line, as JSON")
    flags = parser.parse_args()
    if flags.measure:
        print(json.dumps(measure(**flags.measure)))
        return
    columns = (
        "classes",
        "head",
        "devices",
        "class shards",
        "MB per device",
        "collective operations (largest)",
        "difference",
        "s",
    )
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for num_classes, head in SIZES:
        for num_devices, class_shards in LAYOUTS:
            settings = dict(
                num_classes=num_classes,
                head=head,
                points=flags.points,
                num_samples=flags.num_samples,
            )
            measured = measure_in_subprocess(num_devices, class_shards=class_shards, **settings)
            collectives = "; ".join(
                f"{kind} {len(shapes)} ({'x'.join(map(str, max(shapes, key=math.prod)))})"
                for kind, shapes in sorted(measured["crossings"].items())
            )
            cells = [
                f"{num_classes:,}",
                head,
                num_devices,
                class_shards,
                f"{measured['temporaries'] / 1e6:.0f}",
            ]
            cells += [
                collectives or "none",
                f"{measured['difference']:.0e}",
                f"{measured['seconds']:.2f}",
            ]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
