"""The same run on more devices and more processes: are its numbers the same, and what crosses in a
step?

python -m benchmarks.scaling prints a line for each number of processes and of devices: the loss of the last of
eight steps, the largest difference of a parameter after them from those of one device, relative to
the largest number of its array, and by kind the bytes that collective operations put out on each
device in a step, as the compiled program has them. The devices are virtual ones of this machine's
CPU, so no time is told.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUM_STEPS = 8
# Processes, devices of each, settings of config.training; one of one device is what the lines below
# it are compared to.
LAYOUTS = (
    (1, 1, {}),
    (1, 2, {}),
    (1, 4, {}),
    (1, 8, {}),
    (2, 1, {}),
    (4, 1, {}),
    (2, 2, {}),
    (1, 8, {"parameters": "sharded"}),
    (1, 8, {"class_shards": 2}),
    (1, 1, {"microbatches": 4}),
    (1, 8, {"microbatches": 4}),
)


def measure(directory, training):
    """Eight steps of digits under a heteroscedastic head, with batch statistics; the parameters are
    left in a file.
    """
    import functools

    import jax
    import numpy as np

    from benchmarks import hlo
    from experiments import study
    from heteroscedastic.distributed import class_padding, hosts
    from heteroscedastic.distributed.sharding import Placement
    from heteroscedastic.runs import assembly, compiled

    config = study.config("digits_het_pe", {"backbone": dict(name="ConvNet", widths=(8, 16))})
    config["predictive"] |= dict(num_samples=32, points="sobol")
    config["training"] |= dict(batch_size=64, **training)
    run = assembly.build(config)
    placement = Placement(
        run.steps.batch_size, num_microbatches=run.steps.num_microbatches, **run.layout
    )
    shapes = compiled.shapes(run, placement)
    at_work = jax.tree.map(lambda x: x.sharding, shapes[0])
    step = compiled.train_step(run, placement, at_work, donates=False).lower(*shapes).compile()
    pad, trim = (
        functools.partial(f, run.class_axis) for f in (class_padding.padded, class_padding.trimmed)
    )
    state = jax.jit(lambda: pad(run.init()), out_shardings=at_work)()
    arrays = placement.put(run.pipeline.arrays["train"], placement.replicated)
    feeds = run.pipeline.training_feeds(0, 0, placement.places(run.steps.batch_size))
    for _, feed in zip(range(NUM_STEPS), feeds):
        state, sums, _ = step(state, arrays, placement.feed(feed, run.steps.batch_size))
    params = jax.tree.leaves(trim(state).params)
    if hosts.is_first():
        np.savez(Path(directory) / "params.npz", *map(np.asarray, params))
    return dict(
        loss=float(sums.loss) / float(sums.metrics.weight),
        num_devices=jax.device_count(),
        crossings={kind: x.bytes for kind, x in hlo.crossings(step.as_text()).items()},
    )


def in_processes(num_processes, num_devices, training, directory):
    """`measure` by so many processes of so many devices; what the first of them says."""
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    started = []
    for i in range(num_processes):
        hosts = [address, num_processes, i] if num_processes > 1 else None
        told = json.dumps(dict(directory=str(directory), training=training, hosts=hosts))
        command = [sys.executable, "-m", "benchmarks.scaling", "--measure", told]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(subprocess.Popen(command, env=environment, cwd=ROOT, **pipes))
    told = [process.communicate() for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("\n".join(errors for _, errors in told))
    return json.loads(told[0][0].splitlines()[-1])


def difference(one, other):
    """The largest of a parameter, relative to the largest number of its array."""
    import numpy as np

    from heteroscedastic import files

    ours, theirs = files.read_arrays(one), files.read_arrays(other)
    return max(float(np.abs(ours[k] - theirs[k]).max() / np.abs(ours[k]).max()) for k in ours)


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--measure", type=json.loads, help="one line, as JSON")
    flags = parser.parse_args()
    if flags.measure:
        if addressed := flags.measure.pop("hosts"):
            from heteroscedastic.distributed import hosts

            hosts.start(*addressed)
        print(json.dumps(measure(**flags.measure)))
        return
    columns = (
        "processes",
        "devices of each",
        "config.training",
        "loss",
        "difference",
        "crosses in a step, kB a device",
    )
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    with tempfile.TemporaryDirectory() as directory:
        for i, (num_processes, num_devices, training) in enumerate(LAYOUTS):
            own = Path(directory) / str(i)
            own.mkdir()
            found = in_processes(num_processes, num_devices, training, own)
            reference = own if num_processes * num_devices == 1 else reference
            apart = difference(reference / "params.npz", own / "params.npz")
            settings = ", ".join(f"{name}={value}" for name, value in training.items())
            cells = [num_processes, num_devices, settings, f"{found['loss']:.6f}", f"{apart:.0e}"]
            cells += [
                ", ".join(f"{kind} {n / 1e3:,.0f}" for kind, n in found["crossings"].items())
                or "nothing"
            ]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
