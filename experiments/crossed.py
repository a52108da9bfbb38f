"""Intervals of differences over other seeds and other test examples, for `table --crossed`.

They require the predictions of the runs; rows without keep their intervals over seeds. For
detectors they are of AP, AP50, AP75 and AR, and the examples are images. With --save,
experiments/S/results/crossed/T.SCALE.json keeps them, so that the table prints them without the
runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import statistics, study
from heteroscedastic import files
from heteroscedastic.analysis.uncertainty import intervals
from heteroscedastic.calibration.bootstrap import Interval
from heteroscedastic.runs import predictions

_FOLDER = "crossed"
Results = Mapping[int, study.JobResult]  # by seed


class Crossed:
    """The intervals of a table."""

    def __init__(self, study_name: str, table: str, scale: str):
        """Reads those that are saved."""
        self.path = path(study.saved_path(study_name, table, scale))
        saved = files.read_json(self.path) if self.path.exists() else []
        self._entries = {_key(entry): entry for entry in saved}
        self._found: set[str] = set()  # rows
        self._not_found: dict[str, None] = {}  # rows, in order

    def differences(
        self, ours: Results, theirs: Results, regime: study.Regime
    ) -> dict[str, Interval]:
        """The difference of two rows by metric, without temperature scaling; paired by seed.

        It is empty if they have no seed in common, or if a run is not in OUT and the difference is
        not saved.
        """
        seeds = sorted(set(ours) & set(theirs))
        if not seeds:
            return {}
        jobs = [[results[seed].job for seed in seeds] for results in (ours, theirs)]
        entry = dict(
            row=jobs[0][0].row,
            reference=jobs[1][0].row,
            evaluation=regime.report,
            seeds=seeds,
            runs=[[job.fingerprint for job in side] for side in jobs],
        )
        if all((job.directory / "results.json").exists() for side in jobs for job in side):
            entry["differences"] = _differences(jobs, regime.report)
            self._entries[_key(entry)] = entry
        elif _key(entry) not in self._entries:
            self._not_found[entry["row"]] = None
            return {}
        self._found.add(entry["row"])
        found = files.nan_for_null(self._entries[_key(entry)]["differences"])
        return {metric: Interval(*interval) for metric, interval in found.items()}

    def rows_left_out(self) -> list[str]:
        """The rows whose differences were asked for, but are neither in OUT nor saved.

        Raises:
          SystemExit: there is no difference at all.
        """
        rows = list(self._not_found)
        if rows and not self._found:
            raise SystemExit(
                f"--crossed requires the predictions of {', '.join(rows)} and of the row with which"
                f" they are compared, but these runs are not in OUT, and {self.path} does not have"
                " the differences; run experiments.run first."
            )
        return rows

    def save(self) -> None:
        """Writes the differences of this call and those that were saved before."""
        rows = [
            entry | {"differences": {k: list(v) for k, v in entry["differences"].items()}}
            for entry in self._entries.values()
        ]
        files.write_json(self.path, rows)
        print(f"\n{self.path}: the intervals of {len(rows)} pairs of rows are saved.")


def _differences(jobs: Sequence[Sequence[study.Job]], evaluation: str) -> dict[str, Interval]:
    """Of the complete runs of two rows.

    Raises:
      ValueError: two runs of one seed, or two seeds, were evaluated on different examples.
    """
    detects = jobs[0][0].config["task"] == "detection"
    read = predictions.read_detections if detects else predictions.read
    ours, theirs = ({job.seed: read(job.directory, evaluation) for job in side} for side in jobs)
    if not detects:
        first = next(iter(ours.values())).ids
        for seed, run in ours.items():
            if not np.array_equal(run.ids, theirs[seed].ids):
                raise ValueError(
                    f"{jobs[0][0].row} and {jobs[1][0].row} of seed {seed} were evaluated on"
                    f" different examples in {evaluation!r}; train both again."
                )
            if not np.array_equal(run.ids, first):
                raise ValueError(
                    f"each seed of {jobs[0][0].row} has its own examples in {evaluation!r}, so the"
                    " interval over seeds covers other examples already; leave out --crossed."
                )
        shared = predictions.shared_groups((*ours.values(), *theirs.values()))
        return statistics.crossed(
            *({s: p._replace(groups=shared) for s, p in side.items()} for side in (ours, theirs))
        )
    for job in jobs[0]:
        if not np.array_equal(*(x[job.seed]["true_boxes"] for x in (ours, theirs))):
            raise ValueError(
                f"{job.row} and {jobs[1][0].row} of seed {job.seed} were evaluated on different"
                f" images in {evaluation!r}; train both again."
            )
    images = [run["true_boxes"] for run in ours.values()]
    if not all(np.array_equal(images[0], other) for other in images[1:]):
        raise ValueError(
            f"each seed of {jobs[0][0].row} has its own images in {evaluation!r}, so the interval"
            " over seeds covers other images already; leave out --crossed."
        )
    return statistics.crossed(ours, theirs, intervals.resampled_detections)


def path(saved_results: files.Path) -> files.Path:
    """The file of a table, from that of its results."""
    return saved_results.parent / _FOLDER / saved_results.name


def identified_again(
    entries: Sequence[dict[str, Any]], renamed: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The saved entries with new identities of their runs, by the old ones.

    Raises:
      ValueError: a run is not among them.
    """
    renamed = {new: new for new in renamed.values()} | dict(renamed)  # after an interruption
    for run in {run for entry in entries for side in entry["runs"] for run in side}:
        if run not in renamed:
            raise ValueError(
                f"the saved intervals are of a run {run[:8]} whose results are not saved; identify"
                " this table again before the table whose runs it uses."
            )
    return [
        entry | {"runs": [[renamed[run] for run in side] for side in entry["runs"]]}
        for entry in entries
    ]


def _key(entry: Mapping[str, Any]) -> tuple:
    return entry["evaluation"], *map(tuple, entry["runs"])
