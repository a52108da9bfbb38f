import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended
from flax.traverse_util import flatten_dict

from heteroscedastic.detection.proposals import is_box, proposals
from heteroscedastic.models.backbones import ResNet, ResNet18V2, ResNet50
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.detector import Detector, canvas_sizes
from heteroscedastic.models.efficientnet import EfficientNetLite0
from heteroscedastic.models.heads import Deterministic, LowRank
from heteroscedastic.models.proposals import RegionProposals

SMALL = dict(
    sizes=(12.0, 20.0), channels=8, num_candidates=(60, 40), num_proposals=(20, 10), num_regions=8
)


class NarrowLite(EfficientNetLite0):
    width = 0.1


def detector(stage_sizes=(1, 1, 1), **backbone):
    return with_backbone(
        ResNet(stage_sizes=stage_sizes, bottleneck=False, stem_width=4, width=4, **backbone)
    )


def with_backbone(backbone):
    head = LowRank(num_classes=4, num_factors=2)
    return Detector(backbone=backbone, head=head, proposals=RegionProposals(**SMALL))


def shapes(model, size=64):
    return jax.eval_shape(
        lambda: model.init(jax.random.key(0), jnp.zeros((1, size, size, 3)), jnp.ones(1, bool))
    )


def test_images_in_which_no_anchor_fits_are_an_error():
    model = detector(stem="cifar").clone(proposals=RegionProposals(**SMALL | dict(sizes=(64.0,))))
    with pytest.raises(ValueError, match=r"no anchor lies inside an image of 32 x 32 pixels"):
        shapes(model, 32)


def test_resnet50_with_80_classes_has_the_parameters_counted_by_hand():
    model = Detector(
        backbone=ResNet50(), head=Deterministic(num_classes=81), proposals=RegionProposals()
    )
    params = flatten_dict(shapes(model, 256)["params"])
    count = {name: 0 for name in ("backbone", "head", "proposals", "box_offsets")}
    for path, leaf in params.items():
        count[path[0]] += leaf.size
    assert count["backbone"] == 23_508_032
    assert count["proposals"] == 9 * 1024 * 512 + 512 + 513 * 12 * 5
    assert count["box_offsets"] == 2049 * 81 * 4
    assert sum(count.values()) == 29_087_761


@pytest.mark.parametrize("model", [detector(stem="cifar"), with_backbone(NarrowLite())])
def test_it_has_every_parameter_of_the_classifier_under_the_same_name(model):
    classifier = Classifier(backbone=model.backbone, head=model.head)
    own, of_classifier = (
        {path: x.shape for path, x in flatten_dict(shapes(m, 32)).items()}
        for m in (model, classifier)
    )
    assert of_classifier.items() <= own.items()
    others = {path[1] for path in own.keys() - of_classifier.keys()}
    assert others == {"proposals", "box_offsets"}


@pytest.mark.parametrize(
    "model",
    [
        *(
            detector(stem=stem, stage_sizes=(1,) * number)
            for stem in ("cifar", "imagenet")
            for number in (1, 2, 3)
        ),
        with_backbone(NarrowLite()),
    ],
)
def test_the_stride_is_the_canvas_divided_by_the_map(model):
    trunk = jax.eval_shape(
        lambda variables: model.apply(
            variables,
            jnp.zeros((1, 64, 96, 3)),
            jnp.ones(1, bool),
            jnp.array([[64.0, 96.0]]),
            method="trunk",
        ),
        shapes(model),
    )
    stride = model.bind({}).stride
    assert isinstance(stride, int)
    assert (64 // stride, 96 // stride) == trunk.maps.shape[1:3]


@pytest.mark.parametrize(("train", "number"), [(True, 20), (False, 10)])
def test_training_and_evaluation_have_numbers_of_proposals_of_their_own(train, number):
    model, images = detector(stem="cifar"), jnp.zeros((3, 32, 48, 3))

    def proposed(variables):
        bound, sizes = model.bind(variables), canvas_sizes(images)
        return bound.proposed(bound.trunk(images, jnp.ones(3, bool), sizes), sizes, train)

    assert jax.eval_shape(proposed, shapes(model)).shape == (3, number, 4)


@pytest.fixture(scope="module", params=["ResNet", "EfficientNetLite0"])
def trained(request):
    """A detector with random statistics and large offsets, so that padding would show."""
    is_resnet = request.param == "ResNet"
    model = detector(stem="imagenet") if is_resnet else with_backbone(NarrowLite())
    rng = np.random.default_rng(0)

    def values(path, x):
        name = path[-1].key
        if not is_resnet and name in ("kernel", "scale"):  # else biases alone would determine maps
            std = np.sqrt(2 / np.prod(x.shape[:-1]))
            return rng.normal(0, std, x.shape) if name == "kernel" else np.ones(x.shape)
        return rng.normal(0.2, 0.3, x.shape)

    variables = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.asarray(values(path, x), jnp.float32), shapes(model)
    )
    variables["params"]["proposals"] = jax.tree.map(
        lambda x: 0.03 * x, variables["params"]["proposals"]
    )
    stats = jax.tree.map(lambda x: jnp.abs(x) + 0.5, variables["batch_stats"])
    return model, variables | {"batch_stats": stats}


_SIZES = (40.0, 52.0), (48.0, 64.0)  # no multiples of the stride, and the canvas
_CASES = list(itertools.product(("ResNet", "EfficientNetLite0"), _SIZES))


@pytest.mark.parametrize(
    ("trained", "size"), mostly_extended(_CASES, (_CASES[1], _CASES[2])), indirect=["trained"]
)
def test_a_larger_canvas_changes_no_detection(trained, size):
    model, variables = trained
    rng = np.random.default_rng(1)
    image = jnp.asarray(rng.normal(size=(1, 48, 64, 3)), jnp.float32)
    size = jnp.array([size])
    canvas = jnp.pad(image, ((0, 0), (0, 32), (0, 16), (0, 0)), constant_values=9.0)
    apply = jax.jit(lambda x: model.apply(variables, x, jnp.ones(1, bool), sizes=size))
    small, large = apply(image), apply(canvas)
    assert is_box(small.boxes).sum() > 2
    assert (small.boxes[..., 2:] <= size[0]).all()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), small, large)
    if size[0, 0] == 48:
        return
    changed = np.s_[39, 51] if isinstance(model.backbone, ResNet) else np.s_[10:40, 10:52]
    change = apply(image.at[0, *changed].add(3.0)).offsets - small.offsets
    assert np.abs(change).max() > 1e-3


def test_normalisation_is_evaluated_and_absent_images_affect_no_other(trained):
    model, variables = trained
    images = jnp.asarray(np.random.default_rng(2).normal(size=(2, 48, 64, 3)), jnp.float32)
    apply = jax.jit(lambda x, p: model.apply(variables, x, p, train=True, mutable=["batch_stats"]))
    both, state = apply(images, jnp.array([True, True]))
    one, _ = apply(images, jnp.array([True, False]))
    jax.tree.map(np.testing.assert_array_equal, state["batch_stats"], variables["batch_stats"])
    np.testing.assert_array_equal(both.offsets[0], one.offsets[0])


def test_too_few_places_leave_rows_of_zeros_and_boxes_without_area_are_dropped():
    anchors = jnp.array([[0, 0, 8, 8], [8, 8, 16, 16], [30, 30, 40, 40], [-9, -9, 1, 1.0]])
    offsets = jnp.zeros((4, 4)).at[1, 0].set(-9.0)  # up and out of the image
    found = proposals(
        jnp.array([0.0, 9.0, 8.0, -7.0]),
        offsets,
        anchors,
        jnp.array([20.0, 20.0]),
        num_candidates=12000,
        number=5,
    )
    expected = np.zeros((5, 4))
    expected[:2] = [[0, 0, 8, 8], [0, 0, 1, 1]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_backbones_and_canvases_that_do_not_suit_are_errors():
    head, proposals = Deterministic(num_classes=4), RegionProposals(**SMALL)
    with pytest.raises(ValueError, match="ResNet18V2 has no trunk for a detector; use a residual"):
        shapes(Detector(backbone=ResNet18V2(), head=head, proposals=proposals))
    with pytest.raises(
        ValueError, match="images have 60x60 pixels, but the trunk has a stride of 8"
    ):
        shapes(detector(stem="imagenet"), 60)
    with pytest.raises(ValueError, match="sizes"):
        RegionProposals(sizes=(-1.0,))
    for name, few in (("num_anchors", 1), ("num_regions", 3)):
        with pytest.raises(ValueError, match=f"{name} is {few}"):
            RegionProposals(**{name: few})
