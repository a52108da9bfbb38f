import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key

from heteroscedastic.models import backbones

INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 1)), jnp.float32)


@pytest.mark.parametrize("name", backbones.__all__)
def test_an_absent_example_changes_nothing(name):
    backbone = getattr(backbones, name)()
    present = jnp.array([True, True, True, True, False, False])
    variables = backbone.init(key(), INPUTS, present)
    absent_changed = INPUTS.at[4:].set(1e3)

    def run(inputs, present):
        return backbone.apply(variables, inputs, present, train=True, mutable=["batch_stats"])

    alone, alone_state = run(INPUTS[:4], present[:4])
    for inputs in (INPUTS, absent_changed):
        features, state = run(inputs, present)
        np.testing.assert_allclose(features[:4], alone, rtol=1e-4, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state, alone_state)


@pytest.mark.parametrize("name", backbones.__all__)
def test_features_of_evaluation_do_not_depend_on_the_batch(name):
    backbone = getattr(backbones, name)()
    present = jnp.ones(6, bool)
    variables = backbone.init(key(), INPUTS, present)
    whole = backbone.apply(variables, INPUTS, present)
    one = backbone.apply(variables, INPUTS[2:3], present[2:3])
    np.testing.assert_allclose(whole[2:3], one, rtol=1e-4, atol=1e-6)
