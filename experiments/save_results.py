"""Saves the results of complete runs of a table in the repository.

    python -m experiments.save_results --study=S --table=T

writes experiments/S/results/T.SCALE.json with the metrics of every run that the table prints. With
this file experiments.table prints the table on machines without the runs, and experiments.run
--skip_saved trains only what is missing. A run is identified by its full config, but not by the
config of the run it starts from. Results of runs that the table no longer has are removed.
"""

from typing import Any

import numpy as np

from experiments import study, table
from heteroscedastic import files, user_errors

_RUN_KEYS = ("seconds", "device", "versions", "commit")


def table_metrics(chosen: study.Table, result: study.JobResult) -> dict[str, Any]:
    """The results of a complete run that its table prints.

    Raises:
      ValueError: two regimes report the same evaluation with different values of a metric.
    """
    evals: dict[str, dict[str, float]] = {}
    for regime in chosen.regimes.values():
        if regime.select:
            score = result.results["evals"][regime.select][chosen.select_metric]
            evals.setdefault(regime.select, {})[chosen.select_metric] = score
        for metric in chosen.metrics:
            value = table.metric_value(result, regime, metric)
            before = evals.setdefault(regime.report, {}).setdefault(metric, value)
            if not np.array_equal(before, value, equal_nan=True):
                raise ValueError(
                    f"{metric} of {regime.report} has two values, {before} and {value}, in two"
                    " regimes."
                )
    run = {name: result.results[name] for name in _RUN_KEYS if name in result.results}
    return run | {"evals": evals}


@user_errors.one_line()
def main() -> None:
    """Adds the results of complete runs to the saved results of a table."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs", help="runs are read from OUT/STUDY/TABLE")
    flags = parser.parse_args()
    chosen = study.table(flags.study, flags.table)
    path = study.saved_path(flags.study, flags.table, flags.scale)
    before, saved = study.saved_results(flags.study, flags.table, flags.scale), {}
    for result in study.job_results(
        chosen, flags.scale, files.as_path(flags.out) / flags.study / flags.table
    ):
        job = result.job
        metrics = table_metrics(chosen, result) if result.results else before.get(job.fingerprint)
        if metrics:
            saved[job.fingerprint] = dict(row=job.row, point=dict(job.point), seed=job.seed)
            saved[job.fingerprint] |= metrics
    files.write_json(path, saved)
    new, removed = len(set(saved) - set(before)), len(set(before) - set(saved))
    print(
        f"{path}: {len(saved)} saved results, {new} of them new; {removed} removed, as the table"
        " no longer has their runs."
    )


if __name__ == "__main__":
    main()
