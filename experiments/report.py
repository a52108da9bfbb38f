"""A report about a table of a study.

    python -m experiments.report --study=S --table=T --scale=cpu --out report/

The page compares the rows of the table, each seed at the setting that its own validation metric
selects, and shows the paper's numbers if there are any. heteroscedastic/analysis/report/build.py
writes it.
"""

import os
from pathlib import Path
from typing import Any

from experiments import paper_numbers, study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import build, comparison
from heteroscedastic.analysis.report.comparison import Group
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.runs import loaded_run


def groups(
    chosen: study.Table, results: list[study.JobResult], regime: study.Regime
) -> list[Group]:
    """The rows with the tuned runs of a regime, the table's reference first.

    Rows without a complete grid are left out.
    """
    tuned = study.tuned_results(results, regime, chosen.select_metric)
    rows = sorted((row.name for row in chosen.rows), key=lambda name: name != chosen.reference)
    row_groups = []
    for name in rows:
        by_seed = sorted((seed, result) for (row, seed), result in tuned.items() if row == name)
        if by_seed:
            runs = tuple(loaded_run.read(result.job.directory) for _, result in by_seed)
            row_groups.append(Group(name, runs))
    return row_groups


def paper(
    chosen: study.Table, regime: study.Regime, numbers: dict[str, Any]
) -> dict[str, Any] | None:
    """The paper's numbers by row and metric, for build.write; None if it has none for the regime.

    A table with a layout has none either: the paper reports means over several of its rows.
    """
    columns = [
        m for m in regime.metrics or chosen.metrics if paper_numbers.has_metric(chosen, regime, m)
    ]
    if not columns or chosen.layout:
        return None
    by_row = {
        row.name: {m: paper_numbers.number(chosen, regime, row, m, numbers) for m in columns}
        for row in chosen.rows
    }
    title = numbers["tables"][chosen.paper["table"]]["title"]
    return {"note": f"{title} ({chosen.paper['note']}).", "numbers": by_row}


@user_errors.one_line()
def main() -> None:
    """Writes a report about a table of a study."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--runs", default="runs", help="the --out directory of experiments.run")
    parser.add_argument("--regime", help="a regime of the table; defaults to its first")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    parser.add_argument("--out", required=True, help="directory of the report")
    flags = parser.parse_args()
    chosen = study.table(flags.study, flags.table)
    name = flags.regime or next(iter(chosen.regimes))
    if name not in chosen.regimes:
        raise SystemExit(
            f"this table has no regime {name!r}; choose one of {', '.join(chosen.regimes)}."
        )
    regime = chosen.regimes[name]
    rows = groups(
        chosen,
        study.job_results(
            chosen, flags.scale, files.as_path(flags.runs) / flags.study / flags.table
        ),
        regime,
    )
    if not rows:
        raise SystemExit("no row has a complete grid; run python -m experiments.run first.")
    numbers = (
        files.read_json(Path(study.__file__).parent / flags.study / "paper.json")
        if chosen.paper
        else {}
    )
    reference = paper(chosen, regime, numbers)
    if reference:
        reference["numbers"] = {row.name: reference["numbers"][row.name] for row in rows}
    fit = None if regime.fitted_on == calibration.HALVES else regime.fitted_on
    compared = comparison.load(rows, regime.report, fit, flags.data_dir)
    print(f"wrote {build.write(compared, flags.out, reference, build.print_line)}")


if __name__ == "__main__":
    main()
