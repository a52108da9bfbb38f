import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from heteroscedastic.models import heads
from heteroscedastic.training import optimizer, schedules

COVARIANCE = {
    "Deterministic": set(),
    "Diagonal": set(),
    "LowRank": {"head/factor_loadings/kernel"},
    "ParameterEfficient": {"head/factor_scale/kernel", "head/shared_loadings"},
}


class Network(nn.Module):
    """One of each kind of layer, and a head."""

    head: nn.Module

    @nn.compact
    def __call__(self, images):
        hidden = nn.Conv(2, (3, 3))(images)
        hidden = nn.BatchNorm(use_running_average=True)(hidden)
        hidden = nn.GroupNorm(num_groups=1)(hidden)
        hidden = nn.GroupNorm(num_groups=1, use_scale=False, name="NormWithoutScale")(hidden)
        hidden = nn.LayerNorm()(nn.Dense(3)(hidden.mean(axis=(1, 2))))
        return self.head(hidden)


def parameters(head="LowRank", seed=0, **settings):
    """Parameters of a network, none of them zero."""
    factors = dict(num_factors=2) if COVARIANCE[head] else {}
    model = Network(getattr(heads, head)(num_classes=4, **factors, **settings))
    params = model.init(jax.random.key(0), jnp.ones((1, 4, 4, 1)))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), params)


def flat(tree):
    return {
        "/".join(k.key for k in path): np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def loss(params):
    """Some function of all parameters."""
    return sum(jnp.sum(jnp.sin(3 * p)) for p in jax.tree.leaves(params))


def update(params, grads=None, **settings):
    """One update without momentum at rate one, by parameter."""
    one = optimizer.sgd(lambda step: 1.0, **dict(momentum=0.0) | settings)
    grads = jax.tree.map(jnp.zeros_like, params) if grads is None else grads
    return flat(one.update(grads, one.init(params), params)[0])


def assert_close(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(
            one[name], other[name], **dict(rtol=1e-5, atol=1e-6) | tolerance, err_msg=name
        )


def is_normalisation(name):
    return "Norm" in name


@pytest.mark.parametrize("head", COVARIANCE)
def test_the_penalty_is_a_term_of_the_loss_over_all_but_normalisation(head):
    params, l2 = parameters(head), 0.03

    def penalised(params):
        leaves = jax.tree_util.tree_leaves_with_path(params)
        squares = [
            jnp.sum(jnp.square(p)) for path, p in leaves if "Norm" not in jax.tree_util.keystr(path)
        ]
        return loss(params) + l2 * sum(squares)

    stated = jax.tree.map(jnp.negative, jax.grad(penalised)(params))
    assert_close(update(params, jax.grad(loss)(params), l2=l2), flat(stated))


@pytest.mark.parametrize("head", COVARIANCE)
def test_with_decay_of_normalisation_the_penalty_is_over_every_parameter(head):
    params, l2 = parameters(head), 0.03
    plain, penalised = (
        update(params, jax.grad(loss)(params), l2=rate, decay_normalization=True)
        for rate in (0.0, l2)
    )
    for name, p in flat(params).items():
        gradient = plain[name] - penalised[name]
        np.testing.assert_allclose(gradient, 2 * l2 * p, rtol=1e-4, atol=1e-6, err_msg=name)


def test_kernels_and_biases_are_penalised_and_scale_and_bias_of_normalisation_are_not():
    params = parameters()
    found = update(params, l2=0.5)
    kinds = {(is_normalisation(name), name.rpartition("/")[2]) for name in found}
    assert kinds == {(False, "kernel"), (False, "bias"), (True, "scale"), (True, "bias")}
    for name, p in flat(params).items():
        np.testing.assert_allclose(
            found[name], 0 * p if is_normalisation(name) else -p, rtol=1e-6, err_msg=name
        )


@pytest.mark.parametrize(
    "settings", [dict(noise_on="features"), dict(edward2=True), dict(temperature=(0.3, 3.0))]
)
def test_the_penalties_are_the_same_on_every_form_of_a_head_and_none_is_on_its_temperature(
    settings,
):
    params = parameters("ParameterEfficient", **settings)
    for penalty, touched in (
        (
            dict(covariance_l2=0.5),
            {name for name in flat(params) if name in COVARIANCE["ParameterEfficient"]},
        ),
        (
            dict(l2=0.5),
            {name for name in flat(params) if not is_normalisation(name)} - {"head/temperature"},
        ),
        (dict(l2=0.5, decay_normalization=True), {*flat(params)} - {"head/temperature"}),
    ):
        assert {name for name, u in update(params, **penalty).items() if u.any()} == touched


@pytest.mark.parametrize(("head", "covariance"), COVARIANCE.items())
def test_the_covariance_penalty_applies_to_what_maps_to_the_low_rank_covariance(head, covariance):
    params = parameters(head)
    found = update(params, covariance_l2=0.5)
    assert {name for name, u in found.items() if u.any()} == covariance
    for name in covariance:
        np.testing.assert_allclose(found[name], -flat(params)[name], rtol=1e-6)


@pytest.mark.parametrize("head", ["LowRank", "ParameterEfficient"])
def test_the_covariance_penalty_stands_in_place_of_the_other_and_is_it_by_default(head):
    params = parameters(head)
    assert_close(update(params, l2=0.1), update(params, l2=0.1, covariance_l2=0.1))
    without, both = (
        update(params, l2=0.1, covariance_l2=0.0),
        update(params, l2=0.1, covariance_l2=0.3),
    )
    for name in both:
        expected = (
            update(params, covariance_l2=0.3)[name] if name in COVARIANCE[head] else without[name]
        )
        np.testing.assert_allclose(both[name], expected, rtol=1e-6)
        assert not (name in COVARIANCE[head] and without[name].any())


def test_a_head_alone_is_penalised_as_within_a_network():
    params = parameters("ParameterEfficient")
    within = update(params, l2=0.1, covariance_l2=0.3)
    for name, alone in update(params["head"], l2=0.1, covariance_l2=0.3).items():
        np.testing.assert_array_equal(alone, within[f"head/{name}"])


@pytest.mark.parametrize(
    "penalty", [dict(l2=10.0), dict(covariance_l2=10.0), dict(l2=10.0, covariance_l2=3.0)]
)
def test_the_gradient_is_clipped_with_its_penalty(penalty):
    params = parameters()
    grads = jax.grad(loss)(params)
    whole, clipped = (
        update(params, grads, **penalty),
        update(params, grads, clip_norm=0.5, **penalty),
    )
    norm = optax.global_norm(whole)
    assert norm > 0.5
    assert_close(clipped, {name: u * 0.5 / norm for name, u in whole.items()})


def test_a_gradient_within_the_norm_is_not_clipped():
    params = parameters()
    grads = jax.grad(loss)(params)
    assert_close(update(params, grads, l2=0.1, clip_norm=1e6), update(params, grads, l2=0.1))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_agrees_with_a_plain_loop(momentum, nesterov):
    schedule = functools.partial(
        schedules.cosine, total_steps=10, steps_per_epoch=5, learning_rate=0.05
    )
    one = optimizer.sgd(schedule, momentum=momentum, nesterov=nesterov)
    weights = jnp.array([1.0, -2.0, 0.3])
    params, plain, velocity = {"w": weights}, np.asarray(weights, np.float64), np.zeros(3)
    state = one.init(params)
    for step in range(10):
        updates, state = one.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
        gradient = 3 * np.cos(3 * plain)
        velocity = momentum * velocity + gradient
        rate = 0.05 * 0.5 * (1 + np.cos(np.pi * step / 10))
        plain = plain - rate * (gradient + momentum * velocity if nesterov else velocity)
    np.testing.assert_allclose(params["w"], plain, rtol=1e-4)


def test_the_momentum_adds_up_clipped_gradients():
    params, grads = {"w": jnp.zeros(2)}, {"w": jnp.array([3.0, 4.0])}
    one = optimizer.sgd(lambda step: 1.0, momentum=0.9, clip_norm=1.0)
    state = one.init(params)
    for _ in range(3):
        updates, state = one.update(grads, state, params)
    np.testing.assert_allclose(updates["w"], [-0.6 * 2.71, -0.8 * 2.71], rtol=1e-6)


def test_the_penalty_enters_the_momentum():
    params = {"w": jnp.array([1.0])}
    one = optimizer.sgd(lambda step: 0.0, momentum=0.9, l2=0.5)
    zero, state = {"w": jnp.zeros(1)}, one.init(params)
    for _ in range(3):
        _, state = one.update(zero, state, params)
    traces = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (1,)]
    np.testing.assert_allclose(traces, [[1 + 0.9 + 0.81]], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(momentum=1.0), "momentum is 1.0; it must be a finite number >= 0 and < 1"),
        (dict(momentum=-0.1), "momentum is -0.1"),
        (dict(momentum=float("nan")), "momentum is nan"),
        (dict(l2=-1e-4), "l2 is -0.0001"),
        (dict(covariance_l2=-1e-4), "covariance_l2 is -0.0001"),
        (dict(clip_norm=0.0), "clip_norm is 0.0; it must be a finite number > 0"),
        (dict(clip_norm=-1.0), "clip_norm is -1.0"),
        (dict(clip_norm=float("nan")), "clip_norm is nan"),
    ],
)
def test_a_bad_setting_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        optimizer.sgd(lambda step: 0.1, **settings)


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_adamw_is_the_published_algorithm_in_numpy(name):
    """Two steps of Algorithm 2; normalisation and a learned temperature decay in `adam` alone."""
    params = parameters(temperature=(0.5, 2.0))
    settings = dict(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.3)
    transformation = getattr(optimizer, name)(lambda step: 0.1 / (1 + step), **settings)
    state, theta = transformation.init(params), flat(params)
    mean, square = ({n: np.zeros_like(x) for n, x in theta.items()} for _ in range(2))
    for step in range(2):
        gradients = parameters(seed=step + 1, temperature=(0.5, 2.0))
        updates, state = transformation.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        for path, gradient in flat(gradients).items():
            mean[path] = 0.9 * mean[path] + 0.1 * gradient
            square[path] = 0.999 * square[path] + 0.001 * gradient**2
            direction = mean[path] / (1 - 0.9 ** (step + 1))
            direction /= np.sqrt(square[path] / (1 - 0.999 ** (step + 1))) + 1e-8
            decays = "Norm" not in path and not path.endswith("temperature")
            decay = 0.3 * (decays or name == "adam") * theta[path]
            theta[path] = theta[path] - 0.1 / (1 + step) * (direction + decay)
    for path, expected in theta.items():
        np.testing.assert_allclose(flat(params)[path], expected, rtol=1e-4, atol=1e-5)


def test_fixed_parameters_keep_their_values_and_the_others_their_updates():
    params = parameters()
    grads = jax.grad(loss)(params)
    settings = dict(l2=0.3, momentum=0.9)
    plain = update(params, grads, **settings)
    found = update(params, grads, **settings, fixed=("Conv_0*", "normalization"))
    for name, value in found.items():
        is_fixed = name.startswith("Conv_0/") or is_normalisation(name)
        np.testing.assert_array_equal(value, 0 if is_fixed else plain[name], err_msg=name)
    assert sum(map(is_normalisation, found)) > 4
    clipped = update(params, grads, l2=0.3, clip_norm=0.5, fixed=("Conv_0*",))
    assert optax.global_norm(clipped) == pytest.approx(0.5, rel=1e-5)  # of the others alone
    with pytest.raises(ValueError, match="fixed has 'Conv', but no parameter has a path"):
        update(params, grads, fixed=("Conv",))


def test_biases_without_decay_are_those_of_convolutions_and_dense_layers():
    params = parameters()
    found = update(params, l2=0.5, covariance_l2=0.5, decay_biases=False)
    for name, p in flat(params).items():
        decays = not is_normalisation(name) and not name.endswith("/bias")
        np.testing.assert_allclose(found[name], -p if decays else 0 * p, rtol=1e-6, err_msg=name)
