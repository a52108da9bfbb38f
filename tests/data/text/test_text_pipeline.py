"""The text pipeline: batches of packed sentence pairs, and what curation does to pairs."""

import functools

import jax
import numpy as np
import pytest

from heteroscedastic import curation
from heteroscedastic.data.packing import MAX_TOKENS
from heteroscedastic.data.text import pipeline, words
from heteroscedastic.data.text.pairs import Pairs
from heteroscedastic.data.text.pipeline import Text
from heteroscedastic.data.text.prepared import PreparedText, Sentences

LENGTH, FIRST = 16, 1000  # of a row; position of the first pair of test
BATCH = 5  # rows, of which the last batch has fewer
SIZES = {"train": 60, "test": 9}


def sentences(rng, size):
    lengths = rng.integers(2, 12, size).astype(np.int32)
    lengths[-1] = 21  # longer than a row, as is another sentence of each side alone
    lengths[rng.integers(size - 1)] = 18
    tokens = rng.integers(4, 16, lengths.sum()).astype(np.int32)
    tokens[np.cumsum(lengths) - 1] = words.END
    return Sentences(tokens, lengths)


def text():
    rng, names = np.random.default_rng(0), tuple(f"word {i}" for i in range(16))
    source, target = ({split: sentences(rng, n) for split, n in SIZES.items()} for _ in range(2))
    return PreparedText(source, target, names, names, "", "fingerprint")


def build(chain=()):
    return Text(
        text=text(),
        training=pipeline.curated(SIZES["train"], 0, chain),
        pairs={"train": Pairs([], []), "test": Pairs([], [], FIRST)},
        length=LENGTH,
        seed=3,
        packing_seed=4,
        batch_size=BATCH,
    )


def examples(data, split, feeds):
    """(sentence, source words, previous words, labels) of each pair of an epoch."""
    found = []
    for feed in feeds:
        batch = jax.tree.map(np.asarray, data.batch(jax.random.key(0), data.arrays[split], feed))
        inputs = batch.inputs
        np.testing.assert_array_equal(batch.weights > 0, is_present(inputs, feed))
        for row in np.flatnonzero(feed.weights):
            for segment in range(1, inputs.target_segments[row].max() + 1):
                here = inputs.target_segments[row] == segment
                ids = batch.ids[row, here]
                assert ids.tolist() == list(range(ids[0], ids[0] + here.sum()))
                assert ids[0] % MAX_TOKENS == 0
                source = inputs.source[row, inputs.source_segments[row] == segment]
                previous, labels = inputs.previous[row, here], batch.labels[row, here]
                found.append((*map(tuple, (source, previous, labels)), ids[0] // MAX_TOKENS))
    return found


def is_present(inputs, feed):
    return (inputs.target_segments > 0) & (feed.weights[:, None] > 0)


def pairs(data, split, rows, targets, first=0):
    source, target = data.text.source[split].split(), data.text.target[split].split()
    return [
        (tuple(source[i]), (words.END, *target[j][:-1]), tuple(target[j]), first + i)
        for i, j in zip(rows, targets)
    ]


def test_an_epoch_has_every_pair_that_fits_once_and_each_word_follows_the_one_before():
    data, slots = build(), np.arange(BATCH)
    assert data.sizes["train"] % BATCH
    source, target = (side["train"].lengths for side in (data.text.source, data.text.target))
    fits = np.flatnonzero(np.maximum(source, target) <= LENGTH)
    expected = sorted(pairs(data, "train", fits, fits))
    epochs = [examples(data, "train", data.training_feeds(e, 0, slots)) for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == expected
    assert epochs[0] != epochs[1]
    assert examples(data, "train", data.training_feeds(1, 2, slots)) == epochs[1][-_number(data) :]
    description = data.description
    assert description["pairs"] == dict(stored=60, dropped=0, misaligned=0, too_long=60 - len(fits))
    counts = np.bincount([w for pair in expected for w in pair[2]], minlength=16)
    assert description["class_counts"] == counts.tolist()
    assert description["num_examples"]["train"] == counts.sum()


def _number(data):
    """Pairs of an epoch from its third step on."""
    order = np.random.Generator(np.random.Philox(key=[3, 1])).permutation(data.sizes["train"])[
        2 * BATCH :
    ]
    return int(data.arrays["train"].target_segments[order].max(axis=1).sum())


def test_an_evaluation_has_every_pair_however_long():
    data = build()
    every = range(SIZES["test"])
    found = examples(data, "test", data.feeds("test", np.arange(BATCH)))
    assert sorted(found) == sorted(pairs(data, "test", every, every, FIRST))
    assert data.arrays["test"].target.shape[1] == 24  # 21 words, up to a multiple of 8


def test_subset_draws_pairs_and_permute_labels_misaligns_a_share_of_them():
    chain = [
        functools.partial(curation.subset, fraction=0.5),
        functools.partial(curation.permute_labels, rate=0.4),
    ]
    data, training = build(chain), pipeline.curated(SIZES["train"], 0, chain)
    assert len(training.rows) == 30
    assert sorted(training.rows) == sorted(training.targets)
    assert 10 <= np.sum(training.rows != training.targets) <= 12
    found = examples(data, "train", data.training_feeds(0, 0, np.arange(BATCH)))
    assert set(found) <= set(pairs(data, "train", *training))
    facts = data.description["pairs"]
    assert len(found) == 30 - facts["too_long"]
    assert (facts["dropped"], facts["misaligned"]) == (
        30,
        (training.rows != training.targets).sum(),
    )
    assert data.description["fingerprint"] != build().description["fingerprint"]
    # A pair of a slice has the random numbers of its position in the stored split.
    half = functools.partial(curation.subset, fraction=0.5)
    ids = np.arange(FIRST, FIRST + SIZES["train"], dtype=np.int32)
    drawn, _ = half(0, ids, ids, SIZES["train"])
    sliced = pipeline.curated(SIZES["train"], 0, [half], first=FIRST)
    np.testing.assert_array_equal(sliced.rows, drawn - FIRST)
    np.testing.assert_array_equal(sliced.targets, sliced.rows)
    assert set(sliced.rows) != set(pipeline.curated(SIZES["train"], 0, [half]).rows)
    for wrong in ([functools.partial(curation.symmetric, rate=0.1)], 2 * chain[:1]):
        with pytest.raises(ValueError, match="curated by permute_labels and subset, each once"):
            build(wrong)
