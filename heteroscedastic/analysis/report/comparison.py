"""Groups of finished runs: which are seeds of one config, and how they differ."""

import argparse
import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.links import Link
from heteroscedastic.runs import by_example, loaded_run, provenance
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.loaded_run import LoadedRun, SavedRun
from heteroscedastic.runs.predictions import Predictions


class Group(NamedTuple):
    """Runs that differ only by their seed, or that the caller treats as repetitions."""

    name: str
    runs: tuple[SavedRun, ...]


def groups(
    directories: Sequence[str | files.Path], names: Sequence[str] | None = None
) -> list[Group]:
    """Reads runs and groups those of one config with different seeds, in order of appearance.

    Args:
      directories: directories of finished runs.
      names: names of the groups; by default the part of the directories that differs between
        groups, or the head if there is one group.

    Raises:
      FileNotFoundError, ValueError: a run is not complete, is damaged or of an incompatible
        version; a run is given twice; two runs of a group have the same seed; or the number of
        names differs from the number of groups.
    """
    by_config: dict[str, list[SavedRun]] = {}
    paths = [files.resolved(files.as_path(d)) for d in directories]
    for path, directory in zip(paths, directories):
        if paths.count(path) > 1:
            raise ValueError(f"{directory} is given twice; give each run once.")
        run = loaded_run.read(path)
        key = json.dumps(_without_seed(run.config), sort_keys=True)
        by_config.setdefault(key, []).append(run)
    for runs in by_config.values():
        seeds = [run.config["seed"] for run in runs]
        repeated = [str(run.directory) for run in runs if seeds.count(run.config["seed"]) > 1]
        if repeated:
            raise ValueError(
                f"{' and '.join(repeated)} have the same config and seed; give one of them."
            )
    if names and len(names) != len(by_config):
        raise ValueError(
            f"got {len(names)} names ({', '.join(names)}) for {len(by_config)} configs (seeds"
            " excluded); give one name for each config."
        )
    if names and len(set(names)) != len(names):
        raise ValueError(f"the names {', '.join(names)} are not unique.")
    sorted_runs = [
        tuple(sorted(runs, key=lambda run: run.config["seed"])) for runs in by_config.values()
    ]
    return [Group(name, runs) for name, runs in zip(names or _names(sorted_runs), sorted_runs)]


def _without_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without its seed, also in the directories of runs that it starts from or follows."""
    result = {**config, "seed": None}
    for section, name in (("warm_start", "workdir"), ("prioritization", "target")):
        settings = config.get(section) or {}
        if settings.get(name):
            workdir = re.sub(rf"\bseed_{config['seed']}\b", "seed_*", settings[name])
            result[section] = {**settings, name: workdir}
    return result


def _names(groups: list[tuple[SavedRun, ...]]) -> list[str]:
    """Names of groups: the first folder in which they differ, or the paths from that folder on.

    Where these are not unique, as for seed_0/A, seed_0/B, seed_1/A and seed_1/B, the folders that
    all runs of a group end with, or else the head with a number.
    """
    if len(groups) == 1:
        return [str(groups[0][0].config["head"]["name"])]
    parts = [_common_prefix([run.directory.parts for run in runs]) for runs in groups]
    shared = len(_common_prefix(parts))
    rest = [p[shared:] or p[-1:] for p in parts]
    ends = [_common_prefix([run.directory.parts[::-1] for run in runs])[::-1] for runs in groups]
    heads = [f"{runs[0].config['head']['name']} {i}" for i, runs in enumerate(groups)]
    candidates = [p[0] for p in rest], ["/".join(p) for p in rest], ["/".join(p) for p in ends]
    return next((names for names in candidates if len(set(names)) == len(names)), heads)


def reference_first(groups: Sequence[Group]) -> list[Group]:
    """The groups with the reference first: the first one whose head has no noise, if there is one.

    The others keep their order.
    """
    has_noise = [loaded_run.has_noise(group.runs[0].config) for group in groups]
    reference = has_noise.index(False) if False in has_noise else 0
    return [groups[reference], *groups[:reference], *groups[reference + 1 :]]


def _common_prefix(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    common = paths[0]
    for path in paths[1:]:
        same = [a == b for a, b in zip(common, path)]
        common = common[: same.index(False) if False in same else len(same)]
    return common


def _check_comparable(
    groups: list[Group], predictions: list[list[Predictions]], evaluation: str
) -> None:
    """Raises a ValueError unless all runs predicted the same examples of the same classes."""
    runs = [run for group in groups for run in group.runs]
    (first_run, first), *others = zip(runs, (p for group in predictions for p in group))
    for run, predicted in others:
        pair = f"{first_run.directory} and {run.directory}"
        if predicted.link != first.link:
            raise ValueError(
                f"{pair} have different links: one uses a softmax, the other a sigmoid for each"
                " class; report them separately."
            )
        if run.dataset["class_names"] != first_run.dataset["class_names"]:
            raise ValueError(f"{pair} have different classes; report them separately.")
        same_ids = np.array_equal(predicted.ids, first.ids)
        if not same_ids or not np.array_equal(predicted.labels, first.labels):
            difference = "with different labels" if same_ids else "on different examples"
            raise ValueError(
                f"{pair} were evaluated {difference} in {evaluation!r}, because the held-out"
                " examples and their label noise depend on the seed. Choose an evaluation that all"
                " runs share, such as --on=test, or report these runs separately."
            )
    _check_data(runs)


def _check_data(runs: list[SavedRun]) -> None:
    """Raises a ValueError if runs of the same data, curation and seed have other fingerprints."""
    first_runs: dict[str, SavedRun] = {}
    for run in runs:
        c = run.config
        key = json.dumps([c["data"], c.get("curation"), c["seed"]], sort_keys=True)
        first = first_runs.setdefault(key, run)
        if provenance.data_key(first.dataset) != provenance.data_key(run.dataset):
            raise ValueError(
                f"{first.directory} and {run.directory} have the same data config and the same"
                " seed but saw different data (fingerprints in dataset.json); repeat one of them"
                " with the data of the other."
            )


@dataclasses.dataclass(frozen=True, eq=False)
class RunSet:
    """Groups of runs with their predictions of one evaluation."""

    groups: list[Group]  # the first one is the reference
    evaluation: str  # evaluation to report
    # Evaluation on which temperatures are fitted; None if the runs have no common one.
    fit: str | None
    predictions: list[list[Predictions]]  # of `evaluation`, by group and run
    fit_predictions: list[list[Predictions]] | None  # of `fit`, by group and run
    data_dir: str | None = None
    # Of the first run of each group, which several sections read.
    features: dict[files.Path, Float[np.ndarray, "n d"]] = dataclasses.field(
        init=False, default_factory=dict, repr=False
    )

    @property
    def class_names(self) -> list[str]:
        return figures.class_names(self.groups[0].runs[0].dataset)

    @property
    def link(self) -> Link:
        """The link of the logits of all runs."""
        return self.predictions[0][0].link

    def loaded(self, run: SavedRun) -> tuple[LoadedRun, str]:
        """A run with the checkpoint of the evaluation, and the split of the evaluation.

        The features of a first run are computed once for all sections.

        Raises:
          FileNotFoundError, ModuleNotFoundError, ValueError, CheckpointError: the run is not
            available.
        """
        found, split = loaded_run.load_evaluated(run, self.evaluation, self.data_dir)
        if any(run is group.runs[0] for group in self.groups):
            if run.directory not in self.features:
                self.features[run.directory] = by_example.features(found, split)
            found.computed[split] = self.features[run.directory]
        return found, split


def load(
    groups: list[Group],
    evaluation: str = "test",
    fit: str | None = None,
    data_dir: str | None = None,
) -> RunSet:
    """Reads the predictions of an evaluation and checks that the runs are comparable on it.

    Args:
      groups: the runs.
      evaluation: name of the evaluation to report.
      fit: evaluation on which temperatures are fitted; by default
        `loaded_run.held_out_evaluation`; if that is not the same for all runs, or a run has no
        predictions of it, `RunSet.fit` is None.
      data_dir: directory of the data sets.

    Raises:
      FileNotFoundError, ValueError: predictions are missing, damaged or of an incompatible
        version, or the runs predicted different examples.
    """
    predictions = [
        [predictions_lib.read(run.directory, evaluation) for run in group.runs] for group in groups
    ]
    _check_comparable(groups, predictions, evaluation)
    shared = predictions_lib.shared_groups(p for group in predictions for p in group)
    predictions = [[p._replace(groups=shared) for p in group] for group in predictions]
    runs = [run for group in groups for run in group.runs]
    if fit is None:
        fit, *others = {loaded_run.held_out_evaluation(run, evaluation) for run in runs}
        saved = [predictions_lib.names(run.directory) for run in runs]
        if others or not all(fit in names for names in saved):
            return RunSet(groups, evaluation, None, predictions, None, data_dir)
    fit_predictions = [
        [predictions_lib.read(run.directory, fit) for run in group.runs] for group in groups
    ]
    return RunSet(groups, evaluation, fit, predictions, fit_predictions, data_dir)


def settings(config: Any, prefix: str = "") -> dict[str, Any]:
    """The settings of a config by dotted name."""
    if not isinstance(config, dict) or not config:
        return {prefix: config}
    flat = {}
    for name, value in config.items():
        flat |= settings(value, f"{prefix}.{name}" if prefix else name)
    return flat


def differences(groups: Sequence[Group]) -> dict[str, list[list[Any]]]:
    """The settings other than the seed that differ between runs, with their values by group.

    The value is None for a run without the setting.
    """
    flat = [[settings(run.config) for run in group.runs] for group in groups]
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
    """The mean and the standard deviation as text."""
    if not len(values):
        return "missing"
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"


def difference(ours: Mapping[int, float], theirs: Mapping[int, float], digits: int = 4) -> str:
    """The mean difference of values with the same seed, as text.

    With several pairs, ± half the width of its 95 % interval follows. Empty without a common seed.
    """
    both = sorted(set(ours) & set(theirs))
    mean, half = paired([ours[seed] for seed in both], [theirs[seed] for seed in both])
    return (f"{mean:+.{digits}f}" if both else "") + (
        f" ± {half:.{digits}f}" if len(both) > 1 else ""
    )


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean of paired differences, and half the width of its 95 % interval by Student's t.

    The width is nan for fewer than two pairs.
    """
    differences = np.subtract(ours, theirs)
    n = len(differences)
    if n < 2:
        return float(np.mean(differences)) if n else float("nan"), float("nan")
    half = stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / np.sqrt(n)
    return float(differences.mean()), float(half)


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments of commands that read several runs."""
    parser = user_errors.parser(description)
    parser.add_argument(
        "--runs",
        nargs="+",
        required=True,
        metavar="DIR",
        help="directories of finished runs; the first head without noise is the reference",
    )
    parser.add_argument(
        "--names", nargs="+", metavar="NAME", help="a name for each config; seeds share a name"
    )
    parser.add_argument("--on", default="test", help="evaluation to report")
    parser.add_argument(
        "--fit",
        help="evaluation on which a temperature is fitted; default: that of the validation split"
        " with the same checkpoint",
    )
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    return parser


def from_flags(flags: argparse.Namespace) -> RunSet:
    """Loads the runs of the command line, with the plain head as the reference."""
    by_config = reference_first(groups(flags.runs, flags.names))
    return load(by_config, flags.on, flags.fit, flags.data_dir)
