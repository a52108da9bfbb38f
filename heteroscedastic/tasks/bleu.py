"""BLEU of translations, by sacrebleu."""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from heteroscedastic.data.text import words


class Bleu(NamedTuple):
    """Scores by name, from 0 to 100, and the signature of each."""

    scores: dict[str, float]
    signatures: dict[str, str]


def library() -> ModuleType:
    """The module sacrebleu.

    Raises:
      ModuleNotFoundError: it is not installed.
    """
    try:
        import sacrebleu
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"BLEU requires sacrebleu ({error}); {words.EXTRA}. Without it, set beam_size of"
            " config.evals to None."
        ) from None
    return sacrebleu


def bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Bleu:
    """BLEU of a set of sentences in lower case.

    Case is ignored. `bleu` compares detokenized hypotheses with the references, by sacrebleu's own
    tokens: compare it with other scores of signature `case:lc`. `bleu_moses` compares Moses tokens
    without smoothing, as fairseq prints it; it depends on the version of Moses.

    Args:
      hypotheses: tokenized, as `words.tokenized` would.
      references: as stored, of any case.
      language: of both, such as "en".

    Raises:
      ModuleNotFoundError: sacrebleu or sacremoses is not installed.
    """
    metric = functools.partial(library().metrics.BLEU, lowercase=True)
    measured = {
        "bleu": (metric(), words.detokenized(hypotheses, language), references),
        "bleu_moses": (
            metric(tokenize="none", smooth_method="none", force=True),
            hypotheses,
            words.tokenized(references, language),  # in lower case
        ),
    }
    scores = {
        name: float(measure.corpus_score(ours, [theirs]).score)
        for name, (measure, ours, theirs) in measured.items()
    }
    signatures = {name: str(measure.get_signature()) for name, (measure, *_) in measured.items()}
    return Bleu(scores, signatures)
