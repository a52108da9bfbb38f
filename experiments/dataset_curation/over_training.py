"""Calibration of the next word during training, for the tables of figure 6:

    python -m experiments.dataset_curation.over_training --table=figure_6_multi30k

prints the ECE of the test tokens at four shares of the training, as mean and standard deviation
over seeds. It reads metrics.jsonl; values between two checkpoints are interpolated. With --save the
curves are kept in the repository, where pictures.py reads them, too.
"""

import argparse
import functools
from typing import Any

import numpy as np

from experiments import derived, study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.runs import run_record

_STUDY, EVALUATION = "dataset_curation", "test"
_METRICS = ("ece", "nll", "accuracy", "confidence")
_SHARES = (0.25, 0.5, 0.75, 1.0)

Curve = dict[str, list[float]]  # values of "share" of the updates and of each metric


def of_run(lines: list[dict[str, Any]]) -> Curve:
    """The curve of a run from the lines of metrics.jsonl.

    Raises:
      ValueError: the run has not logged the evaluation.
    """
    names = {name: f"evals/{EVALUATION}/{name}" for name in _METRICS}
    logged = [line for line in lines if names["ece"] in line]
    if not logged:
        raise ValueError(
            f"metrics.jsonl has no {names['ece']}; train with"
            f" --config.evals.{EVALUATION}.during=True."
        )
    last = logged[-1]["step"]
    curve = {"share": [line["step"] / last for line in logged]}
    return curve | {name: [line[key] for line in logged] for name, key in names.items()}


def by_row(flags: argparse.Namespace) -> tuple[dict[str, list[Curve]], derived.Derived]:
    """The curves of the runs of each row of a table, or what is saved of them.

    Args:
      flags: table, scale and out, as of `study.argument_parser`.
    """
    directory = files.as_path(flags.out) / _STUDY / flags.table
    jobs = study.jobs(study.table(_STUDY, flags.table), flags.scale, directory)
    saved = derived.Derived(__file__, flags, jobs)
    rows: dict[str, list[Curve]] = {}
    for job in jobs:
        if curve := saved.of(job, EVALUATION, functools.partial(_read, job.directory)):
            rows.setdefault(job.row, []).append(curve)
    return rows, saved


def _read(directory: files.Path) -> Curve:
    return of_run(run_record.metrics(directory))


def at(curve: Curve, metric: str, share: float) -> float:
    """The metric at a share of the training, between its checkpoints by interpolation."""
    return float(np.interp(share, curve["share"], curve[metric]))


@user_errors.one_line()
def main() -> None:
    """Prints the calibration error of the runs of a table during training."""
    parser = study.argument_parser(main.__doc__, "figure_6_multi30k")
    derived.add_flag(parser)
    flags = parser.parse_args()
    rows, saved = by_row(flags)
    shares = (f"{100 * share:.0f} %" for share in _SHARES)
    print("| row | runs | " + " | ".join(f"ECE at {share}" for share in shares) + " |")
    print("|" + " --- |" * (len(_SHARES) + 2))
    for row, curves in rows.items():
        cells = [comparison.spread([at(c, "ece", s) for c in curves], 4) for s in _SHARES]
        print("| " + " | ".join([row, str(len(curves)), *cells]) + " |")
    saved.finish(flags.save)


if __name__ == "__main__":
    main()
