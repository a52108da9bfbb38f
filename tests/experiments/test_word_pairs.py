"""Words with one origin: the lexicon of a planted language, and the rank test of word pairs."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import latent

from experiments import statistics
from experiments.dataset_curation import lexicon, word_pairs
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.report import comparison
from heteroscedastic.data.text import words as words_lib


def corpus(num_sentences=400, num_words=12, seed=0):
    """Source word f is translated by 2f or 2f + 1, in another order; 24 and 25 have no origin."""
    rng = np.random.default_rng(seed)
    sources = [rng.permutation(num_words)[:5] for _ in range(num_sentences)]
    none = [2 * num_words, 2 * num_words + 1]
    targets = [
        np.append(rng.permutation(2 * source + rng.integers(2, size=5)), none) for source in sources
    ]
    return sources, targets


def test_the_lexicon_of_a_planted_language_is_found():
    found = lexicon.fitted(*corpus(), num_passes=20)
    total = np.bincount(found.source + 1, found.probs)
    np.testing.assert_allclose(total, 1)
    is_planted = found.target // 2 == found.source
    assert found.probs[is_planted].min() > 0.3
    assert found.probs[~is_planted & (found.source >= 0)].max() < 0.1
    reverse = lexicon.fitted(*corpus()[::-1], num_passes=20)
    tied = lexicon.common_origins(found, reverse)
    assert tied.tolist() == [[2 * f, 2 * f + 1] for f in range(12)]
    assert not lexicon.common_origins(found, reverse, least_count=10**6).size


def test_a_word_beside_a_translation_is_none_if_the_source_word_is_no_translation_of_it():
    forward = lexicon.Lexicon(
        np.array([-1, 0, 0, 0, 1]),
        np.array([2, 3, 4, 2, 2]),
        np.array([0.9, 0.4, 0.4, 0.2, 0.9]),
        np.array([90, 30, 30, 30, 30]),
    )
    sources, targets = np.array([3, 4, 2, 2]), np.array([0, 0, 0, 1])
    reverse = lexicon.Lexicon(sources, targets, np.array([0.8, 0.8, 0.05, 0.1]), np.full(4, 30))
    assert lexicon.common_origins(forward, reverse).tolist() == [[3, 4]]
    both_ways = reverse._replace(probs=np.array([0.8, 0.8, 0.1, 0.1]))
    assert lexicon.common_origins(forward, both_ways).tolist() == [[2, 3], [2, 4], [3, 4]]


def test_the_probabilities_are_those_of_the_algorithm_word_by_word():
    sources, targets = corpus(15)
    found = lexicon.fitted(sources, targets, num_passes=3)
    probs = collections.defaultdict(lambda: 1.0)
    for _ in range(3):
        counts, totals = collections.Counter(), collections.Counter()
        for source, target in zip(sources, targets):
            origins = [-1, *source.tolist()]
            for e in target.tolist():
                norm = sum(probs[f, e] for f in origins)
                for f in origins:
                    counts[f, e] += probs[f, e] / norm
                    totals[f] += probs[f, e] / norm
        probs = {(f, e): counts[f, e] / totals[f] for f, e in counts}
    assert len(probs) == len(found.probs)
    for f, e, prob in zip(found.source.tolist(), found.target.tolist(), found.probs):
        assert prob == pytest.approx(probs[f, e])


def test_words_that_are_often_in_one_sentence_are_not_said_in_place_of_each_other():
    sentences = [np.array(x) for x in ([0, 2, 2], [1, 3], [4, 5], [4, 5], [4, 6], *[[5, 6]] * 19)]
    pairs = np.array([[0, 1], [2, 3], [4, 5], [4, 6], [5, 6]])
    # 4 is in three sentences, in two of them with 5.
    kept = lexicon.rarely_together(pairs, sentences, most_share=0.4)
    assert kept.tolist() == [[0, 1], [2, 3], [4, 6]]
    assert len(lexicon.rarely_together(pairs, sentences, most_share=1.0)) == len(pairs)
    assert not len(lexicon.rarely_together(pairs[:0], sentences))


def test_words_are_whole_ones_of_the_vocabulary_and_their_pairs_are_planted():
    # Words 0 and 1 of 24 are of two parts each, and 3 is more often the end of "ab@@ 3".
    def parts(word):
        return [f"{word}@@", "x"] if word < 2 else [str(word)]

    sources, targets = corpus()
    targets = [[p for word in target.tolist() for p in parts(word)] for target in targets]
    targets += [["ab@@", "3"]] * 100
    sources = [" ".join(map(str, source)) for source in [*sources, *[[99]] * 100]]
    vocabulary = (*words_lib.SPECIAL, *sorted({p for target in targets for p in target}))
    found = word_pairs.whole_words(sources, targets, vocabulary)
    names = [vocabulary[x] for x in found.classes]
    assert sorted(names) == sorted(str(x) for x in range(2, 26) if x != 3)
    tied = {tuple(sorted((int(names[a]), int(names[b])))) for a, b in found.pairs}
    assert tied == {(2 * f, 2 * f + 1) for f in range(2, 12)}
    assert (found.pairs[:, 0] < found.pairs[:, 1]).all()
    whole = collections.Counter(p for target in targets for p in target)
    assert found.counts.tolist() == [whole[name] for name in names]


def test_a_negative_measure_has_a_low_rank_in_the_partial_correlation():
    rng, size = np.random.default_rng(0), 30
    overlap, noise = (x + x.T for x in rng.uniform(size=(2, size, size)))
    is_tied = (noise > np.quantile(noise, 0.95)).astype(float)
    strata = np.zeros(size, int)
    found = word_pairs.partial_correlation(-noise, is_tied, overlap, strata)
    other = word_pairs.partial_correlation(noise, is_tied, overlap, strata)
    assert found["rho"] == pytest.approx(-other["rho"])
    assert found["rho"] < -0.2


def test_aucs_are_compared_with_that_of_the_probabilities_of_the_same_seed():
    def tests(*aucs):
        other = dict(expected=0.5, p=0.25, pairs=3, words=20)
        partial = ({"partial": np.nan, "partial_p": np.nan}, {"partial": 0.1, "partial_p": 0.02})
        return {s: other | {"auc": x} | partial[s % 2] for s, x in enumerate(aucs)}

    rows = {"het_pe": {"seen": tests(0.9, 0.8, 0.7), "p_i p_j": tests(0.8, 0.6, 0.7)}}
    _, _, seen, overlap, _, note = word_pairs.lines(rows)
    mean, half = comparison.paired([0.9, 0.8, 0.7], [0.8, 0.6, 0.7])
    assert [cell.strip() for cell in seen.strip("|").split("|")] == [
        *("het_pe", "seen", "3", "3", "20", "0.800 ± 0.100"),
        *(f"{mean:+.3f} ± {half:.3f}", "0.500 ± 0.000", "0.25", "0.100", "0.02"),
    ]
    assert overlap.split("|")[7].strip() == ""
    detectable = statistics.compared({0: 0.1, 1: 0.2, 2: 0.0}, dict.fromkeys(range(3), 0.0))
    assert note.endswith(f"correction: - p_i p_j {detectable.detectable:.4f}.")


@pytest.mark.parametrize("kind", ["diagonal", "low_rank", "parameter_efficient", "everything"])
def test_what_is_seen_is_the_sum_of_the_definition(kind):
    one, classes = latent(kind, batch=(4,), k=6), np.array([5, 0, 2])
    probs = jax.nn.softmax(one.loc)
    expected = probs[:, :, None] * probs[:, None] * latent_lib.difference_variance(one)
    expected = np.sum(expected, axis=0)[np.ix_(classes, classes)]
    found = word_pairs.seen(one, probs, jnp.asarray(classes))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


PAIRS = np.array([[0, 1], [2, 3], [4, 7]])


def symmetric(values):
    return values + values.T


def test_pairs_with_the_largest_values_have_an_auc_of_1():
    measure = symmetric(np.random.default_rng(0).random((20, 20)))
    measure[PAIRS[:, 0], PAIRS[:, 1]] = measure[PAIRS[:, 1], PAIRS[:, 0]] = 9
    np.fill_diagonal(measure, 100)
    test = word_pairs.rank_test(measure, PAIRS, np.zeros(20, int), 999)
    assert test.auc == 1
    assert test.p < 0.01
    assert test.expected == pytest.approx(0.5, abs=0.02)
    assert word_pairs.rank_test(-measure, PAIRS, np.zeros(20, int), 99).auc == 0
    assert word_pairs.rank_test(0 * measure, PAIRS, np.zeros(20, int), 99)[:2] == (0.5, 0.5)


def test_a_measure_of_frequency_alone_finds_nothing():
    """Frequent words have larger values, and the pairs are of frequent words."""
    strata = np.repeat([1, 0], [10, 30])
    measure = symmetric(np.random.default_rng(0).random((40, 40)) + strata)
    within = word_pairs.rank_test(measure, PAIRS, strata, 999)
    among_all = word_pairs.rank_test(measure, PAIRS, np.zeros(40, int), 999)
    assert among_all.auc == within.auc > 0.9
    assert among_all.p < 0.01
    assert within.p > 0.1
    assert within.expected > 0.9


def test_p_is_uniform_for_an_unrelated_measure():
    rng, strata = np.random.default_rng(0), np.arange(16) % 2
    found = [
        word_pairs.rank_test(symmetric(rng.random((16, 16))), PAIRS, strata, 99).p
        for _ in range(200)
    ]
    assert np.mean(found) == pytest.approx(0.5, abs=0.07)
    assert np.mean(np.array(found) <= 0.1) == pytest.approx(0.1, abs=0.06)


@pytest.mark.parametrize("pairs", [PAIRS[:0], np.array([[0, 1], [0, 2], [1, 2]])])
def test_without_pairs_or_others_there_is_no_test(pairs):
    with pytest.raises(ValueError, match="some and not all must be"):
        word_pairs.rank_test(np.ones((3, 3)), pairs, np.zeros(3, int))
