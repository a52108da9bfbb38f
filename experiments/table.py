"""Prints a table from complete runs: python -m experiments.table --study=S --table=T --scale=cpu.

For each regime, the table has the mean and standard deviation over seeds of every row, each seed at
the setting that its own validation metric selects; the difference from the reference row, paired by
seed, with its 95 % interval; the p-value of the paper's test and the paper's number, if there are
any; and the number of missing runs. A table may have its own layout, such as transfer by head and
task. For runs that are not in OUT, the results saved by experiments.save_results are used.

Intervals and p-values are for each comparison alone. Differences that stay significant after Holm's
correction over the table of their regime are marked, the detectable difference is printed, and the
comparisons that were chosen before any run of the table are listed. With --crossed, intervals
also cover other test examples. With --select_metric, another metric selects, and what that changes
is printed. With --held_out, the metrics are those of the examples that select.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from experiments import crossed, metric_values, paper_numbers, statistics, study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report.comparison import difference, spread


def text(
    chosen: study.Table,
    job_results: list[study.JobResult],
    numbers: dict[str, Any],
    intervals: crossed.Crossed | None = None,
) -> str:
    """The table in Markdown.

    Args:
      chosen: the table.
      job_results: all its jobs with their results.
      numbers: contents of the study's paper.json.
      intervals: which also cover other test examples, in place of those over seeds alone, for
        metrics without temperature scaling.
    """
    with_jobs = {result.job.row for result in job_results}  # not every row has every scale
    chosen = chosen._replace(rows=tuple(row for row in chosen.rows if row.name in with_jobs))
    lines = [chosen.claim]
    for name, regime in chosen.regimes.items():
        tuned = study.tuned_results(job_results, regime, chosen.select_metric)
        is_held_out = regime.select == regime.report
        regime_lines = (
            chosen.layout(chosen, tuned, numbers)
            if chosen.layout
            else _regime(chosen, regime, tuned, numbers, None if is_held_out else intervals)
        )
        lines += ["", f"**{name}**", "", *regime_lines]
    held_out = [name for name, r in chosen.regimes.items() if r.select == r.report]
    if intervals and chosen.reference and held_out:
        lines += [
            "",
            f"Intervals over seeds alone, as the same examples select: {', '.join(held_out)}.",
        ]
    if intervals and (left_out := intervals.rows_left_out()):
        lines += [
            "",
            f"Intervals over seeds alone, for want of predictions: {', '.join(left_out)}.",
        ]
    if chosen.reference:
        lines += _primary(chosen, job_results)
    if chosen.changed:
        lines += ["", f"Changed after test results had been seen: {chosen.changed}"]
    missing = [result.job for result in job_results if result.results is None]
    complete = [result.results for result in job_results if result.results]
    if chosen.paper:
        lines += [
            "",
            f"Paper: {numbers['tables'][chosen.paper['table']]['title']} ({chosen.paper['note']}).",
        ]
    if missing:
        by_row = ", ".join(f"{n} of {row}" for row, n in Counter(j.row for j in missing).items())
        lines += [
            "",
            f"Missing: {len(missing)} of {len(job_results)} runs, {by_row}; the first is"
            f" {missing[0].directory}.",
        ]
    if complete:
        seconds = [results["seconds"] for results in complete]
        devices = sorted({results["device"] for results in complete})
        commits: dict[str, list[str]] = {}
        for result in job_results:
            if result.results:
                rows = commits.setdefault(_short(result.results.get("commit") or "unknown"), [])
                rows += [] if result.job.row in rows else [result.job.row]
        mixed = [f"{name} ({', '.join(rows)})" for name, rows in sorted(commits.items())]
        versions = sorted(
            {f"jax {results['versions']['jax']}" for results in complete if "versions" in results}
        )
        lines += [
            "",
            f"{len(seconds)} runs, {sum(seconds) / 3600:.1f} hours in total (median"
            f" {np.median(seconds):.0f} s per run), on {', '.join(devices)}, {', '.join(versions)},"
            f" commit {'; '.join(mixed) if len(mixed) > 1 else ''.join(commits)}.",
        ]
        if not chosen.layout:
            medians = ", ".join(_median_seconds(chosen, job_results))
            lines.append(f"Median seconds per run: {medians}.")
    return "\n".join(lines)


def _median_seconds(chosen: study.Table, job_results: list[study.JobResult]) -> list[str]:
    """The median duration of a run for each row, over grid and seeds."""
    by_row = {
        row.name: [r.results["seconds"] for r in job_results if r.results and r.job.row == row.name]
        for row in chosen.rows
    }
    return [f"{name} {np.median(seconds):.0f}" for name, seconds in by_row.items() if seconds]


def _short(commits: str) -> str:
    return re.sub(r"\b([0-9a-f]{7})[0-9a-f]{33}\b", r"\1", commits)


def _primary(chosen, job_results):
    """A line for each comparison that was chosen before any run of the table."""
    rows = {row.name for row in chosen.rows}  # a scale may lack some
    found, not_run = [], []
    for primary in chosen.primary:
        if not {primary.row, primary.reference} <= rows:
            continue
        regime = chosen.regimes[primary.regime]
        tuned = study.tuned_results(job_results, regime, chosen.select_metric)
        ours, theirs = (
            {
                s: metric_values.value(x, regime, primary.metric)
                for (r, s), x in tuned.items()
                if r == name
            }
            for name in (primary.row, primary.reference)
        )
        comparison = statistics.compared(ours, theirs)
        (found if comparison.num_pairs > 1 else not_run).append((primary, comparison))
    if not found + not_run:
        return ["", "No comparison was chosen beforehand; all are exploratory."]
    # Those without runs or p value count, so that no other p value grows when they have one.
    p_values = [1.0 if np.isnan(comparison.p) else comparison.p for _, comparison in found]
    adjusted = statistics.holm(p_values + [1.0] * len(not_run))
    lines = [
        "",
        "Primary comparisons, chosen before any run of the table; all others are exploratory.",
        "",
        "| difference | pairs | value | p | after Holm | detectable |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (primary, c), p in zip(found, adjusted):
        lines.append(
            f"| {_name(primary)} | {c.num_pairs} | {c.mean:+.4f} ± {c.half:.4f} | {c.p:.2g} |"
            f" {p:.2g} | {c.detectable:.4f} |"
        )
    return lines + [f"| {_name(x)} | {c.num_pairs} | not run | | | |" for x, c in not_run]


def _name(primary):
    return f"{primary.metric} of {primary.row} - {primary.reference}, {primary.regime}"


def _regime(chosen, regime, tuned, numbers, intervals=None):
    """The lines of one regime: head, one line per row, and notes on the comparisons."""
    columns = ["method", "seeds", "chosen"]
    metrics = regime.metrics or chosen.metrics
    for metric in metrics:
        columns += [metric, f"{metric} - {chosen.reference}"] if chosen.reference else [metric]
        columns += ["p"] if chosen.test and chosen.reference else []
        columns += (
            [f"paper {paper_numbers.column(chosen, regime, metric)}"]
            if paper_numbers.has_metric(chosen, regime, metric)
            else []
        )
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    seeds = {row.name: {s: tuned[r, s] for r, s in tuned if r == row.name} for row in chosen.rows}
    comparisons = _comparisons(chosen, regime, metrics, seeds)
    adjusted = statistics.holm([comparison.p for comparison in comparisons.values()])
    significant = {key for key, p in zip(comparisons, adjusted) if p < statistics.LEVEL}
    for row in chosen.rows:
        own = seeds[row.name]
        points = Counter(
            ", ".join(str(v) for _, v in result.job.point) or "-" for result in own.values()
        )
        cells = [
            row.name,
            str(len(own)),
            ", ".join(f"{p} ({n}x)" if n > 1 else p for p, n in points.most_common()),
        ]
        over_examples = {}
        if intervals and chosen.reference not in (None, row.name):
            found = intervals.differences(own, seeds[chosen.reference], regime)
            over_examples = {
                name: f"{x.value:+.4f} [{x.low:+.4f}, {x.high:+.4f}]" for name, x in found.items()
            }
        for metric in metrics:
            values = {s: metric_values.value(result, regime, metric) for s, result in own.items()}
            cells.append(spread(list(values.values())))
            if chosen.reference:
                others = seeds[chosen.reference]
                theirs = {
                    s: metric_values.value(result, regime, metric) for s, result in others.items()
                }
                same = row.name == chosen.reference
                cell = "" if same else difference(values, theirs)
                if metric in over_examples:  # the test is over seeds alone, so it has no mark
                    cells.append(over_examples[metric])
                else:
                    cells.append(cell + " *" * ((row.name, metric) in significant))
                if chosen.test:
                    p = statistics.unpaired_p(list(values.values()), list(theirs.values()))
                    cells.append("" if same or np.isnan(p) else f"{p:.2g}")
            if paper_numbers.has_metric(chosen, regime, metric):
                cells.append(paper_numbers.number(chosen, regime, row, metric, numbers))
        lines.append("| " + " | ".join(cells) + " |")
    lines += _rows_without_runs(chosen, regime, columns, numbers)
    lines += _notes(chosen, metrics, comparisons)
    return lines + _trends(chosen, regime, metrics, seeds)


def _comparisons(chosen, regime, metrics, seeds):
    """(row, metric) -> its comparison with the reference, paired by seed."""
    if not chosen.reference:
        return {}
    others = seeds[chosen.reference]
    return {
        (row.name, metric): statistics.compared(
            *(
                {s: metric_values.value(result, regime, metric) for s, result in results.items()}
                for results in (seeds[row.name], others)
            )
        )
        for row in chosen.rows
        if row.name != chosen.reference
        for metric in metrics
    }


def _notes(chosen, metrics, comparisons):
    """What the marks mean, and the differences that could have been found."""
    tested = {key: c for key, c in comparisons.items() if np.isfinite(c.detectable)}
    if not tested:
        return []
    differences = statistics.Differences()
    for metric in metrics:
        for (_, name), found in tested.items():
            if name == metric:
                differences.add(metric, found)
    return [
        "",
        f"\\* p < {statistics.LEVEL} after Holm's correction over the {len(tested)} comparisons"
        " above (paired t-tests). The intervals are not corrected.",
        *differences.detectable(),
    ]


def _trends(chosen, regime, metrics, seeds):
    """A table of slopes: a line for each trend whose rows have runs, a column for each metric."""
    lines = []
    for trend in chosen.trends:
        points = {x: seeds[name] for name, x in trend.rows if seeds.get(name)}
        if len(points) < 2:  # a scale may lack the rows
            continue
        cells = []
        for metric in metrics:
            slopes = statistics.slopes(
                {
                    x: {s: metric_values.value(result, regime, metric) for s, result in own.items()}
                    for x, own in points.items()
                }
            )
            found = statistics.compared(slopes, dict.fromkeys(slopes, 0.0))
            interval = f" ± {found.half:.4f} (p {found.p:.2g})" if found.num_pairs > 1 else ""
            cells.append(f"{found.mean:+.4f}{interval}")
        lines.append(f"| {trend.name} | {found.num_pairs} | " + " | ".join(cells) + " |")
    if not lines:
        return []
    columns = ["slope", "seeds", *metrics]
    head = ["", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return head + lines


def _selecting_by(metric: str, chosen: study.Table) -> study.Table:
    """The table tuned by another metric, for which no comparison was chosen beforehand."""
    if metric == chosen.select_metric or metric not in chosen.also_select:
        others = ", ".join(chosen.also_select) or "none"
        raise SystemExit(
            f"--select_metric={metric} is not saved for this table beside"
            f" {chosen.select_metric}, by which it is tuned; choose one of: {others}."
        )
    if chosen.layout:
        raise SystemExit("--select_metric is not supported: this table has a layout of its own.")
    return chosen._replace(select_metric=metric, primary=())


def _on_held_out(
    chosen: study.Table, before: study.Table, job_results: list[study.JobResult]
) -> study.Table:
    """The table with metrics of the examples that select, whose labels may be noisy.

    The examples that select a setting also measure it, so values are optimistic; with --at nothing
    is selected.

    Args:
      chosen: the table, which --select_metric may have changed.
      before: the table without it.
      job_results: of the table; metrics that some of them lack are left out.
    """
    if chosen.layout:
        raise SystemExit("--held_out is not supported: this table has a layout of its own.")
    complete = [result.results["evals"] for result in job_results if result.results]
    regimes = {}
    for name, regime in chosen.regimes.items():
        if regime.select:
            metrics = tuple(
                metric
                for metric in (before.select_metric, *before.also_select)
                if all(metric in evals[regime.select] for evals in complete)
            )
            regimes[name] = regime._replace(report=regime.select, metrics=metrics)
    if not regimes:
        raise SystemExit("--held_out is not supported: no held-out examples select in this table.")
    return chosen._replace(regimes=regimes, primary=(), trends=(), paper=None, test=None)


def _changes_of_choice(before, after, job_results):
    """A table for each regime: what tuning by another metric changes, by row, paired by seed."""
    lines = []
    for name, regime in after.regimes.items():
        metrics = regime.metrics or after.metrics
        columns = [f"by {after.select_metric} less by {before.select_metric}", "seeds", *metrics]
        lines += ["", f"**{name}**", "", "| " + " | ".join(columns) + " |"]
        lines += ["|" + " --- |" * len(columns)]
        differences = statistics.Differences()
        new, old = (
            study.tuned_results(job_results, regime, chosen.select_metric)
            for chosen in (after, before)
        )
        for row in after.rows:
            seeds = [seed for r, seed in new if r == row.name]
            cells = [
                differences.cell(
                    metric,
                    *(
                        {s: metric_values.value(x[row.name, s], regime, metric) for s in seeds}
                        for x in (new, old)
                    ),
                )
                for metric in metrics
            ]
            lines.append("| " + " | ".join([row.name, str(len(seeds)), *cells]) + " |")
        lines += ["", *differences.detectable()]
    return lines


def _rows_without_runs(chosen, regime, columns, numbers):
    """Rows that the paper quotes from other papers, and the table's `rows_without_runs`."""
    rows = numbers["tables"][chosen.paper["table"]]["rows"] if chosen.paper else []
    lines = []
    for row in rows:
        if row.get("quoted") or row["id"] in chosen.paper.get("rows_without_runs", ()):
            names = {f"paper {name}": name for name in row if name.startswith(regime.prefix)}
            cells = [
                ""
                if row.get(names.get(column)) is None
                else paper_numbers.cell(chosen, row, names[column], numbers)
                for column in columns[1:]
            ]
            lines.append("| " + " | ".join([row["method"], *cells]) + " |")
    return lines


@user_errors.one_line()
def main() -> None:
    """Prints a table of a study."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs", help="runs are read from OUT/STUDY/TABLE")
    parser.add_argument(
        "--reference", help="row with which the others are compared; defaults to the table's"
    )
    parser.add_argument(
        "--at", help="one grid point, such as 1.0, used for all rows instead of tuning"
    )
    parser.add_argument(
        "--select_metric",
        help="tune by this metric, and print what that changes; the table says which are saved",
    )
    parser.add_argument(
        "--held_out",
        action="store_true",
        help="metrics of the held-out examples that select, with their own labels",
    )
    parser.add_argument(
        "--crossed",
        action="store_true",
        help="intervals over other seeds and other test examples, of runs in OUT or saved",
    )
    parser.add_argument(
        "--save", action="store_true", help="save the intervals of --crossed in the repository"
    )
    flags = parser.parse_args()
    if flags.save and not flags.crossed:
        raise SystemExit("--save keeps the intervals of --crossed; add --crossed.")
    chosen = study.table(flags.study, flags.table)
    if chosen.layout and (flags.reference or flags.crossed):
        raise SystemExit(
            f"--{'reference' if flags.reference else 'crossed'} is not supported: this table prints"
            " means over several rows."
        )
    if flags.reference:
        chosen = chosen._replace(reference=flags.reference)
    if flags.select_metric and flags.at:
        raise SystemExit("--at uses one grid point for all rows; leave out --select_metric.")
    if flags.held_out and flags.crossed:
        raise SystemExit("--crossed is of test examples; leave out --held_out.")
    saved = study.saved_results(flags.study, flags.table, flags.scale)
    before = chosen
    if flags.select_metric:
        chosen = _selecting_by(flags.select_metric, chosen)
    all_saved, saved = saved, study.with_metrics(chosen, saved)
    shared = study.shared_results(flags.study, chosen, flags.scale)
    job_results = study.job_results(
        chosen, flags.scale, files.as_path(flags.out) / flags.study / flags.table, shared | saved
    )
    rows = list(dict.fromkeys(result.job.row for result in job_results))
    if flags.reference and flags.reference not in rows:
        raise SystemExit(
            f"--reference={flags.reference} is not a row at the scale {flags.scale}; choose one of"
            f" {', '.join(rows)}."
        )
    if flags.held_out:
        chosen = _on_held_out(chosen, before, job_results)
    others = study.without_jobs(all_saved, job_results)
    without_metrics = study.rows_without_metrics(chosen, all_saved, job_results)
    if flags.at:
        job_results = study.results_at(chosen, job_results, flags.at)
        chosen = chosen._replace(primary=())  # those are of tuned settings
    numbers = (
        files.read_json(Path(study.__file__).parent / flags.study / "paper.json")
        if chosen.paper
        else {}
    )
    intervals = None
    if flags.crossed:
        intervals = crossed.Crossed(flags.study, flags.table, flags.scale)
    print(text(chosen, job_results, numbers, intervals))
    if flags.select_metric and not flags.held_out:
        print("\n".join(_changes_of_choice(before, chosen, job_results)))
    if intervals and flags.save:
        intervals.save()
    path = study.saved_path(flags.study, flags.table, flags.scale)
    sources = {path: saved}
    if runs := chosen.scales[flags.scale].runs:
        sources[study.saved_path(flags.study, runs, flags.scale)] = shared
    for source, contents in sources.items():
        num_saved = sum(
            result.results is not None and result.results is contents.get(result.job.fingerprint)
            for result in job_results
        )
        if num_saved:
            print(
                f"{num_saved} of the runs are not in {flags.out}; their results are from {source}."
            )
    if without_metrics:
        print(f"{path} has runs that count as missing: {without_metrics}; train them again.")
    if others:
        print(f"{path} also has results of other configs than the table's, left out: {others}.")


if __name__ == "__main__":
    main()
