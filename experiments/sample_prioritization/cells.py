"""What calibration, and a target, change in each cell of the paper's tables, and beside controls.

    python -m experiments.sample_prioritization.cells --data=cifar10 --scale=cpu

prints differences in accuracy and ECE, before and after temperature scaling, paired by seed: each
method less none at the same percentage, in Tables 1 and 2; each cell of Table 2, whose examples a
larger network chose, less that of Table 1; and Table 2 without calibration less the controls, which
are a random choice and all examples for as many steps. Beside them are the differences of the
paper's numbers. Holm's correction is over all that is printed.
"""

from collections.abc import Iterable

from experiments import metric_values, statistics, study
from experiments.sample_prioritization import rows
from heteroscedastic import files, user_errors

_STUDY = "sample_prioritization"
_METRICS = ("accuracy", "ece", "scaled_ece")
_IN_PAPER = ("accuracy", "ece")  # in percent
_NUMBERS = (1, 2)
_CONTROL_TABLE, _CONTROLS = "controls", ("random", "fewer_epochs")  # of CIFAR-10

Cell = tuple[int | str, str, int]  # table, method or control, percentage
Values = dict[int, float]  # by seed


def comparisons(complete: Iterable[Cell]) -> dict[str, tuple[Cell, Cell]]:
    """The cells that are compared, by the name of the difference.

    Args:
      complete: the cells that have runs.
    """
    pairs: dict[str, tuple[Cell, Cell]] = {}
    complete = set(complete)
    of_paper = {cell[1:] for cell in complete if cell[0] in _NUMBERS}
    for method, percent in sorted(of_paper, key=_order):
        for table in _NUMBERS:
            if method != "none":
                name = f"Table {table}, {percent} %: {method} less none"
                pairs[name] = (table, method, percent), (table, "none", percent)
        name = f"{percent} %, {method}: Table 2 less Table 1"
        pairs[name] = (2, method, percent), (1, method, percent)
        if method == "none":
            for control in _CONTROLS:
                name = f"{percent} %: Table 2, none less {control}"
                pairs[name] = (2, method, percent), (_CONTROL_TABLE, control, percent)
    return {name: pair for name, pair in pairs.items() if complete.issuperset(pair)}


def _order(of_cell: tuple[str, int]) -> tuple[int, int]:
    method, percent = of_cell
    return -percent, rows.METHODS.index(method)


def paper_difference(data: str, pair: tuple[Cell, Cell], metric: str) -> float | None:
    """The difference of two cells in the paper, as a fraction; None where it has no such cell."""
    if not {table for table, *_ in pair} <= set(_NUMBERS):
        return None

    def number(cell):
        table, method, percent = cell
        (row,) = (
            row
            for row in rows.PAPER["tables"][f"table_{table}"]["rows"]
            if (row["id"], row["subset_percent"]) == (method, percent)
            and row["dataset"] == rows.DATA_SETS[data]
        )
        return row[metric] / 100

    ours, theirs = map(number, pair)
    return ours - theirs


def _values(data: str, scale: str, out: files.Path) -> dict[Cell, dict[str, Values]]:
    found: dict[Cell, dict[str, Values]] = {}
    names: dict[int | str, str] = {number: f"table_{number}_{data}" for number in _NUMBERS}
    if data == "cifar10":
        names[_CONTROL_TABLE] = _CONTROL_TABLE
    for table, name in names.items():
        chosen = study.table(_STUDY, name)
        if scale not in chosen.scales:
            continue
        (regime,) = chosen.regimes.values()
        saved = study.saved_results(_STUDY, name, scale)
        for result in study.job_results(chosen, scale, out / _STUDY / name, saved):
            method, _, percent = result.job.row.rpartition("_")
            if result.results is None or not percent.isdigit():
                continue
            of_cell = found.setdefault((table, method, int(percent)), {})
            for metric in _METRICS:
                value = metric_values.value(result, regime, metric)
                of_cell.setdefault(metric, {})[result.job.seed] = value
    return found


@user_errors.one_line()
def main() -> None:
    """Prints what calibration, and a target, change in each cell."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--data", default="cifar10", choices=tuple(rows.DATA_SETS))
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs", help="runs are read from OUT/STUDY/TABLE")
    flags = parser.parse_args()
    values = _values(flags.data, flags.scale, files.as_path(flags.out))
    pairs = comparisons(values)
    if not pairs:
        raise SystemExit(
            f"no two cells to compare are complete; run python -m experiments.run --study={_STUDY}"
            f" --table=table_1_{flags.data} --scale={flags.scale} first."
        )
    compared = {
        (name, metric): statistics.compared(*(values[cell][metric] for cell in pair))
        for name, pair in pairs.items()
        for metric in _METRICS
    }
    adjusted = dict(zip(compared, statistics.holm([c.p for c in compared.values()])))
    columns = ["difference", "pairs"]
    for metric in _METRICS:
        columns += [metric, "paper"] if metric in _IN_PAPER else [metric]
    print(f"| {' | '.join(columns)} |\n|" + " --- |" * len(columns))
    for name, pair in pairs.items():
        cells = [name, str(compared[name, _METRICS[0]].num_pairs)]
        for metric in _METRICS:
            c = compared[name, metric]
            mark = " *" if adjusted[name, metric] < statistics.LEVEL else ""
            cells.append(f"{c.mean:+.4f} ± {c.half:.4f}{mark}")
            if metric in _IN_PAPER:
                of_paper = paper_difference(flags.data, pair, metric)
                cells.append("" if of_paper is None else f"{of_paper:+.4f}")
        print(f"| {' | '.join(cells)} |")
    differences = statistics.Differences()
    for (_, metric), found in compared.items():
        differences.add(metric, found)
    print(
        f"\n\\* p < {statistics.LEVEL} after Holm's correction over the {len(compared)} comparisons"
        " above."
    )
    print("\n".join(differences.detectable()))


if __name__ == "__main__":
    main()
