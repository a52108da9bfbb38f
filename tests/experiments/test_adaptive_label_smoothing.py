"""One Size Doesn't Fit All: settings of the paper, its rows, and ours."""

import functools
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from gaussians import covariance, latent

from experiments import paper_numbers, study
from experiments.adaptive_label_smoothing import detection_data, pictures, rows, unseen
from heteroscedastic import boxes, mixing
from heteroscedastic.analysis.uncertainty.confidence import Diagram
from heteroscedastic.bind import bind
from heteroscedastic.data import augment
from heteroscedastic.detection import coding, detections, proposals, targets
from heteroscedastic.models import backbones, detector
from heteroscedastic.tasks.detection import _HEAD_STD
from heteroscedastic.training import optimizer

PAPER = json.loads((study.Path(rows.__file__).parent / "paper.json").read_text())
SETTINGS, RECIPE = PAPER["settings"], PAPER["external"]["cutmix_recipe"]["values"]
OF_PAPER = sorted(name for name, chosen in rows.TABLES.items() if "paper" in chosen.scales)
OF_COCO = ("table_4", "table_7")


@functools.cache
def jobs(name, scale="paper"):
    return study.jobs(rows.TABLES[name], scale, study.Path("runs") / name)


def setting(name, row):
    """The paper's settings of a row."""
    if name.startswith("table_6"):
        return SETTINGS["openimages_mask"]
    if name.startswith("table_3"):
        return SETTINGS["imagenet_mask_resnet101"]
    if row.endswith("context_mask"):
        return SETTINGS["imagenet_context"]
    return SETTINGS[f"imagenet_{row.rsplit('_', 1)[1]}"]


@pytest.mark.parametrize("name", [n for n in OF_PAPER if n not in OF_COCO])
def test_every_run_has_the_papers_settings(name):
    """And those of CutMix's recipe where the paper is silent (reading L7)."""
    for job in jobs(name):
        expected, config = setting(name, job.row), job.config
        assert config["backbone"]["name"] == expected["architecture"].replace("-", "")
        schedule, optimizer, training = (config[s] for s in ("schedule", "optimizer", "training"))
        assert schedule["learning_rate"] == expected["learning_rate"]
        assert schedule["factor"] == expected["lr_decay_factor"]
        epochs = [m * training["num_epochs"] for m in schedule["milestones"]]
        assert epochs == expected["lr_milestones_epochs"]
        assert training["num_epochs"] == expected["epochs"]
        assert training["batch_size"] == expected["batch_size"]
        assert (optimizer["momentum"], optimizer["nesterov"]) == (
            RECIPE["momentum"],
            RECIPE["nesterov"],
        )
        assert 2 * optimizer["l2"] == RECIPE["weight_decay"]
        assert optimizer["decay_normalization"]
        smoothing = config["smoothing"]
        if smoothing["name"] == "uniform":
            assert smoothing["rate"] == expected["label_smoothing_alpha"]
            assert smoothing["over"] == "wrong"
        chain = config["data"]["train"]
        assert chain.startswith("inception_crop(224)|flip_lr|")
        assert "|blend_jitter|lighting|value_range(" in chain
        assert ("|mask_others|" in chain) == job.row.endswith("_mask")
        probability = SETTINGS["imagenet_context"]["context_probability"]
        assert (f"|context({probability})|" in chain) == ("context" in job.row)


def test_the_range_of_pixels_is_the_recipes():
    mean, std = RECIPE["normalise"]["mean"], RECIPE["normalise"]["std"]
    for job in jobs("table_5_v1"):
        links = job.config["data"]["train"].split("|")
        low, high = eval(links[-1].removeprefix("value_range"))
        assert low == pytest.approx([-m / s for m, s in zip(mean, std)], abs=5e-5)
        assert high == pytest.approx([(1 - m) / s for m, s in zip(mean, std)], abs=5e-5)
        assert job.config["data"]["eval"].endswith(links[-1])


def test_the_defaults_of_the_operations_are_the_recipes():
    jitter, lighting, cutmix = (
        inspect.signature(op).parameters
        for op in (augment.blend_jitter, augment.lighting, mixing.cutmix)
    )
    for name, value in RECIPE["color_jitter"].items():
        assert jitter[name].default == value, name
    assert lighting["std"].default == RECIPE["pca_lighting_std"]
    assert cutmix["alpha"].default == RECIPE["cutmix_alpha"]
    assert cutmix["probability"].default == RECIPE["cutmix_prob"]
    mean = np.multiply(255, RECIPE["normalise"]["mean"])
    np.testing.assert_allclose(boxes.IMAGENET_MEAN, mean, atol=0.5)


def test_rows_of_a_size_are_of_its_data():
    sets = dict(full="imagenet2012", boxes="imagenet2012_boxes", mask="imagenet2012_boxes_mask")
    for job in jobs("table_5_v1"):
        data, size = job.config["data"], job.row.rsplit("_", 1)[1]
        assert (data["name"], data["splits"]["train"]) == (sets[size], "train")
        assert data["with_boxes"] == (size == "boxes")
        # Training needs every extra, and evaluation without objects needs boxes.
        assert data["extras"] == (() if size == "full" else ("boxes",))
        assert ("context" in data["splits"]) == ("context" in job.config["evals"])
        assert ("context" in data["splits"]) == (size != "full")


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7])
def test_every_row_of_the_papers_table_has_a_row_here(number):
    found = [
        paper_numbers.matching_row(chosen, row, PAPER)
        for name, chosen in rows.TABLES.items()
        if name == f"table_{number}" or name.startswith(f"table_{number}_")
        for row in chosen.rows
    ]
    expected = PAPER["tables"][f"table_{number}"]["rows"]
    assert len(found) == len(expected)
    assert all(row in found for row in expected)


def test_the_papers_columns_are_printed():
    for chosen in rows.TABLES.values():
        if chosen.paper is None:
            continue
        columns = PAPER["tables"][chosen.paper["table"]]["columns"]
        assert set(chosen.paper["columns"].values()) == {column["key"] for column in columns}


def test_a_detector_has_the_settings_of_the_public_code():
    (first, *_), code = jobs("table_7"), PAPER["external"]["faster_rcnn_pytorch"]["values"]
    paper, c = SETTINGS["coco_frcnn"], first.config
    milestones, schedule = paper["lr_milestones_epochs"]["public code"], c["schedule"]
    assert c["training"]["num_steps"] == paper["epochs"] * code["steps_per_epoch"]
    assert [m * paper["epochs"] for m in schedule["milestones"]] == milestones
    assert schedule["learning_rate"] == paper["learning_rate"]
    assert c["training"]["batch_size"] == paper["batch_size"]
    assert 2 * c["optimizer"]["l2"] == code["optimizer"]["weight_decay"]
    assert c["optimizer"]["momentum"] == code["optimizer"]["momentum"]
    train = c["data"]["train"].split("|")
    assert train[:2] == ["with_mirrored", f"sample_boxes({code['max_boxes']})"]
    limits = f"shorter={code['short_side']}, longer={code['long_side_at_most']}"
    assert all(limits in c["data"][chain] for chain in ("train", "eval"))
    proposals, rpn = c["proposals"], code["rpn"]
    assert tuple(proposals["sizes"]) == tuple(code["anchors"]["sizes"])
    assert tuple(proposals["ratios"]) == tuple(code["anchors"]["ratios"])
    assert proposals["channels"] == rpn["channels"]
    tops = zip(proposals["num_candidates"], proposals["num_proposals"])
    assert [*map(list, tops)] == [rpn["train_top"], rpn["test_top"]]
    assert (proposals["num_anchors"], proposals["num_regions"]) == (
        rpn["batch"],
        code["regions"]["batch"],
    )
    optimizer = c["optimizer"]
    assert code["backbone"].endswith("BatchNorm fixed; stem and layer1 fixed")
    assert {*optimizer["fixed"]} == {"normalization", "backbone/stem", "backbone/stage1_*"}
    assert code["optimizer"]["biases"] == "no decay, same rate"
    assert not optimizer["decay_biases"]
    assert optimizer["clip_norm"] == code["optimizer"]["clip"]
    assert schedule["warmup_epochs"] == schedule["warmup_steps"] == 0


def test_the_constants_of_a_detector_are_those_of_the_public_code():
    code = PAPER["external"]["faster_rcnn_pytorch"]["values"]
    rpn, regions, test = code["rpn"], code["regions"], code["test"]
    assert (rpn["nms"], test["nms"]) == (proposals._THRESHOLD, detections._THRESHOLD)
    assert test["boxes_per_image"] == detections.NUMBER
    assert (rpn["positive"], rpn["negative"]) == (targets._POSITIVE, targets._NEGATIVE)
    assert regions["background"] == [0.0, targets._OBJECT]
    assert regions["foreground"] == targets._OBJECT
    assert regions["foreground_share"] == targets._OBJECT_FRACTION
    assert rpn["smooth_l1_sigma"] == targets._PROPOSAL_SIGMA
    assert [*coding.STDS] == regions["box_stds"]
    assert regions["pool"] == [detector._POOLED] * 2
    assert f"N(0, {_HEAD_STD}^2)" in code["start"]


def test_every_detector_starts_from_a_row():
    for number in (4, 7):
        for row in PAPER["tables"][f"table_{number}"]["rows"]:
            data, size = row.get("pretrain", "ImageNet"), row.get("size", "0.528M")
            name, start = rows.DETECTOR_STARTS[row["id"], data, size]
            assert start in {r.name for r in rows.TABLES[name].rows}
    table_7 = {(r["id"], r["pretrain"], r["size"]) for r in PAPER["tables"]["table_7"]["rows"]}
    assert set(rows.DETECTOR_STARTS) == table_7
    for job in jobs("table_7", "paper"):
        workdir = job.config["warm_start"]["workdir"]
        table = next(n for n in ("table_5_v1", "table_6_valid") if f"/{n}/" in workdir)
        assert workdir in {str(start.directory) for start in jobs(table, "paper")}


def test_a_small_detector_starts_from_the_classifier_of_its_row_and_seed_and_of_other_classes():
    for name, start_table in (
        ("mosaic_detectors", "mosaic_classifiers"),
        ("mosaic_detectors_all", "mosaic_classifiers_all"),
        ("mosaic_detectors_tuned", "mosaic_classifiers"),
    ):
        classifiers = {(job.row, job.seed): job for job in jobs(start_table, "cpu")}
        configs = []
        for job in jobs(name, "cpu"):
            config = dict(job.config)
            start = config.pop("warm_start")["workdir"]
            if job.row == "random":
                assert start is None
            else:
                classifier = classifiers[job.row, job.seed]
                assert start == str(classifier.directory)
                assert classifier.config["data"]["max_classes"] == detection_data.FIRST_CLASS
                backbone = bind(backbones, **classifier.config["backbone"])
                assert backbone.clone(start="keras") == bind(backbones, **config["backbone"])
            # The test mosaics are those of the seed.
            splits = {"train": "train", "test": f"test_{job.seed}"}
            assert config["data"]["splits"] == splits
            assert splits["test"] in detection_data._NUMBERS
            configs.append({**config, "seed": 0, "data": config["data"] | {"splits": None}})
        assert all(config == configs[0] for config in configs)
        assert {job.seed for job in jobs(name, "cpu")} <= {seed for _, seed in classifiers}


@pytest.mark.parametrize("name", ["mosaic_detectors", "coco_objects"])
def test_the_trunk_and_the_normalisation_of_a_small_detector_are_fixed_and_nothing_else(name):
    config = jobs(name, "cpu")[0].config
    backbone = bind(backbones, **config["backbone"])
    image, present = jnp.zeros((1, 32, 32, 3)), jnp.ones(1, bool)

    def shapes(last):
        start = functools.partial(backbone.init, method="stages", last=last)
        return jax.eval_shape(start, jax.random.key(0), image, present)["params"]

    params = {"backbone": shapes(None)}
    fixed = optimizer.is_fixed(config["optimizer"]["fixed"], params)["backbone"]
    in_trunk = traverse_util.flatten_dict(shapes(backbone.first_of_tail - 1)).keys()
    for path, is_fixed in traverse_util.flatten_dict(fixed).items():
        assert is_fixed == (path in in_trunk or path[-1] in ("scale", "bias")), path


def test_tables_that_share_a_directory_share_its_config():
    for scale in ("cpu", "gpu", "paper"):
        fingerprints = {}
        for name, chosen in rows.TABLES.items():
            for job in jobs(name, scale) if scale in chosen.scales else ():
                assert fingerprints.setdefault(job.directory, job.fingerprint) == job.fingerprint
        assert len(set(fingerprints.values())) == len(fingerprints)


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_our_rows_differ_in_targets_mixing_and_head_alone(scale):
    differing = {"seed", "smoothing", "mixing", "head", "predictive"}
    for name in ("context_only", "variants"):
        reference = next(job for job in jobs(name, scale) if job.row == "adaptive").config
        size = {"cpu": 32, "gpu": 64}[scale]
        assert f"inception_crop({size}, min_area=0.25)" in reference["data"]["train"]
        for job in jobs(name, scale):
            config = dict(job.config)
            if job.row.startswith("adaptive_context"):
                chain = config["data"]["train"]
                assert "|context(0.15)|" in chain
                plain = chain.replace("|context(0.15)|", "|")
                config["data"] = config["data"] | {"train": plain}
            for section, value in reference.items():
                assert config[section] == value or section in differing
            assert set(config) - set(reference) <= {"mixing"}


def test_each_scale_has_every_question_once():
    for name in ("context_only", "variants"):
        by_scale = [
            {job.row.removesuffix("_small") for job in jobs(name, scale)}
            for scale in ("cpu", "gpu")
        ]
        assert by_scale[0] == by_scale[1]
        assert len({job.row for job in jobs(name, "cpu")}) == len(by_scale[0])


def test_the_variance_is_that_of_the_two_likeliest_utilities():
    gaussian = latent("low_rank", batch=(5,), k=4)
    likeliest = jnp.array([[0, 1], [3, 0], [2, 1], [1, 3], [2, 3]])
    result, full = unseen.top_two_variance(gaussian, likeliest), covariance(gaussian)
    for b, (i, j) in enumerate(np.asarray(likeliest)):
        contrast = np.eye(4)[i] - np.eye(4)[j]
        np.testing.assert_allclose(result[b], contrast @ full[b] @ contrast, rtol=1e-5)


def test_correlations_are_within_right_and_wrong_predictions_too():
    objectness = np.linspace(0, 1, 40)
    is_correct = np.arange(40) >= 20
    values = np.where(is_correct, -objectness, objectness - 5)
    result = unseen.correlations(values, objectness, is_correct)
    assert (result["right"], result["wrong"]) == (pytest.approx(-1), pytest.approx(1))
    assert result["all"] > 0
    assert result["p"] < 1e-3


def test_figure_2_has_eight_rows_of_table_5():
    names = {row.name for row in rows.TABLES["table_5_v1"].rows}
    panels = PAPER["figures"]["figure_2"]
    assert set(pictures.FIGURE_2) <= names
    assert len(pictures.FIGURE_2) == len(panels["panels_top"]["beta"]) + len(
        panels["panels_bottom"]
    )


def test_a_picture_has_a_panel_for_each_row():
    edges = np.linspace(0, 1, 6)
    middle = (edges[1:] + edges[:-1]) / 2
    diagram = Diagram(
        edges, np.ones(5), np.ones(5, int), middle, middle**2, middle - 0.1, middle + 0.1, 0.123
    )
    figure = pictures.panels({name: diagram for name in "abcde"})
    shown = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in shown] == [f"{name}\nECE 12.3 %" for name in "abcde"]
    for axes in shown:
        np.testing.assert_allclose(axes.lines[1].get_xydata(), np.stack([middle, middle**2], 1))
    assert sum(axes.axison for axes in figure.axes) == 10
