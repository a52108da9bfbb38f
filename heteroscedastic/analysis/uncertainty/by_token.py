"""Calibration of a translator by token: python -m heteroscedastic.analysis.uncertainty.by_token

--run=DIR reports accuracy, confidence and calibration error of groups of the tokens of one
evaluation, with the words of the reference before each token: the end of sentence and the other
words, positions in the sentence, and words that are frequent or rare in training. A user knows the
frequency of the predicted word. Among tokens whose reference is rare the accuracy is low by their
selection, as a model that predicts rare words as often as they occur still misses most of them.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from heteroscedastic import files, user_errors
from heteroscedastic.calibration import bias, reliability
from heteroscedastic.data.packing import MAX_TOKENS
from heteroscedastic.data.text import words
from heteroscedastic.runs import loaded_run, predictions

_EDGES = reliability.equal_edges(15)
_POSITIONS = (0, 1, 2, 5, 10, 20, 40, MAX_TOKENS)  # ends of groups: 0, 1, 2 to 4, ...
_COUNTS = (0, 1, 10, 100, 1_000, 10_000)  # the same of occurrences in training; the last is open


class Tokens(NamedTuple):
    """Tokens of an evaluation."""

    confidence: Float[np.ndarray, "n"]
    correct: Bool[np.ndarray, "n"]
    predicted: Int[np.ndarray, "n"]  # word
    reference: Int[np.ndarray, "n"]  # word
    position: Int[np.ndarray, "n"]  # in the sentence, from 0


def by_token(tokens: Tokens, counts: Int[np.ndarray, "k"]) -> dict[str, dict[str, Any]]:
    """Measures of groups of tokens, by kind of group and by group; empty groups are left out.

    The measures are `count`, `accuracy`, `confidence` (the mean), `ece` of 15 bins, and
    `ece_floor`, the mean ECE of a perfect model of the same confidences, which is larger for
    smaller groups.

    Args:
      tokens: of an evaluation.
      counts: occurrences of each word in training.
    """
    is_end = (tokens.reference == words.END).astype(int)
    positions = [f"{a} to {b - 1}" if b - a > 1 else f"{a}" for a, b in _spans(_POSITIONS)]
    frequencies = [f"{a:,} to {b - 1:,}" if b - a > 1 else f"{a}" for a, b in _spans(_COUNTS)]
    frequencies.append(f"{_COUNTS[-1]:,} and more")

    def frequency(word):
        return np.digitize(counts[word], _COUNTS) - 1

    kinds = {
        "all": (np.zeros(len(is_end), int), ["all tokens"]),
        "end": (is_end, ["words", "end of sentence"]),
        "position": (np.digitize(tokens.position, _POSITIONS) - 1, positions),
        "count of the predicted word": (frequency(tokens.predicted), frequencies),
        "count of the reference word": (frequency(tokens.reference), frequencies),
    }
    return {
        kind: {
            name: _measures(tokens.confidence[own], tokens.correct[own])
            for group, name in enumerate(names)
            if (own := groups == group).any()
        }
        for kind, (groups, names) in kinds.items()
    }


def _spans(ends):
    return list(itertools.pairwise(ends))


def _measures(
    confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"]
) -> dict[str, float]:
    groups = np.zeros(len(confidence), int)
    sums = reliability.sums_by_class(confidence, correct, groups, _EDGES, 1)
    return {
        "count": len(confidence),
        "accuracy": float(correct.mean()),
        "confidence": float(confidence.mean()),
        "ece": float(reliability.expected_calibration_error(sums)[0]),
        "ece_floor": bias.error_floor(confidence, _EDGES),
    }


def run_report(run: str | files.Path, on: str) -> dict[str, dict[str, Any]]:
    """`by_token` for an evaluation of a finished run.

    Raises:
      ValueError: the run does not translate.
    """
    saved_run = loaded_run.read(run)
    if (task := saved_run.config.get("task")) != "translation":
        raise ValueError(
            f"{run} is of the task {task!r}; calibration by token is of 'translation'. Use"
            " heteroscedastic by_class."
        )
    saved = predictions.read(run, on)
    tokens = Tokens(
        confidence=predictions.confidence(saved),
        correct=predictions.is_correct(saved),
        predicted=predictions.predicted_classes(saved),
        reference=saved.labels,
        position=saved.ids % MAX_TOKENS,
    )
    return by_token(tokens, np.array(saved_run.dataset["class_counts"]))


@user_errors.one_line()
def main() -> None:
    """Prints and writes the calibration of a finished translator by groups of tokens."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--on", default="test", help="evaluation to report")
    flags = parser.parse_args()
    result = run_report(flags.run, flags.on)
    for kind, groups in result.items():
        print(f"\n{kind:<28}{'count':>10}{'accuracy':>10}{'confidence':>12}{'ece':>8}{'floor':>8}")
        for name, x in groups.items():
            print(
                f"  {name:<26}{x['count']:>10,}{x['accuracy']:>10.4f}{x['confidence']:>12.4f}"
                f"{x['ece']:>8.4f}{x['ece_floor']:>8.4f}"
            )
    path = files.as_path(flags.run) / "analysis" / "calibration" / f"by_token_{flags.on}.json"
    files.write_json(path, result)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
