import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic import ensembles, sampling
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.uncertainty import entropy
from heteroscedastic.data import resident
from heteroscedastic.runs import loaded_run, predictions


@pytest.fixture(scope="module")
def het(digit_runs):
    return loaded_run.load(digit_runs[-1])


@pytest.fixture(scope="module")
def split(het):
    return entropy.sample_split(het, "valid")


def samples(loaded, split, num_samples):
    """Samples of the utilities of a split, with another key."""
    run, data = loaded.run, loaded.run.dataset.splits[split]
    feed = resident.Feed(np.arange(len(data.ids)), np.ones(len(data.ids), np.float32), np.int32(0))
    latent, _ = jax.jit(run.latents)(
        loaded.state.params, loaded.state.model_state, jax.tree.map(jnp.asarray, data), feed
    )
    return latent_lib.sample(jax.random.key(7), latent, num_samples)


def test_the_split_agrees_with_plain_sampling(het, split):
    result = split
    probs = np.asarray(jax.nn.softmax(samples(het, "valid", 2000)), np.float64)
    total, expected = stats.entropy(probs.mean(0), axis=-1), stats.entropy(probs, axis=-1).mean(0)
    np.testing.assert_allclose(result.total, total, atol=0.05)
    np.testing.assert_allclose(result.expected, expected, atol=0.05)
    np.testing.assert_allclose(result.mutual.mean(), (total - expected).mean(), rtol=0.08)
    assert result.mutual.mean() > 0.005


def test_the_parts_add_up_and_are_not_negative(split):
    result = split
    np.testing.assert_allclose(result.expected + result.mutual, result.total, rtol=1e-12)
    assert min(part.min() for part in result) >= 0


def test_chunks_with_a_short_last_one_change_only_rounding(het, monkeypatch):
    expected = entropy.sample_split(het, "valid", 24, points="independent")
    monkeypatch.setattr(sampling, "_CHUNK_VALUES", 7 * 50 * 10)  # of 24 samples 7, 7, 7 and 3
    parts = entropy.sample_split(het, "valid", 24, points="independent")
    np.testing.assert_allclose(parts.total, expected.total, rtol=1e-5)
    np.testing.assert_allclose(parts.mutual, expected.mutual, atol=1e-5)


def test_a_head_without_noise_has_no_mutual_information(
    digit_runs,
):
    result = entropy.sample_split(loaded_run.load(digit_runs[0]), "test", 32)
    np.testing.assert_allclose(result.mutual, 0, atol=1e-5)
    probs = jax.nn.softmax(predictions.read(digit_runs[0], "test").logits)
    np.testing.assert_allclose(
        result.total, stats.entropy(np.asarray(probs, np.float64), axis=-1), atol=1e-5
    )


def test_under_a_sigmoid_the_entropy_is_a_sum_over_classes(several_labels_run):
    run = loaded_run.load(several_labels_run)
    result = entropy.sample_split(run, "valid")
    probs = np.asarray(jax.nn.sigmoid(samples(run, "valid", 400)), np.float64)
    total = special.entr([probs.mean(0), 1 - probs.mean(0)]).sum((0, -1))
    expected = special.entr([probs, 1 - probs]).sum((0, -1)).mean(0)
    np.testing.assert_allclose(result.total, total, rtol=0.05)
    np.testing.assert_allclose(result.mutual.mean(), (total - expected).mean(), rtol=0.08)


def test_members_must_predict_the_same_examples(digit_runs):
    runs = [predictions.read(path, "test") for path in digit_runs[:2]]
    result = entropy.member_split(runs)
    probs = np.stack([np.asarray(jax.nn.softmax(p.logits), np.float64) for p in runs])
    np.testing.assert_allclose(result.total, stats.entropy(probs.mean(0), axis=-1), rtol=1e-5)
    with pytest.raises(ValueError, match="at least two runs"):
        entropy.member_split(runs[:1])
    with pytest.raises(ValueError, match="hold different examples"):
        entropy.member_split([runs[0], predictions.read(digit_runs[1], "valid")])


def members(lists, n, k, number=3):
    draws = np.random.default_rng(0)
    labels = np.zeros((n, 2), np.int32) if lists else np.zeros(n, np.int32)
    logits = (3 * draws.normal(size=(n, k)).astype(np.float32) for _ in range(number))
    return [predictions.Predictions(None, np.arange(n), labels, x) for x in logits]


@pytest.mark.parametrize("lists", [False, True])
def test_blocks_of_examples_change_nothing(lists, monkeypatch):
    runs = members(lists, 23, 4)
    logits = np.stack([p.logits for p in runs])
    split = ensembles.sigmoid_entropy_split if lists else ensembles.entropy_split
    mean = ensembles.mean_log_odds if lists else ensembles.log_mean
    monkeypatch.setattr(entropy, "_BLOCK_VALUES", 3 * 4 * 5)  # of 23 examples 5, 5, 5, 5 and 3
    for part, expected in zip(entropy.member_split(runs), split(logits)):
        np.testing.assert_allclose(part, expected, rtol=1e-13)
    np.testing.assert_allclose(entropy.ensemble_mean(runs).logits, mean(logits), rtol=1e-6)


@pytest.mark.parametrize("lists", [False, True])
def test_the_memory_of_an_ensemble_is_bounded_by_a_block(lists, monkeypatch):
    monkeypatch.setattr(entropy, "_BLOCK_VALUES", 2**14)
    runs = members(lists, 4000, 100)  # 1.6 MB each
    tracemalloc.start()
    entropy.member_split(runs)
    entropy.ensemble_mean(runs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * runs[0].logits.nbytes + 20 * 2**14 * 8


def test_a_missing_split_is_an_error(het):
    with pytest.raises(
        ValueError, match="no split 'validation'; its splits are test, train, valid"
    ):
        entropy.sample_split(het, "validation")
