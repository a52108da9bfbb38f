"""Maps of the noise of pairs and labels, for every head with noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from saliency_heads import NOISY, SOME_NOISY, TEMPERATURE, D, K, head_id, parts

from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.saliency import attribution, noise, scalars
from heteroscedastic.models import heads
from heteroscedastic.models.resnet import ResNet

PAIRS = jnp.array([[2, 1], [0, 4], [4, 3]])
EQUAL = jnp.array([[2, 2], [0, 0], [4, 4]])
ORDER = np.array([3, 0, 4, 1, 2])  # new class i is the old class ORDER[i]
every_head = pytest.mark.parametrize("head", mostly_extended(NOISY, SOME_NOISY), ids=head_id)
close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


@functools.partial(jax.jit, static_argnums=0)
def compiled(head, params, maps, classes):
    return noise.noise_maps(maps, head.noise_parameters(params), classes)


def noise_maps(head, params, maps, classes):
    return noise.NoiseMaps(*map(np.asarray, compiled(head, params, maps, classes)))


@functools.cache
def explained(head):
    """Maps of pairs and of labels, and those of `integrated` through the entire head."""
    maps, params, apply = parts(head)

    @jax.jit
    def through_the_head(maps):
        def pair(features):
            return scalars.pair_variance(apply(features), PAIRS, TEMPERATURE)

        def label(features):
            return scalars.label_variance(apply(features), PAIRS[:, 0], TEMPERATURE)

        features = jnp.mean(maps, axis=(1, 2))
        return [
            (attribution.integrated(maps, f), f(features), f(jnp.zeros_like(features)))
            for f in (pair, label)
        ]

    found = [noise_maps(head, params, maps, classes) for classes in (PAIRS, PAIRS[:, :1])]
    return list(zip(found, through_the_head(maps), strict=True))


def totals(found):
    return found.diagonal + found.factors


@every_head
def test_closed_form_and_integration_through_the_head_agree(head):
    for found, (expected, variance, at_zero) in explained(head):
        close(totals(found), expected)
        close(found.variance, variance)
        close(found.variance_at_zero, at_zero)


@every_head
def test_the_parts_add_up_to_the_variance_less_that_at_zero(head):
    for found, _ in explained(head):
        total = totals(found).sum(axis=(1, 2))
        close(total, found.variance - found.variance_at_zero, atol=1e-4)
        assert np.abs(total).max() > 1e-2


@every_head
def test_a_pair_in_either_order_has_one_map_and_a_class_with_itself_none(head):
    maps, params, _ = parts(head)
    found, swapped = explained(head)[0][0], noise_maps(head, params, maps, PAIRS[:, ::-1])
    for a, b in zip(found, swapped, strict=True):
        close(a, b)
    for part in noise_maps(head, params, maps, EQUAL):
        np.testing.assert_array_equal(part, 0)


@every_head
def test_the_temperature_of_the_head_changes_no_map(head):
    maps, params, _ = parts(head)
    other = noise_maps(head.clone(temperature=0.3), params, maps, PAIRS)
    for a, b in zip(explained(head)[0][0], other, strict=True):
        np.testing.assert_array_equal(a, b)

    # Nor that through the head, whose latent the temperature divides.
    @jax.jit
    def variances(params, features):
        return [
            scalars.pair_variance(h.apply({"params": params}, features), PAIRS, h.temperature)
            for h in (head, head.clone(temperature=0.3))
        ]

    np.testing.assert_allclose(*variances(params, maps[:, 0, 0]), rtol=1e-4)


def renamed(head, params):
    """The parameters of the head with its classes in another order."""
    axes = head.class_axes()

    def leaf(path, x):
        axis = axes.get(path[0].key)
        if axis is None:
            return x
        return jnp.asarray(np.take(np.asarray(x), ORDER, axis=axis))

    return jax.tree_util.tree_map_with_path(leaf, params)


@every_head
def test_other_names_of_the_classes_change_no_map(head):
    maps, params, _ = parts(head)
    new_pairs = jnp.asarray(np.argsort(ORDER)[np.asarray(PAIRS)])
    other = noise_maps(head, renamed(head, params), maps, new_pairs)
    for a, b in zip(explained(head)[0][0], other, strict=True):
        close(a, b)


def with_common_noise(head, params):
    """The parameters, and those with further noise that all utilities have in common."""
    rng = np.random.default_rng(4)
    if head.noise_on == "features":  # a multiple of the noise that is the same for every class
        loc = params["loc"]
        kernel = loc["kernel"] + jnp.asarray(rng.normal(size=(D, 1)), jnp.float32)
        return params, params | {"loc": loc | {"kernel": kernel}}
    if isinstance(head, heads.LowRank):  # one more factor with one loading
        layer, column = params["factor_loadings"], jnp.asarray(rng.normal(size=D), jnp.float32)
        shared = {
            "kernel": jnp.broadcast_to(column[:, None, None], (D, K, 1)),
            "bias": jnp.full((K, 1), 1.5),
        }
        more = {name: jnp.concatenate([layer[name], shared[name]], axis=-1) for name in layer}
        return params, params | {"factor_loadings": more}
    one_scale = {name: jnp.ones_like(x) * x[..., :1] for name, x in params["factor_scale"].items()}
    params = params | {"factor_scale": one_scale}
    return params, params | {"shared_loadings": params["shared_loadings"] + 2.0}


@pytest.mark.parametrize(
    "head",
    mostly_extended(
        [h for h in NOISY if h.noise_on == "features" or type(h) is not heads.Diagonal],
        SOME_NOISY,
    ),
    ids=head_id,
)
def test_noise_that_all_classes_share_changes_the_map_of_a_label_and_of_no_pair(head):
    maps, params, _ = parts(head)
    both = with_common_noise(head, params)
    plain, common = (noise_maps(head, p, maps, PAIRS) for p in both)
    for a, b in zip(plain, common, strict=True):
        close(a, b, atol=1e-3)
    plain, common = (noise_maps(head, p, maps, PAIRS[:, :1]) for p in both)
    assert np.abs(totals(plain) - totals(common)).max() > 0.1


@every_head
def test_shifted_maps_shift_it(head):
    maps, params, _ = parts(head)
    found = noise_maps(head, params, jnp.roll(maps, (1, 3), axis=(1, 2)), PAIRS)
    for a, b in zip(found[:2], explained(head)[0][0][:2], strict=True):
        close(a, np.roll(b, (1, 3), axis=(1, 2)))


def test_a_place_that_lowers_the_variance_is_negative():
    """One factor that one feature carries: what opposes its mean loading speaks against doubt."""
    head = heads.LowRank(2, num_factors=1)
    params = {
        name: {"kernel": jnp.zeros(shape), "bias": jnp.zeros(shape[1:])}
        for name, shape in {
            "loc": (1, 2),
            "scale_diag": (1, 2),
            "factor_loadings": (1, 2, 1),
        }.items()
    }
    params["factor_loadings"]["kernel"] = jnp.array([[[1.0], [0.0]]])
    maps = jnp.array([3.0, -1.0]).reshape(1, 1, 2, 1)  # the mean loading is 1
    found = noise_maps(head, params, maps, jnp.array([[0, 1]]))
    np.testing.assert_allclose(found.factors[0, 0], [1.5, -0.5])


@every_head
def test_noise_that_is_the_same_at_every_place_has_no_map(head):
    """As without noise: the kernels of the noise are zero, and its biases are not."""
    maps, params, _ = parts(head)
    params = {
        name: value
        if name == "loc" or not isinstance(value, dict)
        else value | {"kernel": 0 * value["kernel"]}
        for name, value in params.items()
    }
    found = noise_maps(head, params, maps, PAIRS)
    np.testing.assert_array_equal(totals(found), 0)
    np.testing.assert_array_equal(found.variance, found.variance_at_zero)
    assert found.variance.min() > 0


def test_a_head_without_noise_and_three_classes_are_errors():
    head = heads.Deterministic(K)
    maps, params, _ = parts(head)
    with pytest.raises(ValueError, match=r"^the head has no noise, .* other than Deterministic"):
        noise.noise_maps(maps, head.noise_parameters(params), PAIRS)
    maps, params, _ = parts(NOISY[0])
    with pytest.raises(ValueError, match=r"^there are 3 classes per example; give two .* or one"):
        noise.noise_maps(maps, NOISY[0].noise_parameters(params), jnp.zeros((3, 3), int))


@every_head
def test_the_default_pair_has_the_largest_visible_variance_beside_the_likeliest_class(head):
    maps, _, apply = parts(head)

    @jax.jit
    def chosen(maps):
        latent = apply(jnp.mean(maps, axis=(1, 2)))
        softmax, sigmoid = jax.nn.softmax(latent.loc), jax.nn.sigmoid(latent.loc)
        pairs = noise.default_classes(latent, softmax)
        labels = noise.default_classes(latent, sigmoid, "sigmoid")
        differences = latent_lib.difference_variance(latent)
        return pairs, labels, softmax, sigmoid, differences, latent_lib.covariance(latent)

    pairs, labels, probs, sigmoid, differences, covariance = map(np.asarray, chosen(maps))
    first, second = pairs.T
    seen = probs[:, :, None] * probs[:, None] * differences
    np.testing.assert_array_equal(first, np.argmax(probs, axis=-1))
    np.testing.assert_array_equal(second, np.argmax(seen[np.arange(3), first], axis=-1))
    assert (first != second).all()
    (label,) = labels.T
    visible = sigmoid * (1 - sigmoid) * np.einsum("bkk->bk", covariance)
    np.testing.assert_array_equal(label, np.argmax(visible, axis=-1))


def test_without_noise_the_default_pair_is_still_of_two_classes():
    maps, _, apply = parts(heads.Deterministic(K))
    latent = apply(jnp.mean(maps, axis=(1, 2)))
    first, second = np.asarray(noise.default_classes(latent, jnp.eye(K)[:3])).T
    assert (first != second).all()
    with pytest.raises(ValueError, match=r"^a pair requires two or more classes, but there are 1"):
        noise.default_classes(latent, jnp.ones((3, 1)))


def test_memory_does_not_grow_with_the_number_of_classes_nor_with_places_times_classes():
    """Temporaries at 21,843 classes and 50 shared factors, batch 32, by the compiler."""
    head = heads.ParameterEfficient(21_843, num_factors=50)
    num_features = 256
    shapes = jax.eval_shape(head.init, jax.random.key(0), jnp.zeros((1, num_features)))["params"]
    maps = jax.ShapeDtypeStruct((32, 7, 7, num_features), jnp.float32)
    classes = jax.ShapeDtypeStruct((32, 2), jnp.int32)
    program = compiled.lower(head, shapes, maps, classes).compile()
    assert program.memory_analysis().temp_size_in_bytes < 2**25


def test_maps_of_bfloat16_and_float32_agree_to_1_percent_of_their_largest_value():
    backbone = ResNet((1, 1), bottleneck=False, stem="cifar", stem_width=8, width=8)
    inputs, present = jax.random.normal(jax.random.key(0), (3, 16, 16, 3)), jnp.ones(3, bool)
    variables = jax.jit(backbone.init)(jax.random.key(1), inputs, present)
    maps = [
        jax.jit(functools.partial(b.apply, method="maps"))(variables, inputs, present)
        for b in (backbone, backbone.clone(dtype="bfloat16"))
    ]
    head = heads.LowRank(K, num_factors=2)
    variables = jax.jit(head.init)(jax.random.key(2), maps[0][:, 0, 0])

    @jax.jit
    def of_class(maps):
        def utility(features):
            return scalars.utility(head.apply(variables, features), PAIRS[:, 0])

        parameters = head.utilities_parameters(variables["params"])
        cam = attribution.cam(maps, parameters, PAIRS[:, 0])
        return cam, attribution.grad_cam_pp(maps, utility)

    of_noise = [totals(noise_maps(head, variables["params"], x, PAIRS)) for x in maps]
    for a, b in (of_noise, *zip(*(of_class(x) for x in maps))):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert not np.array_equal(a, b)
        np.testing.assert_allclose(a, b, atol=0.01 * np.abs(a).max())
