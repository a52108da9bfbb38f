import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.covariance import average
from heteroscedastic.models import heads

FEATURES = np.random.default_rng(0).normal(size=(23, 5)).astype(np.float32)
PLACES = {"utilities": {}, "features": {"noise_on": "features"}}
HEADS = {
    **{
        name: getattr(heads, name)(
            7, **{k: 3 for k in ("num_factors",) if hasattr(getattr(heads, name), k)}
        )
        for name in heads.__all__
    },
    "deterministic": heads.Deterministic(7),
    "learned": heads.LowRank(7, temperature=(0.5, 4.0), num_factors=2),
    "no factors": heads.ParameterEfficient(7, num_factors=0),
    **{
        f"{kind.__name__}, {place}, edward2={edward2}": kind(
            7, temperature=1.5, edward2=edward2, **settings, **more
        )
        for kind, settings in (
            (heads.Diagonal, {}),
            (heads.LowRank, {"num_factors": 3}),
            (heads.ParameterEfficient, {"num_factors": 3}),
        )
        for place, more in PLACES.items()
        for edward2 in (False, True)
    },
}


def parameters(head, num_features=5):
    """Parameters as after training: with biases and another temperature."""
    params = head.init(jax.random.key(0), jnp.ones((1, num_features)))["params"]
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        tree, [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys)]
    )


def plain(head, params, features=FEATURES):
    """The mean of the covariance of each example, the temperature taken back."""
    latent = latent_lib.temper(
        head.apply({"params": params}, jnp.asarray(features)), 1 / head.temperature_of(params)
    )
    return np.asarray(latent_lib.covariance(latent), np.float64).mean(axis=0)


def parts(features=FEATURES, size=6):
    return (features[i : i + size] for i in range(0, len(features), size))


@pytest.mark.parametrize("name", HEADS)
def test_the_average_agrees_with_plain_numpy_for_any_head_and_block_size(name, monkeypatch):
    head = HEADS[name]
    params = parameters(head)
    expected = plain(head, params)
    close = dict(rtol=1e-4, atol=1e-5)
    for size in (2**20, 8 * 2 * 12):
        monkeypatch.setattr(average, "_BYTES", size)
        result = average.average_covariance(head, params, parts())
        np.testing.assert_allclose(average.covariance_rows(result, np.arange(7)), expected, **close)
        np.testing.assert_allclose(
            average.covariance_rows(result, np.array([4, 1, 4]), start=2),
            expected[[4, 1, 4], 2:],
            **close,
        )
        np.testing.assert_allclose(result.variance, np.diag(expected), **close)
        np.testing.assert_allclose(result.means, expected.mean(axis=1), **close)
        assert (result.variance > 0).all() == heads.has_noise(type(head).__name__)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("edward2", [False, True])
@pytest.mark.parametrize("kind", [heads.LowRank, heads.ParameterEfficient])
def test_the_diagonal_is_the_variance_of_the_head_without_factors(kind, place, edward2):
    head = kind(7, num_factors=3, edward2=edward2, **PLACES[place])
    params = parameters(head)
    params_alone = {n: params[n] for n in ("loc", "scale_diag")}
    alone = plain(heads.Diagonal(7, edward2=edward2, **PLACES[place]), params_alone)
    np.testing.assert_allclose(
        average.average_covariance(head, params, parts()).diagonal, np.diag(alone), rtol=1e-4
    )


def test_the_batches_do_not_matter():
    head = HEADS["learned"]
    params = parameters(head)
    one, other = (
        average.covariance_rows(
            average.average_covariance(head, params, parts(size=n)), np.arange(7)
        )
        for n in (23, 1)
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)  # d(x) is float32


def test_shared_loadings_are_factor_loadings():
    """(W_v' M W_v) o (V V') is sum_r of W_v diag(V_r): the parameter-efficient head as a low-rank
    one.
    """
    head = heads.ParameterEfficient(7, num_factors=3)
    params = parameters(head)
    scale, shared = params["factor_scale"], params["shared_loadings"]
    loadings = {
        "kernel": scale["kernel"][:, :, None] * shared,
        "bias": scale["bias"][:, None] * shared,
    }
    as_full = {
        "loc": params["loc"],
        "scale_diag": params["scale_diag"],
        "factor_loadings": loadings,
    }
    one = average.average_covariance(head, params, parts())
    other = average.average_covariance(heads.LowRank(7, num_factors=3), as_full, parts())
    np.testing.assert_allclose(
        average.covariance_rows(one, np.arange(7)),
        average.covariance_rows(other, np.arange(7)),
        rtol=1e-6,
        atol=1e-7,
    )
    np.testing.assert_allclose(one.means, other.means, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["LowRank", "ParameterEfficient"])
def test_memory_is_bounded_by_blocks(name, monkeypatch):
    monkeypatch.setattr(average, "_BYTES", 2**20)
    head = getattr(heads, name)(3000, num_factors=2)
    params = parameters(head, num_features=8)
    features = np.ones((16, 8), np.float32)
    tracemalloc.start()
    result = average.average_covariance(head, params, [features])
    for part in average.row_blocks(result):
        average.covariance_rows(result, np.arange(part.start, part.stop))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 2**20 < 3000**2 * 4


def test_no_features_are_an_error():
    head = HEADS["learned"]
    with pytest.raises(ValueError, match="no features"):
        average.average_covariance(head, parameters(head), [])
