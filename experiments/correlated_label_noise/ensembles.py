"""Single models beside deep ensembles of them, in the shape of Table 7.

python -m experiments.correlated_label_noise.ensembles --table=ensembles --size=4 reads the runs of the
table that validation chose, seed by seed, and prints for each method and regime: single models,
mean and standard deviation over seeds; and ensembles of four of them (analysis/ensemble.py), mean
and standard deviation over all subsets of four seeds, or --max_subsets of them drawn where there
are more. Temperatures are fitted on what the table's are, where the seeds of every method hold out
the same examples. Subsets share members: their deviation tells how much depends on which four were
taken, and is no error of the mean.
"""

from collections import Counter
from pathlib import Path

from experiments import study
from experiments.correlated_label_noise.noise_pairs import flags_of_table, table_of
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.uncertainty import ensemble

_PAPER = {"hom": "hom", "het_full": "het"}  # our row -> the beginning of the paper's
_COLUMNS = {"accuracy": "top1", "nll": "nll", "ece": "ece"}  # our metric -> the paper's


@user_errors.one_line()
def main() -> None:
    """Prints single models and ensembles of a table's rows."""
    parser = flags_of_table(main.__doc__)
    parser.set_defaults(table="ensembles")
    parser.add_argument("--size", type=int, default=4, help="members of an ensemble")
    parser.add_argument("--rows", nargs="+", help="methods; all of the table if not given")
    parser.add_argument(
        "--max_subsets",
        type=int,
        default=128,
        help="ensembles of a method, drawn if there are more",
    )
    flags = parser.parse_args()
    chosen, runs = table_of(flags)
    rows = flags.rows or [row.name for row in chosen.rows]
    unknown = sorted(set(rows) - {row.name for row in chosen.rows})
    if unknown:
        raise SystemExit(
            f"there are no rows {unknown}; choose among {[row.name for row in chosen.rows]}."
        )
    for name, regime in study.tested(chosen).items():
        tuned = study.tuned(runs, regime, chosen.select_metric)
        print(f"\n**{name}**\n")
        _tell(
            {row: [m for (r, _), m in sorted(tuned.items()) if r == row] for row in rows},
            regime,
            flags,
        )


def _tell(chosen, regime, flags):
    """One regime; `chosen` has the runs of each row."""
    lines, sets, fits = [], set(), set()
    for row, made in chosen.items():
        directories = [run.job.directory for run in made]
        found = ensemble.members(directories, regime.report, regime.fitted_on) if made else None
        if not found or len(made) < flags.size:
            raise ValueError(
                f"{row} has {len(made)} seeds with a complete grid in {flags.out}, but an ensemble"
                f" is of {flags.size};"
                " it is of what the runs predict, which experiments.run makes and experiments.keep"
                " does not keep."
            )
        sets.add(ensemble.num_training_sets(found))
        fits.add(found.fit)
        points = Counter(", ".join(str(v) for _, v in run.job.point) or "-" for run in made)
        at = ", ".join(f"{point} ({n}x)" for point, n in points.most_common())
        for kind, number in (("single", 1), ("ensemble", flags.size)):
            most = max(len(made), flags.max_subsets)
            size = ensemble.size_result(
                found.predictions, number, most, fit_predictions=found.fit_predictions
            )
            lines.append((row, kind, at, size))
    table = files.read_json(Path(__file__).with_name("paper.json"))["tables"]["table_7"]
    metrics = [name for name in lines[0][-1].mean if all(name in line[-1].mean for line in lines)]
    paper = {row["id"]: row for row in table["rows"]}
    told = [metric for metric in metrics if metric in _COLUMNS]
    heads = [
        "method",
        "chosen",
        "subsets",
        *metrics,
        *(f"paper {_COLUMNS[metric]}" for metric in told),
    ]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for row, kind, at, size in lines:
        what = f"{row}, {'single model' if kind == 'single' else f'ensemble of {flags.size}'}"
        theirs = paper.get(f"{_PAPER.get(row)}_{kind}", {})
        cells = [
            what,
            at,
            str(size.num_subsets),
            *(ensemble.formatted_metric(size, metric) for metric in metrics),
        ]
        print(
            "| "
            + " | ".join(cells + [str(theirs.get(_COLUMNS[metric], "-")) for metric in told])
            + " |"
        )
    print(
        f"\n{ensemble.temperature_note(fits.pop() if len(fits) == 1 else None)}\nPaper:"
        f" {table['title']}; top-1 in %."
    )
    if sets != {1}:
        print(
            f"The members of a method saw {' or '.join(map(str, sorted(sets)))} different training"
            " sets (what is held"
            " out, and planted noise, follow from the seed unless config.data.seed tells), so part"
            " of what an ensemble"
            " gains here is from that."
        )


if __name__ == "__main__":
    main()
