"""A page about a table of a study: python -m experiments.report --study=S --table=T --scale=cpu
--out report/

The rows of the table are told beside each other, each seed at the setting that its own validation
chose, with the paper's numbers where it has some: heteroscedastic/analysis/report/build.py.
"""

import os
from pathlib import Path
from typing import Any

from experiments import study, table
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import build, comparison
from heteroscedastic.analysis.report.comparison import Group
from heteroscedastic.runs import loaded_run


def groups(chosen: study.Table, runs: list[study.Made], regime: study.Regime) -> list[Group]:
    """The rows as a regime tunes them, the table's reference first; rows without a complete grid
    are left out.
    """
    tuned = study.tuned(runs, regime, chosen.select_metric)
    rows = sorted((row.name for row in chosen.rows), key=lambda name: name != chosen.reference)
    found = []
    for name in rows:
        mine = sorted((seed, made) for (row, seed), made in tuned.items() if row == name)
        if mine:
            found.append(
                Group(name, tuple(loaded_run.read(made.job.directory) for _, made in mine))
            )
    return found


def paper(
    chosen: study.Table, regime: study.Regime, numbers: dict[str, Any]
) -> dict[str, Any] | None:
    """The paper's numbers by row and metric, for report.write; None where it has none for this
    regime.
    """
    columns = [m for m in chosen.metrics if table.has_paper(chosen, regime, m)]
    if not columns or chosen.layout:  # whose rows the paper tells together
        return None
    told = {
        row.name: {m: table.paper_number(chosen, regime, row, m, numbers) for m in columns}
        for row in chosen.rows
    }
    title = numbers["tables"][chosen.paper["table"]]["title"]
    return {"note": f"{title} ({chosen.paper['note']}).", "numbers": told}


@user_errors.one_line()
def main() -> None:
    """Writes a page about a table of a study."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--runs", default="runs", help="where experiments.run put them")
    parser.add_argument("--regime", help="of the table; its first one unless told")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    parser.add_argument("--out", required=True, help="directory of the page")
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
        study.made(chosen, flags.scale, files.as_path(flags.runs) / flags.study / flags.table),
        regime,
    )
    if not rows:
        raise SystemExit("no row has a complete grid; run python -m experiments.run first.")
    numbers = (
        files.read_json(Path(study.__file__).parent / flags.study / "paper.json")
        if chosen.paper
        else {}
    )
    told = paper(chosen, regime, numbers)
    if told:
        told["numbers"] = {row.name: told["numbers"][row.name] for row in rows}
    compared = comparison.load(rows, regime.report, regime.fitted_on, flags.data_dir)
    print(f"wrote {build.write(compared, flags.out, told)}")


if __name__ == "__main__":
    main()
