"""Calibration by token of the runs of one row of a table of translation:

    python -m experiments.dataset_curation.token_calibration --table=figure_6_multi30k

prints what heteroscedastic by_token reports of the test tokens, as mean and standard deviation over
seeds: the confidence less the accuracy, the ECE and its floor. The last column, paired by seed, is
the confidence less the accuracy of words of a frequency minus that of the most frequent ones. With
--save the numbers are kept in the repository.
"""

import functools
from typing import Any

from experiments import derived, statistics, study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.uncertainty import by_token

_STUDY, _EVALUATION = "dataset_curation", "test"


@user_errors.one_line()
def main() -> None:
    """Prints the calibration of groups of tokens over the runs of a row."""
    parser = study.argument_parser(main.__doc__, "figure_6_multi30k")
    parser.add_argument("--row", default="original", help="of the table")
    derived.add_flag(parser)
    flags = parser.parse_args()
    directory = files.as_path(flags.out) / _STUDY / flags.table
    jobs = study.jobs(study.table(_STUDY, flags.table), flags.scale, directory)
    jobs = [job for job in jobs if job.row == flags.row]
    if not jobs:
        raise ValueError(f"table {flags.table} has no row {flags.row}; give another --row.")
    saved = derived.Derived(__file__, flags, jobs)
    groups: dict[str, dict[str, dict[int, Any]]] = {}  # kind -> group -> seed -> measures
    for job in jobs:
        compute = functools.partial(by_token.run_report, job.directory, _EVALUATION)
        for kind, found in (saved.of(job, _EVALUATION, compute) or {}).items():
            for group, measures in found.items():
                groups.setdefault(kind, {}).setdefault(group, {})[job.seed] = measures
    differences = statistics.Differences()
    print("| tokens | runs | number | confidence minus accuracy | ECE | floor | difference |")
    print("|" + " --- |" * 7)
    for kind, of_kind in groups.items():
        excess = {
            group: {seed: x["confidence"] - x["accuracy"] for seed, x in of_seeds.items()}
            for group, of_seeds in of_kind.items()
        }
        largest = max(of_kind, key=_least_count) if kind.startswith("count") else None
        for group, of_seeds in of_kind.items():
            each = list(of_seeds.values())
            name = group if kind in ("all", "end") else f"{kind} {group}"
            number = sum(x["count"] for x in each) / len(each)
            cells = [name, str(len(each)), f"{number:,.0f}"]
            cells += [comparison.spread(list(excess[group].values()), 4)]
            cells += [
                comparison.spread([x[measure] for x in each], 4) for measure in ("ece", "ece_floor")
            ]
            is_compared = largest not in (None, group)
            cells.append(
                differences.cell("difference", excess[group], excess[largest])
                if is_compared
                else ""
            )
            print("| " + " | ".join(cells) + " |")
    print("\n".join(["", *differences.detectable()]))
    saved.finish(flags.save)


def _least_count(group: str) -> int:
    """Of a group of frequencies, such as "1,000 to 9,999"."""
    return int(group.partition(" ")[0].replace(",", ""))


if __name__ == "__main__":
    main()
