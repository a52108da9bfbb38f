"""Does the learned covariance show which classes are confused?

    python -m experiments.correlated_label_noise.noise_pairs --table=planted_noise

reads the tuned runs of the table and prints for each method, regime and measure the mean and
standard deviation over seeds of three scores: the number of the m confused pairs among the m
largest ones; the rank AUC of the confused pairs (if all pairs are confused, of the most confused
ones, see known_noise.most_confused); and Spearman's correlation with the confusion rates, with the
largest p-value over seeds of a permutation test.

The last columns show what the covariance knows beyond the probabilities: the partial rank
correlation given `overlap`, the mean of p_i p_j, which a softmax without noise has too; the median
p-value over seeds; and the number of seeds whose p-value is below 0.05.

Confusion rates are over the training examples of a run, or with --all_labels over the full training
split, if it stores clean labels too.
"""

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from experiments import derived, statistics, study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.covariance import known_noise, summary
from heteroscedastic.analysis.report import comparison
from heteroscedastic.data import dataset
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import store
from heteroscedastic.runs import loaded_run


@user_errors.one_line()
def main() -> None:
    """Prints the agreement of learned covariances with the planted noise."""
    parser = table_parser(main.__doc__)
    parser.add_argument(
        "--all_labels",
        action="store_true",
        help="confusion rates over the full stored training split",
    )
    derived.add_flag(parser)
    flags = parser.parse_args()
    (chosen, results), data_dir = table_results(flags), flags.data_dir
    saved = derived.Derived(__file__, flags, [result.job for result in results])
    description = functools.cache(
        lambda: all_labels(results[0].job.config["data"], data_dir) if flags.all_labels else None
    )
    print(
        "| regime | method | measure | pairs first | rank AUC | rank correlation | largest p |"
        " seeds | beyond p_i p_j | median p | p < 0.05 |"
    )
    print("|" + " --- |" * 11)
    for name, regime in study.tested_regimes(chosen).items():
        checkpoint = reported_checkpoint(results, regime)
        tuned = study.tuned_results(results, regime, chosen.select_metric)
        for row in chosen.rows:
            scores: dict[str, list[dict[str, float]]] = {}
            for (method, _), result in sorted(tuned.items()):
                if method != row.name:
                    continue
                part = f"{name}, all labels" if flags.all_labels else name
                compute = functools.partial(
                    agreements, result.job.directory, checkpoint, data_dir, description
                )
                of_run = saved.of(result.job, part, compute)
                for measure, agreement in (of_run or {}).items():
                    scores.setdefault(measure, []).append(agreement)
            for measure, by_seed in scores.items():
                first, auc, rho, p = ([a[n] for a in by_seed] for n in ("first", "auc", "rho", "p"))
                spreads = [
                    comparison.spread(v, 2) if np.isfinite(v).all() else "-"
                    for v in (first, auc, rho)
                ]
                largest = f"{max(p):.2g}" if np.isfinite(p).all() else "-"
                cells = [name, row.name, measure, *spreads, largest, str(len(by_seed))]
                cells += beyond_cells(by_seed)
                print("| " + " | ".join(cells) + " |", flush=True)
    saved.finish(flags.save)


def agreements(
    directory: files.Path,
    checkpoint: str,
    data_dir: str | None,
    description: Callable[[], dict[str, Any] | None],
) -> dict[str, dict[str, float]]:
    """The agreement of each measure of a run with confusion rates; of those that are not zero."""
    known = confusions(directory, description())
    measures = summary.measures(loaded_run.load(directory, checkpoint, data_dir))
    found = {}
    for name, values in measures._asdict().items():
        if values[~np.eye(len(values), dtype=bool)].any():
            agreement = known_noise.agreement(values, known_noise.most_confused(known))
            agreement |= known_noise.rank_correlation(values, known)
            agreement |= beyond_probabilities(values, known, measures.overlap)
            found[name] = agreement
    jax.clear_caches()
    return found


def beyond_probabilities(
    measure: Float[np.ndarray, "k k"],
    confusion: Float[np.ndarray, "k k"],
    overlap: Float[np.ndarray, "k k"],
) -> dict[str, float]:
    """The partial rank correlation with confusions given the overlap of the probabilities.

    Returns:
      `partial` and `partial_p`; nan for the overlap itself.
    """
    found = known_noise.rank_correlation(measure, confusion, given=overlap)
    return {"partial": found["rho"], "partial_p": found["p"]}


def beyond_cells(agreements: list[dict[str, float]]) -> list[str]:
    """Mean and deviation over seeds, the median p-value, and how many are significant.

    Seeds whose measure does not vary beyond the overlap are left out.
    """
    varying = [a for a in agreements if np.isfinite(a["partial"])]
    if not varying:
        return ["-"] * 3
    partial, p = ([a[name] for a in varying] for name in ("partial", "partial_p"))
    small = sum(x < statistics.LEVEL for x in p)
    return [comparison.spread(partial, 2), f"{np.median(p):.2g}", f"{small} of {len(p)}"]


def confusions(
    directory: files.Path, description: dict[str, Any] | None = None
) -> Float[np.ndarray, "k k"]:
    """Confusion rates of the classes of a run; evaluates no model.

    Args:
      directory: of the run.
      description: replaces the run's dataset.json.

    Raises:
      SystemExit: no label noise is known, or there are more than summary.MAX_CLASSES classes.
    """
    dataset_record = description or loaded_run.read(directory).dataset
    if len(dataset_record["class_names"]) > summary.MAX_CLASSES:
        raise SystemExit(
            f"{directory} has {len(dataset_record['class_names']):,} classes, but pairs are"
            f" measured for at most {summary.MAX_CLASSES:,}."
        )
    known = known_noise.confusion_matrix(dataset_record)
    if not known.any():
        raise SystemExit(
            f"{directory}: no training label is known to be wrong; choose a table with noise, or"
            " give --all_labels if the data set stores clean labels too."
        )
    return known


def all_labels(data: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """The label-noise entries of dataset.json for all examples of the stored split "train".

    Raises:
      ValueError: config.data trains on the clean labels.
    """
    if data.get("label", "label") == "label":
        raise ValueError(
            f"--all_labels: config.data trains on the clean labels of {data['name']}; set"
            " config.data.label to a field of noisy labels."
        )
    stored = store.stored_dataset(data["name"], data_dir)
    fields = stored.read(Slice("train", 0, stored.sizes["train"])).fields
    noise = dataset.label_noise(fields["label"], fields[data["label"]])
    return {"class_names": stored.class_names, "label_noise": noise}


def table_parser(description: str) -> argparse.ArgumentParser:
    """A parser of the flags that name a table and its runs."""
    parser = study.argument_parser(description, "planted_noise")
    parser.add_argument(
        "--at", help="one grid point, such as 1.0, used for all rows instead of tuning"
    )
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    return parser


def table_results(flags: argparse.Namespace) -> tuple[study.Table, list[study.JobResult]]:
    """The table that the flags name, and its results."""
    chosen = study.table("correlated_label_noise", flags.table)
    saved = study.shared_results("correlated_label_noise", chosen, flags.scale)
    saved |= study.saved_results("correlated_label_noise", flags.table, flags.scale)
    out = files.as_path(flags.out) / "correlated_label_noise" / flags.table
    results = study.job_results(chosen, flags.scale, out, saved)
    return chosen, study.results_at(chosen, results, flags.at) if flags.at else results


def reported_checkpoint(results: list[study.JobResult], regime: study.Regime) -> str:
    """The checkpoint that the reported evaluation of a regime reads."""
    config = results[0].job.config
    return config["evals"][regime.report].get("checkpoint", "last")


if __name__ == "__main__":
    main()
