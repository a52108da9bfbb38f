"""Several finished runs beside each other: which are seeds of one config, may they be compared, how
do they differ.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.links import Link
from heteroscedastic.runs import loaded_run, predictions, provenance
from heteroscedastic.runs.loaded_run import Told
from heteroscedastic.runs.predictions import Predictions


class Group(NamedTuple):
    """Runs that differ by their seed alone, or that somebody takes as repetitions of one thing."""

    name: str
    runs: tuple[Told, ...]


def groups(
    directories: Sequence[str | files.Path], names: Sequence[str] | None = None
) -> list[Group]:
    """The runs of these directories, those of one config but for the seed together, in order of
    appearance.

    Args:
      directories: of finished runs.
      names: of the groups; else what parts their directories, or the head of an only one.

    Raises:
      FileNotFoundError, ValueError: a run is not finished, is damaged or of another version; one is
        given twice, two of a group have the same seed, or there are more or fewer names than
        groups.
    """
    found: dict[str, list[Told]] = {}
    paths = [files.resolved(files.as_path(d)) for d in directories]
    for path, given in zip(paths, directories):
        if paths.count(path) > 1:
            raise ValueError(f"{given} is given twice; give each run once.")
        told = loaded_run.read(path)
        found.setdefault(json.dumps({**told.config, "seed": None}, sort_keys=True), []).append(told)
    for runs in found.values():
        seeds = [run.config["seed"] for run in runs]
        twice = [str(run.directory) for run in runs if seeds.count(run.config["seed"]) > 1]
        if twice:
            raise ValueError(
                f"{' and '.join(twice)} are one config with one seed; give one of them."
            )
    if names and len(names) != len(found):
        raise ValueError(
            f"{len(names)} names ({', '.join(names)}) for {len(found)} configs but for the seed."
        )
    if names and len(set(names)) != len(names):
        raise ValueError(f"the names {', '.join(names)} are not all different.")
    sorted_runs = [
        tuple(sorted(runs, key=lambda run: run.config["seed"])) for runs in found.values()
    ]
    return [Group(name, runs) for name, runs in zip(names or _names(sorted_runs), sorted_runs)]


def _names(found: list[tuple[Told, ...]]) -> list[str]:
    """What parts the directories: the first folder that does, or all of them."""
    if len(found) == 1:
        return [str(found[0][0].config["head"]["name"])]
    parts = [_common([run.directory.parts for run in runs]) for runs in found]
    shared = len(_common(parts))
    rest = [p[shared:] or p[-1:] for p in parts]
    first = [p[0] for p in rest]
    return first if len(set(first)) == len(first) else ["/".join(p) for p in rest]


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    common = paths[0]
    for path in paths[1:]:
        same = [a == b for a, b in zip(common, path)]
        common = common[: same.index(False) if False in same else len(same)]
    return common


def _check_same(compared: list[Group], told: list[list[Predictions]], on: str) -> None:
    """Raises a ValueError where the runs were not told on the same examples of the same classes."""
    runs = [run for group in compared for run in group.runs]
    first, *others = zip(runs, (p for group in told for p in group))
    for run, found in others:
        if found.link != first[1].link:
            raise ValueError(
                f"{first[0].directory} and {run.directory}: one answers by a softmax, the other"
                " yes or no for each"
                " class; report them apart."
            )
        if run.dataset["class_names"] != first[0].dataset["class_names"]:
            raise ValueError(
                f"{first[0].directory} and {run.directory} have other classes; report them apart."
            )
        same_ids = np.array_equal(found.ids, first[1].ids)
        if not same_ids or not np.array_equal(found.labels, first[1].labels):
            what = "with other labels" if same_ids else "on other examples"
            raise ValueError(
                f"{first[0].directory} and {run.directory} were evaluated {what} in {on!r}: which"
                " examples are held"
                " out, and their noise, follows from the seed. Name an evaluation that all share,"
                " such as --on=test,"
                " or report these runs apart."
            )
    _check_data(runs)


def _check_data(runs: list[Told]) -> None:
    """Data, curation and seed determine what a run sees, so where these agree the fingerprints
    must.
    """
    seen: dict[str, Told] = {}
    for run in runs:
        c = run.config
        wanted = json.dumps([c["data"], c.get("curation"), c["seed"]], sort_keys=True)
        first = seen.setdefault(wanted, run)
        if provenance.data_key(first.dataset) != provenance.data_key(run.dataset):
            raise ValueError(
                f"{first.directory} and {run.directory} ask for the same data with the same seed"
                " but saw different"
                " data (fingerprints in dataset.json); make one of them again with the data of the"
                " other."
            )


class Compared(NamedTuple):
    """Groups of runs with their predictions of one evaluation, and where the rest is found."""

    groups: list[Group]
    on: str  # the evaluation that is told
    fit: str | None  # the one that temperatures are fitted on; None where a run lacks it
    told: list[list[Predictions]]  # of `on`, by group and run
    fitted_on: list[list[Predictions]] | None  # of `fit`
    data_dir: str | None = None

    @property
    def class_names(self) -> list[str]:
        return figures.class_names(self.groups[0].runs[0].dataset)

    @property
    def link(self) -> Link:
        """The link of the logits of all runs."""
        return self.told[0][0].link


def compare(
    compared: list[Group], on: str = "test", fit: str | None = None, data_dir: str | None = None
) -> Compared:
    """These groups, once it is sure that they may be compared on an evaluation.

    Args:
      compared: the groups.
      on: the evaluation.
      fit: the one that temperatures are fitted on; that of `finished.held_out` unless given. Where
        a run has no predictions of it, `Compared.fit` is None.
      data_dir: where data is read from again.

    Raises:
      FileNotFoundError, ValueError: predictions are missing, damaged or of another version, or
        the runs were not told on the same examples; says what to do.
    """
    told = [[predictions.read(run.directory, on) for run in group.runs] for group in compared]
    _check_same(compared, told, on)
    runs = [run for group in compared for run in group.runs]
    fit = fit or loaded_run.held_out(runs[0], on)
    if fit is None or not all(fit in predictions.names(run.directory) for run in runs):
        return Compared(compared, on, None, told, None, data_dir)
    fitted = [[predictions.read(run.directory, fit) for run in group.runs] for group in compared]
    return Compared(compared, on, fit, told, fitted, data_dir)


def settings(config: Any, at: str = "") -> dict[str, Any]:
    """A config by dotted names."""
    if not isinstance(config, dict) or not config:
        return {at: config}
    found = {}
    for name, value in config.items():
        found |= settings(value, f"{at}.{name}" if at else name)
    return found


def differences(compared: Sequence[Group]) -> dict[str, list[list[Any]]]:
    """The settings, but for the seed, that are not the same in all runs: of each group the values
    that occur.

    A setting that a run does not have is None there.
    """
    flat = [[settings(run.config) for run in group.runs] for group in compared]
    names = sorted({name for group in flat for run in group for name in run} - {"seed"})
    table = {}
    for name in names:
        values = []
        for group in flat:
            texts = {json.dumps(run.get(name), sort_keys=True): run.get(name) for run in group}
            values.append(list(texts.values()))
        if any(v != values[0] or len(v) > 1 for v in values):
            table[name] = values
    return table


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean and standard deviation, as the tables show them."""
    if not len(values):
        return "missing"
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"


def difference(ours: Mapping[int, float], theirs: Mapping[int, float], digits: int = 4) -> str:
    """Mean difference of values of the same seed, ± half its 95 % interval where several are; ""
    where none is.
    """
    both = sorted(set(ours) & set(theirs))
    mean, half = paired([ours[seed] for seed in both], [theirs[seed] for seed in both])
    return (f"{mean:+.{digits}f}" if both else "") + (
        f" ± {half:.{digits}f}" if len(both) > 1 else ""
    )


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean difference, and half the width of its 95 % interval by Student's t; nan below two
    pairs.
    """
    differences = np.subtract(ours, theirs)
    n = len(differences)
    if n < 2:
        return float(np.mean(differences)) if n else float("nan"), float("nan")
    half = stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / np.sqrt(n)
    return float(differences.mean()), float(half)


def flags_of_runs(description: str | None) -> argparse.ArgumentParser:
    """What commands over several runs ask for."""
    parser = user_errors.parser(description)
    parser.add_argument(
        "--runs", nargs="+", required=True, metavar="DIR", help="directories of finished runs"
    )
    parser.add_argument(
        "--names", nargs="+", metavar="NAME", help="one for each config, seeds counted together"
    )
    parser.add_argument("--on", default="test", help="evaluation that is told")
    parser.add_argument(
        "--fit",
        help="evaluation to fit a temperature on; the held-out one of the same weights if not given",
    )
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    return parser


def compared_by(flags: argparse.Namespace) -> Compared:
    """The runs that the flags name."""
    return compare(groups(flags.runs, flags.names), flags.on, flags.fit, flags.data_dir)
