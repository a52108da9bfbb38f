"""Groups of runs that saw the same images."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heteroscedastic.analysis.report import comparison
from heteroscedastic.data import split_spec
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun


class GroupRuns(NamedTuple):
    """The runs of a group, loaded with the checkpoint of an evaluation."""

    name: str
    seeds: list[int]
    runs: list[LoadedRun]


def load(
    directories: Sequence[str], on: str, data_dir: str | None
) -> tuple[list[GroupRuns], str, str | None]:
    """Loads runs, and checks that they saw the same images of an evaluation.

    Returns:
      The groups, the split of the evaluation, and the split of the validation, if there is one.

    Raises:
      FileNotFoundError, ValueError: a run is not complete or has no such evaluation, or the runs
        saw different images.
    """
    return load_groups(comparison.groups(directories), on, data_dir)


def load_groups(
    saved: Sequence[comparison.Group], on: str, data_dir: str | None
) -> tuple[list[GroupRuns], str, str | None]:
    """As `load`, for runs that are grouped."""
    groups, splits = [], []
    for group in saved:
        runs = []
        for run in group.runs:
            if on not in run.config["evals"]:
                raise ValueError(
                    f"{run.directory} has no evaluation {on!r}; its evaluations are"
                    f" {', '.join(run.config['evals'])}. Choose one with --on."
                )
            loaded_run, split = loaded_run_lib.load_evaluated(run, on, data_dir)
            runs.append(loaded_run)
            splits.append(split)
        groups.append(GroupRuns(group.name, [run.config["seed"] for run in group.runs], runs))
    every = [run for group in groups for run in group.runs]
    names = [str(run.directory) for group in saved for run in group.runs]
    for run, name, split in zip(every[1:], names[1:], splits[1:]):
        check_same_images((every[0], names[0], splits[0]), (run, name, split))
    first = saved[0].runs[0]
    held_out = loaded_run_lib.held_out_evaluation(first, on)
    validation = None if held_out in (None, on) else first.config["evals"][held_out]["split"]
    return groups, splits[0], validation


def check_same_images(first: tuple[LoadedRun, str, str], other: tuple[LoadedRun, str, str]) -> None:
    """Raises a ValueError unless both runs have the same images, chain and classes.

    Args:
      first: a run, its name and a split of its data.
      other: likewise.
    """
    (a, a_name, a_split), (b, b_name, b_split) = first, other
    ours, theirs = loaded_run_lib.split_data(a, a_split), loaded_run_lib.split_data(b, b_split)
    chains = [_chain(run, split) for run, split in ((a, a_split), (b, b_split))]
    difference = None
    if not np.array_equal(ours.ids, theirs.ids) or not np.array_equal(ours.inputs, theirs.inputs):
        difference = "were evaluated on different images"
    elif chains[0] != chains[1]:
        difference = f"saw them through different chains, {chains[0]!r} and {chains[1]!r}"
    elif a.dataset["class_names"] != b.dataset["class_names"]:
        difference = "have different classes"
    if difference:
        raise ValueError(
            f"{a_name} and {b_name} {difference}; explain these runs separately, or choose another"
            " evaluation with --on."
        )


def _chain(loaded_run: LoadedRun, split: str) -> str:
    """The chain of operations on the images of a split in evaluation."""
    data = loaded_run.run.config["data"]
    return split_spec.own_chains(data).get(split, data["eval"])
