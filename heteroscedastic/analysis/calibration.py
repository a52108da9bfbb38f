"""Calibration before and after temperature scaling: python -m heteroscedastic.analysis.calibration --run=DIR.

Reads the predictions that a run wrote down: the temperature is fitted on one evaluation and
applied to another.
"""

import argparse
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import special

from heteroscedastic import files
from heteroscedastic.calibration import recalibration, reliability, scores


def measures(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, likelihood and calibration of logits, in float64 but for the bins.

    Args:
      logits: [n, k].
      labels: [n], one an example.
    """
    probs = special.softmax(logits.astype(np.float64), axis=-1)
    confidence, correct = probs.max(axis=-1), probs.argmax(axis=-1) == labels
    binned = reliability.sums(
        jnp.asarray(confidence, jnp.float32), jnp.asarray(correct, jnp.float32), jnp.ones(len(labels))
    )
    return {
        "accuracy": float(correct.mean()),
        "nll": -scores.log_likelihood(logits, labels),
        "brier": scores.brier(probs, labels),
        "ece": reliability.expected_calibration_error(binned),
        "adaptive_ece": scores.adaptive_calibration_error(confidence, correct),
        "auroc": scores.auroc(confidence, correct),
    }


def before_and_after(run: str | Path, fit: str, on: str) -> dict[str, Any]:
    """The temperature fitted on the evaluation `fit`, and the measures of `on` without and with it.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the predictions do not hold every logit of one label an example.
    """
    (fit_logits, fit_labels), (logits, labels) = (_predictions(Path(run), name) for name in (fit, on))
    temperature = recalibration.temperature(fit_logits, fit_labels)
    return {
        "temperature": temperature,
        "before": measures(logits, labels),
        "after": measures(logits / temperature, labels),
    }


def _predictions(run: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    path = run / "predictions" / f"{name}.npz"
    if not path.exists():
        known = sorted(p.stem for p in path.parent.glob("*.npz"))
        raise FileNotFoundError(f"{path} is missing; this run has predictions of {known}.")
    with np.load(path, allow_pickle=False) as file:
        if "classes" in file.files or file["labels"].ndim != 1:
            raise ValueError(f"{path} needs every logit, and one label an example.")
        return file["logits"], file["labels"]


def main() -> None:
    """Prints the calibration of a finished run before and after temperature scaling, and writes it beside."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--fit", default="valid", help="evaluation that the temperature is fitted on")
    parser.add_argument("--on", default="test", help="evaluation that is told")
    flags = parser.parse_args()
    found = before_and_after(flags.run, flags.fit, flags.on)
    print(f"temperature {found['temperature']:.3f}, fitted on {flags.fit}")
    print(f"{flags.on:<16}{'before':>10}{'after':>10}")
    for name, value in found["before"].items():
        print(f"{name:<16}{value:>10.4f}{found['after'][name]:>10.4f}")
    path = Path(flags.run) / "calibration" / f"{flags.fit}_{flags.on}.json"
    files.write_json(path, found)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
