"""Translations of a split by the model of a run, and their BLEU."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from heteroscedastic.data.text import batches, words
from heteroscedastic.distributed import class_padding
from heteroscedastic.models import beam
from heteroscedastic.models.beam import Hypotheses
from heteroscedastic.runs.assembly import Run
from heteroscedastic.tasks import bleu, word_calibration
from heteroscedastic.training.state import TrainState

SETTINGS = ("beam_size", "length_penalty", "max_tokens")
_SENTENCES_PER_ROW = 4  # of a batch: as many rows of training have about as many tokens


# (words of a batch of sources, largest number of tokens) -> hypotheses.
Search = Callable[[Int[np.ndarray, "b s"], int], Hypotheses]


class Hypothesis(NamedTuple):
    """The best hypothesis of a sentence, without its end."""

    words: Int[np.ndarray, "t"]
    log_probs: Float[np.ndarray, "t"]  # of each word given those before it


class Translations(NamedTuple):
    """The translations of a split, in the order of its stored pairs."""

    sentences: list[str]
    scores: dict[str, float]  # BLEU, and the calibration of the words
    signatures: dict[str, str]  # of BLEU


def translations(
    run: Run,
    split: str,
    search: Search,
    max_tokens: int,
) -> Translations:
    """The best hypothesis of each sentence of a split, their BLEU and their calibration.

    Args:
      run: of the task "translation".
      split: of its pipeline.
      search: of its model.
      max_tokens: largest number of tokens of a translation.
    """
    pipeline, language = run.pipeline, run.config["data"]["target"]
    sources = pipeline.text.source[split].split()
    batch_size = _SENTENCES_PER_ROW * run.steps.batch_size
    found = best_hypotheses(sources, batch_size, search, max_tokens)
    tokenized = [words.decoded(best.words, pipeline.text.target_words) for best in found]
    measured = bleu.bleu(tokenized, pipeline.pairs[split].target, language)
    references = [tokens[:-1] for tokens in pipeline.text.target[split].split()]
    is_right = [
        word_calibration.is_right(best.words, reference, words.UNKNOWN)
        for best, reference in zip(found, references, strict=True)
    ]
    log_probs = np.concatenate([best.log_probs for best in found])
    calibration = word_calibration.measures(log_probs, np.concatenate(is_right))
    return Translations(
        words.detokenized(tokenized, language), measured.scores | calibration, measured.signatures
    )


def model_search(run: Run, state: TrainState, *, beam_size: int, length_penalty: float) -> Search:
    """The search by the model of a finished run, on one device.

    Args:
      run: of the task "translation".
      state: as it is saved.
      beam_size: see models.beam, as for the other.
      length_penalty: likewise.
    """
    state = class_padding.padded(run.class_axis, state)
    compiled = program(run)

    def search(source, max_tokens):
        settings = dict(beam_size=beam_size, length_penalty=length_penalty, max_tokens=max_tokens)
        return compiled(state.params, state.model_state, source, **settings)

    return search


def program(run: Run, **settings: Any) -> Callable[..., Hypotheses]:
    """The jitted `hypotheses` of a run; the settings are of `jax.jit`."""
    return jax.jit(functools.partial(hypotheses, run), static_argnames=SETTINGS, **settings)


def hypotheses(
    run: Run,
    params: Any,
    model_state: Any,
    source: Int[Array, "b s"],
    *,
    beam_size: int,
    length_penalty: float,
    max_tokens: int,
) -> Hypotheses:
    """The likeliest translations of a batch of sentences, by beam search.

    The probability of a word is the predictive's, which averages over the noise of each token
    apart. The points of the noise are the fixed ones of a predictive without a key, the same for
    every token, so that a translation depends on its sentence alone.

    Args:
      run: of the task "translation".
      params: with padding classes.
      model_state: likewise.
      source: words of the sentences, then padding.
      beam_size: see models.beam, as for the others; static.
      length_penalty: static.
      max_tokens: static.
    """
    model = run.padded_model
    apply = functools.partial(model.apply, {"params": params, **model_state})
    sources = apply(source, (source != words.PAD).astype(jnp.int32), method="read")
    is_word = ~jnp.isin(jnp.arange(run.num_classes), jnp.array((words.START, words.PAD)))

    def step(previous, position, past):
        latent, past = apply(previous, position, past, sources, method="step")
        log_probs = jax.nn.log_softmax(run.predictive(None, latent))
        # As in training every class has its probability, though two of them are never said.
        return jnp.where(is_word, log_probs, -jnp.inf), past

    past = model.backbone.no_past(len(source), beam_size, max_tokens)
    limits = dict(max_tokens=max_tokens, length_penalty=length_penalty)
    return beam.search(step, past, end=words.END, **limits)


def best_hypotheses(
    sources: Sequence[Int[np.ndarray, "_"]], batch_size: int, search: Search, max_tokens: int
) -> list[Hypothesis]:
    """The best hypothesis of each sentence, in their order.

    Time and memory of a search grow with the tokens that it has room for. The first search of a
    sentence has room for twice its row; where that is too little there is a second one. A sentence
    that is finished within the room has the same hypotheses in any, up to rounding.

    Args:
      sources: words of each sentence.
      batch_size: sentences of each search.
      search: of the model.
      max_tokens: largest number of tokens of a hypothesis.
    """
    best: list[Any] = [None] * len(sources)
    for tokens_per_source in (2, max_tokens):
        rows = np.array([row for row, found in enumerate(best) if found is None], int)
        for batch in batches.source_batches([sources[row] for row in rows], batch_size):
            room = min(max_tokens, tokens_per_source * batch.source.shape[1])
            found = jax.tree.map(np.asarray, search(batch.source, room))
            lengths = np.argmax(found.words == words.END, axis=-1) + 1
            is_finished = np.all(np.isfinite(found.scores) & (lengths < room), axis=1)
            for slot, row in enumerate(rows[batch.rows]):
                if is_finished[slot] or room == max_tokens:
                    chosen = slot, 0, slice(lengths[slot, 0] - 1)
                    best[row] = Hypothesis(found.words[chosen], found.word_log_probs[chosen])
    return best


def check_libraries(evals: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises a ModuleNotFoundError if an evaluation translates and sacrebleu is not installed."""
    if any(map(limits, evals.values())):
        bleu.library()


def limits(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of the search of an evaluation; None if it has none."""
    if settings.get("beam_size") is None:
        return None
    return {name: settings[name] for name in SETTINGS}
