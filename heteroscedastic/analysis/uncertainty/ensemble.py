"""Finished runs as one deep ensemble: python -m heteroscedastic.analysis.uncertainty.ensemble
--runs DIR DIR DIR DIR --on=test

The probability of an ensemble is the mean of its members' (Lakshminarayanan et al. 2017,
arXiv:1612.01474; section 4.3 of Collier et al. 2021, arXiv:2105.10305). That of a member is the
mean over the samples of its latent already, so together it is the mean over members and samples.

Temperature scaling is of the mean: one temperature for the ensemble, fitted on what it predicts
together on held-out examples. Members that are scaled one by one would make a mean that is again
less sure than it is right (Rahaman and Thiery 2021, arXiv:2007.08792).
"""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.report.comparison import Group
from heteroscedastic.analysis.uncertainty import calibration, entropy
from heteroscedastic.bind import check_seed
from heteroscedastic.links import Link
from heteroscedastic.runs import predictions, provenance, schema
from heteroscedastic.runs.loaded_run import Told
from heteroscedastic.runs.predictions import Predictions

_METRICS = {
    "softmax": ("accuracy", "top5_accuracy", "nll", "brier", "ece"),
    "sigmoid": ("top1_hit", "nll", "brier", "gap", "one_against_all_ece"),
}
_SCALED = {
    "softmax": ("nll", "ece"),
    "sigmoid": ("nll", "one_against_all_ece"),
}  # told after temperature scaling too


class Members(NamedTuple):
    """Runs that may be one ensemble, by the name of their directories, so that their order changes
    nothing.
    """

    runs: tuple[Told, ...]
    told: tuple[Predictions, ...]
    fit: (
        str | None
        # the evaluation that temperatures are fitted on, None where not all predicted the same
        # examples
    )
    held_out: tuple[Predictions, ...] | None  # its predictions


class Size(NamedTuple):
    """Ensembles of so many of the members."""

    num_members: int
    num_subsets: int  # that were evaluated
    every_subset: bool  # whether these are all there are, or drawn
    mean: dict[str, float]  # of each metric over the subsets
    std: dict[
        str, float
    ]  # and its deviation, nan of one; subsets share members, so this is no error of the mean


def members(
    directories: Sequence[str | files.Path], on: str = "test", fit: str | None = None
) -> Members:
    """The runs in these directories, once it is sure that they predicted the same examples.

    Args:
      directories: of finished runs, of one config or of several.
      on: the evaluation.
      fit: the one that a temperature is fitted on; the held-out one of the same weights unless
        given.

    Raises:
      FileNotFoundError, ValueError: a run is not finished, or given twice, or is the repetition of
        another; they were evaluated on other examples, labels or classes, or on lists of right
        labels under a softmax.
    """
    found = [run for group in comparison.groups(directories) for run in group.runs]
    runs = tuple(sorted(found, key=lambda run: str(run.directory)))
    compared = comparison.compare([Group("ensemble", runs)], on, fit)
    told = tuple(compared.told[0])
    for run, predicted in zip(runs, told):
        if predicted.link == "sigmoid" and schema.task(run.config).link == "softmax":
            raise ValueError(
                f"{run.directory} has one label an example, but {on!r} lists of right ones (ReaL);"
                " ensembles are not"
                " evaluated on such lists, so name another evaluation."
            )
    if compared.fitted_on is None or not _same_examples(compared.fitted_on[0]):
        return Members(runs, told, None, None)
    return Members(runs, told, compared.fit, tuple(compared.fitted_on[0]))


def _same_examples(told: Sequence[Predictions]) -> bool:
    first = told[0]
    return all(
        np.array_equal(p.ids, first.ids) and np.array_equal(p.labels, first.labels)
        for p in told[1:]
    )


def num_training_sets(found: Members) -> int:
    """How many sets of training examples and labels the members saw; one, if they differ by their
    start alone.
    """
    return len({json.dumps(provenance.data_key(run.dataset)) for run in found.runs})


def metrics(
    chosen: Sequence[Predictions], held_out: Sequence[Predictions] | None = None
) -> dict[str, float]:
    """Of one ensemble, as analysis/calibration.py tells them of a run: results.json's to rounding,
    and an exact gap.

    Args:
      chosen: what its members predict.
      held_out: what the same members predict of the examples that a temperature is fitted on; then
        "scaled_" and a name is the metric at that temperature.

    Raises:
      ValueError: not every logit is there, as above 2,000 classes.
    """
    logits, labels, link = _together(chosen)
    found = calibration.measures(logits, labels, link)
    told = {name: found[name] for name in _METRICS[link]}
    if held_out is not None:
        scaled = calibration.measures(
            logits.astype(np.float64) / calibration.fitted(*_together(held_out)), labels, link
        )
        told |= {f"scaled_{name}": scaled[name] for name in _SCALED[link]}
    return told


def _together(chosen: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray, Link]:
    together = chosen[0] if len(chosen) == 1 else entropy.mean_of_members(chosen)
    return predictions.every_logit(together, "an ensemble"), together.labels, together.link


def by_size(
    told: Sequence[Predictions],
    max_subsets: int = 64,
    seed: int = 0,
    held_out: Sequence[Predictions] | None = None,
) -> list[Size]:
    """Ensembles of 1 to all members.

    Args:
      told: what the members predict, of the same examples.
      max_subsets: that are evaluated of any one size; where there are more, so many are drawn.
      seed: of the draw.
      held_out: of the same members, see `metrics`.
    """
    return [
        of_size(told, number, max_subsets, seed, held_out) for number in range(1, len(told) + 1)
    ]


def of_size(
    told: Sequence[Predictions],
    number: int,
    max_subsets: int = 64,
    seed: int = 0,
    held_out: Sequence[Predictions] | None = None,
) -> Size:
    """Ensembles of `number` members, see `by_size`."""
    subsets = _subsets(len(told), number, max_subsets, seed)
    found = [metrics([told[i] for i in s], held_out and [held_out[i] for i in s]) for s in subsets]
    columns = {name: [values[name] for values in found] for name in found[0]}
    return Size(
        num_members=number,
        num_subsets=len(subsets),
        every_subset=len(subsets) == math.comb(len(told), number),
        mean={name: float(np.mean(values)) for name, values in columns.items()},
        std={n: float(np.std(v, ddof=1)) if len(v) > 1 else math.nan for n, v in columns.items()},
    )


def temperatures(fit: str | None) -> str:
    """What temperatures were fitted on, in words."""
    if fit is None:
        return "Not told after temperature scaling: the runs predicted no held-out examples that are the same for all."
    return f"Temperatures are fitted on {fit}."


def shown_as(size: Size, metric: str) -> str:
    """The mean of a metric over subsets, and its deviation where there are several."""
    return f"{size.mean[metric]:.4f}" + (
        f" ± {size.std[metric]:.4f}" if size.num_subsets > 1 else ""
    )


def _subsets(total: int, number: int, most: int, seed: int) -> list[tuple[int, ...]]:
    """All subsets of this size where there are no more than `most`, or `most` different ones by the
    seed.
    """
    if not 1 <= number <= total:
        raise ValueError(f"an ensemble of {number} cannot be made of {total} runs.")
    if most < 1:
        raise ValueError(f"max_subsets is {most}, but must be >= 1.")
    if math.comb(total, number) <= most:
        return list(itertools.combinations(range(total), number))
    draws, found = np.random.Generator(np.random.Philox(key=[seed, number])), set()
    while len(found) < most:
        found.add(tuple(sorted(draws.choice(total, number, replace=False).tolist())))
    return sorted(found)


@user_errors.one_line()
def main() -> None:
    """Evaluates finished runs as one ensemble, by the number of its members."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--runs", nargs="+", required=True, metavar="DIR", help="directories of finished runs"
    )
    parser.add_argument("--on", default="test", help="evaluation that is told, such as test_best")
    parser.add_argument(
        "--fit",
        help="evaluation to fit a temperature on; the held-out one of the same weights if not given",
    )
    parser.add_argument(
        "--max_subsets", type=int, default=64, help="ensembles of one size, drawn if there are more"
    )
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    parser.add_argument(
        "--out", help="directory for the numbers as JSON and CSV; printed alone if not given"
    )
    flags = parser.parse_args()
    check_seed("--seed", flags.seed)
    found = members(flags.runs, flags.on, flags.fit)
    sizes = by_size(found.told, flags.max_subsets, flags.seed, found.held_out)
    widths, sets = (
        {name: max(20, len(name) + 2) for name in sizes[0].mean},
        num_training_sets(found),
    )
    print(f"{len(found.runs)} runs on {flags.on}, {len(found.told[0].ids):,} examples.")
    if sets > 1:
        print(
            f"They were trained on {sets} different sets of examples or labels (what is held out,"
            " and noise that is"
            " planted, follow from the seed), so part of what the ensemble gains may be from that."
        )
    print(temperatures(found.fit))
    print(
        f"{'members':>7}{'subsets':>9}"
        + "".join(f"{name:>{width}}" for name, width in widths.items())
    )
    for size in sizes:
        number = f"{size.num_subsets}{'' if size.every_subset else '*'}"
        cells = "".join(f"{shown_as(size, name):>{width}}" for name, width in widths.items())
        print(f"{size.num_members:>7}{number:>9}{cells}")
    if not all(size.every_subset for size in sizes):
        print(f"* drawn by seed {flags.seed}; elsewhere all subsets.")
    if flags.out:
        _write(files.as_path(flags.out), flags.on, flags.seed, found, sizes)


def _write(out: files.Path, on: str, seed: int, found: Members, sizes: list[Size]) -> None:
    told: dict[str, Any] = {
        "on": on,
        "fit": found.fit,
        "members": [str(run.directory) for run in found.runs],
        "num_training_sets": num_training_sets(found),
        "seed_of_subsets": seed,
        "by_size": sizes,
    }
    path = out / f"ensemble_{on}"
    files.write_json(path.with_name(path.name + ".json"), told)
    rows = [
        {"members": s.num_members, "subsets": s.num_subsets, "every_subset": s.every_subset}
        | {name: s.mean[name] for name in s.mean}
        | {f"{name}_std": s.std[name] for name in s.std}
        for s in sizes
    ]
    files.write_csv(path.with_name(path.name + ".csv"), rows)
    print(f"wrote {path}.json, .csv")


if __name__ == "__main__":
    main()
