"""Laws of the layer in flax.nnx: agreement with linen, its noise and its modes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mostly_extended
from flax import nnx
from gaussians import key

from heteroscedastic.models import layers
from heteroscedastic.models.nnx_layers import HeteroscedasticDense, from_linen, to_linen

FEATURES = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7)), jnp.float32)
LABELS = jnp.array([0, 1, 2, 3])
SETTINGS = {
    "low rank": dict(num_factors=3, temperature=(0.3, 3.0)),
    "parameter-efficient on features": dict(
        num_factors=3, head="ParameterEfficient", noise_on="features", edward2=True
    ),
    "diagonal": dict(head="Diagonal", points="antithetic", dtype=jnp.bfloat16),
    "deterministic": dict(head="Deterministic", temperature=2.0),
    "sigmoid": dict(num_factors=3, link="sigmoid"),
}
all_settings = pytest.mark.parametrize(
    "settings",
    mostly_extended(SETTINGS.values(), [v for name, v in SETTINGS.items() if name != "diagonal"]),
    ids=SETTINGS,
)


# Compiled, because each operation alone would be a program.
call = nnx.jit(lambda layer, features: layer(features))


@functools.partial(nnx.jit, static_argnums=(0, 1))
def built(streams, points):
    rngs = nnx.Rngs(**dict(streams))
    return HeteroscedasticDense(7, 5, num_factors=3, num_samples=4, points=points, rngs=rngs)


def layer(streams=(("default", 0),), points="sobol"):
    return built(streams, points)


@functools.partial(nnx.jit, static_argnums=(1, 2))
def converted(params, linen, streams=()):
    rngs = nnx.Rngs(**dict(streams)) if streams else None
    return from_linen(params, linen, rngs=rngs)


@functools.partial(jax.jit, static_argnums=0)
def linen_logits(linen, params, noise=None):
    rngs = None if noise is None else {"noise": noise}
    return linen.apply({"params": params}, FEATURES, rngs=rngs)


def linen_and_params(**settings):
    """A linen layer and random parameters, other than the initial ones."""
    linen = layers.HeteroscedasticDense(5, **dict(num_samples=4) | settings)
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(linen.init, key(), FEATURES)["params"]
    return linen, jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)


def cross_entropy(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()


@all_settings
def test_conversions_are_exact_and_outputs_and_gradients_are_those_of_linen(settings):
    linen, params = linen_and_params(**settings)
    one = converted(params, linen)
    jax.tree.map(np.testing.assert_array_equal, to_linen(one), params)
    assert one.linen == linen

    @jax.jit
    def expected(params):
        return jax.value_and_grad(lambda p: cross_entropy(linen.apply({"params": p}, FEATURES)))(
            params
        )

    value, gradients = nnx.jit(nnx.value_and_grad(lambda m: cross_entropy(m(FEATURES))))(one)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    value_in_linen, gradients_in_linen = expected(params)
    close(value, value_in_linen)
    jax.tree.map(close, nnx.to_pure_dict(gradients), dict(gradients_in_linen))


def test_parameters_and_draws_are_those_of_linen_for_equal_keys():
    one, stream = layer(), nnx.Rngs(0)
    params = jax.jit(one.linen.init)(stream.params(), FEATURES)["params"]
    jax.tree.map(np.testing.assert_array_equal, to_linen(one), params)
    noise = stream.noise.fork()()  # the layer forks its stream, as Dropout does
    expected = linen_logits(one.linen, params, noise)
    np.testing.assert_allclose(call(one, FEATURES), expected, rtol=1e-5)


def test_draws_differ_between_calls_and_repeat_for_a_seed():
    one, again, other = layer(), layer(), layer()
    other.utilities, other.rngs = one.utilities, nnx.RngStream(1, tag="noise")
    first, second = call(one, FEATURES), call(one, FEATURES)
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(first - call(other, FEATURES)).max() > 1e-3
    np.testing.assert_array_equal(call(again, FEATURES), first)
    np.testing.assert_array_equal(call(again, FEATURES), second)


def test_evaluation_is_deterministic_and_independent_of_the_batch_and_has_the_covariance():
    one = layer(points="independent")
    one.eval()
    order = np.array([2, 0, 3, 1])
    logits = call(one, FEATURES)
    np.testing.assert_array_equal(call(one, FEATURES), logits)
    np.testing.assert_array_equal(call(one, FEATURES[order]), logits[order])
    np.testing.assert_allclose(call(one, FEATURES[2]), logits[2], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(call(nnx.view(one, deterministic=True), FEATURES), logits)
    without_noise = nnx.jit(lambda m: jax.nn.log_softmax(m.latent(FEATURES).loc))(one)
    assert np.abs(logits - without_noise).max() > 1e-2


def test_train_and_view_switch_the_noise_on():
    one = layer()
    one.eval()
    fixed = call(one, FEATURES)
    assert np.abs(call(nnx.view(one, deterministic=False), FEATURES) - fixed).max() > 1e-3
    np.testing.assert_array_equal(call(one, FEATURES), fixed)
    one.train()
    assert np.abs(call(one, FEATURES) - fixed).max() > 1e-3


def test_without_a_stream_of_noise_training_has_fixed_points():
    one = layer((("params", 0),))
    linen, params = one.linen, to_linen(one)
    fixed = linen_logits(linen, params)
    np.testing.assert_array_equal(call(one, FEATURES), fixed)
    for stream in ("noise", "default"):
        noisy = converted(params, linen, ((stream, 0),))
        assert np.abs(call(noisy, FEATURES) - fixed).max() > 1e-3


def test_a_split_layer_merges_to_the_same_layer():
    one = layer()
    graph, params, rest = nnx.split(one, nnx.Param, ...)
    assert sum(x.size for x in jax.tree.leaves(params)) == 2 * 8 * 5 + 8 * 5 * 3
    merged = nnx.merge(graph, params, rest)
    np.testing.assert_array_equal(call(merged, FEATURES), call(layer(), FEATURES))


@pytest.mark.extended
def test_a_model_learns_correlated_noise_with_an_optimizer():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(512, 7)).astype(np.float32)
    loadings = np.array([[2.0, -2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, -2.0, 0.0]])
    utilities = inputs @ rng.normal(size=(7, 5)) + rng.normal(size=(512, 2)) @ loadings
    inputs, labels = jnp.asarray(inputs), jnp.asarray(utilities.argmax(-1))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(7, 16, rngs=rngs)
            self.head = HeteroscedasticDense(16, 5, num_factors=2, num_samples=4, rngs=rngs)

        def __call__(self, x):
            return self.head(nnx.relu(self.dense(x)))

    @nnx.jit
    def built():
        model = Model(nnx.Rngs(params=0, noise=1))
        return model, nnx.Optimizer(model, optax.adam(0.03), wrt=nnx.Param)

    def loss(model, part):
        logits = model(inputs[part])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[part]).mean()

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(loss)(model, slice(0, 256)))

    model, optimizer = built()
    held_out_loss = nnx.jit(lambda model: loss(model, slice(256, None)))
    model.eval()
    first, loadings = held_out_loss(model), model.head.utilities.factor_loadings.kernel[...]
    model.train()
    for _ in range(40):
        step(model, optimizer)
    model.eval()
    assert held_out_loss(model) < 0.8 * first
    assert np.abs(model.head.utilities.factor_loadings.kernel[...] - loadings).max() > 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {}, "no utilities/loc/kernel of two axes"),
        (
            lambda p: {"utilities": p["utilities"] | {"temperature": jnp.zeros(())}},
            "do not fit the layer: it has the unexpected utilities/temperature",
        ),
        (
            lambda p: {"utilities": {"loc": p["utilities"]["loc"]}},
            "do not fit the layer: it lacks utilities/factor_loadings/bias",
        ),
        (
            lambda p: jax.tree.map(lambda x: x[..., :2], p),
            r"wrong shape for .*utilities/loc/bias \(2,\) where \(5,\) is expected",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_clear_errors(change, message):
    linen, params = linen_and_params(num_factors=3)
    with pytest.raises(ValueError, match=message):
        converted(change(params), linen)


def test_the_number_of_features_is_at_least_one():
    with pytest.raises(ValueError, match="in_features is 0, but must be >= 1"):
        HeteroscedasticDense(0, 5, rngs=nnx.Rngs(0))
