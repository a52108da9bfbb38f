"""Runs the rows of a table: python -m experiments.run --study=S --table=T --scale=cpu --jobs=2.

What is complete is skipped, what was cut off continues, so the same command again finishes a
table. Each run is what main.py would do, in a directory of its own.
"""

import concurrent.futures
import contextlib
import fnmatch
import multiprocessing
import os
import signal
import threading
import time
import traceback
from typing import Any

from experiments import row, study
from heteroscedastic import files, user_errors


def run(job: study.Job, data_dir: str | None) -> str | None:
    """Makes one run, its words in a .log beside its directory; the error, if it fails."""
    from absl import logging

    from heteroscedastic.runs import loop

    logging.set_verbosity(logging.WARNING)
    job.directory.parent.mkdir(parents=True, exist_ok=True)
    with (
        (job.directory.parent / f"{job.directory.name}.log").open("a") as log,
        contextlib.redirect_stdout(log),
    ):
        try:
            loop.train(job.config, str(job.directory), data_dir)
        except Exception as error:
            log.write(traceback.format_exc())
            return f"{type(error).__name__}: {error}"
    return None


def begin_worker(cores: list[int], num_workers: int, started: Any) -> None:
    """Gives this worker cores of its own, so that runs do not wait for each other's threads."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with started.get_lock():
        place = started.value
        started.value += 1
    if hasattr(os, "sched_setaffinity") and num_workers <= len(cores):
        os.sched_setaffinity(0, cores[place % num_workers :: num_workers])


def _end_with(parent: int) -> None:
    """Asks this process to save and leave once its parent is gone, however it went."""
    while os.getppid() == parent:
        time.sleep(1)
    while True:  # a run answers the first by saving; between runs it ends the process
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def make(jobs: list[study.Job], num_workers: int, data_dir: str | None) -> int:
    """Makes runs, several at once, and tells of each; how many failed."""
    began, failed = time.monotonic(), 0
    context = multiprocessing.get_context("spawn")  # not forked: JAX holds threads
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    pool = concurrent.futures.ProcessPoolExecutor(
        num_workers,
        mp_context=context,
        initializer=begin_worker,
        initargs=(cores, num_workers, context.Value("i", 0)),
    )
    try:
        waiting = {pool.submit(run, job, data_dir): job for job in jobs}
        for i, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            stopped = future.exception()  # a worker that was terminated or killed
            error = f"{type(stopped).__name__} {stopped}" if stopped else future.result()
            failed += error is not None
            minutes = (time.monotonic() - began) / 60
            told = f"failed, {error}" if error else "done"
            print(
                f"{i}/{len(jobs)}  {minutes:.1f} min  {waiting[future].directory}: {told}",
                flush=True,
            )
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


@user_errors.one_line()
def main() -> None:
    """Runs what is not complete of a table."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument(
        "--scale",
        default="cpu",
        help="how much is run, such as cpu, gpu or paper, where the table has it",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="PATTERN",
        help="rows such as het_full or 'dtd_*'; all if not given",
    )
    parser.add_argument(
        "--beside_kept", action="store_true", help="no run whose results the repository keeps"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument(
        "--print", action="store_true", help="what main.py is given for each, and run nothing"
    )
    parser.add_argument("--out", default="runs", help="the runs lie in OUT/STUDY/TABLE")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    table = study.table(flags.study, flags.table)
    if flags.rows:
        rows = tuple(
            r
            for r in table.rows
            if any(fnmatch.fnmatchcase(r.name, pattern) for pattern in flags.rows)
        )
        if not rows:
            raise SystemExit(
                f"no row is called {flags.rows}; the rows are {[r.name for r in table.rows]}."
            )
        table = table._replace(rows=rows)
    kept = study.kept(flags.study, flags.table, flags.scale) if flags.beside_kept else {}
    runs = study.made(
        table, flags.scale, files.as_path(flags.out) / flags.study / flags.table, kept
    )
    # Seed by seed, so that a table of fewer seeds is complete sooner.
    left = sorted((made.job for made in runs if made.results is None), key=lambda job: job.seed)
    if flags.print:
        for job in left:
            print(f"--config={row.name(flags.table, job.directory)} --workdir={job.directory}")
        return
    if files.in_bucket(files.as_path(flags.out)):
        raise SystemExit(
            f"{flags.out} is in a bucket; --print tells what main.py or a launcher is given for"
            " each run."
        )
    print(f"{len(runs)} runs, {len(runs) - len(left)} complete, {flags.jobs} at once.", flush=True)
    failed = make(left, flags.jobs, flags.data_dir)
    if failed:
        raise SystemExit(f"{failed} runs failed; their logs lie beside their directories.")


if __name__ == "__main__":
    main()
