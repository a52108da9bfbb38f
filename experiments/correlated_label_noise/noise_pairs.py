"""Does the learned covariance know which classes are confused?

python -m experiments.correlated_label_noise.noise_pairs --table=planted_noise reads the runs of
the table that validation chose, and prints for each method, regime and measure, mean and standard
deviation over seeds: how many of the m confused pairs are among the first m and the rank AUC
(where every pair is confused, of the most confused ones, see known_noise.most_confused), and
Spearman's correlation with the shares confused, with the largest p over seeds of a permutation
test. Shares are those among the examples that a run was trained on; with --all_labels, where labels
are stored beside clean ones, among all.
"""

import argparse
import os
from typing import Any

import jax
import numpy as np

from experiments import study
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
    parser = flags_of_table(main.__doc__)
    parser.add_argument(
        "--all_labels", action="store_true", help="of the whole stored training split"
    )
    flags = parser.parse_args()
    (chosen, runs), data_dir = table_of(flags), flags.data_dir
    described = all_labels(runs[0].job.config["data"], data_dir) if flags.all_labels else None
    print(
        "| regime | method | measure | pairs first | rank AUC | rank correlation | largest p |"
        " seeds |"
    )
    print("|" + " --- |" * 8)
    for name, regime in study.tested(chosen).items():
        checkpoint = chosen_checkpoint(runs, regime)
        tuned = study.tuned(runs, regime, chosen.select_metric)
        for row in chosen.rows:
            scores: dict[str, list[dict[str, float]]] = {}
            for (method, _), made in sorted(tuned.items()):
                if method != row.name:
                    continue
                known = confusions(made.job.directory, described)
                run = loaded_run.load(made.job.directory, checkpoint, data_dir)
                for measure, values in summary.measures(run)._asdict().items():
                    if values[~np.eye(len(values), dtype=bool)].any():
                        found = known_noise.agreement(values, known_noise.most_confused(known))
                        found |= known_noise.rank_correlation(values, known)
                        scores.setdefault(measure, []).append(found)
                jax.clear_caches()
            for measure, agreements in scores.items():
                first, auc, rho, p = (
                    [a[n] for a in agreements] for n in ("first", "auc", "rho", "p")
                )
                told = [
                    comparison.spread(v, 2) if np.isfinite(v).all() else "-"
                    for v in (first, auc, rho)
                ]
                cells = [name, row.name, measure, *told, f"{max(p):.2g}", str(len(agreements))]
                print("| " + " | ".join(cells) + " |", flush=True)


def confusions(directory: files.Path, described: dict[str, Any] | None = None) -> np.ndarray:
    """How often the classes of a run were confused, by `described` or its own dataset.json; nothing
    is evaluated.

    Raises:
      SystemExit: no noise is known, or the classes are more than a covariance is told of.
    """
    told = described or loaded_run.read(directory).dataset
    if len(told["class_names"]) > summary.MAX_CLASSES:
        raise SystemExit(
            f"{directory} has {len(told['class_names']):,} classes, but pairs are measured of up to"
            f" {summary.MAX_CLASSES:,} alone."
        )
    known = known_noise.confusion_matrix(told)
    if not known.any():
        raise SystemExit(
            f"{directory}: no training label is known to be wrong; name a table with noise, or"
            " give --all_labels where"
            " labels are stored beside clean ones."
        )
    return known


def all_labels(data: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """What dataset.json says of label noise, of all examples of the stored split "train".

    Raises:
      ValueError: config.data learns from the clean labels.
    """
    if data.get("label", "label") == "label":
        raise ValueError(
            f"{data['name']} is learned from its clean labels, so its noise is none that is stored."
        )
    stored = store.stored(data["name"], data_dir)
    fields = stored.read(Slice("train", 0, stored.sizes["train"])).fields
    noise = dataset.label_noise(fields["label"], fields[data["label"]])
    return {"class_names": stored.class_names, "label_noise": noise}


def told_by_flags(description: str) -> tuple[study.Table, list[study.Made], str | None]:
    """The table that the command names, its runs, and where their data lie."""
    flags = flags_of_table(description).parse_args()
    return *table_of(flags), flags.data_dir


def flags_of_table(description: str) -> argparse.ArgumentParser:
    """What names a table and its runs."""
    parser = user_errors.parser(description)
    parser.add_argument("--table", default="planted_noise")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument(
        "--at", help="one point of the grid, such as 1.0, for all rows in place of tuning"
    )
    parser.add_argument("--out", default="runs")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    return parser


def table_of(flags: argparse.Namespace) -> tuple[study.Table, list[study.Made]]:
    """The table that the flags name, and its runs."""
    chosen = study.table("correlated_label_noise", flags.table)
    runs = study.made(
        chosen, flags.scale, files.as_path(flags.out) / "correlated_label_noise" / flags.table
    )
    return chosen, study.at(chosen, runs, flags.at) if flags.at else runs


def chosen_checkpoint(runs: list[study.Made], regime: study.Regime) -> str:
    """Which checkpoint a regime's reported evaluation reads."""
    config = runs[0].job.config
    return config["evals"][regime.report].get("checkpoint", "last")


if __name__ == "__main__":
    main()
