import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import KINDS, covariance, key, latent

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_mean_and_covariance_of_the_latent(kind):
    one = latent(kind, batch=(2,))
    num_samples = 100_000
    samples = np.asarray(latent_lib.sample(key(), one, num_samples), np.float64)
    stated = covariance(one)
    for b in range(2):
        deviations = np.sqrt(np.diag(stated[b]))
        error = np.abs(samples[:, b].mean(0) - np.asarray(one.loc[b]))
        assert (error <= 5 * deviations / np.sqrt(num_samples) + 1e-5).all()
        # The variance of a sample covariance of Gaussians is (S_ii S_jj + S_ij^2) / n.
        spread = np.sqrt((np.outer(deviations**2, deviations**2) + stated[b] ** 2) / num_samples)
        assert (np.abs(np.cov(samples[:, b].T) - stated[b]) <= 5 * spread + 1e-4).all()


def test_diagonal_noise_is_independent_between_classes():
    one = latent("diagonal", batch=())
    per_class = np.asarray(latent_lib.sample(key(), one, 50_000))
    shared = np.asarray(one.loc + one.scale_diag * jax.random.normal(key(), (50_000, 1)))

    def largest_correlation(samples):
        return np.abs(np.corrcoef(samples.T) - np.eye(5)).max()

    assert largest_correlation(shared) > 0.99  # one draw for all classes
    assert largest_correlation(per_class) < 0.03


def test_different_examples_have_independent_noise():
    same = jax.tree.map(lambda x: jnp.stack([x, x]), latent("low_rank", batch=()))
    samples = latent_lib.sample(key(), same, 50_000) - same.loc
    joint = np.corrcoef(np.asarray(samples).reshape(50_000, -1).T)
    assert np.abs(joint[:5, 5:]).max() < 0.03


def test_a_sample_depends_on_its_index_and_not_on_the_number_of_samples():
    one = latent("everything")
    many, few = latent_lib.sample(key(), one, 7)[:3], latent_lib.sample(key(), one, 3)
    np.testing.assert_allclose(many, few, rtol=1e-5, atol=1e-5)  # rounding depends on the shapes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), pytest.param((3,), marks=pytest.mark.extended), (2, 3)])
def test_moments_agree_with_the_definition(kind, batch):
    one = latent(kind, batch=batch)
    stated = covariance(one)
    close = dict(rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(latent_lib.covariance(one), stated, **close)
    np.testing.assert_allclose(latent_lib.variance(one), np.einsum("...ii->...i", stated), **close)
    rows, cols = jnp.array([0, 4, 2, 3]), jnp.array([0, 1, 2, 0])
    np.testing.assert_allclose(
        latent_lib.covariance_entries(one, rows, cols), stated[..., rows, cols], **close
    )
    vectors = jnp.asarray(np.random.default_rng(1).normal(size=one.loc.shape), jnp.float32)
    times = np.einsum("...ij,...j->...i", stated, vectors)
    np.testing.assert_allclose(
        latent_lib.covariance_times(one, vectors), times, rtol=1e-4, atol=2e-4
    )
    own = np.einsum("...ii->...i", stated)
    difference = own[..., :, None] + own[..., None, :] - 2 * stated
    np.testing.assert_allclose(latent_lib.difference_variance(one), difference, **close)
    entries = latent_lib.difference_variance_entries(one, rows, cols)
    np.testing.assert_allclose(entries, difference[..., rows, cols], **close)


def test_large_noise_common_to_all_classes_does_not_change_differences():
    one = latent("low_rank")
    common = jnp.full((3, 5, 1), 1e4)
    shifted = one._replace(factor_loadings=jnp.concatenate([one.factor_loadings, common], axis=-1))
    np.testing.assert_allclose(
        latent_lib.difference_variance(shifted),
        latent_lib.difference_variance(one),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("common", [0.0, 1e3])
def test_the_variance_from_the_weighted_mean_agrees_with_the_definition(kind, common):
    one = latent(kind, batch=(2, 3))
    if one.shared_loadings is not None and one.readout is None:
        one = one._replace(factor_scale=jnp.ones_like(one.factor_scale))
    stated = covariance(one)
    weights = jax.nn.softmax(one.loc)
    mean = np.einsum("...ij,...j->...i", stated, weights)
    expected = np.einsum("...ii->...i", stated) - 2 * mean
    expected += np.einsum("...i,...i->...", mean, weights)[..., None]
    if one.shared_loadings is not None and one.readout is None:
        one = one._replace(shared_loadings=one.shared_loadings + common)  # common to all classes
    actual = latent_lib.variance_from_mean(one, weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4 + 1e-6 * common)


def test_the_variance_from_the_mean_of_shared_factors_agrees_for_any_scale():
    one = latent("parameter_efficient", batch=(2, 3))._replace(scale_diag=None)
    weights = jax.nn.softmax(one.loc)
    loadings = np.asarray(one.factor_scale, np.float64)[..., None] * one.shared_loadings
    mean = np.einsum("...k,...kq->...q", weights, loadings)
    expected = np.sum(np.square(loadings - mean[..., None, :]), axis=-1)
    actual = latent_lib.variance_from_mean(one, weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_temper_divides_the_utilities(kind):
    one = latent(kind)
    tempered = latent_lib.temper(one, 0.15)
    np.testing.assert_allclose(tempered.loc, one.loc / 0.15, rtol=1e-6)
    np.testing.assert_allclose(
        latent_lib.covariance(tempered), latent_lib.covariance(one) / 0.15**2, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        latent_lib.sample(key(), tempered, 3),
        latent_lib.sample(key(), one, 3) / 0.15,
        rtol=1e-4,
        atol=1e-4,
    )


def test_map_batch_does_not_change_fields_without_batch_axes():
    one = latent("everything")
    first = latent_lib.map_batch(lambda x: x[:1], one)
    assert first.shared_loadings.shape == one.shared_loadings.shape
    assert first.readout.shape == one.readout.shape
    np.testing.assert_allclose(
        latent_lib.covariance(first), latent_lib.covariance(one)[:1], rtol=1e-5
    )


def test_temper_divides_integers_and_keeps_the_types_of_floats():
    loc = jnp.array([2, 1, -1])
    np.testing.assert_array_equal(latent_lib.temper(LatentGaussian(loc), 2.0).loc, [1, 0.5, -0.5])
    half = LatentGaussian(loc.astype(jnp.bfloat16))
    assert latent_lib.temper(half, 2.0).loc.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "temperature",
    [
        0.0,
        -1.0,
        float("nan"),
        float("inf"),
        np.float32(-1),
        np.float64("nan"),
        np.array(-1.0),
        jnp.float32(0),
    ],
)
def test_a_temperature_that_is_not_positive_is_an_error(temperature):
    with pytest.raises(ValueError, match="temperature"):
        latent_lib.temper(latent("diagonal"), temperature)


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("scale_diag", (3, 4)),
        ("scale_diag", (5,)),
        ("factor_loadings", (3, 4, 2)),
        ("shared_loadings", (3, 5, 2)),
    ],
)
def test_a_wrong_shape_is_an_error_that_names_the_field(field, shape):
    wrong = latent("parameter_efficient")._replace(**{field: jnp.ones(shape)})
    with pytest.raises(ValueError, match=f"{field} has shape"):
        latent_lib.covariance(wrong)


def test_factor_scale_without_its_loadings_is_an_error():
    alone = LatentGaussian(loc=jnp.zeros((3, 5)), factor_scale=jnp.ones((3, 5)))
    with pytest.raises(ValueError, match="come together"):
        latent_lib.check(alone)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_invalid_loc_is_an_error_and_gives_nan_under_jit(value):
    one = latent("diagonal")
    one = one._replace(loc=one.loc.at[1, 2].set(value))

    def log_probs(x):
        return predictive.softmax(key(), x, num_samples=4)

    with pytest.raises(ValueError, match=r"loc holds \+inf or nan"):
        log_probs(one)
    actual = jax.jit(log_probs)(one)
    assert np.isnan(actual[1]).all()
    assert np.isfinite(actual[jnp.array([0, 2])]).all()


@pytest.mark.parametrize("points", ["independent", "antithetic", "sobol"])
@pytest.mark.parametrize("num_samples", [0, 2**32, 2**24 + 1])
def test_a_number_of_samples_out_of_range_is_an_error(points, num_samples):
    for one in (latent("diagonal"), latent("deterministic")):
        with pytest.raises(
            ValueError, match=f"num_samples is {num_samples}, but must be a whole number from 1 to"
        ):
            predictive.softmax(key(), one, num_samples=num_samples, points=points)
    with pytest.raises(ValueError, match="num_samples is"):
        latent_lib.sample(key(), latent("diagonal"), num_samples, points)
