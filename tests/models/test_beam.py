"""Beam search, on a model of five words and three steps that is a table."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.models import beam

END, NUM_WORDS, LENGTH, NUM_SENTENCES = 2, 5, 3, 12
# By sentence and prefix: prefix number n followed by word w is number 5 n + w + 1.
LOG_PROBS = jax.nn.log_softmax(
    2 * np.random.default_rng(1).normal(size=(NUM_SENTENCES, 31, NUM_WORDS)).astype(np.float32)
)


def step(last, position, state):
    sentence, prefix = state
    prefix = jnp.where(position, NUM_WORDS * prefix + last + 1, 0)
    return LOG_PROBS[sentence, prefix], (sentence, prefix)


@functools.partial(jax.jit, static_argnames=("num_beams", "length_penalty", "room"))
def search(sentences, num_beams, length_penalty=1.0, room=LENGTH):
    shape = (len(sentences), num_beams)
    state = jnp.broadcast_to(sentences[:, None], shape), jnp.zeros(shape, jnp.int32)
    settings = dict(end=END, max_tokens=room, length_penalty=length_penalty)
    return beam.search(step, state, **settings)


def word_log_probs(sentence, words):
    prefix, each = 0, np.zeros(LENGTH)
    for position, word in enumerate(words):
        each[position] = LOG_PROBS[sentence, prefix, word]
        prefix = NUM_WORDS * prefix + word + 1
    return each


def until_end(words):
    words = np.asarray(words).tolist()
    return words[: words.index(END) + 1]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_beam_finds_all_sequences_and_the_best_is_first(length_penalty):
    others = [word for word in range(NUM_WORDS) if word != END]
    every = [(*w, END) for n in range(1, LENGTH) for w in itertools.product(others, repeat=n)]
    found = search(jnp.arange(NUM_SENTENCES), 32, length_penalty)
    for sentence in range(NUM_SENTENCES):
        each = {w: word_log_probs(sentence, w) for w in every}
        scores = {w: each[w].sum() / len(w) ** length_penalty for w in every}
        expected = sorted(scores, key=scores.get, reverse=True)
        words = [tuple(until_end(w)) for w in found.words[sentence, : len(every)]]
        assert words == expected
        np.testing.assert_allclose(
            found.scores[sentence, : len(every)], [scores[w] for w in expected], rtol=1e-5
        )
        found_each = found.word_log_probs[sentence, : len(every)]
        np.testing.assert_allclose(found_each, [each[w] for w in expected], rtol=1e-5)
        assert np.isneginf(found.scores[sentence, len(every) :]).all()


def test_a_beam_of_one_is_greedy():
    found = search(jnp.arange(NUM_SENTENCES), 1)
    lengths = set()
    for sentence in range(NUM_SENTENCES):
        words = []
        while END not in words:
            prefix = functools.reduce(lambda n, w: NUM_WORDS * n + w + 1, words, 0)
            is_last = len(words) == LENGTH - 1
            choices = np.array(LOG_PROBS[sentence, prefix])
            if not words:
                choices[END] = -np.inf
            words.append(END if is_last else int(choices.argmax()))
        assert until_end(found.words[sentence, 0]) == words
        assert (found.words[sentence, 0, len(words) :] == END).all()
        lengths.add(len(words))
    assert len(lengths) > 1
    # A sequence that ends before the last position is the same with more room.
    less = search(jnp.arange(NUM_SENTENCES), 1, room=2)
    is_shorter = np.asarray(found.words[:, 0, 1]) == END
    assert 0 < is_shorter.sum() < NUM_SENTENCES
    np.testing.assert_array_equal(less.scores[is_shorter], found.scores[is_shorter])
    assert (less.scores != found.scores)[~is_shorter].any()


def test_sentences_do_not_depend_on_the_others_and_a_wider_beam_finds_no_worse():
    together, one = search(jnp.arange(NUM_SENTENCES), 2), search(jnp.arange(NUM_SENTENCES), 1)
    for sentence in range(NUM_SENTENCES):
        alone = search(jnp.array([sentence]), 2)
        own = jax.tree.map(lambda x, i=sentence: x[i : i + 1], together)
        jax.tree.map(np.testing.assert_array_equal, own, alone)
    best = search(jnp.arange(NUM_SENTENCES), 32)
    assert (together.scores[:, 0] <= best.scores[:, 0] + 1e-6).all()
    assert (together.scores[:, 0] > one.scores[:, 0] + 1e-6).any()
