"""Does a model of label noise help to find wrong labels, and which score is best?

    python -m experiments.correlated_label_noise.label_errors --table=planted_noise

reads the tuned runs of the table and prints for each method, regime and score of the training
labels (analysis/errors/label_errors.py) the mean and standard deviation over seeds of the average
precision, and of the precision among the top n labels, where n is the number of wrong labels.
Differences of average precision are paired by seed, ± half their 95 % interval, from three
baselines: the same runs ranked by `margin`, and the reference row ranked by `margin` and by the
same score. A second table shows memorisation: the fractions of right and of wrong labels that the
model predicts, in training and in validation, whose labels it cannot memorise.
"""

import functools

import jax

from experiments import derived, statistics, study
from experiments.correlated_label_noise.noise_pairs import (
    reported_checkpoint,
    table_parser,
    table_results,
)
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.errors import label_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.runs import loaded_run

_COLUMNS = (
    "regime",
    "method",
    "score",
    "average precision",
    "- own margin",
    "- margin of reference",
    "- reference",
    "precision at errors",
)
_MEMORISATION_COLUMNS = (
    "regime",
    "method",
    "right, training",
    "wrong, training",
    "right, validation",
    "wrong, validation",
)
_BASELINE = "margin"  # the better of the common scores for a plain softmax under planted noise


@user_errors.one_line()
def main() -> None:
    """Prints how well the scores find known label errors."""
    parser = table_parser(main.__doc__)
    derived.add_flag(parser)
    flags = parser.parse_args()
    (chosen, results), data_dir = table_results(flags), flags.data_dir
    saved = derived.Derived(__file__, flags, [result.job for result in results])
    print("| " + " | ".join(_COLUMNS) + " |")
    print("|" + " --- |" * len(_COLUMNS))
    memorisation, differences = [], statistics.Differences()
    for regime_name, regime in study.tested_regimes(chosen).items():
        checkpoint, reference = reported_checkpoint(results, regime), {}
        tuned = study.tuned_results(results, regime, chosen.select_metric)
        rows = sorted((row.name for row in chosen.rows), key=lambda name: name != chosen.reference)
        for row in rows:
            train, valid = {}, {}  # summaries by seed
            for (method, seed), result in sorted(tuned.items()):
                if method == row:
                    compute = functools.partial(
                        summaries, result.job.directory, checkpoint, data_dir
                    )
                    if of_run := saved.of(result.job, regime_name, compute):
                        train[seed], valid[seed] = of_run["train"], of_run["valid"]
            if row == chosen.reference:
                reference = train
            for line in _lines(train, reference, differences):
                print("| " + " | ".join([regime_name, row, *line]) + " |", flush=True)
            memorisation.append(
                [regime_name, row, *_predicted_fractions(train), *_predicted_fractions(valid)]
            )
    print("\n".join(["", *differences.detectable(), ""]))
    for line in (_MEMORISATION_COLUMNS, ["---"] * len(_MEMORISATION_COLUMNS), *memorisation):
        print("| " + " | ".join(line) + " |")
    saved.finish(flags.save)


def summaries(directory: files.Path, checkpoint: str, data_dir: str | None) -> dict[str, dict]:
    """The summaries of the scores of a run's labels, in training and in validation."""
    _check_noise_is_known(directory)
    run = loaded_run.load(directory, checkpoint, data_dir)
    found = {
        split: label_errors.summary(label_errors.label_scores(run, split))
        for split in ("train", "valid")
    }
    jax.clear_caches()
    return found


def _check_noise_is_known(directory: files.Path) -> None:
    if not known_noise.noise_rate(
        loaded_run.read(directory).dataset
    ):  # before anything is evaluated
        raise SystemExit(
            f"{directory}: no training label is known to be wrong; choose a table with noise."
        )


def _predicted_fractions(summaries: dict[int, dict]) -> list[str]:
    """Fractions of the right and of the wrong labels that the model predicts, over seeds."""
    fractions = [s["given_predicted"] for s in summaries.values() if "given_predicted" in s]
    return [comparison.spread([f[kind] for f in fractions]) for kind in ("right", "wrong")]


def _lines(
    summaries: dict[int, dict], reference: dict[int, dict], differences: statistics.Differences
) -> list[list[str]]:
    """The cells after the method, one line per score."""

    def values(by_seed, score, measure="average_precision"):
        return {seed: by_seed[seed]["scores"][score][measure] for seed in seeds}

    def difference(column, score, baseline, baseline_score=_BASELINE):
        if score == baseline_score and baseline is summaries:
            return ""
        return differences.cell(column, values(summaries, score), values(baseline, baseline_score))

    seeds = sorted(set(summaries) & set(reference))
    return [
        [
            score,
            comparison.spread(list(values(summaries, score).values())),
            difference("- own margin", score, summaries),
            "" if summaries is reference else difference("- margin of reference", score, reference),
            difference("- reference", score, reference, score),
            comparison.spread(list(values(summaries, score, "precision_at_errors").values())),
        ]
        for score in (summaries[seeds[0]]["scores"] if seeds else ())
        # A score of an optional library may be of some runs alone.
        if all(score in x[seed]["scores"] for x in (summaries, reference) for seed in seeds)
    ]


if __name__ == "__main__":
    main()
