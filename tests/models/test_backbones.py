import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from gaussians import key

from heteroscedastic.bind import bind
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
    variables = random_variables(backbone)
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
    variables = random_variables(backbone)

    @jax.jit
    def run():
        batches = (INPUTS, INPUTS[2:3])
        return [backbone.apply(variables, x, jnp.ones(len(x), bool)) for x in batches]

    complete, one = run()
    np.testing.assert_allclose(complete[2:3], one, rtol=1e-4, atol=1e-6)


@functools.cache
def initial_shapes(model, shape=INPUTS.shape, **settings):
    inputs, present = jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct(shape[:1], bool)
    return jax.eval_shape(functools.partial(model.init, **settings), key(), inputs, present)


def random_variables(model):
    """Random parameters and statistics, so that no scale of zero hides a branch."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: rng.uniform(0.1, 1, x.shape).astype(x.dtype), initial_shapes(model)
    )


def by_name(variables):
    return flatten_dict(variables, sep="/")


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "MLP"])
def test_the_features_are_the_mean_of_the_maps_over_the_image(name):
    model, present = Classifier(EXAMPLES[name], heads.Deterministic(3)), jnp.ones(6, bool)
    variables = random_variables(model)

    @jax.jit
    def run():
        maps, features = (
            model.apply(variables, INPUTS, present, train=False, method=method)
            for method in ("maps", "features")
        )
        return jnp.mean(maps, axis=(1, 2)), features

    np.testing.assert_array_equal(*run())


def test_a_backbone_without_maps_is_an_error_that_says_what_to_use():
    model = Classifier(EXAMPLES["MLP"], heads.Deterministic(3))
    with pytest.raises(ValueError, match=r"^MLP has no maps; use a .* such as ConvNet .*features"):
        model.apply(random_variables(model), INPUTS, jnp.ones(6, bool), method="maps")


@pytest.mark.parametrize(
    ("version", "settings", "train"),
    mostly_extended(
        itertools.product((1, 2), ({}, dict(remat=True), dict(dtype="bfloat16")), (False, True)),
        [
            (1, {}, True),
            (1, dict(dtype="bfloat16"), True),
            (2, {}, False),
            (2, dict(remat=True), True),
            (2, dict(dtype="bfloat16"), False),
        ],
    ),
)
def test_a_trunk_and_its_tail_are_the_network_bit_for_bit(version, settings, train):
    backbone = ResNet(
        version=version, bottleneck=False, stem="cifar", group_size=2, **SMALL, **settings
    )
    variables = random_variables(backbone)
    present = jnp.array([True, True, True, True, True, False])

    def apply(variables, inputs, method, **settings):
        outputs, state = backbone.apply(
            variables, inputs, present, train, **settings, mutable=["batch_stats"], method=method
        )
        return outputs, by_name(state)

    maps, statistics = apply(variables, INPUTS, "maps")
    for last in (0, 1):
        trunk_shapes = by_name(initial_shapes(backbone, method="stages", last=last))
        tail_shapes = by_name(
            initial_shapes(backbone, (6, 8, 8, 4), method="stages", first=last + 1)
        )
        assert not trunk_shapes.keys() & tail_shapes.keys()
        assert trunk_shapes | tail_shapes == by_name(initial_shapes(backbone))

        trunk, trunk_statistics = apply(
            subset(variables, trunk_shapes), INPUTS, "stages", last=last
        )
        assert len(trunk) == last + 1
        tail, tail_statistics = apply(
            subset(variables, tail_shapes), trunk[-1], "stages", first=last + 1
        )
        np.testing.assert_array_equal(tail[-1], maps)
        parts = trunk_statistics | tail_statistics
        assert parts.keys() == statistics.keys()
        for name, value in parts.items():
            np.testing.assert_array_equal(value, statistics[name], err_msg=name)
        tail_of_all, _ = apply(variables, trunk[-1], "stages", first=last + 1)
        np.testing.assert_array_equal(tail_of_all[-1], maps)


def subset(variables, names):
    return unflatten_dict({n: x for n, x in by_name(variables).items() if n in names}, sep="/")


class Detector(nn.Module):
    """A trunk, two regions of each image, and the tail applied to the regions."""

    backbone: nn.Module

    def __call__(self, inputs, present):
        maps = self.backbone.stages(inputs, present, last=1)[-1]
        regions = jnp.stack([maps[:, :4, :4], maps[:, 4:, 4:]], axis=1)
        present = jnp.repeat(present[:, None], 2, axis=1)
        return self.backbone.stages(regions, present, first=2)[-1]


def test_a_model_of_a_trunk_and_a_tail_has_the_parameters_of_the_network():
    backbone = ResNet(stem="cifar", **SMALL)
    shapes = initial_shapes(Detector(backbone))
    assert {name: group["backbone"] for name, group in shapes.items()} == initial_shapes(backbone)


def test_a_tail_treats_the_regions_of_all_images_as_one_batch():
    backbone = EXAMPLES["basic"]
    tail = functools.partial(
        backbone.apply,
        random_variables(backbone),
        train=True,
        method="stages",
        first=2,
        mutable=["batch_stats"],
    )
    maps = jnp.asarray(np.random.default_rng(2).normal(size=(6, 8, 8, 4)), jnp.float32)
    present = jnp.array([True, False, True, True, True, False])
    (flat,), flat_state = tail(maps, present)
    (nested,), nested_state = tail(maps.reshape(2, 3, 8, 8, 4), present.reshape(2, 3))
    np.testing.assert_array_equal(nested, flat.reshape(2, 3, 4, 4, 8))
    jax.tree.map(np.testing.assert_array_equal, nested_state, flat_state)


@pytest.mark.parametrize(
    ("name", "stem", "strides"),
    [
        ("ResNet18", "imagenet", (4, 4, 8, 16, 32)),
        ("ResNet50V2", "imagenet", (4, 4, 8, 16, 32)),
        ("ResNet18", "cifar", (1, 1, 2, 4, 8)),
        ("ResNet20", "cifar", (1, 1, 2, 4)),
    ],
)
def test_stages_have_the_strides_of_their_stem(name, stem, strides):
    backbone = bind(backbones, name=name, stem=stem)
    images, present = jnp.zeros((2, 64, 96, 3)), jnp.ones(2, bool)
    stages, _ = jax.eval_shape(
        lambda: backbone.init_with_output(key(), images, present, method="stages")
    )
    assert [maps.shape[1:3] for maps in stages] == [(64 // s, 96 // s) for s in strides]


@pytest.mark.parametrize("settings", [dict(first=2, last=1), dict(last=3), dict(first=-1)])
def test_stages_that_a_network_lacks_are_an_error(settings):
    with pytest.raises(ValueError, match=r"must satisfy 0 <= first <= last <= 2\."):
        EXAMPLES["basic"].apply({}, INPUTS, jnp.ones(6, bool), method="stages", **settings)


@pytest.mark.parametrize(
    ("version", "others", "block"),
    [
        (1, "stem/kernel stem_norm/bias stem_norm/scale", "shortcut_norm/bias shortcut_norm/scale"),
        (2, "stem/kernel final_norm/bias final_norm/scale", ""),
    ],
)
def test_parameters_have_the_names_of_saved_checkpoints(version, others, block):
    block += " shortcut/kernel conv1/kernel conv2/kernel conv3/kernel"
    block += " norm1/bias norm1/scale norm2/bias norm2/scale norm3/bias norm3/scale"
    blocks = ("stage1_block1", "stage2_block1")
    expected = {*others.split(), *(f"{name}/{leaf}" for name in blocks for leaf in block.split())}
    shapes = initial_shapes(ResNet(version=version, **SMALL))
    assert by_name(shapes["params"]).keys() == expected


FIXED = [name for name in backbones.__all__ if re.match("(Wide|Inception)?ResNet.", name)]


@pytest.mark.parametrize("name", FIXED)
def test_a_network_whose_name_gives_its_architecture_has_no_settings_of_it(name):
    architecture = ("stage_sizes", "bottleneck", "version", "stem_width", "width", "num_blocks")
    values = {n: getattr(ResNet(), n, (1, 1, 1)) for n in architecture}
    for setting, value in values.items():
        with pytest.raises(ValueError, match=f"has no setting '{setting}'"):
            bind(backbones, name=name, **{setting: value})


def test_a_network_without_a_fixed_architecture_is_a_choice():
    settings = dict(stage_sizes=(2, 2, 2, 2), bottleneck=False, version=2, stem="cifar")
    ours, named = bind(backbones, name="ResNet", **settings), backbones.ResNet18V2(stem="cifar")
    assert initial_shapes(ours) == initial_shapes(named.clone())
    assert backbones.smallest("ResNet") == "ResNet"


def size(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


@functools.cache
def shapes_for_images(backbone, pixels):
    """Of the features, and of the variables and intermediate values."""
    images = jax.ShapeDtypeStruct((2, pixels, pixels, 3), "float32")
    present = jax.ShapeDtypeStruct((2,), bool)
    init = functools.partial(backbone.init_with_output, capture_intermediates=True, mutable=True)
    return jax.eval_shape(init, key(), images, present)


def num_parameters(backbone, head, pixels):
    features, variables = shapes_for_images(backbone, pixels)
    return size(variables["params"]) + size(jax.eval_shape(head.init, key(), features)["params"])


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
        ("WideResNet28x10", 10, 32, 36_479_194),  # 36.5M in Zagoruyko and Komodakis (2016), Table 5
    ],
)
def test_the_number_of_parameters_is_the_published_one(name, num_classes, pixels, expected):
    """tests/test_configs.py has ResNet-152v2 and Inception-ResNet-v2."""
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


@pytest.mark.parametrize("version", mostly_extended([1, 2], [2]))
def test_rematerialisation_recomputes_every_block_and_changes_no_gradient(version):
    def gradient(remat):
        backbone = ResNet(version=version, stem="cifar", remat=remat, **SMALL)
        present = jnp.ones(6, bool)
        variables = random_variables(backbone)

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
    assert {x.dtype for x in jax.tree.leaves(initial_shapes(backbone))} == {jnp.dtype("float32")}
    variables = random_variables(backbone)

    @jax.jit
    def run():
        exact = ResNet(stem="cifar", **SMALL).apply(variables, INPUTS, present)
        return exact, backbone.apply(variables, INPUTS, present, capture_intermediates=True)

    exact, (features, intermediates) = run()
    assert features.dtype == jnp.float32
    inner = intermediates["intermediates"]["stage1_block1"]["__call__"][0]
    assert inner.dtype == jnp.bfloat16
    np.testing.assert_allclose(features, exact, rtol=0.1, atol=0.05)


def test_a_residual_block_of_version_1_starts_as_the_identity():
    backbone = ResNet(bottleneck=False, stem="cifar", **SMALL)
    _, seen = jax.jit(
        lambda: backbone.init_with_output(
            key(), INPUTS, jnp.ones(6, bool), capture_intermediates=True, mutable=True
        )
    )()
    block, stem = (seen["intermediates"][n]["__call__"][0] for n in ("stage1_block1", "stem_norm"))
    np.testing.assert_allclose(block, jax.nn.relu(stem), rtol=1e-5)


def test_version_2_is_its_plain_formula():
    """The first normalisation and relu precede the shortcut, and the last ones the mean."""
    backbone = ResNet(
        version=2, stage_sizes=(1,), bottleneck=False, stem="cifar", width=4, stem_width=3
    )
    variables = random_variables(backbone)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape), variables["params"])

    def conv(x, layer):
        dimensions = ("NHWC", "HWIO", "NHWC")
        kernel = jnp.float32(layer["kernel"])
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dimensions)

    def activation(x, layer, running):
        x = (x - running["mean"]) / np.sqrt(running["var"] + 1e-5)
        return jnp.maximum(x * layer["scale"] + layer["bias"], 0)

    @jax.jit
    def plain(x):
        block, running = params["stage1_block1"], variables["batch_stats"]
        x = activation(conv(x, params["stem"]), block["norm1"], running["stage1_block1"]["norm1"])
        shortcut = conv(x, block["shortcut"])
        x = conv(x, block["conv1"])
        x = activation(x, block["norm2"], running["stage1_block1"]["norm2"])
        x = conv(x, block["conv2"]) + shortcut
        return activation(x, params["final_norm"], running["final_norm"]).mean(axis=(1, 2))

    variables = {**variables, "params": jax.tree.map(jnp.float32, params)}
    features = jax.jit(backbone.apply)(variables, INPUTS, jnp.ones(6, bool))
    np.testing.assert_allclose(features, plain(INPUTS), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("start", ["identity", "keras"])
def test_kernels_and_scales_have_the_documented_initial_distribution(start):
    backbone = ResNet(stage_sizes=(1, 1), width=32, start=start)
    variables = jax.jit(backbone.init)(key(), INPUTS, jnp.ones(6, bool))
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
    _, variables = shapes_for_images(InceptionResNetV2(), 299)
    assert size(variables["batch_stats"]) == 55_873_736 - 55_813_192
    assert variables["intermediates"]["final"]["__call__"][0].shape == (2, 8, 8, 1536)
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
    _, smallest = shapes_for_images(InceptionResNetV2Small(padding="VALID"), 75)
    assert smallest["intermediates"]["final"]["__call__"][0].shape == (2, 1, 1, 1536)


@pytest.mark.extended
def test_inception_is_that_of_keras(monkeypatch):
    """The features of an evaluation with random weights; Keras numbers its layers as made."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    from keras import applications

    theirs = applications.InceptionResNetV2(
        include_top=False, weights=None, input_shape=(80, 76, 3), pooling="avg"
    )
    layers, rng = {x.name: x for x in theirs.layers if x.weights}, np.random.default_rng(0)
    for layer in layers.values():
        layer.set_weights([_weight(rng, x.name, x.shape) for x in layer.weights])
    paths = [f"stem{i}" for i in range(1, 6)]
    paths += [*_towers("mixed_5b", 1, 2, 3), "mixed_5b_pool"]
    for stage, number, *lengths in ((1, 10, 1, 2, 3), (2, 20, 1, 3), (3, 10, 1, 3)):
        for i in range(1, number + 1):
            paths += _towers(f"stage{stage}_block{i}/towers", *lengths)
        paths += {1: _towers("mixed_6a", 1, 3), 2: _towers("mixed_7a", 2, 2, 3)}.get(stage, [])
    numbers = ["", *(f"_{i}" for i in range(1, len(paths)))]
    convolutions = {
        f"{path}/": (f"conv2d{number}", f"batch_normalization{number}")
        for path, number in zip(paths, numbers, strict=True)
    }
    convolutions["final/"] = "conv_7b", "conv_7b_bn"
    params, stats = {}, {}
    for path, (convolution, norm) in convolutions.items():
        (params[f"{path}conv/kernel"],) = layers[convolution].get_weights()
        bias, mean, var = layers[norm].get_weights()
        params[f"{path}norm/bias"] = bias
        stats |= {f"{path}norm/mean": mean, f"{path}norm/var": var}
    for stage, number, name in ((1, 10, "block35"), (2, 20, "block17"), (3, 10, "block8")):
        for i in range(1, number + 1):
            path = f"stage{stage}_block{i}/out"
            kernel, bias = layers[f"{name}_{i}_conv"].get_weights()
            params |= {f"{path}/kernel": kernel, f"{path}/bias": bias}
    variables = {
        "params": unflatten_dict(params, "/"),
        "batch_stats": unflatten_dict(stats, "/"),
    }
    inputs = rng.normal(size=(2, 80, 76, 3)).astype(np.float32)
    ours = jax.jit(InceptionResNetV2().apply)(variables, inputs, jnp.ones(2, bool))
    np.testing.assert_allclose(ours, theirs(inputs), rtol=1e-3, atol=1e-3 * np.std(ours))
    assert np.std(ours[0] - ours[1]) > 0.1 * np.std(ours)


def _weight(rng, name, shape):
    """Such that the maps of a deep network stay of one size."""
    if "variance" in name:
        return rng.uniform(0.5, 1.5, shape)
    scale = np.sqrt(2 / np.prod(shape[:-1])) if name == "kernel" else 0.1
    return scale * rng.normal(size=shape)


def _towers(path, *lengths):
    return [f"{path}/tower{i}_{j + 1}" for i, x in enumerate(lengths, 1) for j in range(x)]


def test_images_too_small_for_inception_are_an_error():
    with pytest.raises(ValueError, match=r"images are 74x80.*use padding='SAME'"):
        jax.eval_shape(
            InceptionResNetV2().init, key(), jnp.zeros((2, 74, 80, 3)), jnp.ones(2, bool)
        )


def test_an_absent_example_changes_nothing_in_inception():
    backbone, present = InceptionResNetV2Small(), jnp.array([True, True, True, False])
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda x: 0.1 * rng.standard_normal(x.shape, np.float32), initial_shapes(backbone)
    )

    @jax.jit
    def run(variables, inputs):
        features, state = backbone.apply(
            variables, inputs, present, train=True, mutable=["batch_stats"]
        )
        return features[:3], state

    same = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    changed = INPUTS[:4].at[3].set(1e3)
    jax.tree.map(same, run(variables, changed), run(variables, INPUTS[:4]))


@pytest.mark.extended
def test_inception_supports_rematerialisation():
    backbone, present = InceptionResNetV2Small(remat=True), jnp.ones(2, bool)
    variables = initial_shapes(InceptionResNetV2Small())

    def loss(params, stats):
        variables = {"params": params, "batch_stats": stats}
        return backbone.apply(variables, INPUTS[:2], present, train=True, mutable=["batch_stats"])[
            0
        ].sum()

    traced = jax.make_jaxpr(jax.grad(loss))(variables["params"], variables["batch_stats"])
    assert num_remats(traced) >= 3
