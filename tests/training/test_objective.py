import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mostly_extended
from gaussians import key

from heteroscedastic import losses, predictive, smoothing, tasks, weighting
from heteroscedastic.batch import Batch
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.training import optimizer
from heteroscedastic.training.objective import Outputs, objective
from heteroscedastic.training.state import TrainState
from heteroscedastic.training.step import train_step

MODEL = Classifier(backbones.ConvNet(widths=(4, 8)), heads.LowRank(5, num_factors=2))


def batch(present, seed=0):
    """Six examples of which the first ones are present; the rest hold what must not matter."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(6, 8, 8, 1)), rng.integers(0, 5, 6)
    rest = np.random.default_rng(seed)
    inputs[present:], labels[present:] = (
        100 * rest.normal(size=(6 - present, 8, 8, 1)),
        rest.integers(0, 5, 6 - present),
    )
    return Batch(
        inputs=jnp.asarray(inputs, jnp.float32),
        labels=jnp.asarray(labels, jnp.int32),
        weights=jnp.asarray(np.arange(6) < present, jnp.float32),
        ids=jnp.arange(6),
        extras={},
    )


def bound(weigh):
    return functools.partial(
        objective,
        model=MODEL,
        smoothing=smoothing.hard,
        weighting=weigh,
        predictive=functools.partial(predictive.softmax, num_samples=8),
        loss=losses.cross_entropy,
        class_counts=jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]),
    )


@pytest.mark.parametrize(
    "weigh",
    mostly_extended([weighting.equal, weighting.inverse_frequency], [weighting.inverse_frequency]),
)
def test_an_absent_example_changes_neither_loss_nor_gradient_nor_statistics_nor_sums(weigh):
    variables = jax.jit(MODEL.init)(key(), batch(6).inputs, jnp.ones(6, bool))
    params = variables.pop("params")
    sgd = optimizer.sgd(optax.constant_schedule(0.1))
    state = TrainState(jnp.zeros((), jnp.int32), params, variables, sgd.init(params))

    @jax.jit
    def step(batch):
        state_after, sums, _ = train_step(
            state,
            batch,
            key(),
            objective=bound(weigh),
            optimizer=sgd,
            metric=tasks.multiclass().training_sums,
        )
        return state_after, sums

    without = jax.tree.map(lambda x: x[:4], batch(4))
    expected = step(without)
    for seed in (1, 2):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
            step(batch(4, seed)),
            expected,
        )


def test_the_loss_is_the_weighted_mean_of_the_examples():
    variables = jax.jit(MODEL.init)(key(), batch(6).inputs, jnp.ones(6, bool))
    params = variables.pop("params")
    loss, outputs = jax.jit(bound(weighting.inverse_frequency))(params, variables, batch(6), key())
    weights = (15 / 5) / np.array([1.0, 2.0, 3.0, 4.0, 5.0])[batch(6).labels]
    np.testing.assert_allclose(loss, np.average(outputs.losses, weights=weights), rtol=1e-5)


def test_the_gradient_norm_of_a_step_is_before_clipping_and_counts_every_example():
    params = {"w": jnp.array([3.0, 4.0])}
    sgd = optimizer.sgd(optax.constant_schedule(1.0), momentum=0.0, clip_norm=1.0)

    def half_square(params, model_state, batch, key):
        none = jnp.zeros(6)
        outputs = Outputs({}, none, none, none, none, jnp.sum(batch.weights))
        return jnp.sum(params["w"] ** 2) / 2, outputs

    state, sums, _ = train_step(
        TrainState(jnp.zeros((), jnp.int32), params, {}, sgd.init(params)),
        batch(4),
        key(),
        objective=half_square,
        optimizer=sgd,
        metric=lambda *_: (),
    )
    assert sums.gradient_norm == pytest.approx(4 * 5)
    np.testing.assert_allclose(state.params["w"], [3 - 0.6, 4 - 0.8], rtol=1e-6)
