"""Calibration of the words of translations: their probabilities, and whether they are right."""

import numpy as np
from jaxtyping import Bool, Float, Int

from heteroscedastic.calibration import reliability

_EDGES = reliability.equal_edges(15)


def is_right(
    hypothesis: Int[np.ndarray, "t"], reference: Int[np.ndarray, "s"], unknown: int
) -> Bool[np.ndarray, "t"]:
    """Whether the reference has each word of a hypothesis, in an alignment of the two.

    The alignment is a longest common subsequence: as many words of the hypothesis as possible are
    matched, in order, each to the same word of the reference, and those are right. There may be
    several such subsequences, of the same number of words. The one that is taken is found from the
    ends: two equal last words are matched; otherwise the last word of the hypothesis is wrong if
    as many words can be matched without it, and else the last word of the reference is left out.

    Args:
      hypothesis: words, without the end of the sentence, which any such alignment would match.
      reference: likewise.
      unknown: word that stands for all that the vocabulary lacks, which is never right.
    """
    same = (hypothesis[:, None] == reference) & (reference != unknown)
    # [i, j]: the number that can be matched of the first i and the first j words.
    matched = np.zeros((len(hypothesis) + 1, len(reference) + 1), int)
    for i, row in enumerate(same):
        matched[i + 1, 1:] = np.maximum.accumulate(
            np.maximum(matched[i, 1:], matched[i, :-1] + row)
        )
    right = np.zeros(len(hypothesis), bool)
    i, j = same.shape
    while i and j:
        if same[i - 1, j - 1]:
            i, j = i - 1, j - 1
            right[i] = True
        elif matched[i - 1, j] == matched[i, j]:
            i -= 1
        else:
            j -= 1
    return right


def measures(
    log_probs: Float[np.ndarray, "n"], is_right: Bool[np.ndarray, "n"]
) -> dict[str, float]:
    """Accuracy, mean confidence and ECE of 15 bins of words; nan without words.

    The confidence of a word is its probability given the words before it in its hypothesis.

    Args:
      log_probs: of the words of all hypotheses.
      is_right: whether the reference has each.
    """
    confidence = np.exp(log_probs.astype(np.float64))
    sums = reliability.sums_by_class(
        confidence, is_right, np.zeros(len(confidence), int), _EDGES, 1
    )
    return {
        "beam_accuracy": float(is_right.mean()) if len(is_right) else float("nan"),
        "beam_confidence": float(reliability.mean_confidence(sums)[0]),
        "beam_ece": float(reliability.expected_calibration_error(sums)[0]),
    }
