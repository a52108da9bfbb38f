"""What kept memory saves on a CPU: python -m benchmarks.host_memory

trains a ResNet-8 on images of 32 pixels in processes that keep freed memory between steps, as our
commands do, and in others that return it to the system, in turn. Prints CPU milliseconds per step
of each, their ratio within turns, and the largest memory of a process. Times are of one core.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

STEPS = 12


def measure(keeps: bool, batch_size: int) -> None:
    """Prints the CPU time of a step and the memory of this process, as JSON."""
    from heteroscedastic.runs import host_memory

    if keeps:
        host_memory.keep()
    from benchmarks import train
    from heteroscedastic import predictive
    from heteroscedastic.models import heads
    from heteroscedastic.models.backbones import ResNet8

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    batch = train.random_batch(batch_size, 32, 10)
    head = heads.Deterministic(10)
    step = train.TimedStep("", *train.ours(ResNet8(), head, predictive.deterministic, batch))
    seconds = []
    for _ in range(STEPS):
        start = time.process_time()
        step.run()
        seconds.append(time.process_time() - start)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    print(json.dumps({"seconds": statistics.median(seconds[2:]), "memory": memory}))


def measured(keeps: bool, batch_size: int) -> dict[str, float]:
    """The measurement of a process of its own."""
    command = [sys.executable, "-m", "benchmarks.host_memory", f"--batch={batch_size}", "--child"]
    done = subprocess.run(command + ["--keep"] * keeps, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--child", action="store_true", help="measure in this process")
    parser.add_argument("--keep", action="store_true", help="with --child, keep memory")
    flags = parser.parse_args()
    if flags.child:
        return measure(flags.keep, flags.batch)
    turns = [[measured(keeps, flags.batch) for keeps in (False, True)] for _ in range(flags.turns)]
    ratios = [kept["seconds"] / returned["seconds"] for returned, kept in turns]
    print("| memory | CPU ms per step | largest memory, MiB |\n| --- | --- | --- |")
    for name, values in zip(("returned", "kept"), zip(*turns)):
        time_, memory = (statistics.median(v[x] for v in values) for x in ("seconds", "memory"))
        print(f"| {name} | {time_ * 1e3:.0f} | {memory:.0f} |")
    print(
        f"ratio within turns: {statistics.median(ratios):.2f}"
        f" ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
