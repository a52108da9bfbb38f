"""Translations of a split by the model of a run, and their BLEU."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from heteroscedastic.data.text import batches, words
from heteroscedastic.models.beam import Hypotheses
from heteroscedastic.runs.assembly import Run
from heteroscedastic.tasks import bleu

SETTINGS = ("beam_size", "length_penalty", "max_tokens")
_SENTENCES_PER_ROW = 4  # of a batch: as many rows of training have about as many tokens


class Translations(NamedTuple):
    """The translations of a split, in the order of its stored pairs."""

    sentences: list[str]
    bleu: bleu.Bleu


def translations(
    run: Run, split: str, search: Callable[[Int[np.ndarray, "b s"]], Hypotheses]
) -> Translations:
    """The best hypothesis of each sentence of a split, and its BLEU.

    Args:
      run: of the task "translation".
      split: of its pipeline.
      search: words of a batch of sources -> hypotheses.
    """
    pipeline, language = run.pipeline, run.config["data"]["target"]
    sources = pipeline.text.source[split].split()
    tokenized = [""] * len(sources)
    for batch in batches.source_batches(sources, _SENTENCES_PER_ROW * run.steps.batch_size):
        best = np.asarray(search(batch.source).words)[:, 0]
        for row, tokens in zip(batch.rows, best):
            tokenized[row] = words.decoded(tokens, pipeline.text.target_words)
    return Translations(
        words.detokenized(tokenized, language),
        bleu.bleu(tokenized, pipeline.pairs[split].target, language),
    )


def limits(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of the search of an evaluation; None if it has none."""
    if settings.get("beam_size") is None:
        return None
    return {name: settings[name] for name in SETTINGS}
