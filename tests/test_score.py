"""The scores of examples: limits, sums and an implementation in plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import key, latent
from scipy import special, stats

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive, sampling, score
from heteroscedastic.latent import LatentGaussian

LOGITS = jnp.asarray(np.random.default_rng(0).normal(0, 3, (50, 7)), jnp.float32)
LABELS = jnp.asarray(np.random.default_rng(1).integers(0, 7, 50))
SAMPLES = dict(num_samples=64)
NAMES = {name: {} for name in ("entropy", "margin", "loss", "gradient_norm")} | {
    name: SAMPLES for name in ("expected_entropy", "latent_information")
}


def value(name, logits=LOGITS, labels=LABELS, distribution=None, **settings):
    distribution = LatentGaussian(logits) if distribution is None else distribution
    settings = settings or NAMES[name]
    return np.asarray(getattr(score, name)(key(), distribution, logits, labels, **settings))


def test_scores_agree_with_numpy():
    probs = special.softmax(np.float64(LOGITS), axis=-1)
    own = probs[np.arange(50), LABELS]
    largest = np.sort(probs, axis=-1)
    expected = {
        "entropy": stats.entropy(probs, axis=-1),
        "margin": 1 - (largest[:, -1] - largest[:, -2]),
        "loss": -np.log(own),
        "gradient_norm": np.linalg.norm(probs - np.eye(7)[LABELS], axis=-1),
    }
    for name, numbers in expected.items():
        np.testing.assert_allclose(value(name), numbers, rtol=2e-5, atol=2e-6)


def test_the_expected_entropy_agrees_with_numpy_on_the_same_samples():
    gaussian = latent("low_rank", batch=(6,), k=4)
    utilities = latent_lib.sample(key(3), gaussian, 500)
    expected = stats.entropy(special.softmax(np.float64(utilities), axis=-1), axis=-1).mean(axis=0)
    found = score.expected_entropy(
        key(3), gaussian, gaussian.loc, jnp.zeros(6, int), num_samples=500
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_leading_axes_and_constants_added_to_the_logits_change_nothing(name):
    expected = value(name)
    folded = LOGITS.reshape(5, 10, 7)
    np.testing.assert_allclose(
        value(name, folded, LABELS.reshape(5, 10)).ravel(), expected, rtol=1e-6, atol=1e-6
    )
    shifted = LOGITS + jnp.arange(50.0)[:, None]
    np.testing.assert_allclose(value(name, shifted), expected, rtol=1e-4, atol=1e-4)


def test_scores_have_their_limits_where_all_classes_are_alike_and_where_one_is_certain():
    alike, certain = jnp.zeros((1, 7)), jnp.eye(7)[:1] * 1e4
    first, other = jnp.array([0]), jnp.array([1])
    for name in ("entropy", "expected_entropy"):
        assert value(name, alike, first) == pytest.approx(np.log(7), rel=1e-6)
        assert value(name, certain, first) == 0
    assert value("margin", alike, first) == pytest.approx(1, abs=1e-6)
    assert value("margin", certain, first) == 0
    assert value("loss", certain, first) == 0
    assert value("gradient_norm", certain, first) == 0
    assert value("gradient_norm", certain, other) == pytest.approx(np.sqrt(2))


def test_one_class_is_certain():
    one, labels = LOGITS[:, :1], jnp.zeros(50, int)
    for name in NAMES:
        np.testing.assert_allclose(value(name, one, labels), 0, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("kind", ["low_rank", "deterministic"])
def test_the_expected_entropy_of_half_the_bits_is_computed_in_float32(kind, dtype, monkeypatch):
    half = jax.tree.map(lambda x: x.astype(dtype), latent(kind, batch=(3,), k=8))
    single = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    monkeypatch.setattr(sampling, "_CHUNK_VALUES", 7 * half.loc.size)  # of 64 samples
    found = value("expected_entropy", LOGITS[:3], LABELS[:3], half)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, value("expected_entropy", LOGITS[:3], LABELS[:3], single))


@pytest.mark.parametrize("kind", ["low_rank", "deterministic"])
def test_an_invalid_latent_or_name_of_points_is_an_error(kind):
    gaussian = latent(kind, batch=(3,), k=8)
    with pytest.raises(ValueError, match="points is 'sobl', but must be one of"):
        value("expected_entropy", distribution=gaussian, num_samples=4, points="sobl")
    with pytest.raises(ValueError, match="points is 'sobl', but must be one of"):
        predictive.softmax(key(), gaussian, num_samples=4, points="sobl")
    with pytest.raises(ValueError, match=r"latent\.loc"):
        value("expected_entropy", distribution=gaussian._replace(loc=gaussian.loc * jnp.nan))


def test_a_class_of_probability_zero_adds_nothing():
    with_padding = jnp.pad(LOGITS, ((0, 0), (0, 2)), constant_values=-jnp.inf)
    for name in NAMES:
        np.testing.assert_allclose(value(name, with_padding), value(name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "points", mostly_extended(("independent", "antithetic", "sobol"), ("antithetic", "sobol"))
)
def test_the_information_agrees_with_numpy_on_the_same_samples(points):
    gaussian, settings = latent("low_rank", batch=(20,), k=5), dict(num_samples=64, points=points)
    utilities = latent_lib.sample(key(), gaussian, **settings)
    probs = special.softmax(np.float64(utilities), axis=-1)
    mean_entropy = stats.entropy(probs, axis=-1).mean(axis=0)
    expected = stats.entropy(probs.mean(axis=0), axis=-1) - mean_entropy
    assert (expected > 0).all()  # of a mixture
    logits = predictive.softmax(key(), gaussian, **settings)
    found = value("latent_information", logits, jnp.zeros(20, int), gaussian, **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_without_noise_there_is_no_information():
    np.testing.assert_allclose(value("latent_information"), 0, atol=1e-6)


def test_samples_come_in_chunks_without_changing_the_expected_entropy(monkeypatch):
    gaussian = latent("low_rank", batch=(6,), k=4)
    whole = value("expected_entropy", gaussian.loc, jnp.zeros(6, int), gaussian, num_samples=50)
    monkeypatch.setattr(sampling, "_CHUNK_VALUES", 7 * gaussian.loc.size)
    parts = value("expected_entropy", gaussian.loc, jnp.zeros(6, int), gaussian, num_samples=50)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


def test_a_chunk_has_fewer_samples_where_the_noise_is_on_features(monkeypatch):
    gaussian, sizes, inner = latent("readout", batch=(6,), k=4, n=100), [], sampling.over_chunks
    monkeypatch.setattr(sampling, "_CHUNK_VALUES", 7 * 6 * 100)
    monkeypatch.setattr(sampling, "over_chunks", lambda *x: sizes.append(x[-1]) or inner(*x))
    value("expected_entropy", gaussian.loc, jnp.zeros(6, int), gaussian, num_samples=50)
    assert sizes == [7]


def test_a_number_of_samples_out_of_range_is_an_error():
    for name in ("expected_entropy", "latent_information"):
        with pytest.raises(ValueError, match="num"):
            value(name, num_samples=0)


def test_scores_are_finite_where_logits_are_extreme():
    extreme = jnp.array([[1e30, -1e30, 0.0], [0.0, 0.0, -1e30]])
    for name, settings in NAMES.items():
        if name != "loss":  # of a class of probability zero it is infinite in exact arithmetic, too
            found = jax.jit(getattr(score, name), static_argnames=tuple(settings))(
                key(), LatentGaussian(extreme), extreme, jnp.array([0, 1]), **settings
            )
            assert np.isfinite(found).all(), name
