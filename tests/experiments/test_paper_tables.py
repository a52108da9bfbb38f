import json
import re

import pytest

from experiments import paper_numbers, run, study, table
from experiments.correlated_label_noise import rows
from experiments.study import Regime, Row, Scale, Table
from heteroscedastic import bind, losses, predictive
from heteroscedastic.models import backbones
from heteroscedastic.runs import sections

NUMBERS = json.loads((study.Path(rows.__file__).parent / "paper.json").read_text())
PAPER = {
    name: chosen
    for name, chosen in rows.TABLES.items()
    if chosen.paper and "paper" in chosen.scales
}


@pytest.mark.parametrize("name", sorted(NUMBERS["tables"]))
def test_every_row_of_the_papers_table_is_a_row_here(name):
    tables = [
        chosen
        for table_name, chosen in PAPER.items()
        if table_name == name or table_name.startswith(f"{name}_")
    ]
    matches = [
        paper_numbers.matching_row(chosen, row, NUMBERS) for chosen in tables for row in chosen.rows
    ]
    rows = NUMBERS["tables"][name]["rows"]
    unmatched = [row for row in rows if row not in matches]
    assert None not in matches
    # Rows quoted from other papers and ensembles of another row are printed without runs.
    assert all(row.get("quoted") or row["id"].endswith("_ensemble") for row in unmatched)
    for chosen in tables:
        if not chosen.layout:
            text = table.text(
                chosen, study.job_results(chosen, "paper", study.Path("absent")), NUMBERS
            )
            assert all(f"| {row['method']} |" in text for row in unmatched)


@pytest.mark.parametrize("name", sorted(name for name, chosen in PAPER.items() if chosen.paper))
def test_every_column_of_the_papers_table_is_a_metric_here(name):
    columns = {column["key"] for column in NUMBERS["tables"][PAPER[name].paper["table"]]["columns"]}
    ours = {
        paper_numbers.column(PAPER[name], regime, metric)
        for regime in PAPER[name].regimes.values()
        for metric in PAPER[name].paper["columns"]
    }
    assert ours <= columns
    num_tables = 2 if PAPER[name].paper["table"] == "table_3" else 1
    assert len(ours) == len(columns) / num_tables


def test_likelihoods_of_different_links_are_not_compared_in_a_table():
    with_two_links = []
    for name, chosen in rows.TABLES.items():
        if len({study.config(row.config, row.overrides)["task"] for row in chosen.rows}) > 1:
            assert set(chosen.metrics) <= {"accuracy", "top5_accuracy"}
            with_two_links.append(name)
    assert with_two_links == ["table_11"]


def jobs():
    return [
        job
        for name, chosen in PAPER.items()
        for job in study.jobs(chosen, "paper", study.Path("runs") / name)
    ]


def test_a_directory_shared_by_tables_has_one_config():
    configs = {}
    for job in jobs():
        assert configs.setdefault(job.directory, job.config) == job.config


PAPER_SETTINGS = {  # table -> key of the settings in paper.json
    "table_3_imagenet21k": "imagenet21k_resnet152",
    "table_3_jft": "jft_resnet50",
} | {
    name: NUMBERS["tables"][chosen.paper["table"]]["setting"]
    for name, chosen in PAPER.items()
    if chosen.paper["table"] not in ("table_3", "table_6", "table_7")
}


def row_value(value, row, otherwise=None):
    """The value for a row; of a dict, the one whose key is the longest prefix of the row's name."""
    if not isinstance(value, dict):
        return value
    keys = [key for key in value if row.startswith(key)]
    return value[max(keys, key=len)] if keys else otherwise


@pytest.mark.parametrize("name", sorted(PAPER_SETTINGS))
def test_every_run_has_the_papers_settings(name):
    """Appendix B; `None` stands for a setting that the paper does not report."""
    expected, chosen = NUMBERS["settings"][PAPER_SETTINGS[name]], PAPER[name]
    by_name = {row.name: row for row in chosen.rows}
    jobs = study.jobs(chosen, "paper", study.Path("runs") / name)
    assert {job.seed for job in jobs} == set(range(expected["repeats"] or 5))
    for job in jobs:
        row, config = by_name[job.row], job.config
        head, training, optimizer, schedule = (
            config[s] for s in ("head", "training", "optimizer", "schedule")
        )
        epochs = chosen.paper["where"].get("epochs", expected["epochs"])
        assert (training["num_epochs"], training["num_steps"]) == (epochs, None)
        assert epochs in (
            expected["epochs"] if isinstance(expected["epochs"], list) else [expected["epochs"]]
        )
        milestones = row_value(expected["lr_milestones_epochs"], str(epochs))
        assert [m * epochs for m in schedule["milestones"]] == pytest.approx(milestones)
        assert (schedule["name"], schedule["learning_rate"]) == ("steps", expected["learning_rate"])
        assert schedule["factor"] == expected["lr_decay_factor"]
        warmup = {unit: expected["warmup"].get(unit, 0) for unit in ("epochs", "steps")}
        assert {unit: schedule.get(f"warmup_{unit}", 0) for unit in warmup} == warmup
        # The batch size of one worker (C9).
        assert training["batch_size"] == row_value(expected["batch_size"], "per_gpu")
        assert (optimizer["name"], optimizer["momentum"], optimizer["nesterov"]) == (
            "sgd",
            expected["momentum"],
            False,
        )
        assert optimizer["clip_norm"] == expected["gradient_clip_l2"]
        l2, covariance_l2 = expected["l2_weight"], None
        if isinstance(l2, dict):
            covariance_l2, l2 = (l2[key] for key in sorted(l2, reverse=True))
        assert (optimizer["l2"], optimizer["covariance_l2"]) == (l2, covariance_l2)
        assert config["backbone"]["name"] == expected["architecture"].split(" ")[0].replace(
            "-", ""
        ).replace("v2", "V2")
        assert head["num_classes"] == (
            expected["num_classes"] if isinstance(expected["num_classes"], int) else 18_291
        )
        assert head.get("num_factors") == row_value(expected["rank"], row.paper)
        temperature = row_value(expected["temperature"], row.paper, otherwise=1.0)
        assert temperature is None or head["temperature"] == temperature
        samples = row.where.get("mc_samples", row_value(expected["mc_samples_train"], row.paper))
        assert samples in (s if isinstance(s := expected["mc_samples_eval"], list) else [s])
        if head["name"] == "Deterministic":
            assert config["predictive"] == {"name": "deterministic"}
        elif samples:  # rows of Table 8 have none; its sampled row is from Table 1
            assert config["predictive"]["num_samples"] == samples
            assert config["predictive"]["points"] == "independent"
        assert config["smoothing"] == {"name": "hard"}


# Appendix B describes the preprocessing for training, but not for evaluation.
_INCEPTION = dict(
    train="inception_crop(224)|flip_lr|value_range(-1, 1)",
    eval="resize_small(256)|central_crop(224)|value_range(-1, 1)",
)
_OTHER_IMAGENETS = dict(
    real=dict(name="imagenet2012_real", split="validation", label="real_label"),
    v2=dict(name="imagenet_v2", split="test"),
)
_STANDARD_SPLITS = dict(train="train", valid="validation", test="test")
_HELD_OUT = dict(train="train[50000:]", valid="train[:50000]", test="validation")  # C11
_IMAGENET = dict(
    name="imagenet2012", label="label", splits=_HELD_OUT | _OTHER_IMAGENETS, **_INCEPTION
)
IMAGES = {
    name: _IMAGENET
    for name in ("table_1_90", "table_1_270", "table_8", "table_9", "table_10", "table_11")
} | {
    "table_2": dict(
        name="webvision",
        label="label",
        splits=dict(
            train="train", test="validation", ilsvrc12=dict(name="imagenet2012", split="validation")
        ),
        train="efficientnet_random_crop(299)|flip_lr|value_range(-1, 1)",
        eval="efficientnet_center_crop(299)|value_range(-1, 1)",
    ),
    "table_3_imagenet21k": dict(
        name="imagenet21k", label="labels", splits=_STANDARD_SPLITS, **_INCEPTION
    ),
    "table_3_jft": dict(name="jft", label="labels", splits=_STANDARD_SPLITS, **_INCEPTION),
    # C8: the crops of EfficientNet, and pixels that are not rescaled.
    "table_7": dict(
        name="imagenet2012",
        label="label",
        splits=dict(train="train", test="validation") | _OTHER_IMAGENETS,
        train="efficientnet_random_crop(224)|flip_lr|value_range(0, 255)",
        eval="efficientnet_center_crop(224)|value_range(0, 255)",
    ),
}


@pytest.mark.parametrize("name", sorted(PAPER.keys() - {"table_6"}))
def test_every_run_sees_the_papers_images(name):
    limits = {"pipeline", "validation_fraction", "reader_shards", "max_corrupt", "max_labels"}
    expected = bind.defaults(sections.StreamingData) | IMAGES[name]
    for job in study.jobs(PAPER[name], "paper", study.Path("runs") / name):
        data = job.config["data"]
        assert data.keys() == limits | expected.keys()
        for key in expected.keys() - limits:
            assert data[key] == expected[key]
        assert (data["pipeline"], data["validation_fraction"]) == ("streaming", 0.0)


def test_every_run_of_table_7_has_the_settings_of_its_public_code():
    expected = NUMBERS["external"]["uncertainty_baselines_imagenet"]["values"]
    jobs = study.jobs(PAPER["table_7"], "paper", study.Path("runs") / "table_7")
    assert {(job.row, job.seed) for job in jobs} == {
        (row, seed) for row in ("hom", "het_full") for seed in range(4)
    }
    for job in jobs:
        head, training, optimizer, schedule = (
            job.config[s] for s in ("head", "training", "optimizer", "schedule")
        )
        assert training["num_epochs"] == row_value(expected["epochs"], job.row)
        assert expected["batch"].endswith(f"= {training['batch_size']}")
        assert expected["lr"].endswith(f"= {schedule['learning_rate']}")
        assert expected["decay"].startswith(f"{schedule['factor']} at ")
        milestones = [int(epoch) / 90 for epoch in re.findall(r"(\d+)/90", expected["decay"])]
        assert (schedule["name"], schedule["milestones"]) == ("steps", pytest.approx(milestones))
        assert schedule["warmup_epochs"] == expected["warmup_epochs"]
        assert (optimizer["momentum"], optimizer["nesterov"]) == (
            expected["momentum"],
            expected["nesterov"],
        )
        assert optimizer["l2"] == float(expected["l2"].split(" ")[0])
        assert (optimizer["covariance_l2"], optimizer["clip_norm"]) == (None, None)
        assert "he_normal" in expected["architecture"]
        backbone = bind.defaults(backbones.ResNet50) | dict(dtype="bfloat16", start="keras")
        assert job.config["backbone"] == backbone | {"name": "ResNet50"}
        if job.row == "het_full":
            assert (head["temperature"], head["num_factors"]) == (
                expected["temperature"],
                expected["rank"],
            )
            assert job.config["predictive"]["num_samples"] == expected["mc_samples"]
        else:
            assert (head["name"], head["temperature"]) == ("Deterministic", 1.0)


def settings_of_shape(section):
    """Settings without the temperature and the number of classes, which rows override."""
    return {
        name: value for name, value in section.items() if name not in ("temperature", "num_classes")
    }


def test_rows_have_the_models_of_their_configs():
    for name, chosen in PAPER.items():
        own = {row.name: study.config(row.config, {}) for row in chosen.rows}
        for job in study.jobs(chosen, "paper", study.Path("runs") / name):
            base = own[job.row]
            for section in ("backbone", "head"):
                assert settings_of_shape(job.config[section]) == settings_of_shape(base[section])
            bind.bind(predictive, **job.config["predictive"])
            bind.bind(losses, **job.config["loss"])
            for regime in chosen.regimes.values():
                assert {regime.select, regime.report} - {None} <= set(job.config["evals"])


def test_each_test_set_of_table_2_has_its_own_numbers_of_the_paper(tmp_path):
    """Short runs; two of their evaluations stand for the two test sets."""
    settings = {
        "training.num_epochs": None,
        "training.num_steps": 2,
        "predictive": dict(name="deterministic"),
    }
    small = PAPER["table_2"]._replace(
        rows=(
            Row("hom", "digits_hom", paper="homoscedastic"),
            Row("het_full", "digits_hom", {"head.temperature": 3.0}, paper="het_full"),
        ),
        regimes={
            "WebVision": Regime(None, "test", prefix="webvision_"),
            "ILSVRC12": Regime(None, "valid", prefix="ilsvrc12_"),
        },
        scales={"cpu": Scale((0,), settings, runs="another")},
    )
    for job in study.jobs(small, "cpu", tmp_path / "table_2"):
        assert job.directory.is_relative_to(tmp_path / "another")
        assert run.run(job, None) is None
    results = study.job_results(small, "cpu", tmp_path / "table_2")
    text = table.text(small, results, NUMBERS)
    webvision, ilsvrc12 = text.split("**ILSVRC12**")
    for part, numbers, evaluation in (
        (webvision, ("| 0.761 ± 0.0007 |", "| 0.766 ± 0.0013 |", "| 0.691 |"), "test"),
        (ilsvrc12, ("| 0.670 ± 0.0008 |", "| 0.686 ± 0.0017 |", "| 0.610 |"), "valid"),
    ):
        assert all(number in part for number in numbers)
        for result in results:
            assert table.spread([result.results["evals"][evaluation]["accuracy"]]) in part
    assert "Missing" not in text


def test_a_row_that_is_not_in_the_paper_has_no_number():
    chosen = Table(
        "",
        (),
        ("nll",),
        {},
        "nll",
        {},
        paper=dict(table="table_2", where={}, columns={"nll": "nll"}),
    )
    assert (
        paper_numbers.number(
            chosen, Regime(None, "test", "webvision_"), Row("x", "x"), "nll", NUMBERS
        )
        == "-"
    )
    cleannet = Row("x", "x", paper="lee_2018")
    assert (
        paper_numbers.number(chosen, Regime(None, "test", "webvision_"), cleannet, "nll", NUMBERS)
        == "-"
    )
