"""Does noise in the model help to find the labels that are wrong, and by which score?

python -m experiments.correlated_label_noise.label_errors --table=planted_noise reads the runs of the
table that validation chose, and prints for each method, regime and score of the training labels
(analysis/label_errors.py), mean and standard deviation over seeds: average precision, and the
precision among as many labels as are wrong. Differences of average precision are paired by seed, ±
half their 95 % interval: from the same runs ranked by `margin`, and from the reference row ranked
by it. A second table tells what was memorised: the shares of right and of wrong labels that are
predicted as they stand, in training and in validation, where none can be memorised.
"""

import jax

from experiments import study
from experiments.correlated_label_noise.noise_pairs import chosen_checkpoint, told_by_flags
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
    "- {}",
    "precision at errors",
)
_MEMORISED = (
    "regime",
    "method",
    "right, training",
    "wrong, training",
    "right, validation",
    "wrong, validation",
)
_USUAL = "margin"  # the better of the usual scores for a plain softmax under planted noise


@user_errors.one_line()
def main() -> None:
    """Prints how well known label errors are found."""
    chosen, runs, data_dir = told_by_flags(main.__doc__)
    print("| " + " | ".join(_COLUMNS).format(chosen.reference) + " |")
    print("|" + " --- |" * len(_COLUMNS))
    memorised = []
    for regime_name, regime in study.tested(chosen).items():
        checkpoint, reference = chosen_checkpoint(runs, regime), {}
        tuned = study.tuned(runs, regime, chosen.select_metric)
        rows = sorted((row.name for row in chosen.rows), key=lambda name: name != chosen.reference)
        for row in rows:
            found, held_out = {}, {}
            for (method, seed), made in sorted(tuned.items()):
                if method == row:
                    _check_known(made.job.directory)
                    run = loaded_run.load(made.job.directory, checkpoint, data_dir)
                    found[seed] = label_errors.summary(label_errors.label_scores(run))
                    held_out[seed] = label_errors.summary(label_errors.label_scores(run, "valid"))
                    jax.clear_caches()
            if row == chosen.reference:
                reference = found
            for line in _lines(found, reference):
                print("| " + " | ".join([regime_name, row, *line]) + " |", flush=True)
            memorised.append([regime_name, row, *_predicted(found), *_predicted(held_out)])
    print()
    for line in (_MEMORISED, ["---"] * len(_MEMORISED), *memorised):
        print("| " + " | ".join(line) + " |")


def _check_known(directory: files.Path) -> None:
    if not known_noise.noise_rate(
        loaded_run.read(directory).dataset
    ):  # before anything is evaluated
        raise SystemExit(
            f"{directory}: no training label is known to be wrong; name a table with noise."
        )


def _predicted(told: dict[int, dict]) -> list[str]:
    """Of the right and the wrong labels, how many are predicted as they stand, over the seeds that
    have some.
    """
    shares = [facts["given_predicted"] for facts in told.values() if "given_predicted" in facts]
    return [comparison.spread([share[of] for share in shares]) for of in ("right", "wrong")]


def _lines(found: dict[int, dict], reference: dict[int, dict]) -> list[list[str]]:
    """Of each score, by seed, the cells after the method."""

    def values(of, score, measure="average_precision"):
        return {seed: of[seed]["scores"][score][measure] for seed in seeds}

    def difference(score, of):
        same = score == _USUAL and of is found
        return "" if same else comparison.difference(values(found, score), values(of, _USUAL))

    seeds = sorted(set(found) & set(reference))
    return [
        [
            score,
            comparison.spread(list(values(found, score).values())),
            difference(score, found),
            "" if found is reference else difference(score, reference),
            comparison.spread(list(values(found, score, "precision_at_errors").values())),
        ]
        for score in (found[seeds[0]]["scores"] if seeds else ())
    ]


if __name__ == "__main__":
    main()
