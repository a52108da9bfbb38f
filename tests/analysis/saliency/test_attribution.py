"""Maps of places, against their definitions, for every head."""

import functools

import gaussians
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from saliency_heads import HEADS, SOME_NOISY, TEMPERATURE, D, H, K, W, head_id, parts
from scipy import special

from heteroscedastic import ensembles
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.saliency import attribution, scalars
from heteroscedastic.models import heads

CLASSES = jnp.array([2, 0, 4])
PAIRS = jnp.array([[2, 1], [0, 4], [4, 3]])


fixed_noise = functools.partial(scalars.fixed_noise, num_samples=16, points="independent")


def scalar_functions(head, latent):
    """Every scalar by name, in units of the utilities."""
    noise = fixed_noise(latent)
    settings = dict(temperature=head.temperature)
    return {
        "utility": functools.partial(scalars.utility, classes=CLASSES, **settings),
        "utility_difference": functools.partial(
            scalars.utility_difference, pairs=PAIRS, **settings
        ),
        "pair_variance": functools.partial(scalars.pair_variance, pairs=PAIRS, **settings),
        "label_variance": functools.partial(scalars.label_variance, classes=CLASSES, **settings),
        **{
            f"log_prob {link}": functools.partial(
                scalars.log_prob, classes=CLASSES, noise=noise, link=link
            )
            for link in ("softmax", "sigmoid")
        },
        **{
            f"mutual_information {link}": functools.partial(
                scalars.mutual_information, noise=noise, link=link
            )
            for link in ("softmax", "sigmoid")
        },
    }


@functools.cache
def explained(head):
    """Maps of every scalar of a head, and what they are compared with; compiled as one program."""
    maps, params, apply = parts(head)

    @jax.jit
    def everything(maps):
        features = jnp.mean(maps, axis=(1, 2))
        latent = apply(features)
        found = {"covariance": latent_lib.covariance(latent), "sums": {}, "values": {}}
        for name, scalar in scalar_functions(head, latent).items():

            def function(features, scalar=scalar):
                return scalar(apply(features))

            map_ = attribution.integrated(maps, function)
            value, start = function(features), function(jnp.zeros_like(features))
            found["values"][name] = value
            found["sums"][name] = jnp.sum(map_, axis=(1, 2)), value - start
            if name == "utility":
                found["integrated"] = map_
                found["grad_cam"] = attribution.grad_cam(maps, function)
        utilities = head.utilities_parameters(params)
        found["cam"], found["bias"] = (
            attribution.cam(maps, utilities, CLASSES),
            utilities.bias[CLASSES],
        )
        found["points"] = latent_lib.utilities(
            latent, scalars.fixed_noise(latent, 16, "independent")
        )
        return found

    return jax.tree.map(np.asarray, everything(maps))


every_head = pytest.mark.parametrize(
    "head", mostly_extended(HEADS, [HEADS[0], *SOME_NOISY]), ids=head_id
)


@every_head
def test_the_mean_of_the_cam_plus_the_bias_is_the_utility(head):
    found = explained(head)
    mean = found["cam"].mean(axis=(1, 2)) + found["bias"]
    np.testing.assert_allclose(mean, found["values"]["utility"], rtol=1e-4, atol=1e-4)


def test_a_list_of_classes_has_the_sum_of_its_maps_utilities_and_log_probabilities():
    head = HEADS[3]
    maps, params, apply = parts(head)
    lists = jnp.array([[2, 1, -1], [-1, 0, 4], [-1, -1, -1]])

    @jax.jit
    def of(classes):
        latent = apply(jnp.mean(maps, axis=(1, 2)))
        return (
            attribution.cam(maps, head.utilities_parameters(params), classes),
            scalars.utility(latent, classes, 2.0),
            scalars.log_prob(latent, classes, fixed_noise(latent), "sigmoid"),
        )

    first, second = of(jnp.array([2, 0, 0])), of(jnp.array([1, 4, 0]))
    for together, a, b in zip(of(lists), first, second, strict=True):
        np.testing.assert_allclose(together[:2], a[:2] + b[:2], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(together[2], 0)


@every_head
def test_of_a_utility_grad_cam_is_the_positive_part_of_the_cam_and_integrated_the_cam(head):
    found = explained(head)
    expected = found["cam"] / (H * W)
    np.testing.assert_allclose(found["grad_cam"], np.maximum(expected, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["integrated"], expected, rtol=1e-4, atol=1e-5)


@every_head
def test_integrated_maps_add_up_for_every_scalar(head):
    for name, (total, expected) in explained(head)["sums"].items():
        tolerance = 3e-4 if name.startswith(("mutual", "log")) else 2e-5  # else nearly polynomial
        np.testing.assert_allclose(
            total, expected, atol=tolerance * (1 + np.abs(expected).max()), err_msg=name
        )


@pytest.mark.parametrize(("num_points", "is_exact"), [(1, False), (2, True)])
def test_two_points_integrate_a_cubic_and_one_does_not(num_points, is_exact):
    maps = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 2, 4)), jnp.float32) + 1

    def cubic(features):
        return jnp.sum(features**3, axis=-1)

    integrated = jax.jit(lambda maps: attribution.integrated(maps, cubic, num_points))
    found = np.sum(integrated(maps), axis=(1, 2))
    expected = np.sum(np.mean(maps, axis=(1, 2)) ** 3, axis=-1)
    assert np.allclose(found, expected, rtol=1e-5) == is_exact


def test_no_points_are_an_error():
    with pytest.raises(ValueError, match=r"^num_points is 0, but must be a whole number >= 1"):
        attribution.integrated(jnp.ones((1, 2, 2, 3)), lambda f: f[:, 0], 0)


def test_grad_cam_pp_weighs_by_the_derivatives_of_the_exponential():
    """alpha from second and third derivatives of exp(S), place by place, by autodiff."""
    rng = np.random.default_rng(1)
    maps = jnp.asarray(rng.uniform(0, 1, size=(1, 2, 2, 3)), jnp.float32)
    kernel = jnp.asarray([2.0, -1.5, 0.0])

    def score(features):
        return features @ kernel

    def exponential(flat):
        return jnp.exp(score(jnp.mean(flat.reshape(1, 2, 2, 3), axis=(1, 2))))[0]

    @jax.jit
    def derivatives(flat):
        hessian = jax.hessian(exponential)
        grad = jax.grad(exponential)
        return exponential(flat), grad(flat), hessian(flat), jax.jacfwd(hessian)(flat)

    value, first, second, third = map(np.asarray, derivatives(maps.ravel()))
    second, third = np.einsum("ii->i", second), np.einsum("iii->i", third)
    total = np.broadcast_to(np.sum(maps, axis=(1, 2), keepdims=True), maps.shape).ravel()
    denominator = 2 * second + total * third
    alpha = np.where(denominator == 0, 0, second / np.where(denominator == 0, 1, denominator))
    slopes = np.maximum(first / value, 0)  # dS/dA
    weights = np.sum((alpha * slopes).reshape(1, 2, 2, 3), axis=(1, 2))
    expected = np.maximum(np.einsum("bhwd,bd->bhw", maps, weights), 0)
    assert expected.max() > 0.1
    found = jax.jit(lambda maps: attribution.grad_cam_pp(maps, score))(maps)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_grad_cam_pp_is_zero_and_finite_where_nothing_has_a_gradient():
    found = attribution.grad_cam_pp(jnp.ones((2, 2, 3, 4)), lambda f: jnp.zeros(len(f)))
    np.testing.assert_array_equal(found, 0)


METHODS = (attribution.grad_cam, attribution.grad_cam_pp, attribution.integrated)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_shifted_maps_shift_what_explains_them(method):
    maps, _, apply = parts(HEADS[3])

    def function(features):
        return scalars.pair_variance(apply(features), PAIRS)

    compiled = jax.jit(lambda maps: method(maps, function))
    shifted = jnp.roll(maps, (1, 2), axis=(1, 2))
    expected = jnp.roll(compiled(maps), (1, 2), axis=(1, 2))
    np.testing.assert_allclose(compiled(shifted), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_an_example_is_explained_alone_as_in_a_batch(method):
    maps, _, apply = parts(HEADS[2])

    @jax.jit
    def explained_maps(maps, pairs):
        return method(maps, lambda features: scalars.pair_variance(apply(features), pairs))

    alone, together = explained_maps(maps[1:2], PAIRS[1:2]), explained_maps(maps, PAIRS)
    np.testing.assert_allclose(alone[0], together[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("link", ["softmax", "sigmoid"])
@every_head
def test_mutual_information_and_log_prob_are_those_of_the_points(head, link):
    found = explained(head)
    split, mean = (
        (ensembles.entropy_split, ensembles.log_mean)
        if link == "softmax"
        else (ensembles.sigmoid_entropy_split, ensembles.mean_log_odds)
    )
    mutual = split(found["points"]).mutual
    values = found["values"]
    np.testing.assert_allclose(values[f"mutual_information {link}"], mutual, rtol=1e-3, atol=1e-5)
    expected = mean(found["points"])[np.arange(3), CLASSES]
    expected = expected if link == "softmax" else special.log_expit(expected)
    np.testing.assert_allclose(values[f"log_prob {link}"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("link", ["softmax", "sigmoid"])
def test_the_entropy_is_that_of_the_mean_of_the_points_and_its_map_adds_up(link):
    maps, _, apply = parts(HEADS[3])

    @jax.jit
    def entropy_and_its_map(maps):
        features = jnp.mean(maps, axis=(1, 2))
        noise = fixed_noise(apply(features))

        def function(features):
            return scalars.entropy(apply(features), noise, link)

        points = latent_lib.utilities(apply(features), noise)
        values = function(features), function(jnp.zeros_like(features))
        return points, values, attribution.integrated(maps, function)

    points, (value, start), map_ = jax.tree.map(np.asarray, entropy_and_its_map(maps))
    split = ensembles.entropy_split if link == "softmax" else ensembles.sigmoid_entropy_split
    np.testing.assert_allclose(value, split(points).total, rtol=1e-4)
    total, expected = np.sum(map_, axis=(1, 2)), value - start
    np.testing.assert_allclose(total, expected, atol=3e-4 * (1 + np.abs(expected).max()))


@every_head
def test_variances_are_entries_of_the_covariance_matrix_in_units_of_the_utilities(head):
    found, rows = explained(head), np.arange(3)
    covariance = TEMPERATURE**2 * found["covariance"]
    i, j = np.asarray(PAIRS).T
    expected = covariance[rows, i, i] + covariance[rows, j, j] - 2 * covariance[rows, i, j]
    values = found["values"]
    np.testing.assert_allclose(values["pair_variance"], expected, rtol=1e-4, atol=1e-4)
    expected = covariance[rows, CLASSES, CLASSES]
    np.testing.assert_allclose(values["label_variance"], expected, rtol=1e-4, atol=1e-5)


def test_the_map_of_a_utility_needs_no_hidden_layer_but_the_gradients_do_not_mind():
    head = heads.Deterministic(K, hidden_width=6)
    maps, params, apply = parts(head)
    with pytest.raises(ValueError, match=r"^hidden_width is 6, so the utilities are not affine"):
        head.utilities_parameters(params)

    @jax.jit
    def everything(maps):
        def function(features):
            return scalars.utility(apply(features), CLASSES)

        features = jnp.mean(maps, axis=(1, 2))
        assert features.shape == (3, D)
        difference = function(features) - function(jnp.zeros_like(features))
        map_ = attribution.integrated(maps, function, 400)
        return attribution.grad_cam(maps, function), jnp.sum(map_, axis=(1, 2)), difference

    grad_cam, found, expected = everything(maps)
    assert grad_cam.max() > 0
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=1e-2)


def test_fixed_points_are_the_same_for_every_example():
    latent = gaussians.latent("everything")
    latent = latent_lib.map_batch(lambda x: jnp.asarray(np.repeat(x[:1], 3, axis=0)), latent)
    points_of = jax.jit(functools.partial(scalars.fixed_noise, num_samples=8))
    for points in points_of(latent):
        np.testing.assert_array_equal(points[:, 0], points[:, 2])
