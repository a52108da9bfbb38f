"""A layer at the edges of what it may be given: finite values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key

from heteroscedastic.models.layers import HeteroscedasticDense

ROOT = np.random.default_rng(0)
FEATURES = jnp.asarray(ROOT.normal(size=(4, 7)), jnp.float32)
CASES = {
    "bfloat16 features": ({}, FEATURES.astype(jnp.bfloat16), None),
    "utilities to 1e4": ({}, 1e4 * FEATURES, None),
    "two classes": (dict(num_classes=2), FEATURES, None),
    "one class": (dict(num_classes=1), FEATURES, None),
    "more factors than classes": (dict(num_classes=3, num_factors=40), FEATURES, None),
    "one sample": (dict(num_samples=1), FEATURES, None),
    "no loadings, no features": ({}, 0 * FEATURES, 0.0),
    "100,000 classes": (dict(num_classes=100_000, num_samples=8), FEATURES[:2], None),
    "no examples": ({}, FEATURES[:0], None),
    "no batch axis": ({}, FEATURES[0], None),
    "two batch axes": ({}, FEATURES.reshape(2, 2, 7), None),
}
HEADS = [dict(), dict(head="ParameterEfficient"), dict(head="ParameterEfficient", noise_on="features")]


@pytest.mark.parametrize("head", HEADS, ids=["low rank", "parameter-efficient", "on features"])
@pytest.mark.parametrize("link", ["softmax", "sigmoid"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_finite(case, link, head):
    settings, features, scale = CASES[case]
    layer = HeteroscedasticDense(**{"num_classes": 5, "num_factors": 3, "link": link, **head, **settings})
    variables = layer.init(key(), features)
    if scale is not None:
        variables = jax.tree.map(lambda x: scale * x, variables)

    def loss(variables, features):
        return jnp.sum(jax.nn.softplus(-layer.apply(variables, features)))

    logits = layer.apply(variables, features)
    assert logits.shape == (*features.shape[:-1], layer.num_classes)
    assert logits.dtype == jnp.float32
    for x in jax.tree.leaves((logits, jax.grad(loss, argnums=(0, 1))(variables, features))):
        assert np.isfinite(np.asarray(x, np.float32)).all()
    if link == "softmax":
        np.testing.assert_allclose(jnp.exp(logits).sum(-1), 1.0, rtol=1e-4)
