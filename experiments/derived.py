"""Numbers that a command computes from a finished run, saved so that it prints them without it.

A command that reads checkpoints or predictions, such as noise_pairs, has --save, which writes
experiments/S/results/COMMAND/T.SCALE.json. Runs are identified as in save_results; the metrics by
which runs are tuned come from its file.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import study
from heteroscedastic import files


class Derived:
    """Numbers of the runs of a table by one command."""

    def __init__(self, command: str, flags: argparse.Namespace, jobs: Sequence[study.Job]):
        """Reads what is saved.

        Args:
          command: the module, by its file in experiments/STUDY/.
          flags: table and scale.
          jobs: of the table, or some of them.

        Raises:
          SystemExit: no job has a complete run or saved numbers; says what to run.
        """
        path = Path(command)
        directory = study.saved_path(path.parent.name, flags.table, flags.scale).parent / path.stem
        self.path = directory / f"{flags.table}.{flags.scale}.json"
        of_table = study.jobs(study.table(path.parent.name, flags.table), flags.scale, directory)
        self._known = {job.fingerprint for job in (*of_table, *jobs)}
        self.saved = files.read_json(self.path) if self.path.exists() else {}
        self.used: dict[str, Any] = {}
        self._of_table = study.saved_results(path.parent.name, flags.table, flags.scale)
        self._seeds: dict[str, set[int]] = {}
        for job in jobs:
            self._seeds.setdefault(job.row, set()).add(job.seed)
        if not any(_is_complete(job) or job.fingerprint in self.saved for job in jobs):
            raise SystemExit(
                f"no run of {flags.table} is complete and none is saved in {self.path}; train them"
                f" with python -m experiments.run --study={path.parent.name} --table={flags.table}"
                f" --scale={flags.scale}."
            )

    def of(self, job: study.Job, part: str, compute: Callable[[], Any]) -> Any:
        """The numbers of a part of a run, such as a regime, as JSON has them, and nan for null.

        Computed where the run is complete, else as they were saved; None if they are not.
        """
        return self._of((job,), part, compute)

    def of_all(self, jobs: Sequence[study.Job], part: str, compute: Callable[[], Any]) -> Any:
        """The numbers of several runs together, such as of an ensemble; None as above.

        They are saved with the first run, by the points and seeds of all.
        """
        names = (" ".join((*(f"{k}={v}" for k, v in job.point), str(job.seed))) for job in jobs)
        return self._of(jobs, f"{part}; {', '.join(names)}", compute)

    def _of(self, jobs: Sequence[study.Job], part: str, compute: Callable[[], Any]) -> Any:
        job = jobs[0]
        if all(map(_is_complete, jobs)):
            numbers, commit = files.plain(compute()), study.run_results(job).get("commit")
        elif (numbers := self.saved.get(job.fingerprint, {}).get("numbers", {}).get(part)) is None:
            return None
        else:
            commit = self.saved[job.fingerprint].get("commit")  # earlier versions saved none
        about = dict(row=job.row, point=dict(job.point), seed=job.seed, commit=commit, numbers={})
        self.used.setdefault(job.fingerprint, about)["numbers"][part] = numbers
        return files.nan_for_null(numbers)

    def print_notes(self) -> None:
        """Prints which rows lack numbers of seeds that others have, or have those of other commits.

        The commits are those of the runs and of the saved results of the table. Of numbers of
        several runs together only the first run counts.
        """
        there = {(x["row"], x["seed"], part) for x in self.used.values() for part in x["numbers"]}
        parts = {part for _, _, part in there}
        lacking = []
        for row, seeds in self._seeds.items():
            count = sum(not parts or any((row, s, p) not in there for p in parts) for s in seeds)
            lacking += [f"{count} of {len(seeds)} of {row}"] if count else []
        if lacking:
            rows = ", ".join(lacking)
            print(f"\nSeeds left out, for lack of runs or of saved numbers: {rows}.")
        others: dict[tuple[str, str, str], int] = {}
        for name, entry in self.used.items():
            ours, theirs = entry["commit"], self._of_table.get(name, {}).get("commit")
            if ours and theirs and ours != theirs:
                key = entry["row"], ours[:7], theirs[:7]
                others[key] = others.get(key, 0) + 1
        if others:
            rows = ", ".join(
                f"{count} of {row} (commit {ours}; the table {theirs})"
                for (row, ours, theirs), count in others.items()
            )
            print(f"\nNumbers of other runs than those of the table's saved results: {rows}.")

    def finish(self, save: bool) -> None:
        """Prints the notes, and saves the numbers if `save`."""
        self.print_notes()
        if save:
            self.save()

    def save(self) -> None:
        """Writes the numbers that were asked for, and keeps others of runs of the table."""
        content = {name: entry for name, entry in self.saved.items() if name in self._known}
        for name, entry in self.used.items():
            former = content.get(name, {}).get("numbers", {})
            content[name] = entry | {"numbers": former | entry["numbers"]}
        files.write_json(self.path, content)
        print(
            f"\n{self.path}: numbers of {len(content)} runs are saved, {len(self.used)} of them by"
            " this command."
        )


def _is_complete(job: study.Job) -> bool:
    return study.run_results(job) is not None


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --save."""
    parser.add_argument(
        "--save", action="store_true", help="save the numbers of each run in the repository"
    )
