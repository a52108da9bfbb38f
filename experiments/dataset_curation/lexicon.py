"""Translations of single words, learned from sentence pairs by IBM model 1.

Every target word is the translation of one word of the source, or of none, each as likely before
the words are known. Expectation maximisation has one maximum.

Source: Brown et al. (1993), The mathematics of statistical machine translation, section 4.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

_NO_WORD = -1  # of the source, which translates words that have no other origin


class Lexicon(NamedTuple):
    """The pairs of words that occur in a sentence pair."""

    source: Int[np.ndarray, "p"]  # _NO_WORD is none
    target: Int[np.ndarray, "p"]
    probs: Float[np.ndarray, "p"]  # of the target word given the source word
    counts: Int[np.ndarray, "p"]  # occurrences of the source word


def fitted(
    sources: Sequence[Int[np.ndarray, "_"]],
    targets: Sequence[Int[np.ndarray, "_"]],
    num_passes: int = 10,
) -> Lexicon:
    """The lexicon of sentence pairs after some passes from equal probabilities.

    Args:
      sources: words of each source sentence.
      targets: words of each target sentence, at least one in all.
      num_passes: 1 or more.
    """
    none = np.array([_NO_WORD])
    with_none = [np.concatenate([none, source]) for source in sources]
    # A link is a word of the target and one of the source that may be its origin.
    source_words, target_words = (
        np.concatenate(x)
        for x in (
            [np.tile(s, len(t)) for s, t in zip(with_none, targets, strict=True)],
            [np.repeat(t, len(s)) for s, t in zip(with_none, targets, strict=True)],
        )
    )
    origins = np.concatenate([np.full(len(t), len(s)) for s, t in zip(with_none, targets)])
    token = np.repeat(np.arange(len(origins)), origins)
    num_targets = int(target_words.max()) + 1
    keys, pair = np.unique(
        (source_words + 1).astype(np.int64) * num_targets + target_words, return_inverse=True
    )
    source, target = keys // num_targets - 1, keys % num_targets
    probs = np.ones(len(keys))
    for _ in range(num_passes):
        shares = probs[pair]
        shares /= np.bincount(token, shares)[token]
        expected = np.bincount(pair, shares)
        probs = expected / np.bincount(source + 1, expected)[source + 1]
    occurrences = np.bincount(np.concatenate(with_none) + 1)
    return Lexicon(source, target, probs, occurrences[source + 1])


def common_origins(
    lexicon: Lexicon, reverse: Lexicon, least_prob: float = 0.1, least_count: int = 20
) -> Int[np.ndarray, "m 2"]:
    """The pairs of target words, the smaller first, that translate one source word.

    A word such as "his" or "by" may translate no word of the source. The lexicon then has it as a
    translation of source words that occur beside it, which are no translations of it in turn.

    Args:
      lexicon: of sentence pairs.
      reverse: of the same pairs, with source and target exchanged.
      least_prob: of both translations given the source word, and of it given either of them.
      least_count: occurrences of the source word, as the translations of a rare one are not known.
    """
    is_back = reverse.probs >= least_prob
    back = set(zip(reverse.target[is_back].tolist(), reverse.source[is_back].tolist()))
    is_known = (lexicon.probs >= least_prob) & (lexicon.counts >= least_count)
    is_known &= lexicon.source != _NO_WORD
    pairs_of_words = zip(lexicon.source.tolist(), lexicon.target.tolist())
    is_known &= np.array([pair in back for pair in pairs_of_words], bool)
    source, target = lexicon.source[is_known], lexicon.target[is_known]
    pairs = set()
    for word in np.unique(source):
        translations = target[source == word].tolist()
        pairs |= {(a, b) for a in translations for b in translations if a < b}
    return np.array(sorted(pairs), int).reshape(-1, 2)


def rarely_together(
    pairs: Int[np.ndarray, "m 2"],
    sentences: Sequence[Int[np.ndarray, "_"]],
    most_share: float = 0.1,
) -> Int[np.ndarray, "n 2"]:
    """The pairs of which either word is said in place of the other, as "path" and "trail".

    Words that together translate one word, as "in front" does, are in the same sentences.

    Args:
      pairs: of words.
      sentences: words of each.
      most_share: of the sentences with the rarer word, those that also have the other one.
    """
    words = np.concatenate(sentences)
    rows = np.repeat(np.arange(len(sentences)), [len(s) for s in sentences])
    has = sparse.csc_array(
        (np.ones(len(words), bool), (rows, words)),
        shape=(len(sentences), max(int(words.max()), int(np.max(pairs, initial=0))) + 1),
    ).astype(int)
    has.data[:] = 1  # a word may be in a sentence twice
    counts = has.sum(axis=0)
    both = np.array([int((has[:, [a]] * has[:, [b]]).sum()) for a, b in pairs])
    return pairs[both <= most_share * counts[pairs].min(axis=1)]
