"""Runs the rows of a table: python -m experiments.run --study=S --table=T --scale=cpu --jobs=2.

What is complete is skipped, what was cut off continues, so the same command again finishes a
table. Each run is what main.py would do, in a directory of its own.
"""

import argparse
import concurrent.futures
import contextlib
import multiprocessing
import os
import time
import traceback
from pathlib import Path
from typing import Any

from experiments import study


def run(job: study.Job, data_dir: str | None) -> str | None:
    """Makes one run, its words in log.txt beside its directory; the error, if it fails."""
    from absl import logging

    from heteroscedastic.training import loop

    logging.set_verbosity(logging.WARNING)
    job.directory.parent.mkdir(parents=True, exist_ok=True)
    with (job.directory.parent / f"{job.directory.name}.log").open("a") as log, contextlib.redirect_stdout(log):
        try:
            loop.train(job.config, str(job.directory), data_dir)
        except Exception as error:
            log.write(traceback.format_exc())
            return f"{type(error).__name__}: {error}"
    return None


def share_cores(cores: list[int], num_workers: int, started: Any) -> None:
    """Gives this worker cores of its own, so that runs do not wait for each other's threads."""
    with started.get_lock():
        place = started.value
        started.value += 1
    if hasattr(os, "sched_setaffinity") and num_workers <= len(cores):
        os.sched_setaffinity(0, cores[place % num_workers :: num_workers])


def main() -> None:
    """Runs what is not complete of a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu", help="cpu, gpu or paper")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--out", default="runs", help="the runs lie in OUT/STUDY/TABLE")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    table = study.table(flags.study, flags.table)
    jobs = study.made(table, flags.scale, Path(flags.out) / flags.study / flags.table)
    left = [made.job for made in jobs if made.results is None]
    print(f"{len(jobs)} runs, {len(jobs) - len(left)} complete, {flags.jobs} at once.", flush=True)
    began, failed = time.monotonic(), 0
    # Spawned, not forked: JAX holds threads.
    context = multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shared = (cores, flags.jobs, context.Value("i", 0))
    with concurrent.futures.ProcessPoolExecutor(
        flags.jobs, mp_context=context, initializer=share_cores, initargs=shared
    ) as pool:
        waiting = {pool.submit(run, job, flags.data_dir): job for job in left}
        for i, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            error = future.result()
            failed += error is not None
            minutes = (time.monotonic() - began) / 60
            told = f"failed, {error}" if error else "done"
            print(f"{i}/{len(left)}  {minutes:.1f} min  {waiting[future].directory}: {told}", flush=True)
    if failed:
        raise SystemExit(f"{failed} runs failed; their logs lie beside their directories.")


if __name__ == "__main__":
    main()
