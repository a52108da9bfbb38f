"""Decomposition of the NLL on clean labels for models trained with pairs of confused classes.

    python -m experiments.correlated_label_noise.clean_nll --scale=cpu

reads the predictions of the tuned runs of the table planted_noise. For a class c confused with c',
-log p_c = -log(p_c + p_c') - log(p_c / (p_c + p_c')): the first term is the loss of finding the
pair, the second the loss of choosing within it. A calibrated model of the noisy labels has a
confidence of 0.6 within a pair.
"""

import functools

import numpy as np
from scipy import special

from experiments import derived, statistics, study
from experiments.correlated_label_noise import noise_pairs
from heteroscedastic import files, user_errors

_COLUMNS = (
    "nll, other classes",
    "nll, confused",
    "pair",
    "within the pair",
    "accuracy",
    "confidence",
)


def parts(directory: files.Path, evaluation: str) -> list[float]:
    """The columns of the table for one run; accuracy and confidence are over confused classes."""
    noise = files.read_json(directory / "dataset.json")["label_noise"]
    partner = {clean: noisy for clean, noisy, _ in noise if clean != noisy}
    with np.load(directory / "predictions" / f"{evaluation}.npz", allow_pickle=False) as file:
        probs, labels = special.softmax(file["logits"].astype(np.float64), axis=-1), file["labels"]
    own = probs[np.arange(len(labels)), labels]
    other = probs[np.arange(len(labels)), [partner.get(c, c) for c in labels]]
    confused = np.isin(labels, list(partner))
    pair = own[confused] + other[confused]
    right = probs[confused].argmax(axis=-1) == labels[confused]
    values = (
        -np.log(own[~confused]),
        -np.log(own[confused]),
        -np.log(pair),
        -np.log(own[confused] / pair),
        right,
        probs[confused].max(axis=-1),
    )
    return [float(np.mean(v)) for v in values]


@user_errors.one_line()
def main() -> None:
    """Prints the parts for every method and the differences from the reference, paired by seed."""
    parser = study.argument_parser(main.__doc__, "planted_noise")
    derived.add_flag(parser)
    parser.set_defaults(at=None)
    flags = parser.parse_args()
    chosen, results = noise_pairs.table_results(flags)
    saved = derived.Derived(__file__, flags, [result.job for result in results])
    differences = statistics.Differences()
    print(f"| regime | method | seeds | {' | '.join(_COLUMNS)} |")
    print("|" + " --- |" * (len(_COLUMNS) + 3))
    for name, regime in study.tested_regimes(chosen).items():
        tuned = study.tuned_results(results, regime, chosen.select_metric)
        columns = {}
        for key, result in tuned.items():
            compute = functools.partial(parts, result.job.directory, regime.report)
            if (values := saved.of(result.job, name, compute)) is not None:
                columns[key] = values
        rows = [row.name for row in chosen.rows]
        of_rows = {row: {seed for r, seed in columns if r == row} for row in rows}
        seeds = sorted(set.intersection(*of_rows.values()))
        if not seeds:
            counts = ", ".join(f"{row} has {len(found)}" for row, found in of_rows.items())
            raise SystemExit(
                f"no seed has a complete run of every row ({counts}); finish them with python -m"
                f" experiments.run --study=correlated_label_noise --table={flags.table}."
            )
        for row in rows:
            values = np.array([columns[row, seed] for seed in seeds])
            cells = [str(len(seeds)), *(f"{v:.3f}" for v in values.mean(axis=0))]
            print(f"| {name} | {row} | {' | '.join(cells)} |")
            if row != chosen.reference:
                theirs = np.array([columns[chosen.reference, seed] for seed in seeds])
                cells = [
                    differences.cell(column, dict(zip(seeds, a)), dict(zip(seeds, b)), 3)
                    for column, a, b in zip(_COLUMNS, values.T.tolist(), theirs.T.tolist())
                ]
                print(f"| {name} | {row} - {chosen.reference} |  | {' | '.join(cells)} |")
    print("\n".join(["", *differences.detectable()]))
    saved.finish(flags.save)


if __name__ == "__main__":
    main()
