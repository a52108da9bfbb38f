import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic import ensembles
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.uncertainty import entropy
from heteroscedastic.data import resident
from heteroscedastic.runs import loaded_run, predictions


@pytest.fixture(scope="module")
def het(digit_runs):
    return loaded_run.load(digit_runs[-1])


@pytest.fixture(scope="module")
def split(het):
    return entropy.over_samples(het, "valid")


def drawn(found, split, num_samples):
    """Samples of the utilities of a split, by another key."""
    run, data = found.run, found.run.dataset.splits[split]
    feed = resident.Feed(np.arange(len(data.ids)), np.ones(len(data.ids), np.float32), np.int32(0))
    latent, _ = jax.jit(run.latents)(
        found.state.params, found.state.model_state, jax.tree.map(jnp.asarray, data), feed
    )
    return latent_lib.sample(jax.random.key(7), latent, num_samples)


def test_the_split_is_that_of_plain_samples(het, split):
    found = split
    probs = np.asarray(jax.nn.softmax(drawn(het, "valid", 2000)), np.float64)
    total, expected = stats.entropy(probs.mean(0), axis=-1), stats.entropy(probs, axis=-1).mean(0)
    np.testing.assert_allclose(found.total, total, atol=0.05)
    np.testing.assert_allclose(found.expected, expected, atol=0.05)
    np.testing.assert_allclose(found.mutual.mean(), (total - expected).mean(), rtol=0.08)
    assert found.mutual.mean() > 0.005


def test_the_parts_add_up_and_none_is_below_zero(split):
    found = split
    np.testing.assert_allclose(found.expected + found.mutual, found.total, rtol=1e-12)
    assert min(part.min() for part in found) >= 0


def test_chunks_and_a_short_last_one_change_nothing_but_rounding(het, monkeypatch):
    whole = entropy.over_samples(het, "valid", 24, points="independent")
    monkeypatch.setattr(entropy, "_CHUNK_VALUES", 7 * 50 * 10)  # of 24 samples 7, 7, 7 and 3
    parts = entropy.over_samples(het, "valid", 24, points="independent")
    np.testing.assert_allclose(parts.total, whole.total, rtol=1e-5)
    np.testing.assert_allclose(parts.mutual, whole.mutual, atol=1e-5)


def test_a_head_without_noise_has_no_mutual_information_and_the_entropy_of_its_prediction(
    digit_runs,
):
    found = entropy.over_samples(loaded_run.load(digit_runs[0]), "test", 32)
    np.testing.assert_allclose(found.mutual, 0, atol=1e-5)
    probs = jax.nn.softmax(predictions.read(digit_runs[0], "test").logits)
    np.testing.assert_allclose(
        found.total, stats.entropy(np.asarray(probs, np.float64), axis=-1), atol=1e-5
    )


def test_of_several_labels_it_is_the_sum_over_answers(several_labels_run):
    run = loaded_run.load(several_labels_run)
    found = entropy.over_samples(run, "valid")
    probs = np.asarray(jax.nn.sigmoid(drawn(run, "valid", 400)), np.float64)
    total = special.entr([probs.mean(0), 1 - probs.mean(0)]).sum((0, -1))
    expected = special.entr([probs, 1 - probs]).sum((0, -1)).mean(0)
    np.testing.assert_allclose(found.total, total, rtol=0.05)
    np.testing.assert_allclose(found.mutual.mean(), (total - expected).mean(), rtol=0.08)


def test_members_are_of_the_same_examples(digit_runs):
    told = [predictions.read(path, "test") for path in digit_runs[:2]]
    found = entropy.over_members(told)
    probs = np.stack([np.asarray(jax.nn.softmax(p.logits), np.float64) for p in told])
    np.testing.assert_allclose(found.total, stats.entropy(probs.mean(0), axis=-1), rtol=1e-5)
    with pytest.raises(ValueError, match="two runs or more"):
        entropy.over_members(told[:1])
    with pytest.raises(ValueError, match="of different examples"):
        entropy.over_members([told[0], predictions.read(digit_runs[1], "valid")])


def members(several, n, k, number=3):
    draws = np.random.default_rng(0)
    labels = np.zeros((n, 2), np.int32) if several else np.zeros(n, np.int32)
    logits = (3 * draws.normal(size=(n, k)).astype(np.float32) for _ in range(number))
    return [predictions.Predictions(None, np.arange(n), labels, x) for x in logits]


@pytest.mark.parametrize("several", [False, True])
def test_blocks_of_examples_change_nothing(several, monkeypatch):
    told = members(several, 23, 4)
    logits = np.stack([p.logits for p in told])
    split = ensembles.sigmoid_entropy_split if several else ensembles.entropy_split
    mean = ensembles.mean_log_odds if several else ensembles.log_mean
    monkeypatch.setattr(entropy, "_BLOCK_VALUES", 3 * 4 * 5)  # of 23 examples 5, 5, 5, 5 and 3
    for part, whole in zip(entropy.over_members(told), split(logits)):
        np.testing.assert_allclose(part, whole, rtol=1e-13)
    np.testing.assert_allclose(entropy.mean_of_members(told).logits, mean(logits), rtol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_the_memory_of_an_ensemble_is_that_of_a_block(several, monkeypatch):
    monkeypatch.setattr(entropy, "_BLOCK_VALUES", 2**14)
    told = members(several, 4000, 100)  # 1.6 MB each
    tracemalloc.start()
    entropy.over_members(told)
    entropy.mean_of_members(told)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * told[0].logits.nbytes + 20 * 2**14 * 8


def test_a_split_that_is_not_there_is_told(het):
    with pytest.raises(ValueError, match="no split 'validation', but test, train, valid"):
        entropy.over_samples(het, "validation")
