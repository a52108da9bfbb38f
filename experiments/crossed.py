"""Intervals of differences over other seeds and other test examples, for `table --crossed`.

They require the predictions of the runs. With --save, experiments/S/results/crossed/T.SCALE.json
keeps them, so that the table prints them without the runs.
"""

from collections.abc import Mapping
from typing import Any

from experiments import statistics, study
from heteroscedastic import files
from heteroscedastic.calibration.bootstrap import Interval
from heteroscedastic.runs import predictions, provenance

Results = Mapping[int, study.JobResult]  # by seed


class Crossed:
    """The intervals of a table."""

    def __init__(self, study_name: str, table: str, scale: str):
        """Reads those that are saved."""
        directory = study.saved_path(study_name, table, scale).parent / "crossed"
        self.path = directory / f"{table}.{scale}.json"
        self._saved = files.read_json(self.path) if self.path.exists() else {}
        self._used: dict[str, Any] = {}

    def differences(
        self, ours: Results, theirs: Results, regime: study.Regime
    ) -> dict[str, Interval]:
        """The difference of two rows by metric, without temperature scaling; paired by seed.

        Raises:
          SystemExit: a run is not in OUT, and the difference is not saved.
        """
        seeds = sorted(set(ours) & set(theirs))
        if not seeds:
            return {}
        pairs = [results[seed].job for seed in seeds for results in (ours, theirs)]
        name = provenance.digest([regime.report, *(job.fingerprint for job in pairs)])
        if all((job.directory / "results.json").exists() for job in pairs):
            found = statistics.crossed(
                *(
                    {s: predictions.read(x[s].job.directory, regime.report) for s in seeds}
                    for x in (ours, theirs)
                )
            )
        elif name in self._saved:
            found = {k: Interval(*v) for k, v in self._saved[name]["differences"].items()}
        else:
            raise SystemExit(
                f"--crossed requires the predictions of {pairs[0].row} and {pairs[1].row}, but"
                f" these runs are not in OUT, and {self.path} does not have the difference; run"
                " experiments.run first."
            )
        self._used[name] = dict(
            row=pairs[0].row,
            reference=pairs[1].row,
            evaluation=regime.report,
            seeds=seeds,
            differences={metric: list(interval) for metric, interval in found.items()},
        )
        return found

    def save(self) -> None:
        """Writes the differences that were asked for, in addition to those that are saved."""
        files.write_json(self.path, {**self._saved, **self._used})
        print(f"\n{self.path}: intervals of {len(self._used)} pairs of rows are saved.")
