"""Calibration by class: python -m heteroscedastic.analysis.uncertainty.by_class --run=DIR

Reports accuracy, confidence and calibration error of each true class, and the ratio of the largest
to the smallest calibration error (readings D1 and D3). Two controls stand beside it, because a
perfect model does not have ratio 1 (reading D15): the same numbers for outcomes drawn from the
stated probabilities, and after a correction of the class prior of training.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Real
from scipy import special

from heteroscedastic import files, user_errors
from heteroscedastic.bind import bind, check_number, check_seed
from heteroscedastic.calibration import recalibration, reliability
from heteroscedastic.runs import loaded_run, predictions, sections

_EDGES = reliability.equal_edges(15)
_NUM_DRAWS = 200
_SHOTS = {"many": (101, np.inf), "medium": (20, 100), "few": (1, 19)}  # training examples


class ByClass(NamedTuple):
    """Measures of the examples of each true class; nan for a class without examples."""

    count: Int[np.ndarray, "k"]
    accuracy: Float[np.ndarray, "k"]
    confidence: Float[np.ndarray, "k"]  # mean
    ece: Float[np.ndarray, "k"]  # 15 bins
    total_ece: float  # of all examples together

    @property
    def gap(self) -> Float[np.ndarray, "k"]:
        """Mean confidence minus accuracy: positive where the model is overconfident."""
        return self.confidence - self.accuracy

    @property
    def ece_ratio(self) -> float:
        """The largest calibration error over the smallest one, among classes with examples.

        It is nan if the smallest is 0, as of a few examples that are certainly right.
        """
        smallest = np.nanmin(self.ece)
        return float(np.nanmax(self.ece) / smallest) if smallest > 0 else float("nan")

    @property
    def balanced_accuracy(self) -> float:
        """The mean over classes of their accuracy."""
        return float(np.nanmean(self.accuracy))


def by_class(logits: Float[np.ndarray, "n k"], labels: Int[np.ndarray, "n"]) -> ByClass:
    """Measures of the examples of each class.

    Args:
      logits: log-probabilities up to a constant per example.
      labels: the class of each example.
    """
    own = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    confidence = special.softmax(logits.astype(np.float64), axis=-1).max(axis=-1)
    return _measures(confidence, predictions.is_top(logits, own), labels, logits.shape[-1])


def _measures(
    confidence: Float[np.ndarray, "n"],
    correct: Bool[np.ndarray, "n"],
    labels: Int[np.ndarray, "n"],
    num_classes: int,
) -> ByClass:
    sums = reliability.sums_by_class(confidence, correct, labels, _EDGES, num_classes)
    count = sums.weight.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        return ByClass(
            count=count.astype(int),
            accuracy=sums.correct.sum(axis=-1) / count,
            confidence=sums.confidence.sum(axis=-1) / count,
            ece=reliability.expected_calibration_error(sums),
            total_ece=float(
                reliability.expected_calibration_error(jax.tree.map(lambda x: x.sum(axis=0), sums))
            ),
        )


def drawn_labels(
    rng: np.random.Generator, logits: Float[np.ndarray, "n k"], num_draws: int
) -> list[ByClass]:
    """The measures for labels drawn from the stated probabilities, once per draw.

    A perfect model has these measures. The number of examples of each class varies.
    """
    probs = special.softmax(logits.astype(np.float64), axis=-1)
    ends = np.cumsum(probs, axis=-1)
    confidence, top = probs.max(axis=-1), probs.argmax(axis=-1)
    draws = []
    for _ in range(num_draws):
        points = rng.random(len(ends)) * ends[:, -1]
        labels = (points[:, None] >= ends).sum(axis=-1)
        draws.append(_measures(confidence, top == labels, labels, logits.shape[-1]))
    return draws


def drawn_hits(
    rng: np.random.Generator,
    logits: Float[np.ndarray, "n k"],
    labels: Int[np.ndarray, "n"],
    num_draws: int,
) -> list[ByClass]:
    """The measures if each prediction were correct with the stated confidence, once per draw.

    The classes keep their examples, as small groups have a larger calibration error.
    """
    confidence = special.softmax(logits.astype(np.float64), axis=-1).max(axis=-1)
    return [
        _measures(confidence, rng.random(len(labels)) < confidence, labels, logits.shape[-1])
        for _ in range(num_draws)
    ]


def effective_prior(
    config: Mapping[str, Any], class_counts: Real[np.ndarray, "k"]
) -> Float[np.ndarray, "k"]:
    """The class shares that the logits of a run are learned under.

    They are the class counts times class weights and draw rates; `logit_adjusted` at strength s
    leaves the power 1 - s of the prior.

    Args:
      config: of the run, with every setting.
      class_counts: training examples per class.
    """
    is_balanced = config.get("selection", {}).get("name") == "balanced"
    present = class_counts > 0
    drawn = np.where(present, 1.0, 0.0) if is_balanced else class_counts.astype(np.float64)
    weighting = bind(sections.MODULES["weighting"], **config["weighting"])
    targets = jnp.eye(len(class_counts))
    prior = drawn * np.asarray(weighting(targets, jnp.asarray(class_counts, jnp.float32)))
    if config["loss"]["name"] == "logit_adjusted":
        prior = np.where(
            present, prior / np.maximum(class_counts, 1) ** config["loss"]["strength"], 0.0
        )
    return prior / prior.sum()


def report(
    logits: Float[np.ndarray, "n k"],
    labels: Int[np.ndarray, "n"],
    class_counts: Real[np.ndarray, "k"],
    prior: Real[np.ndarray, "k"],
    *,
    num_draws: int = _NUM_DRAWS,
    seed: int = 0,
) -> dict[str, Any]:
    """Calibration by class with its two controls, as JSON values.

    Args:
      logits: log-probabilities up to a constant per example.
      labels: the class of each example.
      class_counts: training examples per class.
      prior: class shares that the logits were learned under; see `effective_prior`.
      num_draws: draws of outcomes for the floor, at least 1.
      seed: of the draws.

    Returns:
      `observed`, `after_prior_shift` and, as means over the draws, `floor_of_labels` and
      `floor_of_hits`, the last three with their measures by class; `accuracy_by_shots` of classes
      with many, medium and few training examples; and `classes`, the observed measures by class.
    """
    check_number("num_draws", num_draws, integer=True, at_least=1)
    check_seed("seed", seed)
    rng = np.random.default_rng(seed)
    observed = by_class(logits, labels)
    test_counts = np.bincount(labels, minlength=logits.shape[-1])
    is_testable = (test_counts > 0) & (prior == 0)
    shifted = None
    if not is_testable.any():
        shifted = by_class(recalibration.prior_shift(logits, prior, test_counts), labels)
    shots = {
        name: float(np.nanmean(chosen)) if (chosen := observed.accuracy[own]).size else None
        for name, (low, high) in _SHOTS.items()
        for own in [(class_counts >= low) & (class_counts <= high) & (test_counts > 0)]
    }
    return {
        "observed": _totals([observed]),
        "after_prior_shift": shifted and _described([shifted]),
        "floor_of_labels": _described(drawn_labels(rng, logits, num_draws)),
        "floor_of_hits": _described(drawn_hits(rng, logits, labels, num_draws)),
        "accuracy_by_shots": shots,
        "classes": {
            "train_count": np.asarray(class_counts).astype(int).tolist(),
            **_class_means([observed]),
        },
    }


def _described(draws: list[ByClass]) -> dict[str, Any]:
    return {**_totals(draws), "classes": _class_means(draws)}


def _totals(draws: list[ByClass]) -> dict[str, float]:
    return {"ece": float(np.mean([x.total_ece for x in draws])), **summary(draws)}


def _class_means(draws: list[ByClass]) -> dict[str, list[float]]:
    """The measures of each class as means over draws; nan for a class without examples."""
    return {
        name: np.ma.masked_invalid([getattr(x, name) for x in draws])
        .mean(axis=0)
        .filled(np.nan)
        .tolist()
        for name in ("count", "accuracy", "confidence", "ece", "gap")
    }


def summary(draws: list[ByClass]) -> dict[str, float]:
    """Accuracy and calibration error over classes, each as a mean over draws that are not nan."""
    values = [
        {
            "balanced_accuracy": x.balanced_accuracy,
            "class_ece_mean": float(np.nanmean(x.ece)),
            "class_ece_min": float(np.nanmin(x.ece)),
            "class_ece_max": float(np.nanmax(x.ece)),
            "class_ece_ratio": x.ece_ratio,
        }
        for x in draws
    ]
    by_name = {name: [v[name] for v in values if not np.isnan(v[name])] for name in values[0]}
    return {name: float(np.mean(x)) if x else float("nan") for name, x in by_name.items()}


def run_report(
    run: str | files.Path, on: str, *, num_draws: int = _NUM_DRAWS, seed: int = 0
) -> dict[str, Any]:
    """`report` for an evaluation of a finished run.

    Raises:
      ValueError: the run has lists of labels, or does not record its class counts.
    """
    saved_run = loaded_run.read(run)
    saved = predictions.read(run, on)
    logits = predictions.all_logits(saved, "calibration by class")
    if saved.link == "sigmoid":
        raise ValueError(f"{run} has lists of labels; calibration by class needs one label.")
    counts = np.array(saved_run.dataset.get("class_counts", ()))
    if not counts.any():
        raise ValueError(
            f"{files.as_path(run) / 'dataset.json'} does not count the training examples of"
            " each class, as an earlier version or a stream that reads no labels wrote it; repeat"
            " the run with this version and the resident pipeline."
        )
    prior = effective_prior(saved_run.config, counts)
    return report(logits, saved.labels, counts, prior, num_draws=num_draws, seed=seed)


@user_errors.one_line()
def main() -> None:
    """Prints and writes the calibration of a finished run by class, with its controls."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--on", default="test", help="evaluation to report")
    parser.add_argument("--num_draws", type=int, default=_NUM_DRAWS, help="draws for the floor")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    flags = parser.parse_args()
    result = run_report(flags.run, flags.on, num_draws=flags.num_draws, seed=flags.seed)
    names = loaded_run.read(flags.run).dataset["class_names"]
    classes = result["classes"]
    width = max(5, *map(len, names))
    print(f"{'class':<{width}}{'train':>8}{'count':>8}{'accuracy':>10}{'gap':>8}{'ece':>8}")
    for i, name in enumerate(names):
        print(
            f"{name:<{width}}{classes['train_count'][i]:>8}{classes['count'][i]:>8.0f}"
            f"{classes['accuracy'][i]:>10.4f}{classes['gap'][i]:>+8.3f}{classes['ece'][i]:>8.4f}"
        )
    kinds = ("observed", "after_prior_shift", "floor_of_labels", "floor_of_hits")
    print("\n" + " " * 20 + "".join(f"{kind:>20}" for kind in kinds))
    for measure in result["observed"]:  # without the measures by class
        cells = (f"{result[k][measure]:.4f}" if result[k] else "-" for k in kinds)
        print(f"{measure:<20}" + "".join(f"{cell:>20}" for cell in cells))
    print("\naccuracy of classes by number of training examples:")
    for name, (low, high) in _SHOTS.items():
        accuracy = result["accuracy_by_shots"][name]
        span = f"{low} and more" if high == np.inf else f"{low} to {high}"
        print(f"{name + ', ' + span:<20}" + (" -" if accuracy is None else f"{accuracy:>20.4f}"))
    path = files.as_path(flags.run) / "analysis" / "calibration" / f"by_class_{flags.on}.json"
    files.write_json(path, result)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
