"""Runs that saw the same images, loaded one at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from heteroscedastic.analysis.report.comparison import Group
from heteroscedastic.analysis.saliency import explain
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.data import split_spec
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun, SavedRun


class Member(NamedTuple):
    """A run of a group, loaded with the checkpoint of an evaluation."""

    group: str
    seed: int
    run: LoadedRun
    split: str  # of the evaluation
    validation: str | None  # split of another evaluation, to choose thresholds on

    @property
    def name(self) -> str:
        return f"{self.group}, seed {self.seed}"


def first_runs(groups: Sequence[Group]) -> list[Group]:
    """The groups with their first run alone."""
    return [group._replace(runs=group.runs[:1]) for group in groups]


def members(
    groups: Sequence[Group],
    on: str,
    question: Question,
    load: Callable[[SavedRun], tuple[LoadedRun, str]],
    notes: list[str] | None = None,
) -> Iterator[Member]:
    """The runs of groups, of which this keeps only the first in memory.

    Args:
      groups: of finished runs.
      on: the evaluation whose images are explained.
      question: that all runs can answer.
      load: returns a run with the checkpoint of the evaluation, and the split of the evaluation.
      notes: receives why a run is left out. None leaves no run out, but raises the error.

    Raises:
      FileNotFoundError, ModuleNotFoundError, ValueError, CheckpointError: a run is not available or
        has no such evaluation, cannot answer the question, or saw other images than the first.
    """
    first = None
    for group in groups:
        for saved_run in group.runs:
            try:
                member = _member(group.name, saved_run, on, load)
                explain.check(member.run, question, member.split)
                first = member if first is None else first
                check_same_images(first, member)
            except loaded_run_lib.UNAVAILABLE as error:
                if notes is None:
                    raise
                name = f"{group.name}, seed {saved_run.config['seed']}"
                notes.append(f"The maps of {name} are not available: {error}")
                continue
            yield member


def _member(group, saved_run, on, load) -> Member:
    evals = saved_run.config["evals"]
    if not evals:
        raise ValueError(
            f"{saved_run.directory} has no evaluations because its config.evals is empty; choose a"
            " run that has evaluations."
        )
    if on not in evals:
        raise ValueError(
            f"{saved_run.directory} has no evaluation {on!r}; its evaluations are"
            f" {', '.join(evals)}. Choose one with --on."
        )
    held_out = loaded_run_lib.held_out_evaluation(saved_run, on)
    validation = None if held_out is None else evals[held_out]["split"]
    loaded_run, split = load(saved_run)
    return Member(group, saved_run.config["seed"], loaded_run, split, validation)


def check_same_images(first: Member, other: Member) -> None:
    """Raises a ValueError unless both runs have the same images, chain and classes."""
    if other is first:
        return
    ours, theirs = (loaded_run_lib.split_data(x.run, x.split) for x in (first, other))
    chains = [_chain(x.run, x.split) for x in (first, other)]
    difference = None
    if not np.array_equal(ours.ids, theirs.ids) or not np.array_equal(ours.inputs, theirs.inputs):
        difference = "were evaluated on different images"
    elif chains[0] != chains[1]:
        difference = f"saw them through different chains, {chains[0]!r} and {chains[1]!r}"
    elif first.run.dataset["class_names"] != other.run.dataset["class_names"]:
        difference = "have different classes"
    if difference:
        raise ValueError(
            f"{first.run.directory} and {other.run.directory} {difference}; explain these runs"
            " separately, or choose another evaluation with --on."
        )


def _chain(loaded_run: LoadedRun, split: str) -> str:
    """The chain of operations on the images of a split in evaluation."""
    data = loaded_run.run.config["data"]
    return split_spec.own_chains(data).get(split, data["eval"])
