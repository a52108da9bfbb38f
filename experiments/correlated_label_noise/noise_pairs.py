"""Does the learned covariance rank the confused pairs of classes first?

python -m experiments.correlated_label_noise.noise_pairs --scale=cpu reads the runs of the
table planted_noise that validation chose, and prints for each method, regime and measure how
many of the three planted pairs are among the first three of 45, and the rank AUC, mean and
standard deviation over seeds.
"""

import argparse
import os
from pathlib import Path

import jax
import numpy as np

from experiments import study, table
from heteroscedastic.analysis import covariance, finished


def main() -> None:
    """Prints the agreement of learned covariances with the planted noise."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--table", default="planted_noise")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    chosen = study.table("correlated_label_noise", flags.table)
    out = Path(flags.out) / "correlated_label_noise" / flags.table
    runs = study.made(chosen, flags.scale, out)
    print("| regime | method | measure | pairs in first 3 | rank AUC | seeds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, regime in study.tested(chosen).items():
        checkpoint = chosen_checkpoint(runs, regime)
        tuned = study.tuned(runs, regime, chosen.select_metric)
        for row in chosen.rows:
            scores: dict[str, list[dict[str, float]]] = {}
            for (method, _), made in sorted(tuned.items()):
                if method != row.name:
                    continue
                run = finished.load(made.job.directory, checkpoint, flags.data_dir)
                planted = covariance.noise_pairs(run.dataset)
                for measure, values in covariance.measures(run)._asdict().items():
                    if values[~np.eye(len(values), dtype=bool)].any():
                        scores.setdefault(measure, []).append(covariance.agreement(values, planted))
                jax.clear_caches()
            for measure, agreements in scores.items():
                told = [table.spread(v, 2) for v in _columns(agreements)]
                print(f"| {name} | {row.name} | {measure} | {' | '.join(told)} | {len(agreements)} |", flush=True)


def chosen_checkpoint(runs: list[study.Made], regime: study.Regime) -> str:
    """Which checkpoint a regime's reported evaluation reads."""
    config = runs[0].job.config
    return config["evals"][regime.report].get("checkpoint", "last")


def _columns(agreements):
    return [[a[name] for a in agreements] for name in ("first", "auc")]


if __name__ == "__main__":
    main()
