"""Maps of pixels of every backbone, and deletion."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended

from heteroscedastic.analysis.saliency import deletion, pixels, scalars
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.efficientnet import EfficientNetLite0
from heteroscedastic.models.inception_resnet import InceptionResNetV2Small

CLASSES, PAIRS = jnp.array([2, 0]), jnp.array([[2, 1], [0, 1]])
COLOR = jnp.array([0.3, -0.1, 0.2])
INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 3)), jnp.float32)
BACKBONES = {
    "MLP": backbones.MLP(widths=(8,)),
    "ConvNet": backbones.ConvNet(widths=(4, 8)),
    "ResNet": backbones.ResNet((1, 1), bottleneck=False, stem="cifar", stem_width=4, width=4),
}


@functools.cache
def network(name):
    """The latent of images, by a backbone with random weights and a low-rank head."""
    model = Classifier(BACKBONES[name], heads.LowRank(3, num_factors=2))
    present, rng = jnp.ones(2, bool), np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), INPUTS, present)
    variables = jax.tree.map(
        lambda x: jnp.asarray(rng.uniform(-0.3, 0.7, size=x.shape), x.dtype), shapes
    )
    variables = variables | {"batch_stats": jax.tree.map(jnp.abs, variables.get("batch_stats", {}))}
    return lambda inputs: model.apply(variables, inputs, present, train=False)


SCALARS = {
    "utility": functools.partial(scalars.utility, classes=CLASSES),
    "pair_variance": functools.partial(scalars.pair_variance, pairs=PAIRS),
}


@pytest.mark.parametrize(
    ("name", "scalar"),
    mostly_extended(
        itertools.product(BACKBONES, SCALARS),
        [("MLP", "utility"), ("ConvNet", "pair_variance"), ("ResNet", "pair_variance")],
    ),
)
def test_integrated_gradients_add_up_to_the_difference_from_the_colour(name, scalar):
    latent = network(name)

    @jax.jit
    def both(inputs):
        def function(x):
            return SCALARS[scalar](latent(x))

        map_ = pixels.integrated_gradients(inputs, function, COLOR, 200)
        plain = jnp.broadcast_to(COLOR, inputs.shape)
        return map_, function(inputs) - function(plain)

    map_, expected = both(INPUTS)
    assert map_.shape == (2, 8, 8)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(jnp.sum(map_, axis=(1, 2)), expected, rtol=1e-2, atol=1e-2)


def linear(weights):
    return lambda inputs: jnp.einsum("bhwc,hwc->b", inputs, weights)


def test_the_maps_of_a_linear_function_follow_from_its_weights():
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(8, 8, 3)), jnp.float32)
    found = pixels.integrated_gradients(INPUTS, linear(weights), COLOR, 3)
    np.testing.assert_allclose(found, ((INPUTS - COLOR) * weights).sum(-1), rtol=1e-4, atol=1e-5)
    keys = jax.random.split(jax.random.key(0), 2)
    found = pixels.smooth_grad(keys, INPUTS, linear(weights), 4)
    expected = jnp.broadcast_to(jnp.abs(weights).sum(-1), found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_smooth_grad_averages_over_noise_of_the_stated_size():
    """The gradient of a cubic is 3 x^2, and its mean over noise 3 (x^2 + sigma^2)."""
    keys, level = jax.random.split(jax.random.key(0), 2), 0.2

    def cubic(inputs):
        return jnp.sum(inputs**3, axis=(1, 2, 3))

    found = pixels.smooth_grad(keys, INPUTS, cubic, 400, level)
    spread = INPUTS.max(axis=(1, 2, 3)) - INPUTS.min(axis=(1, 2, 3))
    sigma = level * spread[:, None, None, None]
    expected = 3 * (INPUTS**2 + sigma**2).sum(-1)
    assert jnp.mean(found / expected) == pytest.approx(1, abs=0.02)


def test_an_example_has_its_own_noise_wherever_it_is_in_the_batch():
    keys = jax.random.split(jax.random.key(0), 2)

    def function(inputs):
        return jnp.sum(jnp.sin(3 * inputs), axis=(1, 2, 3))

    found = pixels.smooth_grad(keys, INPUTS, function, 4)
    swapped = pixels.smooth_grad(keys[::-1], INPUTS[::-1], function, 4)
    np.testing.assert_allclose(swapped[::-1], found, rtol=1e-5)


@pytest.mark.parametrize(("num_samples", "level"), [(0, 0.1), (4, -0.1)])
def test_settings_out_of_range_are_errors(num_samples, level):
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match=r"num_samples is .* must be at least 1 and 0"):
        pixels.smooth_grad(keys, INPUTS, linear(jnp.ones((8, 8, 3))), num_samples, level)


def test_deletion_in_the_order_of_what_a_pixel_adds_is_the_steepest():
    weights = jnp.asarray(np.random.default_rng(3).uniform(size=(8, 8, 3)), jnp.float32)
    inputs, color = jnp.abs(INPUTS), jnp.zeros(3)
    adds = (inputs * weights).sum(-1)
    order = deletion.order_of(jax.random.key(0), adds)
    curve = deletion.curve(order, inputs, linear(weights), color)
    descending = np.sort(np.asarray(adds).reshape(2, -1), axis=-1)[:, ::-1]
    numbers = np.round(deletion.FRACTIONS * 64).astype(int)
    expected = np.stack([descending[:, n:].sum(axis=-1) for n in numbers], axis=-1)
    np.testing.assert_allclose(curve, expected, rtol=1e-4)
    np.testing.assert_allclose(curve[:, 0], linear(weights)(inputs), rtol=1e-5)
    # Without an order the curve is a line, up to the spread of a random choice.
    rest = deletion.curve(
        deletion.order_of(jax.random.key(1), jnp.ones_like(adds)), inputs, linear(weights), color
    )
    assert (rest[:, 1:] > curve[:, 1:]).all()
    assert rest[:, -1] == pytest.approx(np.asarray(rest[:, 0]) / 2, rel=0.25)


def test_an_order_is_a_permutation_whose_ties_are_in_no_place():
    maps = jnp.zeros((2, 8, 8)).at[0, 3, 5].set(1.0)
    order = deletion.order_of(jax.random.key(0), maps)
    for one in order:
        np.testing.assert_array_equal(np.sort(one.ravel()), np.arange(64))
    assert order[0, 3, 5] == 0
    first_half = np.asarray(order[1] < 32)
    assert 6 < first_half[:4].sum() < 26  # not the first rows alone


def test_all_convolutional_backbones_have_gradients_of_pixels():
    """The families that are too slow to integrate here: one gradient, traced only."""
    for backbone in (EfficientNetLite0(), InceptionResNetV2Small()):
        model = Classifier(backbone, heads.LowRank(3, num_factors=2))
        inputs = jnp.zeros((2, 75, 75, 3))
        present = jnp.ones(2, bool)
        variables = jax.eval_shape(model.init, jax.random.key(0), inputs, present)

        def map_of(variables, model=model, inputs=inputs, present=present):
            return pixels.integrated_gradients(
                inputs,
                lambda x: scalars.utility(model.apply(variables, x, present), CLASSES),
                COLOR,
            )

        assert jax.eval_shape(map_of, variables).shape == (2, 75, 75)
