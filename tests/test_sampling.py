import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import key
from scipy import stats
from scipy.stats import qmc
from subprocesses import ROOT, with_devices

from heteroscedastic import digital_nets, predictive, sampling
from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian

KINDS = ("independent", "antithetic", "sobol")
UNRANKED = jnp.full(20, sampling.UNRANKED)


@functools.partial(jax.jit, static_argnums=(1, 2))
def normals(key, kind, num_points, ranks):
    return sampling.sampler(kind)(key, num_points, ranks)(jnp.arange(num_points))


def points_of_keys(kind, num_points, ranks, repeats):
    """Points for `repeats` keys: [repeats, points, entries]."""
    draw = jax.vmap(lambda key: normals(key, kind, num_points, ranks))
    return np.asarray(draw(jax.random.split(key(), repeats)))


@functools.cache
def sobol_of_many_keys():
    return jnp.asarray(
        points_of_keys("sobol", 128, jnp.concatenate([jnp.arange(44), UNRANKED]), 1000)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_normal_is_standard(kind):
    ranks = jnp.concatenate([jnp.arange(20), UNRANKED])
    values = points_of_keys(kind, 16, ranks, 2000)
    for entry in (0, 7, 19, 25):
        for point in (0, 1, 13):  # one point per key, as the points of a key are dependent
            assert stats.kstest(values[:, point, entry], "norm").pvalue > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_depends_only_on_its_index(kind):
    source = sampling.sampler(kind)(key(), 32, jnp.arange(6))
    expected = source(jnp.arange(32))
    order = jnp.array([31, 4, 0, 17])
    np.testing.assert_array_equal(source(order), expected[order])


@pytest.mark.parametrize("kind", KINDS)
def test_examples_and_keys_have_different_points(kind):
    ranks = jnp.broadcast_to(jnp.arange(3), (2, 3))
    first, second = normals(key(0), kind, 256, ranks), normals(key(1), kind, 256, ranks)
    assert np.mean(first[:, 0] == first[:, 1]) < 0.01
    assert np.mean(first == second) < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_axis_begins_with_the_values_of_a_shorter_one(kind):
    ranks = jnp.broadcast_to(jnp.concatenate([jnp.arange(20), UNRANKED]), (2, 3, 40))
    longer, shorter = normals(key(), kind, 32, ranks), normals(key(), kind, 32, ranks[..., :23])
    np.testing.assert_array_equal(longer[..., :23], shorter)


_ON_EIGHT_DEVICES = """
import json, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from benchmarks import hlo
from heteroscedastic import sampling

def program(kind, num_devices):
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("batch",))
    examples = NamedSharding(mesh, PartitionSpec("batch"))

    def draw(ranks):
        points = sampling.sampler(kind)(jax.random.key(0), 32, ranks)
        return points(jax.numpy.arange(4)).sum(axis=0)

    ranks = jax.ShapeDtypeStruct((128, 500), np.int32)
    return jax.jit(draw, in_shardings=examples, out_shardings=examples).lower(ranks).compile()

for kind in ("independent", "antithetic", "sobol"):
    one, eight = program(kind, 1), program(kind, 8)
    sizes = [p.memory_analysis().temp_size_in_bytes for p in (one, eight)]
    print(json.dumps([kind, *sizes, sorted(hlo.crossings(eight.as_text()))]))
"""


def test_a_device_draws_only_the_points_of_its_own_examples():
    output = subprocess.run(
        [sys.executable, "-c", _ON_EIGHT_DEVICES],
        cwd=ROOT,
        env=with_devices(8),
        capture_output=True,
        text=True,
        check=True,
    )
    programs = [json.loads(line) for line in output.stdout.splitlines()]
    assert [kind for kind, *_ in programs] == list(KINDS)
    for kind, one, eight, crossings in programs:
        assert not crossings, kind
        assert eight < one / 6, kind


def test_antithetic_points_come_in_pairs():
    values = normals(key(), "antithetic", 10, jnp.arange(4))
    np.testing.assert_array_equal(values[::2], -values[1::2])


@pytest.mark.parametrize("num_points", [1, 2, 128, 1024])
def test_each_entry_falls_once_into_each_interval(num_points):
    ranks = jnp.concatenate([jnp.arange(10), UNRANKED])
    intervals = np.floor(stats.norm.cdf(normals(key(), "sobol", num_points, ranks)) * num_points)
    np.testing.assert_array_equal(
        np.sort(intervals, axis=0), np.tile(np.arange(num_points)[:, None], 30)
    )


def test_the_first_columns_are_those_of_scipy():
    # Point 0 is the shift, so point i XOR point 0 is the unshifted point.
    values = stats.norm.cdf(np.asarray(normals(key(), "sobol", 128, jnp.arange(6)), np.float64))
    digits = np.floor(values * 128).astype(int)
    unshifted = np.unique(digits ^ digits[:1], axis=0)
    expected = np.unique((qmc.Sobol(6, scramble=False).random(128) * 128).astype(int), axis=0)
    np.testing.assert_array_equal(unshifted, expected)


@pytest.mark.parametrize(
    ("product", "worst"),
    [
        (lambda a, b: a * b, 0.2),
        pytest.param(lambda a, b: jax.nn.sigmoid(2 * (a - b)), 0.1, marks=pytest.mark.extended),
        pytest.param(jnp.maximum, 0.1, marks=pytest.mark.extended),
    ],
)
def test_no_pair_has_a_larger_error_than_independent_points(product, worst):
    pairs = np.stack(np.triu_indices(64, 1))
    pairs = pairs[:, np.random.default_rng(0).permutation(pairs.shape[1])[:800]]
    repeats, num_points, _ = (values := sobol_of_many_keys()).shape

    @jax.jit
    def mean(values, pair):
        return product(values[..., pair[0]], values[..., pair[1]]).mean(axis=1)

    means = np.stack([mean(values, pair) for pair in pairs.T])
    independent = np.asarray(product(*jax.random.normal(key(), (2, 200_000))))
    squares = num_points * np.square(means - independent.mean()) / independent.var()
    ratios, deviations = squares.mean(axis=1), squares.std(axis=1) / np.sqrt(repeats)
    assert np.max((ratios - 1) / deviations) < 4.5
    good = (pairs < len(digital_nets.columns(7))).all(axis=0)
    assert ratios[good].max() < 1.15
    assert ratios[good].mean() < worst
    assert ratios.mean() < 1.02


@pytest.mark.parametrize(
    ("num_factors", "num_classes"), [(0, 50), (3, 50), (40, 50), (3, 5), (40, 5)]
)
def test_the_first_ranks_are_those_of_factors_and_of_the_largest_influence(
    num_factors, num_classes
):
    influence = jax.random.normal(key(), (2, num_classes))
    diag, factors = sampling.ranks(influence, num_factors, (2,))
    for of_classes, of_factors, values in zip(*map(np.asarray, (diag, factors, influence))):
        assert list(of_factors[:16]) == list(range(min(16, num_factors)))
        order = np.argsort(-values)
        assert list(of_classes[order]) == sorted(of_classes)
        ranked = of_classes[of_classes != sampling.UNRANKED]
        assert len(ranked) == min(32, num_classes)
        every = sorted([*ranked, *of_factors])
        assert len(set(every)) == len(every) == len(ranked) + num_factors
        if num_classes >= 16:
            assert every == list(range(len(every)))
    nothing, factors = sampling.ranks(None, num_factors, (2,))
    assert nothing is None
    assert factors.tolist() == 2 * [list(range(num_factors))]


@pytest.mark.parametrize("num_factors", [3, 16, 20])
def test_padding_classes_change_no_rank(num_factors):
    influence = jax.random.normal(key(), (2, 10))
    padded = jnp.pad(influence, ((0, 0), (0, 6)), constant_values=-jnp.inf)
    diag, factors = sampling.ranks(influence, num_factors, (2,))
    with_padding, same = sampling.ranks(padded, num_factors, (2,))
    np.testing.assert_array_equal(factors, same)
    np.testing.assert_array_equal(diag, with_padding[:, :10])


def test_sobol_points_need_a_power_of_two():
    with pytest.raises(ValueError, match="use 128, or points='independent'"):
        sampling.sobol(key(), 100, jnp.arange(3))


def test_an_unknown_kind_is_an_error_that_lists_the_choices():
    with pytest.raises(ValueError, match="must be one of independent, antithetic, sobol"):
        sampling.sampler("halton")


def softmax(key, latent, points, num_samples):
    return predictive.softmax(key, latent, num_samples=num_samples, points=points)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def errors(latent, points, num_samples, repeats, exact):
    """Errors of log p of the three likeliest classes: [repeats, b, 3]."""
    actual = jax.lax.map(
        lambda key: softmax(key, latent, points, num_samples), jax.random.split(key(), repeats)
    )
    top = jax.lax.top_k(exact, 3)[1]
    return jnp.take_along_axis(actual - exact, top[None], axis=-1)


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


def many_classes(order=None):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    one = LatentGaussian(
        3 * normal(4, 100), jnp.exp(0.3 * normal(4, 100)), 0.3 * normal(4, 100, 15)
    )
    if order is not None:
        one = LatentGaussian(
            one.loc[:, order], one.scale_diag[:, order], one.factor_loadings[:, order]
        )
    return one


def test_sobol_points_reduce_the_error_of_likely_classes_at_any_index():
    order = np.random.default_rng(1).permutation(100)
    exact = jax.jit(softmax, static_argnums=(2, 3))(key(9), many_classes(), "sobol", 2**13)
    actual = rms(errors(many_classes(), "sobol", 128, 100, exact))
    moved = rms(errors(many_classes(order), "sobol", 128, 100, exact[:, order]))
    independent = rms(errors(many_classes(), "independent", 128, 100, exact))
    assert actual < independent / 2.5
    assert moved == pytest.approx(actual, rel=0.15)


def test_sobol_points_reduce_the_error_of_gradients_of_likely_classes():
    one = many_classes()
    likeliest = jnp.argmax(one.loc, axis=-1)[:, None]

    def gradient(key, points, num_samples):
        return jax.grad(
            lambda latent: jnp.take_along_axis(
                softmax(key, latent, points, num_samples), likeliest, -1
            ).sum()
        )(one)

    exact = jax.jit(gradient, static_argnums=(1, 2))(key(9), "sobol", 2**14)

    @functools.partial(jax.jit, static_argnums=1)
    def gradients(keys, points):
        return jax.lax.map(lambda key: gradient(key, points, 128), keys)

    def error(points):
        actual = gradients(jax.random.split(key(), 40), points)
        return np.array(
            [rms(f - e) for f, e in zip(jax.tree.leaves(actual), jax.tree.leaves(exact))]
        )

    assert (error("sobol") < 0.7 * error("independent")).all()


def test_at_a_small_temperature_the_gain_is_smaller():
    cold = latent_lib.temper(many_classes(), 0.15)
    exact = jax.jit(softmax, static_argnums=(2, 3))(key(9), cold, "sobol", 2**13)
    gain = rms(errors(cold, "independent", 128, 100, exact)) / rms(
        errors(cold, "sobol", 128, 100, exact)
    )
    assert 1.2 < gain < 2.5


@pytest.mark.parametrize("points", KINDS)
def test_the_average_is_unbiased(points):
    one = LatentGaussian(jnp.array([0.7, -0.4]), jnp.array([1.2, 0.9]), jnp.array([[1.5], [-0.5]]))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    exact = (
        1 / (1 + np.exp(-1.1 - np.sqrt(1.2**2 + 0.9**2 + 2.0**2) * nodes)) * weights
    ).sum() / weights.sum()
    average = jax.jit(jax.vmap(lambda key: jnp.exp(softmax(key, one, points, 8)[0])))
    actual = np.asarray(average(jax.random.split(key(), 20_000)))
    assert stats.ttest_1samp(actual, exact).pvalue > 1e-3


def test_the_program_holds_no_table_of_points():
    shapes = jax.eval_shape(many_classes)
    jaxpr = jax.make_jaxpr(lambda key, latent: softmax(key, latent, "sobol", 4096))(key(), shapes)
    inner = [x.params["jaxpr"].consts for x in jaxpr.eqns if "jaxpr" in x.params]
    constants = [np.size(c) for consts in (jaxpr.consts, *inner) for c in consts]
    assert 0 < max(constants) <= 64 * 12
