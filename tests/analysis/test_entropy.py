import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis import entropy, finished, predictions
from heteroscedastic.data import resident


@pytest.fixture(scope="module")
def het(digit_runs):
    return finished.load(digit_runs[-1])


@pytest.fixture(scope="module")
def split(het):
    return entropy.over_samples(het, "valid")


def drawn(found, split, num_samples):
    """Samples of the utilities of a split, by another key."""
    run, data = found.run, found.run.dataset.splits[split]
    feed = resident.Feed(np.arange(len(data.ids)), np.ones(len(data.ids), np.float32), np.int32(0))
    latent, _ = jax.jit(run.latents)(found.state.params, found.state.model_state, jax.tree.map(jnp.asarray, data), feed)
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


def test_a_head_without_noise_has_no_mutual_information_and_the_entropy_of_its_prediction(digit_runs):
    found = entropy.over_samples(finished.load(digit_runs[0]), "test", 32)
    np.testing.assert_allclose(found.mutual, 0, atol=1e-5)
    probs = jax.nn.softmax(predictions.read(digit_runs[0], "test").logits)
    np.testing.assert_allclose(found.total, stats.entropy(np.asarray(probs, np.float64), axis=-1), atol=1e-5)


def test_of_several_labels_it_is_the_sum_over_answers(several_labels_run):
    run = finished.load(several_labels_run)
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


def test_a_split_that_is_not_there_is_told(het):
    with pytest.raises(ValueError, match="no split 'validation', but test, train, valid"):
        entropy.over_samples(het, "validation")
