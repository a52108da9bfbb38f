"""Evaluates finished runs as one deep ensemble:
python -m heteroscedastic.analysis.uncertainty.ensemble --runs DIR DIR DIR DIR --on=test

The probability of an ensemble is the mean of its members' probabilities (Lakshminarayanan et al.
2017, arXiv:1612.01474; section 4.3 of Collier et al. 2021, arXiv:2105.10305). The probability of a
member is itself a mean over samples of its latent, so the ensemble averages over members and
samples.

Temperature scaling uses one temperature for the mean, fitted to the ensemble's predictions of
held-out examples. Scaling each member instead makes the mean underconfident again (Rahaman and
Thiery 2021, arXiv:2007.08792).
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
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs import provenance, schema
from heteroscedastic.runs.loaded_run import SavedRun
from heteroscedastic.runs.predictions import Predictions

_METRICS = {
    "softmax": ("accuracy", "top5_accuracy", "nll", "brier", "ece"),
    "sigmoid": ("top1_hit", "nll", "brier", "gap", "one_against_all_ece"),
}
_SCALED_METRICS = {  # reported after temperature scaling as well
    "softmax": ("nll", "ece"),
    "sigmoid": ("nll", "one_against_all_ece"),
}


class Members(NamedTuple):
    """The runs of an ensemble, sorted by directory, so that their order does not matter."""

    runs: tuple[SavedRun, ...]
    predictions: tuple[Predictions, ...]
    # The evaluation on which temperatures are fitted, with its predictions; None unless all
    # members predicted the same examples in it.
    fit: str | None
    fit_predictions: tuple[Predictions, ...] | None


class SizeResult(NamedTuple):
    """Metrics of ensembles of one size, over subsets of the members."""

    num_members: int
    num_subsets: int  # that were evaluated
    every_subset: bool  # False if the subsets are a random draw
    mean: dict[str, float]  # of each metric over the subsets
    # Standard deviation over the subsets, nan for one subset. Subsets share members, so it is not
    # a standard error of the mean.
    std: dict[str, float]


def members(
    directories: Sequence[str | files.Path], evaluation: str = "test", fit: str | None = None
) -> Members:
    """Reads the runs in these directories and checks that they predicted the same examples.

    Args:
      directories: of finished runs, of one config or of several.
      evaluation: the evaluation to report.
      fit: evaluation on which a temperature is fitted; by default that of the validation split
        with the same checkpoint.

    Raises:
      FileNotFoundError, ValueError: a run is not complete, is given twice or repeats another one;
        the runs were evaluated on other examples, labels or classes, or on lists of correct labels
        under a softmax.
    """
    saved_runs = [run for group in comparison.groups(directories) for run in group.runs]
    runs = tuple(sorted(saved_runs, key=lambda run: str(run.directory)))
    run_set = comparison.load([Group("ensemble", runs)], evaluation, fit)
    predictions = tuple(run_set.predictions[0])
    for run, predicted in zip(runs, predictions):
        if predicted.link == "sigmoid" and schema.task(run.config).link == "softmax":
            raise ValueError(
                f"{run.directory} has one label per example, but {evaluation!r} has lists of"
                " correct labels (ReaL), which ensembles do not support; choose another"
                " evaluation."
            )
    if run_set.fit_predictions is None or not _same_examples(run_set.fit_predictions[0]):
        return Members(runs, predictions, None, None)
    return Members(runs, predictions, run_set.fit, tuple(run_set.fit_predictions[0]))


def _same_examples(predictions: Sequence[Predictions]) -> bool:
    first = predictions[0]
    return all(
        np.array_equal(p.ids, first.ids) and np.array_equal(p.labels, first.labels)
        for p in predictions[1:]
    )


def num_training_sets(members: Members) -> int:
    """The number of different sets of training examples and labels among the members."""
    return len({json.dumps(provenance.data_key(run.dataset)) for run in members.runs})


def metrics(
    predictions: Sequence[Predictions], fit_predictions: Sequence[Predictions] | None = None
) -> dict[str, float]:
    """The metrics of one ensemble, computed as in calibration.py.

    They equal those of results.json up to rounding, except that `gap` is exact.

    Args:
      predictions: of the members.
      fit_predictions: of the same members for the examples on which a temperature is fitted. If
        given, "scaled_" and a name is the metric after temperature scaling.

    Raises:
      ValueError: logits are missing, as above 2,000 classes.
    """
    logits, labels, link = _ensemble_arrays(predictions)
    measures = calibration.measures(logits, labels, link)
    result = {name: measures[name] for name in _METRICS[link]}
    if fit_predictions is not None:
        temperature = calibration.fit_temperature(*_ensemble_arrays(fit_predictions))
        scaled = calibration.measures(logits.astype(np.float64) / temperature, labels, link)
        result |= {f"scaled_{name}": scaled[name] for name in _SCALED_METRICS[link]}
    return result


def _ensemble_arrays(predictions: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray, Link]:
    mean = predictions[0] if len(predictions) == 1 else entropy.ensemble_mean(predictions)
    return predictions_lib.all_logits(mean, "an ensemble"), mean.labels, mean.link


def size_results(
    predictions: Sequence[Predictions],
    max_subsets: int = 64,
    seed: int = 0,
    fit_predictions: Sequence[Predictions] | None = None,
) -> list[SizeResult]:
    """Evaluates ensembles of 1 to all members.

    Args:
      predictions: of the members, for the same examples.
      max_subsets: subsets to evaluate for each size; drawn at random if there are more.
      seed: of the draw.
      fit_predictions: of the same members; see `metrics`.
    """
    return [
        size_result(predictions, number, max_subsets, seed, fit_predictions)
        for number in range(1, len(predictions) + 1)
    ]


def size_result(
    predictions: Sequence[Predictions],
    number: int,
    max_subsets: int = 64,
    seed: int = 0,
    fit_predictions: Sequence[Predictions] | None = None,
) -> SizeResult:
    """Evaluates ensembles of `number` members; see `size_results`."""
    subsets = _subsets(len(predictions), number, max_subsets, seed)
    results = [
        metrics([predictions[i] for i in s], fit_predictions and [fit_predictions[i] for i in s])
        for s in subsets
    ]
    columns = {name: [values[name] for values in results] for name in results[0]}
    return SizeResult(
        num_members=number,
        num_subsets=len(subsets),
        every_subset=len(subsets) == math.comb(len(predictions), number),
        mean={name: float(np.mean(values)) for name, values in columns.items()},
        std={n: float(np.std(v, ddof=1)) if len(v) > 1 else math.nan for n, v in columns.items()},
    )


def temperature_note(fit: str | None) -> str:
    """A sentence about the evaluation on which temperatures are fitted."""
    if fit is None:
        return (
            "There are no results after temperature scaling, because the runs have no predictions"
            " of the same held-out examples."
        )
    return f"Temperatures are fitted on {fit}."


def formatted_metric(result: SizeResult, metric: str) -> str:
    """The mean of a metric over subsets, with its standard deviation if there are several."""
    mean = f"{result.mean[metric]:.4f}"
    return f"{mean} ± {result.std[metric]:.4f}" if result.num_subsets > 1 else mean


def _subsets(total: int, number: int, max_subsets: int, seed: int) -> list[tuple[int, ...]]:
    """All subsets of one size, or `max_subsets` different random ones if there are more."""
    if not 1 <= number <= total:
        raise ValueError(f"an ensemble of {number} members requires more than {total} runs.")
    if max_subsets < 1:
        raise ValueError(f"max_subsets is {max_subsets}, but must be >= 1.")
    if math.comb(total, number) <= max_subsets:
        return list(itertools.combinations(range(total), number))
    draws, subsets = np.random.Generator(np.random.Philox(key=[seed, number])), set()
    while len(subsets) < max_subsets:
        subsets.add(tuple(sorted(draws.choice(total, number, replace=False).tolist())))
    return sorted(subsets)


@user_errors.one_line()
def main() -> None:
    """Evaluates finished runs as one ensemble, by the number of its members."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--runs", nargs="+", required=True, metavar="DIR", help="directories of finished runs"
    )
    parser.add_argument("--on", default="test", help="evaluation to report, such as test_best")
    parser.add_argument(
        "--fit",
        help="evaluation on which a temperature is fitted; default: that of the validation split"
        " with the same checkpoint",
    )
    parser.add_argument(
        "--max_subsets",
        type=int,
        default=64,
        help="subsets evaluated for each size; drawn at random if there are more",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of that draw")
    parser.add_argument("--out", help="output directory of the results as JSON and CSV")
    flags = parser.parse_args()
    check_seed("--seed", flags.seed)
    ensemble = members(flags.runs, flags.on, flags.fit)
    results = size_results(
        ensemble.predictions, flags.max_subsets, flags.seed, ensemble.fit_predictions
    )
    widths = {name: max(20, len(name) + 2) for name in results[0].mean}
    training_sets = num_training_sets(ensemble)
    num_examples = len(ensemble.predictions[0].ids)
    print(f"{len(ensemble.runs)} runs on {flags.on}, {num_examples:,} examples.")
    if training_sets > 1:
        print(
            f"The runs were trained on {training_sets} different sets of examples or labels (the"
            " held-out examples and planted noise depend on the seed), so part of the ensemble's"
            " gain may come from this difference."
        )
    print(temperature_note(ensemble.fit))
    print(
        f"{'members':>7}{'subsets':>9}"
        + "".join(f"{name:>{width}}" for name, width in widths.items())
    )
    for result in results:
        number = f"{result.num_subsets}{'' if result.every_subset else '*'}"
        cells = "".join(f"{formatted_metric(result, n):>{width}}" for n, width in widths.items())
        print(f"{result.num_members:>7}{number:>9}{cells}")
    if not all(result.every_subset for result in results):
        print(f"* drawn at random with seed {flags.seed}; the other rows use all subsets.")
    if flags.out:
        _write(files.as_path(flags.out), flags.on, flags.seed, ensemble, results)


def _write(
    out: files.Path, evaluation: str, seed: int, ensemble: Members, results: list[SizeResult]
) -> None:
    content: dict[str, Any] = {
        "on": evaluation,
        "fit": ensemble.fit,
        "members": [str(run.directory) for run in ensemble.runs],
        "num_training_sets": num_training_sets(ensemble),
        "seed_of_subsets": seed,
        "by_size": results,
    }
    path = out / f"ensemble_{evaluation}"
    files.write_json(path.with_name(path.name + ".json"), content)
    rows = [
        {"members": r.num_members, "subsets": r.num_subsets, "every_subset": r.every_subset}
        | {name: r.mean[name] for name in r.mean}
        | {f"{name}_std": r.std[name] for name in r.std}
        for r in results
    ]
    files.write_csv(path.with_name(path.name + ".csv"), rows)
    print(f"wrote {path}.json, .csv")


if __name__ == "__main__":
    main()
