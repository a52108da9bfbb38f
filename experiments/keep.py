"""Keeps what finished runs of a table found in the repository: python -m experiments.keep --study=S
--table=T.

experiments/S/results/T.SCALE.json has, of every run, the metrics that the table tells, so that
experiments.table prints it where the runs themselves are not, and experiments.run --beside_kept
makes what is missing. A run is known by its whole config, not by that of a run that it begins from;
one that the table has no more is kept no longer.
"""

from typing import Any

import numpy as np

from experiments import study, table
from heteroscedastic import files, user_errors

_OF_A_RUN = ("seconds", "device", "versions", "commit")


def told(chosen: study.Table, run: study.Made) -> dict[str, Any]:
    """What a table tells of a finished run.

    Raises:
      ValueError: two regimes report one evaluation after different choices, so that its metrics are
        not one.
    """
    evals: dict[str, dict[str, float]] = {}
    for regime in chosen.regimes.values():
        if regime.select:
            chose = run.results["evals"][regime.select][chosen.select_metric]
            evals.setdefault(regime.select, {})[chosen.select_metric] = chose
        for metric in chosen.metrics:
            value = table.value(run, regime, metric)
            before = evals.setdefault(regime.report, {}).setdefault(metric, value)
            if not np.array_equal(before, value, equal_nan=True):
                raise ValueError(
                    f"{metric} of {regime.report} is told in two ways, as {before} and as {value}."
                )
    return {name: run.results[name] for name in _OF_A_RUN if name in run.results} | {"evals": evals}


@user_errors.one_line()
def main() -> None:
    """Adds what is finished to what is kept."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs", help="the runs lie in OUT/STUDY/TABLE")
    flags = parser.parse_args()
    chosen = study.table(flags.study, flags.table)
    path = study.kept_at(flags.study, flags.table, flags.scale)
    before, kept = study.kept(flags.study, flags.table, flags.scale), {}
    for run in study.made(
        chosen, flags.scale, files.as_path(flags.out) / flags.study / flags.table
    ):
        name = run.job.fingerprint
        if found := told(chosen, run) if run.results else before.get(name):
            kept[name] = dict(row=run.job.row, point=dict(run.job.point), seed=run.job.seed) | found
    files.write_json(path, kept)
    new, gone = len(set(kept) - set(before)), len(set(before) - set(kept))
    print(
        f"{path} keeps {len(kept)} runs, {new} of them new; {gone} are no more of the table and"
        " gone."
    )


if __name__ == "__main__":
    main()
