"""The transformer: sizes, causality, and rows of several sentence pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key

from heteroscedastic import losses
from heteroscedastic.batch import SentencePairs
from heteroscedastic.models import heads, transformer
from heteroscedastic.models.transformer import TransformerIwslt, TransformerSmall, Translator

SOURCE_WORDS, TARGET_WORDS = 11, 7
LENGTHS = ((3, 4), (5, 2), (2, 3))  # of source and target of each pair
PAIRS = [
    tuple(
        np.random.default_rng([i, side]).integers(0, n, length).astype(np.int32)
        for side, (n, length) in enumerate(zip((SOURCE_WORDS, TARGET_WORDS), lengths))
    )
    for i, lengths in enumerate(LENGTHS)
]


class Tiny(TransformerSmall):
    num_layers = 1
    width = 8
    hidden_width = 12


def model(backbone=Tiny, head=heads.Deterministic, dropout=0.0, source=SOURCE_WORDS, **settings):
    settings = dict(num_classes=TARGET_WORDS) | settings
    return Translator(
        backbone(num_source_words=source, dropout=dropout), head(**settings, use_bias=False)
    )


def row(pairs, length=12):
    """One row of these pairs."""
    sides = np.zeros((2, 1, length), np.int32)
    segments = np.zeros((2, 1, length), np.int32)
    for side in (0, 1):
        lengths = [len(pair[side]) for pair in pairs]
        sides[side, 0, : sum(lengths)] = np.concatenate([pair[side] for pair in pairs])
        segments[side, 0, : sum(lengths)] = np.repeat(np.arange(1, len(pairs) + 1), lengths)
    return SentencePairs(*map(jnp.asarray, (sides[0], segments[0], sides[1], segments[1])))


def present(inputs):
    return inputs.target_segments > 0


@pytest.fixture(scope="module")
def variables():
    return model().init(key(), row(PAIRS), present(row(PAIRS)))


@jax.jit
def loc(variables, inputs):
    return model().apply(variables, inputs, present(inputs)).loc[0]


def test_the_size_is_that_of_the_reference_with_the_embedding_counted_once():
    def sizes(backbone):
        return backbone.num_layers, backbone.width, backbone.hidden_width, backbone.num_heads

    assert sizes(TransformerIwslt) == (6, 512, 1024, 4)
    assert sizes(TransformerSmall) == (3, 128, 256, 4)

    def num_parameters(backbone, source, **settings):
        inputs = row(PAIRS)
        init = model(backbone, source=source, **settings).init
        params = jax.eval_shape(init, key(), inputs, present(inputs))["params"]
        return sum(x.size for x in jax.tree.leaves(params))

    assert num_parameters(TransformerIwslt, 8848, num_classes=6632) == 39_469_056
    layer = 4 * (128 * 128 + 128) + (128 * 256 + 256) + (256 * 128 + 128) + 2 * 256
    both = 3 * (2 * layer + 4 * (128 * 128 + 128) + 256)
    assert num_parameters(TransformerSmall, 3200, num_classes=2504) == both + 5704 * 128
    noisy = dict(head=heads.Diagonal, num_classes=2504)
    assert num_parameters(TransformerSmall, 3200, **noisy) == both + 5704 * 128 + 129 * 2504


def test_a_packed_row_gives_each_pair_the_logits_it_has_alone_and_gradients_add(variables):
    @jax.jit
    def total(params, inputs, labels):
        latent = model().apply({"params": params}, inputs, present(inputs))
        values = losses.cross_entropy(latent.loc, jax.nn.one_hot(labels, TARGET_WORDS))
        return jnp.sum(jnp.where(present(inputs), values, 0.0))

    def gradient(pairs):
        # The words themselves as labels, so that those of a pair do not depend on its place.
        return jax.grad(total)(variables["params"], row(pairs), row(pairs).previous)

    together, start = loc(variables, row(PAIRS)), 0
    for pair in PAIRS:
        stop = start + len(pair[1])
        alone = loc(variables, row([pair]))
        np.testing.assert_allclose(together[start:stop], alone[: len(pair[1])], atol=1e-5)
        start = stop
    added = jax.tree.map(lambda *x: sum(x), *(gradient([pair]) for pair in PAIRS))
    whole = gradient(PAIRS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), whole, added)
    largest = jax.tree.map(lambda x: float(jnp.abs(x).max()), whole)
    assert largest["head"]["loc"]["kernel"] > 1e-3
    assert largest["backbone"]["source_words"]["embedding"] > 1e-3


def test_a_prediction_depends_on_the_words_before_it_and_on_all_of_its_source(variables):
    inputs = row(PAIRS[:2])
    before = loc(variables, inputs)
    for place in range(6):
        changed = inputs._replace(previous=inputs.previous.at[0, place].add(1) % TARGET_WORDS)
        differs = np.abs(loc(variables, changed) - before).max(axis=-1) > 1e-6
        stop = 4 if place < 4 else 6
        assert not differs[:place].any()
        assert not differs[stop:].any()
        assert differs[place:stop].all()
    changed = inputs._replace(source=inputs.source.at[0, 2].add(1) % SOURCE_WORDS)  # of the first
    differs = np.abs(loc(variables, changed) - before).max(axis=-1) > 1e-6
    assert differs[:4].all()
    assert not differs[4:6].any()


def test_the_words_of_the_decoder_are_the_kernel_of_the_head(variables):
    inputs = row(PAIRS[:1])
    unread = next(word for word in range(TARGET_WORDS) if word not in PAIRS[0][1])
    kernel = variables["params"]["head"]["loc"]["kernel"]
    assert list(variables["params"]["head"]["loc"]) == ["kernel"]
    read = int(PAIRS[0][1][0])
    for word, is_read in ((unread, False), (read, True)):
        head = {"loc": {"kernel": kernel.at[:, word].add(1.0)}}
        other = loc({"params": {**variables["params"], "head": head}}, inputs)
        changed = np.delete(other - loc(variables, inputs), word, axis=-1)[:4]
        assert (np.abs(changed).max() > 1e-6) == is_read


class Embedding(Tiny):
    num_layers = 0


def test_dropout_is_of_training_alone_on_embeddings_and_on_branches(variables):
    backbone, words = Embedding(SOURCE_WORDS, 0.5), jnp.ones((TARGET_WORDS, 8))
    params = backbone.init(key(), row(PAIRS), present(row(PAIRS)), target_words=words)
    plain, dropped = (
        backbone.apply(
            params,
            *(row(PAIRS), present(row(PAIRS)), train),
            target_words=words,
            rngs={"dropout": key()},
        )
        for train in (False, True)
    )
    is_dropped = dropped == 0
    assert 0.3 < jnp.mean(is_dropped) < 0.7
    np.testing.assert_allclose(dropped, jnp.where(is_dropped, 0, 2 * plain), rtol=1e-6)

    layer, hidden = transformer._Layer(8, 12, 4, 0.999), jnp.ones((1, 2, 8)) * jnp.arange(8.0)
    arguments = hidden, jnp.ones((1, 1, 2, 2), bool)
    params = layer.init(key(), *arguments, False)
    mean, deviation = np.mean(np.arange(8)), np.std(np.arange(8))
    for train in (False, True):
        found = layer.apply(params, *arguments, train, rngs={"dropout": key()})[0, 0]
        # Without its branches a layer only normalises, twice.
        is_alone = np.allclose(found, (np.arange(8) - mean) / deviation, atol=1e-3)
        assert is_alone == train


def test_positions_start_again_in_each_segment_and_tell_places_apart():
    segments = jnp.array([[1, 1, 1, 2, 2, 3, 0, 0]])
    np.testing.assert_array_equal(transformer.positions(segments)[0], [0, 1, 2, 0, 1, 0, 0, 1])
    waves = np.asarray(transformer.sinusoids(jnp.arange(5), 8))
    angle = 3 * 10_000 ** -(1 / 3)
    np.testing.assert_allclose(waves[3, [0, 1, 5]], [np.sin(3), np.sin(angle), np.cos(angle)], 1e-5)
