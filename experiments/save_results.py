"""Saves the results of complete runs of a table in the repository.

    python -m experiments.save_results --study=S --table=T

writes experiments/S/results/T.SCALE.json with the metrics of every run that the table prints. With
this file experiments.table prints the table on machines without the runs, and experiments.run
--skip_saved trains only what is missing. A run is identified by its full config, but not by the
config of the run it starts from. Results of runs that the table no longer has are removed. Those
that are saved with the table whose runs this one uses are not saved twice.

    python -m experiments.save_results --study=S --table=T --rekey

writes the file again with the identities that the present code gives to the same rows, grid points
and seeds, after a change of the code that changes what configs say but no result.
"""

import argparse
import json
from typing import Any

import numpy as np

from experiments import crossed, metric_values, study
from heteroscedastic import files, user_errors

_RUN_KEYS = ("step", "seconds", "goodput", "device", "versions", "commit")


def table_metrics(chosen: study.Table, result: study.JobResult) -> dict[str, Any]:
    """The results of a complete run that its table prints.

    Raises:
      ValueError: two regimes report the same evaluation with different values of a metric.
    """
    evals: dict[str, dict[str, float]] = {}
    for regime in chosen.regimes.values():
        if regime.select:
            scores = result.results["evals"][regime.select]
            for metric in (chosen.select_metric, *chosen.also_select):
                evals.setdefault(regime.select, {})[metric] = scores[metric]
        for metric in regime.metrics or chosen.metrics:
            value = metric_values.value(result, regime, metric)
            before = evals.setdefault(regime.report, {}).setdefault(metric, value)
            if before is not value and not np.array_equal(before, value, equal_nan=True):
                raise ValueError(
                    f"{metric} of {regime.report} has two values, {before} and {value}, in two"
                    " regimes."
                )
    run = {name: result.results[name] for name in _RUN_KEYS if name in result.results}
    return run | {"evals": evals}


def rekeyed(saved: dict[str, dict[str, Any]], jobs: list[study.Job]) -> dict[str, dict[str, Any]]:
    """The saved results with the fingerprints of the jobs of the same row, grid point and seed.

    Raises:
      ValueError: no job, or more than one, has the row, grid point and seed of a result.
    """

    def key(row, point, seed):
        return json.dumps([row, point, seed])

    fingerprints: dict[str, set[str]] = {}
    for job in jobs:
        name = key(job.row, dict(job.point), job.seed)
        fingerprints.setdefault(name, set()).add(job.fingerprint)
    result = {}
    for content in saved.values():
        name = key(content["row"], content["point"], content["seed"])
        if len(found := fingerprints.get(name, set())) != 1:
            raise ValueError(
                f"the saved result of {name} belongs to {len(found)} jobs of the table."
            )
        result[found.pop()] = content
    return result


def _renamed_shared(flags: argparse.Namespace, chosen: study.Table) -> dict[str, str]:
    """Old and new identities of the saved results of the table whose runs a table uses."""
    name = chosen.scales[flags.scale].runs
    if name is None or not study.saved_path(flags.study, name, flags.scale).exists():
        return {}
    before = files.read_json(study.saved_path(flags.study, name, flags.scale))
    jobs = study.jobs(study.table(flags.study, name), flags.scale, files.as_path(flags.out) / name)
    return dict(zip(before, rekeyed(before, jobs), strict=True))


@user_errors.one_line()
def main() -> None:
    """Adds the results of complete runs to the saved results of a table."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs", help="runs are read from OUT/STUDY/TABLE")
    parser.add_argument("--rekey", action="store_true", help="identify the saved results again")
    flags = parser.parse_args()
    chosen = study.table(flags.study, flags.table)
    path = study.saved_path(flags.study, flags.table, flags.scale)
    if flags.rekey:
        jobs = study.jobs(chosen, flags.scale, files.as_path(flags.out) / flags.study / flags.table)
        of_pairs, contents = crossed.path(path), {}
        if of_pairs.exists():
            before = files.read_json(path)
            renamed = dict(zip(before, rekeyed(before, jobs), strict=True))
            renamed |= _renamed_shared(flags, chosen)
            entries = crossed.identified_again(files.read_json(of_pairs), renamed)
            contents[of_pairs] = entries
        derived = set(path.parent.glob(f"*/{path.name}")) - {of_pairs}  # see derived.py
        for each in (*sorted(derived), path):
            contents[each] = rekeyed(files.read_json(each), jobs)
        for each, content in contents.items():  # after all errors
            files.write_json(each, content)
            print(f"{each}: {len(content)} entries identified again.")
        return
    before, saved = study.saved_results(flags.study, flags.table, flags.scale), {}
    shared = study.shared_results(flags.study, chosen, flags.scale)
    job_results = study.job_results(
        chosen, flags.scale, files.as_path(flags.out) / flags.study / flags.table
    )
    for result in job_results:
        job = result.job
        if job.fingerprint in shared:
            continue
        metrics = table_metrics(chosen, result) if result.results else before.get(job.fingerprint)
        if metrics:
            saved[job.fingerprint] = dict(row=job.row, point=dict(job.point), seed=job.seed)
            saved[job.fingerprint] |= metrics
    files.write_json(path, saved)
    new, removed = len(set(saved) - set(before)), len(set(before) - set(saved))
    print(
        f"{path}: {len(saved)} saved results, {new} of them new; {removed} removed, as the table"
        " no longer has their runs."
        + (f" These were {study.without_jobs(before, job_results)}." if removed else "")
    )


if __name__ == "__main__":
    main()
