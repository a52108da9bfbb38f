import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from gaussians import key

from heteroscedastic.models.normalization import BatchNorm

X = jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, size=(8, 4, 4, 3)), jnp.float32)
PRESENT = jnp.array([True] * 5 + [False] * 3)


def run(module, x, present, train=True):
    variables = module.init(key(), x, present, train)
    return module.apply(variables, x, present, train, mutable=["batch_stats"])


@pytest.mark.parametrize("present", [PRESENT, jnp.ones(8, bool)])
def test_normalisation_agrees_with_masked_normalisation_of_flax(present):
    ours, state = run(BatchNorm(), X, present)
    library = nn.BatchNorm(
        use_running_average=False, momentum=0.9, epsilon=1e-5, use_fast_variance=False
    )
    mask = present[:, None, None, None]
    theirs, their_state = library.apply(
        library.init(key(), X, mask=mask), X, mask=mask, mutable=["batch_stats"]
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4),
        state["batch_stats"],
        their_state["batch_stats"],
    )


def test_without_a_scale_the_output_is_the_same_as_with_scale_one():
    plain = BatchNorm(use_scale=False).init(key(), X, PRESENT, True)
    assert set(plain["params"]) == {"bias"}
    np.testing.assert_array_equal(
        run(BatchNorm(use_scale=False), X, PRESENT)[0], run(BatchNorm(), X, PRESENT)[0]
    )


def test_groups_are_normalised_like_separate_batches():
    grouped, state = run(BatchNorm(group_size=4), X, PRESENT)
    parts = [run(BatchNorm(), X[i : i + 4], PRESENT[i : i + 4]) for i in (0, 4)]
    np.testing.assert_allclose(
        grouped, jnp.concatenate([y for y, _ in parts]), rtol=1e-4, atol=1e-4
    )
    mean = jax.tree.map(lambda a, b: (a + b) / 2, parts[0][1], parts[1][1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state, mean)


def test_a_group_without_present_examples_is_excluded():
    present = jnp.array([True] * 4 + [False] * 4)
    _, state = run(BatchNorm(group_size=4), X, present)
    _, alone = run(BatchNorm(), X[:4], present[:4])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), state, alone)


@pytest.mark.parametrize("group_size", [None, 4])
def test_a_batch_without_examples_keeps_the_statistics(group_size):
    module = BatchNorm(group_size=group_size)
    nobody = jnp.zeros(8, bool)
    variables = module.init(key(), X, PRESENT, True)
    _, begun = module.apply(variables, X, PRESENT, True, mutable=["batch_stats"])
    outputs, state = module.apply(variables | begun, X, nobody, True, mutable=["batch_stats"])
    jax.tree.map(np.testing.assert_array_equal, state, begun)
    assert np.isfinite(outputs).all()


def test_a_group_without_present_examples_does_not_change_gradients_of_a_deep_network():
    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x, present, train):
            for _ in range(20):
                x = nn.Conv(3, (3, 3))(jax.nn.relu(BatchNorm(group_size=4)(x, present, train)))
            return x.mean((1, 2, 3))

    present = jnp.array([True] * 4 + [False] * 4)
    variables = Deep().init(key(), X, present, True)

    def loss(params, x, present):
        actual, _ = Deep().apply(
            {**variables, "params": params}, x, present, True, mutable=["batch_stats"]
        )
        return jnp.sum(jnp.where(present, actual, 0.0))

    gradients = jax.grad(loss)(variables["params"], X, present)
    alone = jax.grad(loss)(variables["params"], X[:4], present[:4])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), gradients, alone
    )


def test_a_group_that_does_not_divide_the_batch_is_an_error():
    with pytest.raises(ValueError, match="group_size is 3"):
        run(BatchNorm(group_size=3), X, PRESENT)


def test_a_constant_channel_has_a_finite_gradient():
    gradient = jax.grad(lambda x: run(BatchNorm(), x, PRESENT)[0].sum())(jnp.ones_like(X))
    assert np.isfinite(gradient).all()
