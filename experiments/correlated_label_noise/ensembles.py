"""Single models compared with deep ensembles of them, in the format of the paper's Table 7.

    python -m experiments.correlated_label_noise.ensembles --table=ensembles --size=4

reads the tuned run of every seed and prints for each method and regime the mean and standard
deviation of single models over seeds, and of ensembles of four
(analysis/uncertainty/ensemble.py) over all subsets of four seeds, or over --max_subsets random
subsets if there are more. Temperatures are fitted on the same evaluation as in the table, if all
seeds of every method hold out the same examples. Subsets share members, so their standard deviation
shows how much depends on the choice of members; it is not a standard error of the mean.

Predictions of members are not saved in the repository. --save keeps the numbers of this size in
experiments/correlated_label_noise/results/ensembles/, which are then printed without the runs.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import derived, study
from experiments.correlated_label_noise.noise_pairs import table_parser, table_results
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.uncertainty import ensemble

_PAPER = {"hom": "hom", "het_full": "het"}  # our row -> prefix of the paper's row id
_COLUMNS = {"accuracy": "top1", "nll": "nll", "ece": "ece"}  # our metric -> the paper's column


@user_errors.one_line()
def main() -> None:
    """Prints single models and ensembles of a table's rows."""
    parser = table_parser(main.__doc__)
    parser.set_defaults(table="ensembles")
    parser.add_argument("--size", type=int, default=4, help="members per ensemble")
    parser.add_argument("--rows", nargs="+", help="methods; defaults to all rows of the table")
    parser.add_argument(
        "--max_subsets",
        type=int,
        default=128,
        help="maximum number of ensembles per method; a random subset if there are more",
    )
    derived.add_flag(parser)
    flags = parser.parse_args()
    chosen, results = table_results(flags)
    saved = derived.Derived(__file__, flags, [result.job for result in results])
    rows = flags.rows or [row.name for row in chosen.rows]
    unknown = sorted(set(rows) - {row.name for row in chosen.rows})
    if unknown:
        raise SystemExit(
            f"--rows: {', '.join(unknown)} not in the table; choose among"
            f" {', '.join(row.name for row in chosen.rows)}."
        )
    for name, regime in study.tested_regimes(chosen).items():
        tuned = study.tuned_results(results, regime, chosen.select_metric)
        print(f"\n**{name}**\n")
        _print_regime(
            {row: [m for (r, _), m in sorted(tuned.items()) if r == row] for row in rows},
            regime,
            flags,
            saved,
        )
    if flags.save:
        saved.save()


def _numbers(
    directories: Sequence[files.Path], regime: study.Regime, size: int, max_subsets: int
) -> dict[str, Any]:
    """What a row has of its runs: single models, ensembles of one size, and about their data."""
    members = ensemble.members(directories, regime.report, regime.fitted_on)
    return dict(
        fit=members.fit or "",  # null is nan
        num_training_sets=ensemble.num_training_sets(members),
        sizes=[
            ensemble.size_result(
                members.predictions,
                number,
                max(len(directories), max_subsets),
                fit_predictions=members.fit_predictions,
            )
            for number in (1, size)
        ],
    )


def _print_regime(results_by_row, regime, flags, saved):
    """Prints the table of one regime."""
    lines, set_counts, fits = [], set(), set()
    for row, results in results_by_row.items():
        numbers = None
        if len(results) >= flags.size:
            directories = [result.job.directory for result in results]
            numbers = saved.of_all(
                [result.job for result in results],
                f"{regime.report}, ensembles of {flags.size}, at most {flags.max_subsets}",
                functools.partial(_numbers, directories, regime, flags.size, flags.max_subsets),
            )
        if not numbers:
            raise ValueError(
                f"{row} has {len(results)} seeds with a complete grid in {flags.out}, but --size is"
                f" {flags.size}, or their predictions are missing; run experiments.run first, as an"
                " ensemble needs predictions, and only what --save wrote is printed without."
            )
        set_counts.add(numbers["num_training_sets"])
        fits.add(numbers["fit"] or None)
        points = Counter(", ".join(str(v) for _, v in r.job.point) or "-" for r in results)
        chosen = ", ".join(f"{point} ({n}x)" for point, n in points.most_common())
        for kind, size in zip(("single", "ensemble"), numbers["sizes"], strict=True):
            lines.append((row, kind, chosen, ensemble.SizeResult(**size)))
    table = files.read_json(Path(__file__).with_name("paper.json"))["tables"]["table_7"]
    metrics = [name for name in lines[0][-1].mean if all(name in line[-1].mean for line in lines)]
    paper = {row["id"]: row for row in table["rows"]}
    paper_metrics = [metric for metric in metrics if metric in _COLUMNS]
    heads = [
        "method",
        "chosen",
        "subsets",
        *metrics,
        *(f"paper {_COLUMNS[metric]}" for metric in paper_metrics),
    ]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for row, kind, chosen, size in lines:
        title = f"{row}, {'single model' if kind == 'single' else f'ensemble of {flags.size}'}"
        theirs = paper.get(f"{_PAPER.get(row)}_{kind}", {})
        cells = [
            title,
            chosen,
            str(size.num_subsets),
            *(ensemble.formatted_metric(size, metric) for metric in metrics),
        ]
        cells += [str(theirs.get(_COLUMNS[metric], "-")) for metric in paper_metrics]
        print("| " + " | ".join(cells) + " |")
    print(
        f"\n{ensemble.temperature_note(fits.pop() if len(fits) == 1 else None)}\nPaper:"
        f" {table['title']}; top-1 in %."
    )
    if set_counts != {1}:
        print(
            f"The members of a method have {' or '.join(map(str, sorted(set_counts)))} different"
            " training sets, which explains part of the gain of an ensemble: held-out examples and"
            " planted noise depend on the seed unless config.data.seed is set."
        )


if __name__ == "__main__":
    main()
