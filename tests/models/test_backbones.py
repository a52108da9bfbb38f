import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from gaussians import key

from heteroscedastic.models import backbones, heads
from heteroscedastic.models.backbones import MLP, ConvNet
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.inception_resnet import InceptionResNetV2, InceptionResNetV2Small
from heteroscedastic.models.resnet import ResNet

INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 1)), jnp.float32)
SMALL = dict(stage_sizes=(1, 1), width=4, stem_width=4)
EXAMPLES = {
    "MLP": MLP(widths=(8,)),
    "ConvNet": ConvNet(widths=(4, 8)),
    "basic": ResNet(bottleneck=False, stem="cifar", **SMALL),
    "bottleneck": ResNet(stem="imagenet", **SMALL),
    "preactivation": ResNet(version=2, stem="cifar", **SMALL),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_absent_example_changes_nothing(name):
    backbone = EXAMPLES[name]
    present = jnp.array([True, True, True, True, False, False])
    variables = backbone.init(key(), INPUTS, present)
    absent_changed = INPUTS.at[4:].set(1e3)

    @jax.jit
    def run(inputs, present):
        return backbone.apply(variables, inputs, present, train=True, mutable=["batch_stats"])

    alone, alone_state = run(INPUTS[:4], present[:4])
    for inputs in (INPUTS, absent_changed):
        features, state = run(inputs, present)
        np.testing.assert_allclose(features[:4], alone, rtol=1e-3, atol=1e-4)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state, alone_state
        )


@pytest.mark.parametrize("name", EXAMPLES)
def test_features_of_evaluation_do_not_depend_on_the_batch(name):
    backbone = EXAMPLES[name]
    present = jnp.ones(6, bool)
    variables = backbone.init(key(), INPUTS, present)
    complete = backbone.apply(variables, INPUTS, present)
    one = backbone.apply(variables, INPUTS[2:3], present[2:3])
    np.testing.assert_allclose(complete[2:3], one, rtol=1e-4, atol=1e-6)


def num_parameters(backbone, head, pixels):
    model = Classifier(backbone, head)
    shapes = jax.eval_shape(model.init, key(), jnp.zeros((2, pixels, pixels, 3)), jnp.ones(2, bool))
    return sum(x.size for x in jax.tree.leaves(shapes["params"]))


@pytest.mark.parametrize(
    ("name", "num_classes", "pixels", "expected"),
    [
        (
            "ResNet10",
            1000,
            224,
            9_536 + 73_984 + 230_144 + 919_040 + 3_673_088 + 513_000,
        ),  # stem, stages, dense
        ("ResNet18", 1000, 224, 11_689_512),  # as in torchvision
        ("ResNet34", 1000, 224, 21_797_672),
        ("ResNet50", 1000, 224, 25_557_032),
        ("ResNet101", 1000, 224, 44_549_160),
        ("ResNet152", 1000, 224, 60_192_808),
        ("ResNet152V2", 1000, 224, 60_185_128),  # Collier et al. (2021), Table 10, reading C12
        (
            "InceptionResNetV2",
            1000,
            299,
            55_813_192,
        ),  # 55,873,736 in Keras, of which 60,544 are moving statistics
        ("WideResNet28x10", 10, 32, 36_479_194),  # 36.5M in Zagoruyko and Komodakis (2016), Table 5
    ],
)
def test_the_number_of_parameters_is_the_published_one(name, num_classes, pixels, expected):
    backbone = getattr(backbones, name)()
    assert num_parameters(backbone, heads.Deterministic(num_classes), pixels) == expected


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        (
            "ResNet8",
            {},
            272_474 - 2 * 97_216,
        ),  # one more block in each of three stages has 97,216
        ("ResNet20", {}, 272_474),  # 0.27M in He et al. (2016), Table 6
        ("ResNet32", {}, 272_474 + 2 * 97_216),
        ("ResNet44", {}, 272_474 + 4 * 97_216),
        ("ResNet56", {}, 272_474 + 6 * 97_216),  # 0.85M
        ("ResNet18", {"stem": "cifar"}, 11_173_962),  # as in PyTorch models with this stem
        ("ResNet34", {"stem": "cifar"}, 21_282_122),
        ("ResNet50", {"stem": "cifar"}, 23_520_842),
    ],
)
def test_networks_for_small_images_have_the_published_number_of_parameters(
    name, settings, expected
):
    backbone = getattr(backbones, name)(**settings)
    assert num_parameters(backbone, heads.Deterministic(10), 32) == expected


def test_the_low_rank_model_has_the_number_of_parameters_of_the_paper():
    assert (
        num_parameters(backbones.ResNet152V2(), heads.LowRank(1000, num_factors=15), 224)
        == 92_969_128
    )


@pytest.mark.parametrize("version", [1, 2])
def test_rematerialisation_recomputes_every_block_and_changes_no_gradient(version):
    def gradient(remat):
        backbone = ResNet(version=version, stem="cifar", remat=remat, **SMALL)
        present = jnp.ones(6, bool)
        variables = backbone.init(key(), INPUTS, present)

        def loss(params):
            apply = {**variables, "params": params}
            return backbone.apply(apply, INPUTS, present, train=True, mutable=["batch_stats"])[
                0
            ].sum()

        traced = jax.jit(jax.grad(loss)).trace(variables["params"])
        return num_remats(traced.jaxpr), traced.lower().compile()(variables["params"])

    (num_blocks, again), (none, usual) = gradient(True), gradient(False)
    assert (num_blocks, none) == (sum(SMALL["stage_sizes"]), 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), again, usual)


def num_remats(traced):
    """Number of recomputed parts in a gradient."""
    return sum("remat" in e.primitive.name or "checkpoint" in e.primitive.name for e in traced.eqns)


def test_bfloat16_keeps_parameters_statistics_and_features_in_float32():
    backbone = ResNet(stem="cifar", dtype="bfloat16", **SMALL)
    present = jnp.ones(6, bool)
    variables = backbone.init(key(), INPUTS, present)
    assert {x.dtype for x in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    features, intermediates = backbone.apply(variables, INPUTS, present, capture_intermediates=True)
    assert features.dtype == jnp.float32
    inner = intermediates["intermediates"]["stage1_block1"]["__call__"][0]
    assert inner.dtype == jnp.bfloat16
    exact = ResNet(stem="cifar", **SMALL).apply(variables, INPUTS, present)
    np.testing.assert_allclose(features, exact, rtol=0.1, atol=0.05)


def test_a_residual_block_of_version_1_starts_as_the_identity():
    backbone = ResNet(bottleneck=False, stem="cifar", **SMALL)
    variables = backbone.init(key(), INPUTS, jnp.ones(6, bool))
    _, seen = backbone.apply(variables, INPUTS, jnp.ones(6, bool), capture_intermediates=True)
    block, stem = (seen["intermediates"][n]["__call__"][0] for n in ("stage1_block1", "stem_norm"))
    np.testing.assert_allclose(block, jax.nn.relu(stem), rtol=1e-5)


@pytest.mark.parametrize("start", ["identity", "keras"])
def test_kernels_and_scales_have_the_documented_initial_distribution(start):
    variables = ResNet(stage_sizes=(1, 1), width=32, start=start).init(
        key(), INPUTS, jnp.ones(6, bool)
    )
    of = {"/".join(name): np.asarray(x) for name, x in flatten_dict(variables["params"]).items()}
    for kernel in (x for name, x in of.items() if name.endswith("kernel")):
        height, width, channels, features = kernel.shape
        deviation = np.sqrt(2 / (height * width * (channels if start == "keras" else features)))
        assert abs(kernel.mean()) < 4 * deviation / np.sqrt(kernel.size)
        np.testing.assert_allclose(kernel.std(), deviation, rtol=4 / np.sqrt(2 * kernel.size))
        # Truncation at two deviations multiplies the standard deviation of a normal by 0.8796.
        assert (np.abs(kernel).max() <= 2.001 / 0.8796 * deviation) == (start == "keras")
    for name, scale in of.items():
        if name.endswith("scale"):
            np.testing.assert_array_equal(
                scale, 0.0 if start == "identity" and "/norm3/" in name else 1.0
            )


@pytest.mark.parametrize(
    "settings", [dict(version=3), dict(stem="patch"), dict(dtype="float8"), dict(start="zero")]
)
def test_an_unknown_setting_is_an_error_that_lists_the_choices(settings):
    with pytest.raises(ValueError, match="must be one of"):
        ResNet(**settings)


def test_inception_has_the_running_statistics_and_maps_of_keras():
    def shapes(backbone, pixels):
        images, present = jnp.zeros((2, pixels, pixels, 3)), jnp.ones(2, bool)
        return jax.eval_shape(
            lambda: backbone.init_with_output(
                key(), images, present, capture_intermediates=True, mutable=True
            )
        )

    features, variables = shapes(InceptionResNetV2(), 299)
    assert features.shape == (2, 1536)
    assert sum(x.size for x in jax.tree.leaves(variables["batch_stats"])) == 55_873_736 - 55_813_192
    of = {
        name: seen["__call__"][0].shape
        for name, seen in variables["intermediates"].items()
        if "block1" in name
    }
    grids = {
        "stage1_block1": (2, 35, 35, 320),
        "stage2_block1": (2, 17, 17, 1088),
        "stage3_block1": (2, 8, 8, 2080),
    }
    assert {name: of[name] for name in grids} == grids
    assert shapes(InceptionResNetV2(num_blocks=(1, 1, 1)), 75)[0].shape == (
        2,
        1536,
    )  # the smallest supported image


def test_images_too_small_for_inception_are_an_error():
    with pytest.raises(ValueError, match=r"images are 74x80.*use padding='SAME'"):
        jax.eval_shape(
            InceptionResNetV2().init, key(), jnp.zeros((2, 74, 80, 3)), jnp.ones(2, bool)
        )
    with pytest.raises(
        ValueError, match=r"num_blocks, \(1, 2, 0\), is 0; it must be a whole number >= 1"
    ):
        InceptionResNetV2(num_blocks=(1, 2, 0))


def test_an_absent_example_changes_nothing_in_inception():
    backbone, present = InceptionResNetV2Small(), jnp.array([True, True, True, False])
    shapes = jax.eval_shape(backbone.init, key(), INPUTS[:4], present)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda x: np.asarray(0.1 * rng.normal(size=x.shape), np.float32), shapes
    )

    @jax.jit
    def run(inputs):
        features, state = backbone.apply(
            variables, inputs, present, train=True, mutable=["batch_stats"]
        )
        return features[:3], state

    same = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(same, run(INPUTS[:4].at[3].set(1e3)), run(INPUTS[:4]))


def test_inception_supports_rematerialisation():
    backbone, present = InceptionResNetV2Small(remat=True), jnp.ones(2, bool)
    variables = jax.eval_shape(backbone.init, key(), INPUTS[:2], present)

    def loss(params, stats):
        variables = {"params": params, "batch_stats": stats}
        return backbone.apply(variables, INPUTS[:2], present, train=True, mutable=["batch_stats"])[
            0
        ].sum()

    traced = jax.make_jaxpr(jax.grad(loss))(variables["params"], variables["batch_stats"])
    assert num_remats(traced) >= 3
