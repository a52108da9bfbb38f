"""Trains the runs of tables: python -m experiments.run --study=S --table T --scale=cpu --jobs=2.

Without --table it trains all tables of the study that have the scale. Complete runs are skipped and
interrupted runs resume, so repeating the command completes the tables. Each run is the one that
main.py would train, in its own directory.
"""

import collections
import concurrent.futures
import contextlib
import fnmatch
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

from experiments import features, row, study
from heteroscedastic import files, user_errors
from heteroscedastic.bind import check_number
from heteroscedastic.runs import host_memory


def run(job: study.Job, data_dir: str | None) -> str | None:
    """Trains one run; its output goes to a .log file beside its directory.

    Returns:
      The error if the run fails, else None.
    """
    from absl import logging

    from heteroscedastic.runs import compilation_cache, loop

    compilation_cache.enable()
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


def begin_worker(cores: list[int], num_workers: int, index: int) -> None:
    """Gives this worker its own cores, so that runs do not wait for each other's threads."""
    host_memory.keep()
    if num_workers > 1:  # else the first would take three quarters of a GPU's memory for itself
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    if hasattr(os, "sched_setaffinity") and num_workers <= len(cores):
        os.sched_setaffinity(0, cores[index % num_workers :: num_workers])


def _exit_with_parent(parent: int) -> None:
    """Sends SIGTERM to this process once its parent no longer exists."""
    while os.getppid() == parent:
        time.sleep(1)
    while True:  # a run answers the first signal by saving; between runs it ends the process
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def run_all(jobs: list[study.Job], num_workers: int, data_dir: str | None) -> int:
    """Trains runs in parallel processes and reports each; returns the number of failures."""
    began, num_done, failed = time.monotonic(), 0, 0
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    waiting = collections.deque(jobs)

    def worker(index):
        # A pool of its own, as a process that is killed ends all runs of its pool.
        return concurrent.futures.ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),  # JAX has threads: a fork breaks them
            initializer=begin_worker,
            initargs=(cores, num_workers, index),
        )

    workers = [worker(i) for i in range(min(num_workers, len(jobs)))]
    running: dict[concurrent.futures.Future, tuple[int, study.Job]] = {}

    def begin(index):
        if waiting:
            job = waiting.popleft()
            running[workers[index].submit(run, job, data_dir)] = index, job

    try:
        for i in range(len(workers)):
            begin(i)
        while running:
            done, _ = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            for future in done:
                i, job = running.pop(future)
                exception = future.exception()  # of a worker that was terminated or killed
                error = f"{type(exception).__name__} {exception}" if exception else future.result()
                num_done, failed = num_done + 1, failed + (error is not None)
                minutes = (time.monotonic() - began) / 60
                status = f"failed, {error}" if error else "done"
                print(
                    f"{num_done}/{len(jobs)}  {minutes:.1f} min  {job.directory}: {status}",
                    flush=True,
                )
                if exception:
                    workers[i].shutdown()
                    workers[i] = worker(i)
                begin(i)
    finally:
        for each in workers:
            each.shutdown(cancel_futures=True)
    return failed


def with_rows(chosen: study.Table, patterns: list[str] | None) -> study.Table:
    """The table with the rows of which a pattern matches the name; with all if there is none."""
    rows = tuple(
        r
        for r in chosen.rows
        if patterns is None or any(fnmatch.fnmatchcase(r.name, pattern) for pattern in patterns)
    )
    return chosen._replace(rows=rows)


@user_errors.one_line()
def main() -> None:
    """Trains the incomplete runs of tables, one table after another."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument(
        "--table",
        nargs="+",
        metavar="TABLE",
        help="defaults to all tables of the study that have the scale",
    )
    parser.add_argument(
        "--scale",
        default="cpu",
        help="size of the experiment, such as cpu, gpu or paper; see the scales of the table",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="PATTERN",
        help="row names or patterns, such as het_full or 'dtd_*'; defaults to all rows",
    )
    parser.add_argument("--seeds", nargs="+", type=int, help="train these alone")
    parser.add_argument("--at", help="one grid point, such as 1.0, that is trained alone")
    parser.add_argument(
        "--skip_saved",
        "--beside_kept",  # the name in older notes
        action="store_true",
        help="skip runs whose results are saved in the repository",
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument(
        "--print",
        action="store_true",
        help="print the arguments of main.py for each incomplete run and train nothing",
    )
    parser.add_argument("--out", default="runs", help="runs are written to OUT/STUDY/TABLE")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    check_number("--jobs", flags.jobs, integer=True, at_least=1)
    names = flags.table or study.tables(flags.study, flags.scale)
    tables = {name: with_rows(study.table(flags.study, name), flags.rows) for name in names}
    if not any(table.rows for table in tables.values()):
        rows = dict.fromkeys(r.name for name in names for r in study.table(flags.study, name).rows)
        raise SystemExit(f"no row matches {flags.rows}; the rows are {list(rows)}.")
    results: dict[files.Path, study.JobResult] = {}  # by directory, as tables share runs
    incomplete: dict[str, list[study.Job]] = {}
    without_point, has_point = ValueError(), flags.at is None
    for name, table in tables.items():
        out = files.as_path(flags.out) / flags.study / name
        saved: dict[str, dict[str, Any]] = {}
        if flags.skip_saved:
            saved = study.shared_results(flags.study, table, flags.scale)
            saved |= study.with_metrics(table, study.saved_results(flags.study, name, flags.scale))
        found = study.job_results(table, flags.scale, out, saved)
        if flags.at and found:
            try:
                found, has_point = study.results_at(table, found, flags.at), True
            except ValueError as error:
                without_point, found = error, []
                print(f"{name} is left out: {error}", file=sys.stderr)  # --print is for scripts
        found = [r for r in found if flags.seeds is None or r.job.seed in flags.seeds]
        new = {r.job.directory: r for r in found if r.job.directory not in results}
        results |= new
        # In the order of seeds, so that the table is complete for few seeds early.
        jobs = [r.job for r in new.values() if r.results is None]
        incomplete[name] = sorted(jobs, key=lambda job: job.seed)
    if not has_point:  # in any table
        raise without_point
    if flags.seeds and not results:
        raise SystemExit(f"no run has one of the seeds {flags.seeds}; leave out --seeds.")
    if flags.print:
        for name, jobs in incomplete.items():
            for job in jobs:
                print(f"--config={row.name(name, job.directory)} --workdir={job.directory}")
        return
    if files.in_bucket(files.as_path(flags.out)):
        raise SystemExit(
            f"{flags.out} is in a bucket; --print prints the arguments of main.py or a launcher"
            " for each run."
        )
    all_jobs = [job for jobs in incomplete.values() for job in jobs]
    features.check_stored((job.config["data"]["name"] for job in all_jobs), flags.data_dir)
    print(
        f"{len(results)} runs, {len(results) - len(all_jobs)} complete, {flags.jobs} at once.",
        flush=True,
    )
    # Not all at once: a table may start from the runs of one before it.
    failed = sum(run_all(jobs, flags.jobs, flags.data_dir) for jobs in incomplete.values() if jobs)
    if failed:
        raise SystemExit(f"{failed} runs failed; see the .log files beside their directories.")


if __name__ == "__main__":
    main()
