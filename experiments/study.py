"""What a table of a study is made of: rows, a grid to tune over, seeds; where its runs lie, what is
kept of them.
"""

import copy
import hashlib
import importlib
import importlib.util
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from heteroscedastic import files
from heteroscedastic.metrics import LOWER_IS_BETTER
from heteroscedastic.runs import run_record, schema


class Row(NamedTuple):
    """A method.

    In overrides that are texts, {runs} stands for the directory of the study's tables, {scale} for
    the scale and {seed} for the seed, so that a row may start from what another table made.
    """

    name: str
    config: str  # file of configs/, without .py
    overrides: dict[str, Any] = {}  # setting by dotted name
    paper: str | None = None  # id of the row in the paper's table
    where: dict[str, Any] = {}  # column -> value, where rows of that table share an id


class Scale(NamedTuple):
    """How much is run."""

    seeds: tuple[int, ...]
    overrides: dict[str, Any] = {}
    later: dict[
        str, tuple[Any, ...]
    ] = {}  # what seeds after the first tune over, where less than the grid


class Regime(NamedTuple):
    """Which evaluation chooses the tuned setting, and which is reported."""

    select: str | None  # on validation; None where there is nothing to choose
    report: str  # on test
    prefix: str = ""  # of the paper's columns about what is reported
    fit: str | None = None  # that temperatures are fitted on; `select` if not given

    @property
    def fitted_on(self) -> str | None:
        """The evaluation that temperatures are fitted on; None where nothing is held out."""
        return self.fit or self.select


class Table(NamedTuple):
    """Rows under the same conditions. Every row is tuned over the same grid, seed by seed."""

    claim: str
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]
    regimes: dict[str, Regime]
    select_metric: str
    scales: dict[str, Scale]
    grid: dict[str, tuple[Any, ...]] = {}  # values to tune over, of settings by dotted name
    reference: str | None = None  # the row that others are compared with
    # table, where (column -> value), columns (metric -> column), note; beside, ids of rows that are
    # told without runs
    paper: dict[str, Any] | None = None
    test: str | None = None  # the paper's own: "unpaired t-test"
    runs: str | None = None  # another table, where its rows of the same name are the same runs
    # (table, run of each (row, seed), the study's paper.json) -> Markdown, where it is not a line a
    # row
    layout: Callable[["Table", dict[tuple[str, int], "Made"], dict[str, Any]], list[str]] | None = (
        None
    )


class Job(NamedTuple):
    """One run of a table."""

    row: str
    point: tuple[tuple[str, Any], ...]  # of the grid
    seed: int
    directory: files.Path
    config: dict[str, Any]
    fingerprint: str  # of the config, wherever the tables lie and the run keeps its arrays


def table(study: str, name: str) -> Table:
    """A table of experiments/STUDY/rows.py.

    Raises:
      ValueError: an unknown study or table; lists the choices.
    """
    studies = sorted(p.parent.name for p in Path(__file__).parent.glob("*/rows.py"))
    if study not in studies:
        raise ValueError(f"there is no study {study!r}; choose one of {', '.join(studies)}.")
    tables = importlib.import_module(f"experiments.{study}.rows").TABLES
    if name not in tables:
        raise ValueError(
            f"study {study!r} has no table {name!r}; choose one of {', '.join(tables)}."
        )
    return tables[name]


def jobs(chosen: Table, scale: str, out: files.Path) -> list[Job]:
    """Every run of a table at a scale, whether it has been made or not.

    Args:
      chosen: the table.
      scale: one of its scales.
      out: directory of the table; its runs lie in the one beside it where it shares another's.
    """
    out = out.with_name(chosen.runs) if chosen.runs else out
    if scale not in chosen.scales:
        raise ValueError(
            f"this table has no scale {scale!r}; choose one of {', '.join(chosen.scales)}."
        )
    found = []
    first, later = _points(chosen.grid), _points(chosen.grid | chosen.scales[scale].later)
    seeds = chosen.scales[scale].seeds
    points = [(point, seed) for i, seed in enumerate(seeds) for point in (later if i else first)]
    for row, (point, seed) in itertools.product(chosen.rows, points):
        places = {"{runs}": str(out.parent), "{scale}": scale, "{seed}": str(seed)}
        settings = {**chosen.scales[scale].overrides, **row.overrides, **dict(point), "seed": seed}
        slug = ",".join(f"{name}={value}" for name, value in point) or "untuned"
        directory = out / scale / row.name / slug / f"seed_{seed}"
        text = json.dumps(
            schema.identity(files.plain(config(row.config, settings))), sort_keys=True
        )
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        found.append(
            Job(
                row.name,
                point,
                seed,
                directory,
                config(row.config, _filled(settings, places)),
                fingerprint,
            )
        )
    return found


def _points(grid: dict[str, tuple[Any, ...]]) -> list[tuple[tuple[str, Any], ...]]:
    return [tuple(zip(grid, values)) for values in itertools.product(*grid.values())]


def _filled(overrides: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    def filled(value):
        for place, text in places.items() if isinstance(value, str) else ():
            value = value.replace(place, text)
        return value

    return {name: filled(value) for name, value in overrides.items()}


def config(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """configs/NAME.py with settings overridden by dotted name; an unknown one is an error."""
    path = Path(__file__).parent.parent / "configs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"configs.{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = copy.deepcopy(module.get_config().to_dict())
    for dotted, value in overrides.items():
        *sections, last = dotted.split(".")
        section = made
        for part in sections:
            section = section.get(part)
            if not isinstance(section, dict):
                raise ValueError(
                    f"configs/{name}.py has no section {part!r} for the override {dotted!r}."
                )
        if last not in section:
            raise ValueError(
                f"configs/{name}.py has no setting {dotted!r}; choose one of {', '.join(section)}."
            )
        section[last] = value
    return made


class Made(NamedTuple):
    """A run and what it found; None where it is not complete."""

    job: Job
    results: dict[str, Any] | None


def made(
    chosen: Table, scale: str, out: files.Path, kept: dict[str, dict[str, Any]] | None = None
) -> list[Made]:
    """Every run of a table at a scale, with what is there of it.

    Args:
      chosen: the table.
      scale: one of its scales.
      out: directory of the table.
      kept: results by fingerprint, of runs that do not lie there.

    Raises:
      ValueError: a directory holds a run of another config.
    """
    return [
        Made(job, _results(job) or (kept or {}).get(job.fingerprint))
        for job in jobs(chosen, scale, out)
    ]


def kept_at(study: str, table: str, scale: str) -> Path:
    """Where experiments.keep puts what the runs of a table found."""
    return Path(__file__).parent / study / "results" / f"{table}.{scale}.json"


def kept(study: str, table: str, scale: str) -> dict[str, dict[str, Any]]:
    """Results by the fingerprint of their run; none where nothing is kept."""
    path = kept_at(study, table, scale)
    found = files.read_json(path) if path.exists() else {}
    return {name: run_record.as_measured(results) for name, results in found.items()}


def at(chosen: Table, runs: list[Made], point: str) -> list[Made]:
    """The runs at one point of the grid, such as "1.0", in place of tuning.

    Raises:
      ValueError: there are none.
    """
    found = [run for run in runs if ",".join(str(value) for _, value in run.job.point) == point]
    if not found:
        raise ValueError(
            f"no run has {point} of {', '.join(chosen.grid)}; the grid is {chosen.grid}."
        )
    return found


def tested(chosen: Table) -> dict[str, Regime]:
    """The regimes that are told on other data than they were chosen on."""
    return {
        name: regime for name, regime in chosen.regimes.items() if regime.select != regime.report
    }


def tuned(runs: list[Made], regime: Regime, metric: str) -> dict[tuple[str, int], Made]:
    """The run of the best validation metric, of each (row, seed) whose whole grid is complete.

    Args:
      runs: of a table.
      regime: whose `select` evaluation chooses, where a grid has more than one point.
      metric: that chooses; a nan only where every run of the grid has one.
    """
    sign = -1 if metric in LOWER_IS_BETTER else 1
    groups: dict[tuple[str, int], list[Made]] = {}
    for run in runs:
        groups.setdefault((run.job.row, run.job.seed), []).append(run)

    def rank(run):
        score = sign * run.results["evals"][regime.select][metric]
        return (score == score, score)

    complete = {key: group for key, group in groups.items() if all(run.results for run in group)}
    return {
        key: max(group, key=rank) if len(group) > 1 else group[0] for key, group in complete.items()
    }


def _results(job: Job) -> dict[str, Any] | None:
    if not (job.directory / "results.json").exists():
        return None
    record = run_record.read(job.directory)
    found, wanted = copy.deepcopy(record.config), files.plain(job.config)
    # What it started from, where that lies beside it, is the same by whatever path both were named,
    # and if both moved.
    runs, start = str(job.directory.parents[4]), (wanted.get("init") or {}).get("workdir", "")
    if start.startswith(runs) and (found.get("init") or {}).get("workdir", "").endswith(
        start.removeprefix(runs)
    ):
        found["init"]["workdir"] = start
    if schema.identity(found) != schema.identity(wanted):
        raise ValueError(
            f"{job.directory} holds a run of another config than this table's; remove it to run it"
            " again."
        )
    return record.results
