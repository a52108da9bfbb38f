import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from gaussians import key

from heteroscedastic import files
from heteroscedastic import latent as latent_lib
from heteroscedastic.models import backbones, convert, edward2, heads
from heteroscedastic.models.backbones import ConvNet
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.resnet import ResNet

BASIC, BOTTLENECK = (3, 3), (1, 3, 1)  # kernels of a block's convolutions
D, K, R = 7, 5, 3
NETS = {
    "ResNet18": (
        BASIC,
        (2, 2, 2, 2),
        11_689_512,
    ),  # parameters as published with the torchvision models
    "ResNet34": (BASIC, (3, 4, 6, 3), 21_797_672),
    "ResNet50": (BOTTLENECK, (3, 4, 6, 3), 25_557_032),
    "ResNet101": (BOTTLENECK, (3, 4, 23, 3), 44_549_160),
    "ResNet152": (BOTTLENECK, (3, 8, 36, 3), 60_192_808),
}
TINY = (BASIC, (1, 1))
EDWARD2 = [  # a head, and the settings of the corresponding layer of edward2
    (heads.Diagonal(K, temperature=0.9), dict(num_factors=0)),
    (heads.LowRank(K, num_factors=R, temperature=0.9), dict(num_factors=R)),
    (
        heads.ParameterEfficient(K, num_factors=R, temperature=0.9),
        dict(num_factors=R, parameter_efficient=True),
    ),
]
EDWARD2 += [
    (head.clone(noise_on="features"), dict(latent_dim=D) | settings) for head, settings in EDWARD2
]
EDWARD2 = [(head.clone(edward2=True), settings) for head, settings in EDWARD2]
EDWARD2 += [
    (EDWARD2[2][0].clone(temperature=(0.3, 3.0)), dict(tune_temperature=True) | EDWARD2[2][1])
]


def random_state_dict(kernels, sizes, num_classes=1000, width=64, seed=0):
    """A random state dict with the names and shapes of torchvision, from its definition."""
    rng = np.random.default_rng(seed)
    state = {}

    def uniform(*shape, scale):
        """Of this standard deviation; normal numbers take four times as long."""
        return (rng.random(shape, np.float32) - np.float32(0.5)) * np.float32(12**0.5 * scale)

    def conv(name, inner, outer, kernel):
        fan_in = inner * kernel**2
        state[f"{name}.weight"] = uniform(outer, inner, kernel, kernel, scale=fan_in**-0.5)

    def norm(name, channels):
        state[f"{name}.weight"] = 1 + uniform(channels, scale=0.1)
        state[f"{name}.bias"] = uniform(channels, scale=0.1)
        state[f"{name}.running_mean"] = uniform(channels, scale=0.1)
        state[f"{name}.running_var"] = rng.uniform(0.5, 2.0, channels).astype(np.float32)
        state[f"{name}.num_batches_tracked"] = np.array(7, np.int64)

    conv("conv1", 3, width, 7)
    norm("bn1", width)
    inner = width
    for stage, size in enumerate(sizes):
        middle = width * 2**stage
        outer = middle * (4 if kernels == BOTTLENECK else 1)
        for i in range(size):
            block, channels = f"layer{stage + 1}.{i}", inner
            for j, kernel in enumerate(kernels, start=1):
                out = outer if j == len(kernels) else middle
                conv(f"{block}.conv{j}", channels, out, kernel)
                norm(f"{block}.bn{j}", out)
                channels = out
            if i == 0 and (inner != outer or stage > 0):
                conv(f"{block}.downsample.0", inner, outer, 1)
                norm(f"{block}.downsample.1", outer)
            inner = outer
    state["fc.weight"] = uniform(num_classes, inner, scale=inner**-0.5)
    state["fc.bias"] = uniform(num_classes, scale=1.0)
    return state


def windows(x, kernel, stride, fill):
    """(index in the kernel, values at this index) of [b, c, h, w], padded by kernel // 2."""
    pad = kernel // 2
    height, width = ((n - 1) // stride + 1 for n in x.shape[2:])
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    for i, j in np.ndindex(kernel, kernel):
        yield (
            (i, j),
            x[:, :, i : i + stride * height : stride, j : j + stride * width : stride][
                :, :, :height, :width
            ],
        )


def plain_logits(state, kernels, sizes, images):
    """The forward pass in evaluation on [b, c, h, w], in float64."""
    state = {name: array.astype(np.float64) for name, array in state.items()}

    def conv(name, x, stride=1):
        weight = state[f"{name}.weight"]
        under = windows(x, weight.shape[-1], stride, 0.0)
        return sum(
            np.einsum("bihw,oi->bohw", part, weight[:, :, i, j], optimize=True)
            for (i, j), part in under
        )

    def norm(name, x):
        scale, bias, mean, var = (
            state[f"{name}.{field}"][:, None, None]
            for field in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / np.sqrt(var + 1e-5) * scale + bias

    def relu(x):
        return np.maximum(x, 0)

    x = relu(norm("bn1", conv("conv1", images.astype(np.float64), 2)))
    x = np.max([part for _, part in windows(x, 3, 2, -np.inf)], axis=0)
    for stage, size in enumerate(sizes):
        for i in range(size):
            name, stride = f"layer{stage + 1}.{i}", 2 if stage > 0 and i == 0 else 1
            shortcut = x
            if f"{name}.downsample.0.weight" in state:
                shortcut = norm(f"{name}.downsample.1", conv(f"{name}.downsample.0", x, stride))
            strided = kernels.index(3)  # the first 3x3 convolution
            for j in range(len(kernels)):
                x = norm(
                    f"{name}.bn{j + 1}",
                    conv(f"{name}.conv{j + 1}", x, stride if j == strided else 1),
                )
                x = relu(x) if j < len(kernels) - 1 else x
            x = relu(x + shortcut)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def shapes(model):
    return jax.eval_shape(model.init, key(), jnp.zeros((1, 32, 32, 3)), jnp.ones(1, bool))


def tiny(head=None, **settings):
    """Variables of a TINY network that differ from those of the state dict."""
    backbone = ResNet(
        **(dict(stage_sizes=(1, 1), bottleneck=False, width=4, stem_width=4) | settings)
    )
    rng = np.random.default_rng(2)
    template = shapes(Classifier(backbone, head) if head else backbone)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), template)


def tiny_state_dict(num_classes=5):
    return random_state_dict(*TINY, num_classes=num_classes, width=4)


def assert_identical(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        assert (name, actual[name].dtype) == (name, expected[name].dtype)
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


@pytest.mark.parametrize("name", mostly_extended(["ResNet18", "ResNet50"], ["ResNet50"]))
def test_outputs_agree_with_the_network_of_the_weights(name):
    kernels, sizes, _ = NETS[name]
    state = random_state_dict(kernels, sizes)
    model = Classifier(getattr(backbones, name)(), heads.Deterministic(1000))
    variables = convert.from_torch(state, shapes(model), with_fc=True)
    images = (
        np.random.default_rng(1).normal(size=(2, 3, 33, 46)).astype(np.float32)
    )  # odd and even sizes
    expected = plain_logits(state, kernels, sizes, images)
    logits = jax.jit(model.apply)(variables, images.transpose(0, 2, 3, 1), jnp.ones(2, bool)).loc
    np.testing.assert_allclose(logits, expected, atol=2e-5 * np.std(expected))


@pytest.mark.parametrize("name", mostly_extended(NETS, ["ResNet18", "ResNet50"]))
def test_a_state_dict_survives_a_round_trip_bit_for_bit(name):
    kernels, sizes, num_parameters = NETS[name]
    state = {
        n: np.zeros_like(a) if "tracked" in n else a
        for n, a in random_state_dict(kernels, sizes).items()
    }
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    assert sum(a.size for n, a in state.items() if not n.endswith(buffers)) == num_parameters
    template = shapes(Classifier(getattr(backbones, name)(), heads.Deterministic(1000)))
    variables = convert.from_torch(state, template, with_fc=True)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), variables) == jax.tree.map(
        lambda x: (x.shape, x.dtype), template
    )
    assert_identical(convert.to_torch(variables), state)


def test_without_fc_a_head_with_other_classes_is_kept():
    variables = tiny(heads.LowRank(7, num_factors=2))
    actual = convert.from_torch(tiny_state_dict(num_classes=1000), variables)
    jax.tree.map(
        np.testing.assert_array_equal, actual["params"]["head"], variables["params"]["head"]
    )
    alone = convert.from_torch(tiny_state_dict(), tiny())
    jax.tree.map(np.testing.assert_array_equal, actual["params"]["backbone"], alone["params"])
    jax.tree.map(
        np.testing.assert_array_equal, actual["batch_stats"]["backbone"], alone["batch_stats"]
    )


@pytest.mark.parametrize(
    "head", [heads.Diagonal(5), heads.LowRank(5, 0.5), heads.ParameterEfficient(5)]
)
def test_fc_replaces_the_utilities_of_any_head_and_keeps_its_noise(head):
    variables, state = tiny(head), tiny_state_dict()
    actual = convert.from_torch(state, variables, with_fc=True)["params"]["head"]
    rest = variables["params"]["head"]
    np.testing.assert_array_equal(actual["loc"]["kernel"], state["fc.weight"].T)
    np.testing.assert_array_equal(actual["loc"]["bias"], state["fc.bias"])
    jax.tree.map(np.testing.assert_array_equal, actual | {"loc": 0}, rest | {"loc": 0})


def test_utilities_that_are_no_dense_layer_of_the_features_are_refused():
    """One behind a hidden layer would lack it, and one with learned means of the noise those."""
    hidden, edward2 = (
        heads.Deterministic(5, hidden_width=8),
        heads.ParameterEfficient(5, edward2=True),
    )
    with pytest.raises(ValueError, match="of the head need 'hidden' beside its dense layer"):
        convert.from_torch(tiny_state_dict(), tiny(hidden), with_fc=True)
    for head, name in ((hidden, "hidden"), (edward2, "shared_bias")):
        with pytest.raises(ValueError, match=f"need '{name}' beside .* set with_fc=False"):
            convert.to_torch(tiny(head))
        backbone = convert.to_torch(tiny(head), with_fc=False)
        assert "conv1.weight" in backbone
        assert "fc.weight" not in backbone
    actual = convert.from_torch(tiny_state_dict(), tiny(edward2), with_fc=True)
    kernel = actual["params"]["head"]["loc"]["kernel"]
    np.testing.assert_array_equal(kernel, tiny_state_dict()["fc.weight"].T)


def test_a_backbone_alone_needs_no_fc():
    state = {
        n: a for n, a in tiny_state_dict().items() if not n.startswith("fc.") and "tracked" not in n
    }
    variables = convert.from_torch(state, tiny())
    back = convert.to_torch(variables)
    assert_identical({n: a for n, a in back.items() if "tracked" not in n}, state)
    again = convert.from_torch(back, tiny())
    assert jax.tree.structure(again) == jax.tree.structure(variables)
    jax.tree.map(np.testing.assert_array_equal, again, variables)


def test_an_npz_file_is_a_state_dict_and_float64_becomes_float32(tmp_path):
    state = tiny_state_dict()
    files.write_arrays(
        tmp_path / "weights.npz", {n: a.astype(np.float64) for n, a in state.items()}
    )
    with np.load(tmp_path / "weights.npz") as file:
        actual = convert.from_torch(file, tiny())
    jax.tree.map(np.testing.assert_array_equal, actual, convert.from_torch(state, tiny()))
    assert {x.dtype for x in jax.tree.leaves(actual)} == {jnp.dtype("float32")}


def test_converted_arrays_share_no_memory_with_their_source():
    state = tiny_state_dict()
    variables = convert.from_torch(state, tiny())
    before = jax.tree.map(np.array, variables)
    for array in (*state.values(), *convert.to_torch(variables).values()):
        array[...] = 0
    jax.tree.map(np.testing.assert_array_equal, variables, before)


def test_an_error_lists_all_names_and_shapes_that_do_not_match():
    state = tiny_state_dict()
    del state["layer1.0.bn2.running_var"]
    state["layer1.1.conv1.weight"] = state["layer1.0.conv1.weight"]
    state["conv1.weight"] = state["conv1.weight"][:, :1]
    with pytest.raises(ValueError, match="does not fit") as error:
        convert.from_torch(state, tiny())
    for part in (
        "lacks layer1.0.bn2.running_var;",
        "has the unexpected layer1.1.conv1.weight;",
        "conv1.weight (4, 1, 7, 7) where (4, 3, 7, 7) is expected.",
    ):
        assert part in str(error.value)


def test_an_fc_that_is_missing_or_does_not_match_is_an_error():
    head = heads.Deterministic(7)
    with pytest.raises(ValueError, match=r"fc.weight \(5, 8\) where \(7, 8\) is expected"):
        convert.from_torch(tiny_state_dict(5), tiny(head), with_fc=True)
    with pytest.raises(ValueError, match="with_fc needs a Classifier"):
        convert.from_torch(tiny_state_dict(), tiny(), with_fc=True)
    state = {n: a for n, a in tiny_state_dict().items() if not n.startswith("fc.")}
    with pytest.raises(ValueError, match=r"lacks fc.bias, fc.weight\."):
        convert.from_torch(state, tiny(head), with_fc=True)


def test_the_error_for_a_shallower_network_lists_only_a_few_names():
    state = random_state_dict(*NETS["ResNet18"][:2])
    with pytest.raises(
        ValueError, match=r"lacks layer1.0.bn3.bias, .* and \d+ more; .*layer1.0.conv1.weight"
    ) as error:
        convert.from_torch(state, shapes(backbones.ResNet50()))
    assert len(str(error.value)) < 2500


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (lambda: tiny(version=2), r"\w+/final_norm/\w+ has no name"),
        (lambda: tiny(heads.Diagonal(5), version=2), r"\w+/backbone/final_norm/\w+ has no name"),
        (lambda: tiny(stem="cifar"), r"the stem is a convolution of \(3, 3\)"),
        (lambda: shapes(ConvNet()), "has no name in PyTorch"),
        (lambda: {"params": tiny()["params"]}, "there is no bn1.running_var"),
        (lambda: tiny()["params"], "there is no conv1.weight"),
    ],
)
def test_a_network_of_another_kind_is_an_error(variables, message):
    for convert_it in (
        lambda: convert.from_torch(tiny_state_dict(), variables()),
        lambda: convert.to_torch(variables()),
    ):
        with pytest.raises(ValueError, match=f"version=1 and stem='imagenet'.*{message}"):
            convert_it()


def edward2_layer(
    num_factors, parameter_efficient=False, latent_dim=None, tune_temperature=False, seed=0
):
    """Names and shapes of the layer's parameters, written from its definition; no value is a
    default.
    """
    rng = np.random.default_rng(seed)
    width = latent_dim or K

    def dense(inner, outer):
        return {
            name: rng.normal(size=size).astype(np.float32)
            for name, size in (("kernel", (inner, outer)), ("bias", outer))
        }

    tree = {"loc_layer": dense(D, K), "diag_layer": dense(D, width)}
    if num_factors and parameter_efficient:
        tree["scale_layer_homoscedastic"] = dense(num_factors, width)
        tree["scale_layer_heteroscedastic"] = dense(D, width)
    elif num_factors:
        tree["scale_layer"] = dense(D, width * num_factors)
    if tune_temperature:
        tree["pre_sigmoid_temperature"] = rng.normal(size=1).astype(np.float32)
    return tree


def edward2_utilities(tree, settings, features, diag, factors):
    """What the layer averages the softmax of, for its standard normals [s, b, 1] and [s, b, r], in
    float64.
    """

    def dense(name, x):
        return x @ tree[name]["kernel"].astype(np.float64) + tree[name]["bias"]

    noise = (np.log1p(np.exp(dense("diag_layer", features))) + 1e-3) * diag
    if settings.get("parameter_efficient"):
        noise = noise + dense("scale_layer_heteroscedastic", features) * dense(
            "scale_layer_homoscedastic", factors
        )
    elif settings["num_factors"]:
        loadings = dense("scale_layer", features).reshape(len(features), -1, R)
        noise = noise + np.einsum("bnr,sbr->sbn", loadings, factors)
    on_features = "latent_dim" in settings
    total = (
        dense("loc_layer", features + noise)
        if on_features
        else dense("loc_layer", features) + noise
    )
    temperature = 0.9
    if settings.get("tune_temperature"):
        temperature = 0.3 + 2.7 / (1 + np.exp(-tree["pre_sigmoid_temperature"]))
    return total / temperature


@pytest.mark.parametrize(("head", "settings"), EDWARD2)
def test_utilities_agree_with_the_layer_of_edward2_for_the_same_normals(head, settings):
    tree = edward2_layer(**settings)
    rng = np.random.default_rng(1)
    features, diag, factors = (rng.normal(size=size) for size in ((4, D), (6, 4, 1), (6, 4, R)))
    latent = head.apply(
        {"params": edward2.from_edward2(tree, head)}, jnp.asarray(features, jnp.float32)
    )
    shared = factors if settings.get("parameter_efficient") else None
    own = (
        np.concatenate([factors, diag], -1) if shared is None and settings["num_factors"] else diag
    )
    noise = latent_lib.Noise(
        None, *(None if x is None else jnp.asarray(x, jnp.float32) for x in (own, shared))
    )
    expected = edward2_utilities(tree, settings, features, diag, factors)
    np.testing.assert_allclose(latent_lib.utilities(latent, noise), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("head", "settings"), EDWARD2)
def test_parameters_of_a_layer_of_edward2_survive_a_round_trip(head, settings):
    tree = edward2_layer(**settings)
    back = edward2.to_edward2(edward2.from_edward2(tree, head), head)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, back, tree)


@pytest.mark.parametrize(
    ("head", "settings", "message"),
    [
        (
            EDWARD2[1][0],
            dict(num_factors=0),
            r"fit the head: it lacks scale_layer/bias, scale_layer/kernel\.",
        ),
        (
            EDWARD2[0][0],
            dict(num_factors=0, tune_temperature=True),
            "the unexpected pre_sigmoid_temperature",
        ),
        (
            EDWARD2[1][0],
            dict(num_factors=2),
            r"scale_layer/kernel \(7, 10\) where \(7, 15\) is expected",
        ),
        (
            EDWARD2[1][0],
            dict(num_factors=R, latent_dim=D),
            r"diag_layer/bias \(7,\) where \(5,\) is expected",
        ),
        (
            heads.LowRank(K, num_factors=R),
            dict(num_factors=R),
            "another covariance: use a head .* edward2=True",
        ),
        (
            heads.Deterministic(K),
            dict(num_factors=0),
            "another covariance: use a head .* edward2=True",
        ),
    ],
)
def test_a_layer_of_edward2_that_does_not_match_is_an_error(head, settings, message):
    with pytest.raises(ValueError, match=message):
        edward2.from_edward2(edward2_layer(**settings), head)


TENSORFLOW = [  # a head, and the parts of the layer: name -> numbers per class
    (heads.Diagonal(K, temperature=0.9), {"scale_layer": 1}),  # MCSoftmaxDense
    (heads.LowRank(K, num_factors=R, temperature=0.9), {"diag_layer": 1, "scale_layer": R}),
    (
        heads.ParameterEfficient(K, num_factors=R, temperature=(0.3, 3.0)),
        {"diag_layer": 1, "scale_layer_heteroscedastic": 1},
    ),
]


@pytest.mark.parametrize(("head", "parts"), TENSORFLOW)
@pytest.mark.parametrize("prefix", ["", "MCSoftmaxDenseFA/MCSoftmaxDenseFA_"])
def test_mean_and_covariance_agree_with_the_layer_of_tensorflow(head, parts, prefix):
    rng = np.random.default_rng(0)
    sizes = {"loc_layer": (D, K)} | {name: (D, K * count) for name, count in parts.items()}
    if "scale_layer_heteroscedastic" in parts:
        sizes["scale_layer_homoscedastic"] = (R, K)
    layer = {
        name: (rng.normal(size=size), rng.normal(size=size[1])) for name, size in sizes.items()
    }
    weights = {
        f"{prefix}{name}/{field}:0": x.astype(np.float32)
        for name, pair in layer.items()
        for field, x in zip(("kernel", "bias"), pair)
    }
    temperature = 0.9
    if head.learns_temperature:
        weights["pre_sigmoid_temperature:0"] = np.float32(0.4)
        temperature = 0.3 + 2.7 / (1 + np.exp(-0.4))
    features = rng.normal(size=(4, D))
    out = {n: features @ w + b for n, (w, b) in layer.items() if n != "scale_layer_homoscedastic"}
    own = np.log1p(np.exp(out.get("diag_layer", out.get("scale_layer")))) + 1e-3
    mean, loadings = out["loc_layer"], np.zeros((4, K, 1))
    if "scale_layer_homoscedastic" in layer:  # v * (V e + b), e standard normal
        shared, bias = layer["scale_layer_homoscedastic"]
        mean = mean + out["scale_layer_heteroscedastic"] * bias
        loadings = out["scale_layer_heteroscedastic"][..., None] * shared.T
    elif "diag_layer" in layer:
        loadings = out["scale_layer"].reshape(4, K, R)
    covariance = loadings @ loadings.transpose(0, 2, 1) + own[..., None] ** 2 * np.eye(K)
    params = edward2.from_edward2(weights, head, library="tensorflow")
    latent = head.apply({"params": params}, jnp.asarray(features, jnp.float32))
    np.testing.assert_allclose(latent.loc, mean / temperature, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        latent_lib.covariance(latent), covariance / temperature**2, rtol=1e-4, atol=1e-3
    )


def test_a_layer_of_tensorflow_needs_a_head_with_independent_noise_per_class():
    with pytest.raises(ValueError, match=r"independent per class: use a .* edward2=False"):
        edward2.from_edward2(edward2_layer(R), EDWARD2[1][0], library="tensorflow")
    with pytest.raises(ValueError, match="choose 'jax' or 'tensorflow'"):
        edward2.from_edward2(edward2_layer(R), EDWARD2[1][0], library="torch")


def test_parameters_of_another_layer_are_an_error():
    tree = {"multiclass_head": edward2_layer(0)}
    with pytest.raises(ValueError, match="no loc_layer/kernel of two axes"):
        edward2.from_edward2(tree, EDWARD2[0][0])


def test_the_command_writes_weights_for_a_warm_start(tmp_path, monkeypatch, capsys):
    state = random_state_dict(*NETS["ResNet18"][:2], num_classes=7)
    np.savez(tmp_path / "theirs.npz", **state)
    flags = ["convert", f"--state_dict={tmp_path}/theirs.npz", "--backbone=ResNet18"]

    def written(name, *more):
        monkeypatch.setattr("sys.argv", [*flags, *more, f"--out={tmp_path}/{name}.npz"])
        convert.main()
        return dict(np.load(tmp_path / f"{name}.npz"))

    ours = written("ours")
    assert {name.split("/")[1] for name in ours} == {"backbone"}
    np.testing.assert_array_equal(
        ours["params/backbone/stem/kernel"], state["conv1.weight"].transpose(2, 3, 1, 0)
    )
    np.testing.assert_array_equal(
        ours["batch_stats/backbone/stage4_block2/norm2/var"], state["layer4.1.bn2.running_var"]
    )
    complete = written("whole", "--with_fc")
    np.testing.assert_array_equal(complete["params/head/loc/kernel"], state["fc.weight"].T)
    assert {name: complete[name] for name in ours}.keys() == ours.keys()
    with pytest.raises(SystemExit, match="exists already"):
        written("ours")
    flags[-1] = "--backbone=ResNet50"
    with pytest.raises(SystemExit, match=r"does not fit the variables: it lacks .*savez"):
        written("other")
    assert not (tmp_path / "other.npz").exists()
