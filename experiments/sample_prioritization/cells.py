"""What calibration, and a target, change in each cell of the paper's tables.

    python -m experiments.sample_prioritization.cells --data=cifar10 --scale=cpu

prints differences in accuracy and ECE, before and after temperature scaling, paired by seed: each
method less none at the same percentage, in Tables 1 and 2; and each cell of Table 2, whose
examples a larger network chose, less that of Table 1. Holm's correction is over all of them.
"""

from experiments import metric_values, statistics, study
from experiments.sample_prioritization import rows
from heteroscedastic import files, user_errors

_STUDY = "sample_prioritization"
_METRICS = ("accuracy", "ece", "scaled_ece")
_NUMBERS = (1, 2)

Values = dict[int, float]  # by seed


def comparisons(values: dict[tuple[int, str, int, str], Values]) -> dict[str, list[list[Values]]]:
    """The name of each comparison -> the two sides of it for each metric.

    Args:
      values: (table, method, percentage, metric) -> values; what was not run is absent.
    """
    pairs = {}
    for method, percent in dict.fromkeys((m, p) for _, m, p, _ in values):
        for table in _NUMBERS:
            if method != "none":
                name = f"Table {table}, {percent} %: {method} less none"
                pairs[name] = ((table, method, percent), (table, "none", percent))
        name = f"{percent} %, {method}: Table 2 less Table 1"
        pairs[name] = ((2, method, percent), (1, method, percent))
    return {
        name: [[values[*side, metric] for side in sides] for metric in _METRICS]
        for name, sides in pairs.items()
        if all((*side, metric) in values for side in sides for metric in _METRICS)
    }


def _values(data: str, scale: str, out: files.Path) -> dict[tuple[int, str, int, str], Values]:
    found: dict[tuple[int, str, int, str], Values] = {}
    for number in _NUMBERS:
        name = f"table_{number}_{data}"
        chosen = study.table(_STUDY, name)
        (regime,) = chosen.regimes.values()
        saved = study.saved_results(_STUDY, name, scale)
        for result in study.job_results(chosen, scale, out / _STUDY / name, saved):
            if result.results is None:
                continue
            method, _, percent = result.job.row.rpartition("_")
            for metric in _METRICS:
                by_seed = found.setdefault((number, method, int(percent), metric), {})
                by_seed[result.job.seed] = metric_values.value(result, regime, metric)
    return found


@user_errors.one_line()
def main() -> None:
    """Prints what calibration and a target change in each cell of Tables 1 and 2."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--data", default="cifar10", choices=tuple(rows.DATA_SETS))
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs", help="runs are read from OUT/STUDY/TABLE")
    flags = parser.parse_args()
    found = comparisons(_values(flags.data, flags.scale, files.as_path(flags.out)))
    if not found:
        raise SystemExit(
            f"no two cells to compare are complete; run python -m experiments.run --study={_STUDY}"
            f" --table=table_1_{flags.data} --scale={flags.scale} first."
        )
    compared = {
        name: [statistics.compared(*sides) for sides in of_metrics]
        for name, of_metrics in found.items()
    }
    adjusted = iter(statistics.holm([c.p for cells in compared.values() for c in cells]))
    print("| difference | pairs | " + " | ".join(_METRICS) + " |")
    print("|" + " --- |" * (len(_METRICS) + 2))
    for name, cells in compared.items():
        texts = [
            f"{c.mean:+.4f} ± {c.half:.4f}" + " *" * (next(adjusted) < statistics.LEVEL)
            for c in cells
        ]
        print("| " + " | ".join([name, str(cells[0].num_pairs), *texts]) + " |")
    number = sum(len(cells) for cells in compared.values())
    print(
        f"\n\\* p < {statistics.LEVEL} after Holm's correction over the {number} comparisons above."
    )


if __name__ == "__main__":
    main()
