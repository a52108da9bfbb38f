"""Which examples did the runs of a table choose?

    python -m experiments.sample_prioritization.choices --table=controls

reads epochs.jsonl of the runs and prints, for each row that chooses, means over the epochs after
the first choice, with their standard deviation over seeds: the share of the examples that were also
chosen for the epoch before (overlap), that of the most frequent class, and that of wrong labels
where the true ones are known.
"""

import functools
import math
from typing import Any

import numpy as np

from experiments import derived, study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.runs import loaded_run, prioritization

_STUDY, _PART = "sample_prioritization", "epochs"
_MEASURES = {
    "overlap": "overlap",
    "largest_class": "share of the most frequent class",
    "wrong_labels": "share of wrong labels",
}


def of_run(epochs: list[dict[str, Any]]) -> dict[str, float]:
    """The measures of a run from the lines of epochs.jsonl; empty if no epoch chooses."""
    number = max(epoch["num_examples"] for epoch in epochs)
    chosen = [epoch for epoch in epochs if epoch["num_examples"] < number][1:]
    if not chosen:
        return {}
    values = {
        "overlap": [epoch["overlap"] for epoch in chosen],
        "largest_class": [max(e["class_counts"]) / sum(e["class_counts"]) for e in chosen],
    }
    if chosen[0]["wrong_label_fraction"] is not None:
        values["wrong_labels"] = [epoch["wrong_label_fraction"] for epoch in chosen]
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}


def _read(directory: files.Path) -> dict[str, float]:
    config, lines = loaded_run.read(directory).config, prioritization.lines_of(directory)
    if "prioritization" not in config:
        return {}
    num_epochs = math.ceil(config["training"]["num_epochs"])
    if [line["epoch"] for line in lines] != list(range(num_epochs)):
        raise ValueError(
            f"{directory / prioritization.EPOCHS} lacks epochs, as it was changed or removed; train"
            " the run again."
        )
    return of_run(lines)


@user_errors.one_line()
def main() -> None:
    """Prints what the runs of a table chose."""
    parser = study.argument_parser(main.__doc__, "controls")
    derived.add_flag(parser)
    flags = parser.parse_args()
    directory = files.as_path(flags.out) / _STUDY / flags.table
    jobs = study.jobs(study.table(_STUDY, flags.table), flags.scale, directory)
    saved = derived.Derived(__file__, flags, jobs)
    by_row: dict[str, list[dict[str, float]]] = {}
    for job in jobs:
        if numbers := saved.of(job, _PART, functools.partial(_read, job.directory)):
            by_row.setdefault(job.row, []).append(numbers)
    print("| method | seeds | " + " | ".join(_MEASURES.values()) + " |")
    print("|" + " --- |" * (len(_MEASURES) + 2))
    for row, runs in by_row.items():
        cells = [
            comparison.spread([run[name] for run in runs if name in run], 3) for name in _MEASURES
        ]
        print("| " + " | ".join([row, str(len(runs)), *cells]) + " |")
    saved.finish(flags.save)


if __name__ == "__main__":
    main()
