"""Beam search for the likeliest sequence of words, as a function of one step of a model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# (the last words, their position, state) -> log-probabilities of the next words, next state. Every
# leaf of a state starts with the axes of sentences and hypotheses.
Step = Callable[[Int[Array, "b k"], Int[Array, ""], Any], tuple[Float[Array, "b k v"], Any]]


class Hypotheses(NamedTuple):
    """Sequences of words for each sentence, the best first; further words repeat the end."""

    words: Int[Array, "b k t"]
    word_log_probs: Float[Array, "b k t"]  # of each word given those before it; 0 after the end
    # Their sum / length**length_penalty, of a sequence with its end; -inf where there is none.
    scores: Float[Array, "b k"]


class _Search(NamedTuple):
    position: Int[Array, ""]
    words: Int[Array, "b k t"]  # of sequences without an end
    word_log_probs: Float[Array, "b k t"]
    log_probs: Float[Array, "b k"]
    state: Any
    complete: Hypotheses


def search(
    step: Step, state: Any, *, end: int, max_tokens: int, length_penalty: float
) -> Hypotheses:
    """The best sequences that a beam search finds, of as many as the state has hypotheses.

    Each of k sequences is continued by every word, and the 2k likeliest results stay. A result
    with an end is complete if it is among the first k. The first k results without an end are
    continued. A sentence is finished with k complete sequences, so other sentences of the batch do
    not affect it. With k = 1 the search is greedy. No sequence is the end alone, unless there is
    room for no other.

    Args:
      step: of the model. The word before the first is the end.
      state: before the first word.
      end: word that ends a sequence.
      max_tokens: largest length with the end, which is the only choice at the last position.
      length_penalty: power of the length, with the end, that divides the log-probability of a
        complete sequence; 1 compares means of log-probabilities, 0 sums.

    Source: fairseq's sequence_generator.py, for when a sequence is complete, and its `min_len`.
    """
    shape = jax.tree.leaves(state)[0].shape[:2]
    num_beams = shape[1]
    none = jnp.full(shape, -jnp.inf)
    words = jnp.full((*shape, max_tokens), end, jnp.int32)

    def is_finished(complete: Hypotheses) -> Bool[Array, "b"]:
        return jnp.all(jnp.isfinite(complete.scores), axis=1)

    def continues(search: _Search) -> Bool[Array, ""]:
        return (search.position < max_tokens) & ~jnp.all(is_finished(search.complete))

    def next_search(search: _Search) -> _Search:
        position = search.position
        last = jnp.where(position, search.words[..., position - 1], end)
        log_probs, state = step(last, position, search.state)
        num_words = log_probs.shape[-1]
        is_end, is_last = jnp.arange(num_words) == end, position == max_tokens - 1
        is_allowed = jnp.where(is_end, is_last | (position > 0), ~is_last)
        totals = search.log_probs[..., None] + jnp.where(is_allowed, log_probs, -jnp.inf)
        totals, choices = jax.lax.top_k(totals.reshape(shape[0], -1), 2 * num_beams)
        parents, new = choices // num_words, choices % num_words
        sequences = _of_sentences(search.words, parents).at[..., position].set(new)
        added = jnp.take_along_axis(log_probs.reshape(shape[0], -1), choices, axis=1)
        each = _of_sentences(search.word_log_probs, parents).at[..., position].set(added)

        scores = totals / (position + 1.0) ** length_penalty
        ends = Hypotheses(sequences, each, jnp.where(new == end, scores, -jnp.inf))
        ends = jax.tree.map(lambda x: x[:, :num_beams], ends)
        both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), search.complete, ends)
        _, order = jax.lax.top_k(both.scores, num_beams)
        merged = _of_sentences(both, order)
        keeps = is_finished(search.complete)
        complete = jax.tree.map(
            lambda old, x: jnp.where(keeps.reshape(-1, *(1,) * (x.ndim - 1)), old, x),
            search.complete,
            merged,
        )
        log_probs, order = jax.lax.top_k(jnp.where(new == end, -jnp.inf, totals), num_beams)
        return _Search(
            position + 1,
            _of_sentences(sequences, order),
            _of_sentences(each, order),
            log_probs,
            _of_sentences(state, _of_sentences(parents, order)),
            complete,
        )

    first = none.at[:, 0].set(0.0)  # the hypotheses are the same before the first word
    zeros = jnp.zeros(words.shape)
    complete = Hypotheses(words, zeros, none)
    start = _Search(jnp.int32(0), words, zeros, first, state, complete)
    return jax.lax.while_loop(continues, next_search, start).complete


def _of_sentences(tree: Any, positions: Int[Array, "b k"]) -> Any:
    """The hypotheses at these positions of each sentence."""
    return jax.tree.map(lambda x: jax.vmap(lambda own, rows: own[rows])(x, positions), tree)
