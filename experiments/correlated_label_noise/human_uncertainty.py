"""Is a head's prediction closer to the distribution of human labels than a plain softmax?

    python -m experiments.correlated_label_noise.human_uncertainty --table=frozen_features \
        --scale=features --human_dir=DIR

reads the predictions of the tuned runs for the test images of CIFAR-10, and the labels that about
50 people gave to each of them: `cifar10_h` of TensorFlow Datasets, prepared in DIR. It prints the
cross-entropy in nats of the human labels, as predicted and at the best temperature, which is fitted
to the human labels of each half of the images and applied to the other half. The differences are
from the reference at its best temperature, paired by seed. The entropy of the human labels is the
least cross-entropy.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from experiments import derived, statistics, study
from experiments.correlated_label_noise import noise_pairs
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.calibration import scores
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import store
from heteroscedastic.runs import predictions

_NAME, _FIELD = "cifar10_h", "soft_label"


class Human(NamedTuple):
    """The human labels of the test images, by position in the stored split."""

    labels: Int[np.ndarray, "n"]  # of the data set, to check that the images are the same
    shares: Float[np.ndarray, "n k"]  # of the people who chose each class


class CrossEntropy(NamedTuple):
    """The mean cross-entropy of human labels under one run, in nats."""

    predicted: float
    scaled: float  # at the best temperature
    temperature: float  # its mean over the images


def human_labels(data_dir: str | None) -> Human:
    """The human labels of the split "test" of cifar10_h.

    Raises:
      FileNotFoundError: the set is not prepared.
    """
    stored = store.stored_dataset(_NAME, data_dir, extras=(_FIELD,))
    fields = stored.read(Slice("test", 0, stored.sizes["test"])).fields
    return Human(fields["label"], fields[_FIELD].astype(np.float64))


def entropy(shares: Float[np.ndarray, "n k"]) -> float:
    """The mean entropy of human labels in nats."""
    return float(special.entr(shares).sum(axis=-1).mean())


def cross_entropy(run: predictions.Predictions, human: Human) -> CrossEntropy:
    """The cross-entropy of the human labels of the examples of a run.

    Raises:
      ValueError: an example has another label in the two sets, so that they are in another order.
    """
    known = (run.ids >= 0) & (run.ids < len(human.labels))
    if not known.all() or not np.array_equal(human.labels[run.ids], run.labels):
        raise ValueError(
            f"{run.source} has other images than {_NAME}, or another order, as the labels differ;"
            " prepare both sets with TensorFlow Datasets."
        )
    shares, logits = human.shares[run.ids], run.logits.astype(np.float64)
    temperatures = calibration.temperatures_of_halves(logits, shares, "softmax")
    return CrossEntropy(
        -scores.log_likelihood(logits, shares),
        -scores.log_likelihood(logits / temperatures[:, None], shares),
        float(temperatures.mean()),
    )


def of_run(directory: files.Path, evaluation: str, human: Callable[[], Human]) -> dict[str, float]:
    """The cross-entropy of a finished run, and the entropy of the human labels."""
    found = cross_entropy(predictions.read(directory, evaluation), human())
    return found._asdict() | {"entropy": entropy(human().shares)}


@user_errors.one_line()
def main() -> None:
    """Prints the cross-entropy of human labels for each method."""
    parser = noise_pairs.table_parser(main.__doc__)
    parser.set_defaults(table="frozen_features", scale="features")
    parser.add_argument("--human_dir", help="directory of cifar10_h; defaults to --data_dir")
    derived.add_flag(parser)
    flags = parser.parse_args()
    chosen, results = noise_pairs.table_results(flags)
    human = functools.cache(lambda: human_labels(flags.human_dir or flags.data_dir))
    saved = derived.Derived(__file__, flags, [result.job for result in results])
    print(f"| regime | method | seeds | predicted | - {chosen.reference} scaled | scaled |", end="")
    print(f" - {chosen.reference} scaled | temperature |\n|" + " --- |" * 8)
    for name, regime in study.tested_regimes(chosen).items():
        tuned = study.tuned_results(results, regime, chosen.select_metric)
        found: dict[str, dict[int, CrossEntropy]] = {}
        for (row, seed), result in sorted(tuned.items()):
            compute = functools.partial(of_run, result.job.directory, regime.report, human)
            if numbers := saved.of(result.job, name, compute):
                least = numbers["entropy"]
                cells = {field: numbers[field] for field in CrossEntropy._fields}
                found.setdefault(row, {})[seed] = CrossEntropy(**cells)
        if chosen.reference not in found:
            raise SystemExit(
                f"no seed of {chosen.reference} has all its runs; train them with python -m"
                f" experiments.run --study=correlated_label_noise --table={flags.table}"
                f" --scale={flags.scale}."
            )
        for line in lines(name, found, chosen.reference):
            print(line, flush=True)
    print(f"\nEntropy of the human labels: {least:.4f} nats.")
    saved.finish(flags.save)


def lines(regime: str, found: dict[str, dict[int, CrossEntropy]], reference: str) -> list[str]:
    """A line for each method, with differences from the scaled reference, paired by seed.

    Their p-values have Holm's correction over all of them; the last number is the difference that a
    test finds with a probability of 80 % before it.
    """
    theirs = {seed: x.scaled for seed, x in found[reference].items()}
    values = {
        (row, field): {seed: getattr(x, field) for seed, x in by_seed.items()}
        for row, by_seed in found.items()
        for field in ("predicted", "scaled")
    }
    compared = {key: statistics.compared(ours, theirs) for key, ours in values.items()}
    compared.pop((reference, "scaled"))
    adjusted = dict(zip(compared, statistics.holm([c.p for c in compared.values()])))
    result = []
    for row, by_seed in found.items():
        cells = [regime, row, str(len(by_seed))]
        for field in ("predicted", "scaled"):
            cells.append(comparison.spread(list(values[row, field].values())))
            if c := compared.get((row, field)):
                p = f"p {c.p:.2g}, Holm {adjusted[row, field]:.2g}; {c.detectable:.4f}"
                cells.append(f"{c.mean:+.4f} ± {c.half:.4f} ({p})")
            else:
                cells.append("")
        cells.append(comparison.spread([x.temperature for x in by_seed.values()], 2))
        result.append("| " + " | ".join(cells) + " |")
    return result


if __name__ == "__main__":
    main()
