"""The definition of a table of a study: rows, tuning grid and seeds; its jobs and their results."""

import argparse
import copy
import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from heteroscedastic import bind, files, user_errors
from heteroscedastic.metrics import LOWER_IS_BETTER
from heteroscedastic.runs import identity, run_record, sections


class Row(NamedTuple):
    """A method.

    In string overrides, also those of a scale, {runs} is replaced by the directory of the study's
    tables, {scale} by the scale and {seed} by the seed, so that a row can start from a run of
    another table, or have a test set for each seed.
    """

    name: str
    config: str  # file in configs/, without .py
    overrides: dict[str, Any] = {}  # dotted setting name -> value
    paper: str | None = None  # id of the row in the paper's table
    where: dict[str, Any] = {}  # column -> value, if several rows of that table share the id


class Scale(NamedTuple):
    """The size of an experiment: its seeds and the overrides of all its rows."""

    seeds: tuple[int, ...]
    overrides: dict[str, Any] = {}
    # Replaces entries of the tuning grid for every seed after the first.
    later_grid: dict[str, tuple[Any, ...]] = {}
    runs: str | None = None  # another table whose runs this scale uses, by row name
    rows: tuple[str, ...] | None = None  # names of the rows that have this scale; None is all


class Regime(NamedTuple):
    """The evaluation that selects the tuned setting, and the evaluation that is reported."""

    select: str | None  # validation evaluation; None if nothing is tuned
    report: str  # test evaluation
    prefix: str = ""  # of the paper's columns for the reported evaluation
    # Evaluation on which temperatures are fitted, or "halves" (of the reported evaluation, each
    # for the other); defaults to `select`.
    fit: str | None = None
    metrics: tuple[str, ...] | None = None  # in place of those of the table

    @property
    def fitted_on(self) -> str | None:
        """The evaluation on which temperatures are fitted; None if no data are held out."""
        return self.fit or self.select


class Primary(NamedTuple):
    """A comparison that was chosen before any run of its table; all others are exploratory."""

    row: str
    metric: str
    reference: str
    regime: str


class Trend(NamedTuple):
    """Slopes of the metrics over a property of rows, one for each seed."""

    name: str  # of the rows and the property
    rows: tuple[tuple[str, float], ...]  # (name, value of the property)


class Table(NamedTuple):
    """Rows under the same conditions; every row is tuned over the same grid, separately per seed.

    `paper` describes the paper's table: `table` is its key in paper.json, `where` maps columns to
    values that identify its rows, `columns` maps our metrics to its columns, `note` is printed
    below the table, and the optional `rows_without_runs` lists ids of paper rows printed although
    this table has no runs for them.

    `changed` says which rows, grids or epochs were changed after test results had been seen.

    `layout` maps (table, result by row and seed, contents of paper.json) to lines of Markdown. If
    it is None, the table has one line per row.
    """

    claim: str
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]
    regimes: dict[str, Regime]
    select_metric: str
    scales: dict[str, Scale]
    grid: dict[str, tuple[Any, ...]] = {}  # dotted setting name -> values to tune over
    reference: str | None = None  # the row with which the others are compared
    paper: dict[str, Any] | None = None
    test: str | None = None  # the paper's significance test: "unpaired t-test"
    primary: tuple[Primary, ...] = ()
    trends: tuple[Trend, ...] = ()
    changed: str | None = None
    # Further metrics of the selecting evaluation that are saved, for `experiments.table
    # --select_metric`.
    also_select: tuple[str, ...] = ()
    layout: "Layout | None" = None


class Job(NamedTuple):
    """One run of a table, complete or not."""

    row: str
    point: tuple[tuple[str, Any], ...]  # grid point: (dotted setting name, value)
    seed: int
    directory: files.Path
    config: dict[str, Any]
    fingerprint: str  # hash of the config; independent of all directories


class JobResult(NamedTuple):
    """A job and the results of its run."""

    job: Job
    results: dict[str, Any] | None  # contents of results.json; None if the run is not complete


ResultsByRowAndSeed = dict[tuple[str, int], JobResult]
Layout = Callable[[Table, ResultsByRowAndSeed, dict[str, Any]], list[str]]


def table(study: str, name: str) -> Table:
    """The table of experiments/STUDY/rows.py with a name.

    Raises:
      ValueError: the study or the table does not exist; the message lists the valid names.
    """
    of_study = _tables(study)
    if name not in of_study:
        raise ValueError(
            f"study {study!r} has no table {name!r}; choose one of {', '.join(of_study)}."
        )
    return of_study[name]


def tables(study: str, scale: str) -> list[str]:
    """The names of the tables of a study that have a scale, each after those it starts from.

    Raises:
      ValueError: the study does not exist, or none of its tables has the scale; the message lists
        the valid names.
    """
    of_study = _tables(study)
    names = [name for name, table in of_study.items() if scale in table.scales]
    if not names:
        scales = sorted({scale for table in of_study.values() for scale in table.scales})
        raise ValueError(
            f"no table of study {study!r} has the scale {scale!r}; choose one of"
            f" {', '.join(scales)}."
        )
    return names


def _tables(study: str) -> dict[str, Table]:
    studies = sorted(p.parent.name for p in Path(__file__).parent.glob("*/rows.py"))
    if study not in studies:
        raise ValueError(f"{study!r} is not a study; choose one of {', '.join(studies)}.")
    return importlib.import_module(f"experiments.{study}.rows").TABLES


def jobs(chosen: Table, scale: str, out: files.Path) -> list[Job]:
    """All jobs of a table at a scale, complete or not.

    Args:
      chosen: the table.
      scale: one of its scales.
      out: directory of the table. A scale that uses the runs of another table finds them in the
        sibling directory with that table's name.

    Raises:
      ValueError: the table does not have the scale.
    """
    if scale not in chosen.scales:
        raise ValueError(
            f"this table has no scale {scale!r}; choose one of {', '.join(chosen.scales)}."
        )
    size = chosen.scales[scale]
    out = out.with_name(size.runs) if size.runs else out
    rows = [row for row in chosen.rows if size.rows is None or row.name in size.rows]
    all_jobs = []
    first, later = _points(chosen.grid), _points(chosen.grid | size.later_grid)
    seeds = size.seeds
    points = [(point, seed) for i, seed in enumerate(seeds) for point in (later if i else first)]
    base: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}  # of any seed
    for row, (point, seed) in itertools.product(rows, points):
        substitutions = {"{runs}": str(out.parent), "{scale}": scale, "{seed}": str(seed)}
        settings = {**size.overrides, **row.overrides, **dict(point), "seed": seed}
        slug = ",".join(f"{name}={value}" for name, value in point) or "untuned"
        directory = out / scale / row.name / slug / f"seed_{seed}"
        if (row.name, slug) not in base:
            row_config = config(row.config, settings)
            base[row.name, slug] = row_config, identity.identity(files.plain(row_config))
        row_config, row_identity = base[row.name, slug]
        job_config = copy.deepcopy(row_config) | {"seed": seed}
        text = json.dumps(row_identity | {"seed": seed}, sort_keys=True)
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        if (substituted := _substituted(settings, substitutions)) != settings:
            job_config = config(row.config, substituted)
        all_jobs.append(Job(row.name, point, seed, directory, job_config, fingerprint))
    return all_jobs


def _points(grid: dict[str, tuple[Any, ...]]) -> list[tuple[tuple[str, Any], ...]]:
    return [tuple(zip(grid, values)) for values in itertools.product(*grid.values())]


def _substituted(overrides: dict[str, Any], substitutions: dict[str, str]) -> dict[str, Any]:
    def substituted(value):
        if isinstance(value, dict):
            return {name: substituted(entry) for name, entry in value.items()}
        for placeholder, text in substitutions.items() if isinstance(value, str) else ():
            value = value.replace(placeholder, text)
        return value

    return {name: substituted(value) for name, value in overrides.items()}


def read(name: str) -> ConfigDict:
    """The config of configs/NAME.py."""
    path = Path(__file__).parent.parent / "configs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"configs.{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


@functools.cache
def _settings(name: str) -> dict[str, Any]:
    """The settings of configs/NAME.py, which a table reads for each of its jobs."""
    return read(name).to_dict()


def config(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The config of configs/NAME.py with overrides.

    Args:
      name: file in configs/, without .py.
      overrides: dotted setting name -> value. An override of the name of a part, before others of
        its section, permits settings that only the new part has.

    Raises:
      ValueError: the config does not have an overridden setting.
    """
    before = _settings(name)
    settings = copy.deepcopy(before)
    for dotted, value in overrides.items():
        *path, last = dotted.split(".")
        section = settings
        for part in path:
            section = section.get(part)
            if not isinstance(section, dict):
                raise ValueError(
                    f"configs/{name}.py has no section {part!r} for the override {dotted!r}."
                )
        is_optional = not path and last in sections.OPTIONAL
        if last not in section and not is_optional and not _is_of_new_part(path, last, section):
            raise ValueError(
                f"configs/{name}.py has no setting {dotted!r}; choose one of {', '.join(section)}."
            )
        section[last] = copy.deepcopy(value)
    return sections.renamed(before, overrides, settings)


def _is_of_new_part(path: list[str], setting: str, section: dict[str, Any]) -> bool:
    """Whether the part that a section names has a setting."""
    if len(path) != 1 or path[0] not in sections.MODULES:
        return False
    part = bind.lookup(sections.MODULES[path[0]], section["name"])
    return setting in bind.declared_settings(part)


def job_results(
    chosen: Table, scale: str, out: files.Path, saved: dict[str, dict[str, Any]] | None = None
) -> list[JobResult]:
    """All jobs of a table at a scale with their results, as far as these exist.

    Args:
      chosen: the table.
      scale: one of its scales.
      out: directory of the table.
      saved: fingerprint -> results, used for jobs without a complete run in `out`.

    Raises:
      ValueError: a directory holds a run of another config.
    """
    return [
        JobResult(job, run_results(job) or (saved or {}).get(job.fingerprint))
        for job in jobs(chosen, scale, out)
    ]


def saved_path(study: str, table: str, scale: str) -> Path:
    """The file to which experiments.save_results writes the results of a table."""
    return Path(__file__).parent / study / "results" / f"{table}.{scale}.json"


def saved_results(study: str, table: str, scale: str) -> dict[str, dict[str, Any]]:
    """Saved results by fingerprint; empty if none are saved."""
    path = saved_path(study, table, scale)
    contents = files.read_json(path) if path.exists() else {}
    return {name: run_record.as_measured(results) for name, results in contents.items()}


def shared_results(study: str, chosen: Table, scale: str) -> dict[str, dict[str, Any]]:
    """Saved results of the table whose runs a table uses, by fingerprint, as `with_metrics`."""
    size = chosen.scales.get(scale)
    saved = saved_results(study, size.runs, scale) if size and size.runs else {}
    return with_metrics(chosen, saved)


def with_metrics(chosen: Table, saved: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The saved results that have all metrics that a table prints or tunes by."""
    return {k: results for k, results in saved.items() if not _missing_metrics(chosen, results)}


def rows_without_metrics(
    chosen: Table, saved: dict[str, dict[str, Any]], job_results: Sequence[JobResult]
) -> str:
    """The rows whose runs are missing because saved results lack a metric, and these, as text."""
    by_row: dict[str, set[str]] = {}
    for job, results in job_results:
        if results is None and job.fingerprint in saved:
            missing = _missing_metrics(chosen, saved[job.fingerprint])
            by_row.setdefault(job.row, set()).update(missing)
    return "; ".join(f"{row} without {', '.join(sorted(x))}" for row, x in by_row.items())


def _missing_metrics(chosen: Table, results: dict[str, Any]) -> set[str]:
    metrics: dict[str, set[str]] = {}
    for regime in chosen.regimes.values():
        metrics.setdefault(regime.report, set()).update(regime.metrics or chosen.metrics)
        if regime.select:
            metrics.setdefault(regime.select, set()).add(chosen.select_metric)
    return set().union(
        *(names - set(results["evals"].get(name, {})) for name, names in metrics.items())
    )


def argument_parser(description: str | None, table: str) -> argparse.ArgumentParser:
    """A parser of the flags that name a table, its default being `table`, and its runs."""
    parser = user_errors.parser(description)
    parser.add_argument("--table", default=table)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs", help="runs are read from OUT/STUDY/TABLE")
    return parser


def without_jobs(saved: dict[str, dict[str, Any]], results: list[JobResult]) -> str:
    """Rows and seeds of the saved results whose config no job has, as text."""
    known, seeds = {result.job.fingerprint for result in results}, {}
    for fingerprint, content in saved.items():
        if fingerprint not in known:
            seeds.setdefault(content["row"], set()).add(content["seed"])
    return "; ".join(
        f"{row}, seeds {', '.join(map(str, sorted(found)))}" for row, found in seeds.items()
    )


def results_at(chosen: Table, results: list[JobResult], point: str) -> list[JobResult]:
    """The results at one grid point, such as "1.0", instead of the tuned ones.

    Raises:
      ValueError: no job has this grid point.
    """
    selected = [
        result
        for result in results
        if ",".join(str(value) for _, value in result.job.point) == point
    ]
    if not selected:
        raise ValueError(
            f"{point} is not a point of the grid over {', '.join(chosen.grid)}; the grid is"
            f" {chosen.grid}."
        )
    return selected


def tested_regimes(chosen: Table) -> dict[str, Regime]:
    """The regimes that report another evaluation than the one that selects."""
    return {
        name: regime for name, regime in chosen.regimes.items() if regime.select != regime.report
    }


def tuned_results(results: list[JobResult], regime: Regime, metric: str) -> ResultsByRowAndSeed:
    """The result with the best validation metric for each (row, seed).

    A (row, seed) is left out unless all its grid points are complete.

    Args:
      results: of all jobs of a table.
      regime: its `select` evaluation selects, if the grid has more than one point.
      metric: metric that selects; nan counts as worse than any number.
    """
    sign = -1 if metric in LOWER_IS_BETTER else 1
    groups: dict[tuple[str, int], list[JobResult]] = {}
    for result in results:
        groups.setdefault((result.job.row, result.job.seed), []).append(result)

    def rank(result):
        score = sign * result.results["evals"][regime.select][metric]
        return (score == score, score)

    complete = {key: group for key, group in groups.items() if all(r.results for r in group)}
    return {
        key: max(group, key=rank) if len(group) > 1 else group[0] for key, group in complete.items()
    }


def run_results(job: Job) -> dict[str, Any] | None:
    """The results of the run of a job; None if it is not complete.

    Raises:
      ValueError: the directory holds a run of another config.
    """
    if not (job.directory / "results.json").exists():
        return None
    record = run_record.read(job.directory)
    # A run records every setting, also the defaults of a part that the row alone names.
    recorded, expected = copy.deepcopy(record.config), files.plain(sections.completed(job.config))
    # A run and a run that it reads may be named by another path than at training time, or may have
    # moved together: only the path below their common directory counts.
    runs = str(job.directory.parents[4])
    for section, name in (("warm_start", "workdir"), ("prioritization", "target")):
        path = expected.get(section, {}).get(name) or ""
        recorded_path = recorded.get(section, {}).get(name) or ""
        if path.startswith(runs) and recorded_path.endswith(path.removeprefix(runs)):
            recorded[section][name] = path
    if identity.identity(recorded) != identity.identity(expected):
        raise ValueError(
            f"{job.directory} holds a run of another config than this table has; remove the"
            " directory to run the job again."
        )
    return record.results
