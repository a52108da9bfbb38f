"""Predictives inside a `shard_map` of the user, and on a mesh of explicit axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive

_ROWS = PartitionSpec("rows")
_PREDICTIVES = {
    "softmax": functools.partial(predictive.softmax, None, num_samples=4, points="sobol"),
    "chunks": functools.partial(predictive.softmax, None, num_samples=4, chunk_size=1),
    "sigmoid_sampled": functools.partial(predictive.sigmoid_sampled, None, num_samples=4),
    "sigmoid": functools.partial(predictive.sigmoid, None),
    "mean_field": functools.partial(predictive.mean_field, None),
    "shortlist": functools.partial(predictive.shortlist, None, num_classes=3, num_samples=4),
    "softmax_exact": functools.partial(predictive.softmax_exact, None),
}
_EVERY = pytest.mark.parametrize("name", _PREDICTIVES)


def _latent(name):
    rng = np.random.default_rng(0)
    loc, scale, loadings = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in _SHAPES)
    latent = latent_lib.LatentGaussian(loc, jnp.abs(scale) + 0.1)
    return latent if name == "softmax_exact" else latent._replace(factor_loadings=loadings)


_SHAPES = (4, 5), (4, 5), (4, 5, 2)


def _assert_agree(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def _with_gradient(predict, latent):
    return jax.value_and_grad(lambda x: jnp.sum(predict(x)[:, 0]))(latent)


@functools.cache
def _expected(name):
    return jax.jit(functools.partial(_with_gradient, _PREDICTIVES[name]))(_latent(name))


@_EVERY
def test_a_shard_map_gives_the_same_values_and_gradients(name):
    latent, mesh = _latent(name), jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    specs = jax.tree.map(lambda _: _ROWS, latent)
    predict = jax.shard_map(_PREDICTIVES[name], mesh=mesh, in_specs=(specs,), out_specs=_ROWS)
    actual = jax.jit(functools.partial(_with_gradient, predict))(latent)
    _assert_agree(actual, _expected(name))


@_EVERY
def test_on_explicit_axes_it_runs_within_auto_axes(name):
    latent, mesh = _latent(name), jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))
    predict = jax.sharding.auto_axes(_PREDICTIVES[name], out_sharding=_ROWS)
    with jax.set_mesh(mesh):
        placed = jax.device_put(latent, NamedSharding(mesh, _ROWS))
        actual = jax.jit(functools.partial(_with_gradient, predict))(placed)
    _assert_agree(actual, _expected(name))
