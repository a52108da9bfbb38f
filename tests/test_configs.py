"""Shape checks of every config at full size; .ci/smoke.py trains two steps of them."""

import functools
from operator import getitem
from pathlib import Path

import full_size
import full_text
import jax
import numpy as np
import pytest
from cases import mostly_extended
from pack import PACK

from benchmarks.shape_stream import ShapeStream
from experiments import study
from heteroscedastic import bind, predictive
from heteroscedastic.data.storage import store
from heteroscedastic.runs import assembly, compiled, sections
from heteroscedastic.training import schedules

CONFIGS = sorted(p.stem for p in (Path(__file__).parents[1] / "configs").glob("*.py"))
# Derived by hand: MLP 64-128-128, ConvNet 16-32-64 or ResNet-18, then (D+1)K for loc, d and so on.
PARAMETERS = {
    "cifar10_n_features_hom": 1281 * 10,
    "cifar10_n_features_het_diag": 2 * 1281 * 10,
    "cifar10_n_features_het_full": 2 * 1281 * 10 + 1281 * 10 * 6,
    "cifar10_n_features_het_pe": 3 * 1281 * 10 + 60,
    "cifar10_n_hom": 11_168_832 + 5_130,
    "cifar10_n_het_diag": 11_168_832 + 2 * 5_130,
    "cifar10_n_het_full": 11_168_832 + 2 * 5_130 + 513 * 10 * 6,
    "cifar10_n_het_pe": 11_168_832 + 3 * 5_130 + 60,
    "digits_hom": 24_832 + 1_290,
    "digits_het_diag": 24_832 + 2 * 1_290,
    "digits_het_diag_taylor": 24_832 + 2 * 1_290,
    "digits_het_full": 24_832 + 2 * 1_290 + 129 * 10 * 6,
    "digits_het_pe": 24_832 + 3 * 1_290 + 60,
    "digits_het_xl": 24_832 + 1_290 + 2 * 129 * 128 + 128 * 6 + 1,
    "digits_multilabel_hom": 23_408 + 650,
    "digits_multilabel_het_diag": 23_408 + 2 * 650,
    "digits_multilabel_het_pe": 23_408 + 3 * 650 + 60,
    # ResNet-152v2 has 58,136,128 parameters (Table 10, reading C12) and 2,048 features.
    "imagenet_hom": 60_185_128,
    "imagenet_het_diag": 60_185_128 + 2_049_000,
    "imagenet_het_diag_taylor": 60_185_128 + 2_049_000,
    "imagenet_het_full": 92_969_128,
    "imagenet_hom_equal_params": 93_200_628,
    "imagenet_hom_sigmoid": 60_185_128,
    "imagenet_het_full_sigmoid": 92_969_128,
    # ResNet-50 as in torchvision; with noise, the trainable parameters of the paper's public code
    # (58,341,032).
    "imagenet_resnet50_hom": 25_557_032,
    "imagenet_resnet50_het_full": 25_557_032 + 16 * 2_049_000,
    "imagenet_mask_resnet50_adaptive": 25_557_032,
    "open_images_mask_resnet50_adaptive": 23_508_032 + 2_049 * 503,
    # Inception-ResNet-v2 as in Keras, 1,536 features.
    "webvision_hom": 55_813_192,
    "webvision_het_diag": 55_813_192 + 1_537_000,
    "webvision_het_full": 55_813_192 + 16 * 1_537_000,
    # 44.8 million parameters for v(x) (reading C2), and the shared V.
    "imagenet21k_hom": 58_136_128 + 44_756_307,
    "imagenet21k_het_diag": 58_136_128 + 2 * 44_756_307,
    "imagenet21k_het_pe": 58_136_128 + 3 * 44_756_307 + 21_843 * 50,
    # ResNet-50v2: as version 1.5 without the dense layer and the normalisation of stem and
    # shortcuts, but with a final normalisation.
    "jft_hom": 23_500_352 + 2_049 * 18_291,
    "jft_het_diag": 23_500_352 + 2 * 2_049 * 18_291,
    "jft_het_pe": 23_500_352 + 3 * 2_049 * 18_291 + 18_291 * 50,
    # ResNet-50 without its dense layer: 23,508,032, with a 3x3 stem 7,680 fewer.
    "cifar10_resnet50_hom": 23_500_352 + 2_049 * 10,
    "cifar10_resnet50_het_full": 23_500_352 + (2 + 6) * 2_049 * 10,
    "cifar100_resnet50_hom": 23_500_352 + 2_049 * 100,
    "cifar100_resnet50_het_full": 23_500_352 + (2 + 15) * 2_049 * 100,
    # ResNet-34 with a 3x3 stem: 21,276,992, and 512 features.
    "cifar10_resnet34_hom": 21_276_992 + 513 * 10,
    "cifar10_resnet34_het_full": 21_276_992 + (2 + 6) * 513 * 10,
    "cifar100_resnet34_hom": 21_276_992 + 513 * 100,
    "cifar100_resnet34_het_full": 21_276_992 + (2 + 15) * 513 * 100,
    "eurosat_resnet50_hom": 23_500_352 + 2_049 * 10,
    "eurosat_resnet50_het_full": 23_500_352 + (2 + 6) * 2_049 * 10,
    "inaturalist2019_resnet50_hom": 23_508_032 + 2_049 * 9,
    "inaturalist2019_resnet50_het_full": 23_508_032 + (2 + 6) * 2_049 * 9,
    "vtab": 23_500_352 + 2_049 * 100,
    # ResNet-20, 64 features, on the images of the fixture below with 10 classes.
    "own_images": 271_824 + 2 * 650 + 65 * 10 * 6,
    # As in fairseq. TransformerSmall has 3 layers of 132,480 parameters in the encoder and 3 of
    # 198,784 in the decoder, and 5,704 embedded words of width 128.
    "iwslt14_hom": 39_469_056,
    "iwslt14_het_pe": 39_469_056 + 2 * 513 * 6632 + 6632 * 16,
    "multi30k_hom": 3 * (132_480 + 198_784) + 5_704 * 128,
    "multi30k_het_diag": 3 * (132_480 + 198_784) + 5_704 * 128 + 129 * 2504,
    "multi30k_het_pe": 3 * (132_480 + 198_784) + 5_704 * 128 + 2 * 129 * 2504 + 2504 * 16,
    # The trunk and tail of ResNet-50, proposals of 12 anchors, 81 classes and their boxes.
    "coco_frcnn_hom": 23_508_032 + 9 * 1024 * 512 + 512 + 513 * 12 * 5 + 2_049 * 81 * 5,
    "coco_frcnn_het_full": 29_087_761 + 16 * 2_049 * 81,
    # ResNet-8 on grey images; then proposals of 3 anchors, and classes and boxes of 11 classes.
    "mosaic_frcnn_hom": 77_104 + 9 * 32 * 64 + 64 + 65 * 15 + 65 * 11 * 5,
    "tiny_imagenet_hom": 11_168_832 + 102_600,
    "tiny_imagenet_adaptive": 11_168_832 + 102_600,
    "tiny_imagenet_het_full": 11_168_832 + 2 * 102_600 + 513 * 200 * 15,
    "tiny_imagenet_het_pe": 11_168_832 + 3 * 102_600 + 200 * 15,
}
MULTILABEL = ("imagenet21k_", "jft_")
# Configs whose complete step, which takes longest, is traced with `pytest -m extended` alone.
# Others that run by default have their network, or their task on other data.
ALIKE = {
    "cifar10_n_het_full",
    "cifar10_n_het_pe",
    "cifar10_n_hom",
    "cifar10_resnet34_het_full",
    "cifar10_resnet34_hom",
    "cifar10_resnet50_het_full",
    "cifar10_resnet50_hom",
    "coco_frcnn_het_full",
    "coco_frcnn_hom",
    "iwslt14_het_pe",
    "iwslt14_hom",
    "multi30k_het_pe",
    "multi30k_hom",
    "tiny_imagenet_het_full",
    "tiny_imagenet_het_pe",
}


def test_every_config_has_a_parameter_count():
    assert set(PARAMETERS) == set(CONFIGS)


@pytest.fixture(scope="module")
def own_images(tmp_path_factory):
    """A directory with a user's own data set."""
    digits = store.load("digits")
    rgb = {
        n: s._replace(inputs=s.inputs.repeat(4, 1).repeat(4, 2).repeat(3, 3))
        for n, s in digits.splits.items()
    }
    directory = tmp_path_factory.mktemp("own")
    store.write(directory / "mine.npz", digits._replace(splits=rgb))
    return str(directory)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_states_every_setting_of_each_section_with_its_type(name):
    config = study.read(name)
    for path, declaration in sections.declarations(config.to_dict()).items():
        section = functools.reduce(getitem, path, config)
        names_a_part = path[0] in sections.named_modules(config.to_dict())
        settings = set(section) - ({"name"} if names_a_part else set())
        assert settings == set(bind.declared_settings(declaration)), path
        assert [k for k in section if section.get_type(k) is type(None)] == [], path


@pytest.mark.parametrize("name", mostly_extended(CONFIGS, set(CONFIGS) - ALIKE))
def test_every_config_has_valid_shapes_at_full_size(name, own_images):
    config = study.config(name, {})
    if full_size.image_size(config):  # the data set is not available in tests
        assert full_size.num_parameters(config, name.startswith(MULTILABEL)) == PARAMETERS[name]
        return
    if config["task"] == "translation":
        state = compiled.check_shapes(assembly.build(config, pipeline=full_text.text(config)))
        assert assembly.num_parameters(state) == PARAMETERS[name]
        return
    data_dir = own_images if name == "own_images" else PACK
    if not store.is_there(config["data"]["name"], data_dir):
        pytest.skip(f"needs {config['data']['name']} in TFDS_DATA_DIR")
    if config["optimizer"].get("fixed"):
        config["warm_start"]["workdir"] = "runs/classifier"
    config["data"]["max_examples"] = 1000
    state = compiled.check_shapes(assembly.build(config, data_dir))
    assert assembly.num_parameters(state) == PARAMETERS[name]


@pytest.mark.parametrize(
    "name", mostly_extended(["imagenet21k_het_pe", "jft_het_pe"], ["jft_het_pe"])
)
def test_the_evaluation_of_many_classes_has_the_largest_logits_only(name):
    config = study.config(name, {})
    run = assembly.build(config, pipeline=ShapeStream(config))
    state, feed = run.shapes, run.pipeline.example("test", training=False)
    _, record = jax.eval_shape(
        run.eval_step, state.params, state.model_state, (), feed, jax.random.key(0)
    )
    assert assembly.num_parameters(state) == PARAMETERS[name]
    size = config["training"]["batch_size"]
    assert record.logits.shape == record.classes.shape == (size, 100)
    assert record.label_logits.shape == feed.labels.shape
    assert record.log_normalizer.shape == (size,)


@pytest.mark.parametrize("chain_end", mostly_extended(["", "context(0.15)|"], ["context(0.15)|"]))
def test_a_step_with_boxes_has_valid_shapes_at_full_size(chain_end):
    config = study.config("imagenet_mask_resnet50_adaptive", {})
    train = config["data"]["train"].replace("mask_others|", f"mask_others|{chain_end}")
    config["data"]["train"] = train
    run = assembly.build(config, pipeline=ShapeStream(config))
    state, feed = run.shapes, run.pipeline.example("train", training=True)
    assert feed.inputs.dtype == np.float32  # colours change on the host
    assert feed.extras["boxes"].shape == (256, 1, 4)  # mask_others keeps one
    assert ("context" in feed.extras) == bool(chain_end)
    _, sums, _ = jax.eval_shape(run.train_step, state, (), feed, run.root_key)
    assert sums.divergence is not None
    assert assembly.num_parameters(state) == PARAMETERS["imagenet_mask_resnet50_adaptive"]


@pytest.mark.parametrize("name", ["coco_frcnn_hom", "coco_frcnn_het_full"])
def test_an_epoch_of_a_detector_has_each_image_of_coco_plain_and_mirrored(name):
    config = study.config(
        name, {"data.extras": ("boxes",), "warm_start.workdir": "runs/classifier"}
    )
    pipeline = ShapeStream(config)
    pipeline.sizes["train"] = 117_266  # the images with boxes
    run = assembly.build(config, pipeline=pipeline)
    # One more than the public code has, as the last batch is not full.
    assert run.steps.full_length == -(-2 * 117_266 // 16) == 14_658 + 1


@pytest.mark.parametrize(
    "name", [n for n in CONFIGS if study.config(n, {})["predictive"]["name"] == "sigmoid_sampled"]
)
def test_the_closed_form_needs_one_override(name):
    settings = study.config(name, {"predictive.name": "sigmoid"})["predictive"]
    assert bind.bind(predictive, **settings).func is predictive.sigmoid


@pytest.mark.parametrize(
    ("name", "num_epochs", "milestones", "overrides"),
    [
        # Collier et al. (2021), Appendix B
        ("imagenet_hom", 90, (30, 60, 80), {}),
        ("imagenet_hom", 270, (90, 180, 240), {}),
        ("imagenet21k_hom", 90, (30, 60, 80), {}),
        ("webvision_hom", 95, (40, 80), {}),
        ("jft_hom", 30, (10, 20, 25), {}),
        # Adaptive label smoothing, reading L17: its code, and its text
        ("coco_frcnn_hom", 10, (4, 9), {}),
        ("coco_frcnn_het_full", 10, (4, 9), {}),
        ("coco_frcnn_hom", 10, (4, 8), {"schedule.milestones": (0.4, 0.8)}),
    ],
)
def test_the_learning_rate_falls_at_the_papers_epochs(name, num_epochs, milestones, overrides):
    settings, steps_per_epoch = study.config(name, overrides)["schedule"], 1203
    rate = functools.partial(
        bind.bind(schedules, **settings),
        total_steps=num_epochs * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
    )
    for i, epoch in enumerate(milestones):
        step = epoch * steps_per_epoch
        for count, num_passed in ((step - 1, i), (step, i + 1)):
            assert float(rate(count)) == pytest.approx(settings["learning_rate"] * 0.1**num_passed)


def varying_sections(name):
    """The sections in which two configs of a data set may differ, by the suffix of their names."""
    return {
        "hom": {"head", "predictive"},
        "het_diag": {"head", "predictive"},
        "het_diag_taylor": {"head", "predictive"},
        "het_full": {"head", "predictive"},
        "het_pe": {"head", "predictive"},
        "het_xl": {"head", "predictive"},
        "hom_equal_params": {"head", "predictive"},
        "hom_sigmoid": {"head", "predictive", "loss", "task"},
        "het_full_sigmoid": {"head", "predictive", "loss", "task"},
        "adaptive": {"data", "smoothing", "evals"},
    }[name]


PREFIXES = (  # longer ones come first, as a config has the first that matches
    "cifar10_n_features_",
    "cifar10_n_",
    "cifar10_resnet50_",
    "cifar100_resnet50_",
    "coco_frcnn_",
    "eurosat_resnet50_",
    "inaturalist2019_resnet50_",
    "digits_multilabel_",
    "digits_",
    "imagenet_resnet50_",
    "imagenet_",
    "imagenet21k_",
    "iwslt14_",
    "jft_",
    "multi30k_",
    "tiny_imagenet_",
    "webvision_",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_configs_of_a_data_set_differ_only_in_the_sections_of_their_names(prefix):
    first_prefix = {n: next((p for p in PREFIXES if n.startswith(p)), None) for n in CONFIGS}
    names = [n for n in CONFIGS if first_prefix[n] == prefix and "_mask_" not in n]
    first = study.config(names[0], {})
    assert len(names) > 1
    for name in names[1:]:
        other = study.config(name, {})
        differing = {
            section for section in first | other if first.get(section) != other.get(section)
        }
        suffixes = (names[0].removeprefix(prefix), name.removeprefix(prefix))
        assert differing <= varying_sections(suffixes[0]) | varying_sections(suffixes[1])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_has_question_command_cost_and_expectation(name):
    text = (Path(__file__).parents[1] / "configs" / f"{name}.py").read_text()
    for heading in ("Question:", "Command:", "Cost:", "Expected:"):
        assert f"\n{heading}" in text
    command = " ".join(text.replace("\\\n", " ").split())
    assert f"--config=configs/{name}.py --workdir=runs/{name}" in command
