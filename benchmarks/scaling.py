"""The same run on several devices and processes: correctness and communication.

    python -m benchmarks.scaling

prints one line per number of processes and devices: the loss of the last of eight steps; the
largest difference of a parameter after them from one device, relative to the largest value of its
array; and the bytes that collective operations output on each device in a step, by kind, from the
compiled program. The devices are virtual devices of this machine's CPU, so times are not reported.
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
# Number of processes, devices per process, settings of config.training. A line with one device is
# the reference of the lines below it.
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
    """Trains eight steps on digits with a heteroscedastic head and batch statistics.

    Writes the parameters to DIRECTORY/params.npz.
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
    shardings = jax.tree.map(lambda x: x.sharding, shapes[0])
    step = compiled.train_step(run, placement, shardings, donates=False).lower(*shapes).compile()
    pad, trim = (
        functools.partial(f, run.class_axis) for f in (class_padding.padded, class_padding.trimmed)
    )
    state = jax.jit(lambda: pad(run.init(run.root_key)), out_shardings=shardings)()
    arrays = placement.put(run.pipeline.arrays["train"], placement.replicated)
    feeds = run.pipeline.training_feeds(0, 0, placement.slots(run.steps.batch_size))
    for _, feed in zip(range(NUM_STEPS), feeds):
        feed = placement.feed(feed, run.steps.batch_size)
        state, sums, _ = step(state, arrays, feed, run.root_key)
    params = jax.tree.leaves(trim(state).params)
    if hosts.is_first():
        np.savez(Path(directory) / "params.npz", *map(np.asarray, params))
    return dict(
        loss=float(sums.loss) / float(sums.metrics.weight),
        num_devices=jax.device_count(),
        crossings={kind: x.bytes for kind, x in hlo.crossings(step.as_text()).items()},
    )


def measure_in_processes(num_processes, num_devices, training, directory):
    """The result of `measure` on the first of several processes with several devices each."""
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = []
    for i in range(num_processes):
        hosts = [address, num_processes, i] if num_processes > 1 else None
        settings = json.dumps(dict(directory=str(directory), training=training, hosts=hosts))
        command = [sys.executable, "-m", "benchmarks.scaling", "--measure", settings]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(subprocess.Popen(command, env=environment, cwd=ROOT, **pipes))
    outputs = [process.communicate() for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("\n".join(errors for _, errors in outputs))
    return json.loads(outputs[0][0].splitlines()[-1])


def difference(one, other):
    """The largest difference of a parameter, relative to the largest value of its array."""
    import numpy as np

    from heteroscedastic import files

    ours, theirs = files.read_arrays(one), files.read_arrays(other)
    return max(float(np.abs(ours[k] - theirs[k]).max() / np.abs(ours[k]).max()) for k in ours)


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--measure", type=json.loads, help="settings of one line, as JSON")
    flags = parser.parse_args()
    if flags.measure:
        if arguments := flags.measure.pop("hosts"):
            from heteroscedastic.distributed import hosts

            hosts.start(*arguments)
        print(json.dumps(measure(**flags.measure)))
        return
    columns = (
        "processes",
        "devices per process",
        "config.training",
        "loss",
        "difference",
        "collective operations, kB per device and step",
    )
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    with tempfile.TemporaryDirectory() as directory:
        for i, (num_processes, num_devices, training) in enumerate(LAYOUTS):
            own = Path(directory) / str(i)
            own.mkdir()
            measured = measure_in_processes(num_processes, num_devices, training, own)
            reference = own if num_processes * num_devices == 1 else reference
            largest = difference(reference / "params.npz", own / "params.npz")
            settings = ", ".join(f"{name}={value}" for name, value in training.items())
            cells = [num_processes, num_devices, settings, f"{measured['loss']:.6f}"]
            cells += [f"{largest:.0e}"]
            cells += [
                ", ".join(f"{kind} {n / 1e3:,.0f}" for kind, n in measured["crossings"].items())
                or "none"
            ]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
