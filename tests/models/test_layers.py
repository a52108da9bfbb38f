import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from gaussians import key

from heteroscedastic.models import heads
from heteroscedastic.models.layers import HeteroscedasticDense

FEATURES = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7)), jnp.float32)


@pytest.mark.parametrize("head", ["Deterministic", "Diagonal", "LowRank", "ParameterEfficient"])
@pytest.mark.parametrize("link", ["softmax", "sigmoid"])
def test_the_layer_replaces_a_dense_layer(head, link):
    num_factors = 3 if head in ("LowRank", "ParameterEfficient") else 0
    layer = HeteroscedasticDense(5, num_factors=num_factors, head=head, link=link, num_samples=16)
    logits = layer.apply(layer.init(key(), FEATURES), FEATURES)
    assert logits.shape == nn.Dense(5).init_with_output(key(), FEATURES)[0].shape
    if link == "softmax":
        np.testing.assert_allclose(np.exp(logits).sum(-1), 1.0, rtol=1e-5)


def test_settings_are_passed_to_the_head():
    settings = dict(noise_on="features", edward2=True, temperature=(0.3, 3.0))
    layer = HeteroscedasticDense(
        5, num_factors=3, head="ParameterEfficient", num_samples=16, **settings
    )
    head = heads.ParameterEfficient(5, num_factors=3, **settings)
    variables = layer.init(key(), FEATURES)
    _, sown = layer.apply(variables, FEATURES, mutable="intermediates")
    expected = head.apply({"params": variables["params"]["utilities"]}, FEATURES)
    jax.tree.map(np.testing.assert_array_equal, sown["intermediates"]["latent"][0], expected)


def test_noise_depends_on_the_key_and_is_fixed_without_one():
    layer = HeteroscedasticDense(5, num_factors=3, num_samples=16)
    variables = layer.init(key(), FEATURES)
    noisy = [layer.apply(variables, FEATURES, rngs={"noise": key(i)}) for i in (0, 0, 1)]
    np.testing.assert_array_equal(noisy[0], noisy[1])
    assert np.abs(noisy[0] - noisy[2]).max() > 1e-3
    np.testing.assert_array_equal(
        layer.apply(variables, FEATURES), layer.apply(variables, FEATURES)
    )


@pytest.mark.parametrize(("num_classes", "num_factors"), [(5, 5), (40, 15)])
@pytest.mark.parametrize("head", ["LowRank", "ParameterEfficient"])
def test_the_default_number_of_factors_is_fifteen_or_the_number_of_classes(
    head, num_classes, num_factors
):
    shapes = jax.eval_shape(HeteroscedasticDense(num_classes, head=head).init, key(), FEATURES)[
        "params"
    ]["utilities"]
    loadings = shapes["factor_loadings"]["bias"] if head == "LowRank" else shapes["shared_loadings"]
    assert loadings.shape == (num_classes, num_factors)


def test_the_latent_is_sown():
    layer = HeteroscedasticDense(5, num_factors=3)
    variables = layer.init(key(), FEATURES)
    _, sown = layer.apply(variables, FEATURES, mutable="intermediates")
    (latent,) = sown["intermediates"]["latent"]
    expected = FEATURES @ variables["params"]["utilities"]["loc"]["kernel"]
    np.testing.assert_allclose(latent.loc, expected, rtol=1e-4, atol=1e-5)
    assert latent.factor_loadings.shape == (4, 5, 3)


def test_a_model_with_the_layer_trains():
    labels = jnp.array([0, 1, 2, 3])
    layer = HeteroscedasticDense(5, num_factors=2, num_samples=64)

    def loss(variables, key):
        logits = layer.apply(variables, FEATURES, rngs={"noise": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    variables = layer.init(key(), FEATURES)
    first = loss(variables, key())
    step = jax.jit(jax.grad(loss))
    for i in range(100):
        gradient = step(variables, key(i))
        variables = jax.tree.map(lambda v, g: v - 0.5 * g, variables, gradient)
    assert loss(variables, key()) < 0.3 * first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(link="probit"), "link is 'probit'; choose 'softmax' or 'sigmoid'"),
        (dict(head="Full"), "choose one of"),
        (dict(head="Diagonal", num_factors=3), "no setting 'num_factors'"),
        (dict(head="Deterministic", noise_on="features"), "no setting 'edward2', 'noise_on'"),
        (dict(num_factors=0), "num_factors is 0, but head 'LowRank' needs 1 or more"),
        (
            dict(num_factors=-2, head="ParameterEfficient"),
            "num_factors is -2, but head 'ParameterEfficient' needs",
        ),
        (dict(temperature=1e30), "temperature is 1e"),
        (dict(num_samples=0), "num_samples is 0"),
        (dict(num_samples=100), "use 128"),
        (dict(points="halton"), "points is 'halton'"),
        (dict(temperature=-1.0), "temperature is -1.0"),
    ],
)
def test_bad_settings_are_clear_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        HeteroscedasticDense(5, **settings).init(key(), FEATURES)


def test_the_example_of_the_readme_runs():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?HeteroscedasticDense.*?)```", text, flags=re.S)
    scope = {}
    exec(compile(example, "README.md", "exec"), scope)
    assert np.isfinite(scope["loss"])
