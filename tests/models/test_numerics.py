"""The drop-in layer has finite values and gradients for extreme inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import key

from heteroscedastic.models.layers import HeteroscedasticDense

FEATURES = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7)), jnp.float32)
CASES = {
    "bfloat16 features": ({}, FEATURES.astype(jnp.bfloat16)),
    "utilities to 1e4": ({}, 1e4 * FEATURES),
    "no loadings": ({}, 0 * FEATURES),
    "100,000 classes": (dict(num_classes=100_000), FEATURES[:1]),
    "two classes": (dict(num_classes=2), FEATURES),
    "one class": (dict(num_classes=1), FEATURES),
    "more factors than classes": (dict(num_classes=3, num_factors=40), FEATURES),
    "one sample": (dict(num_samples=1), FEATURES),
    "no examples": ({}, FEATURES[:0]),
    "no batch axis": ({}, FEATURES[0]),
}
HEADS = {
    "low rank": (dict(), tuple(CASES)),
    "parameter-efficient": (dict(head="ParameterEfficient"), tuple(CASES)[:4]),
    "on features": (dict(head="ParameterEfficient", noise_on="features"), tuple(CASES)[:4]),
}


@functools.partial(jax.jit, static_argnums=0)
def gradients_and_logits(layer, variables, features):
    def loss(variables, features):
        logits = layer.apply(variables, features)
        return jnp.sum(jax.nn.softplus(-logits)), logits

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(variables, features)


@pytest.mark.parametrize(
    ("link", "head", "case"),
    mostly_extended(
        [
            (link, head, case)
            for link in ("softmax", "sigmoid")
            for head, (_, cases) in HEADS.items()
            for case in cases
        ],
        [
            *(("softmax", "low rank", case) for case in CASES if case != "two classes"),
            *(("softmax", head, case) for head in tuple(HEADS)[1:] for case in tuple(CASES)[1:3]),
            ("softmax", "parameter-efficient", "100,000 classes"),
            *(("sigmoid", "low rank", case) for case in (*tuple(CASES)[:3], "one class")),
        ],
    ),
)
def test_values_and_gradients_are_finite(link, head, case):
    settings, features = CASES[case]
    settings = {
        "num_classes": 5,
        "num_factors": 3,
        "num_samples": 4,
        "link": link,
        **HEADS[head][0],
        **settings,
    }
    layer = HeteroscedasticDense(**settings)
    scale = 0.0 if case == "no loadings" else 0.5
    rng = np.random.default_rng(1)
    variables = jax.tree.map(
        lambda x: (scale * rng.normal(size=x.shape)).astype(x.dtype),
        jax.eval_shape(layer.init, key(), features),
    )
    gradients, logits = gradients_and_logits(layer, variables, features)
    assert logits.shape == (*features.shape[:-1], layer.num_classes)
    assert logits.dtype == jnp.float32
    for x in jax.tree.leaves((logits, gradients)):
        assert np.isfinite(np.asarray(x, np.float32)).all()
    if link == "softmax":
        np.testing.assert_allclose(jnp.exp(logits).sum(-1), 1.0, rtol=1e-4)
