"""Can Calibration Improve Sample Prioritization?: settings of the paper, its cells, and ours."""

import ast
import functools
import json

import pytest

from experiments import study, table
from experiments.sample_prioritization import rows
from heteroscedastic.runs import assembly

PAPER = json.loads((study.Path(rows.__file__).parent / "paper.json").read_text())
EXTERNAL, DERIVED = PAPER["external"]["values"], PAPER["derived"]["derived_by_us"]
OF_PAPER = [
    f"{kind}_{data}" for data in rows.DATA_SETS for kind in ("table_1", "targets", "table_2")
]


@functools.cache
def jobs(name, scale="paper"):
    return study.jobs(rows.TABLES[name], scale, study.Path("runs") / name)


@pytest.mark.parametrize("name", OF_PAPER)
def test_every_run_has_the_papers_settings(name):
    """And those of the authors' code where the paper is silent (reading S2)."""
    data = name.rpartition("_")[2]
    settings = PAPER["settings"][
        "with_target" if "2" in name.partition("cifar")[0] else "current_only"
    ]
    target = PAPER["settings"]["with_target"]["target"]
    for job in jobs(name):
        config = job.config
        expected = target if name.startswith("targets") else settings
        assert config["backbone"]["name"] == expected["architecture"].replace("-", "")
        assert config["schedule"]["name"] == "cosine"
        assert (
            config["schedule"]["learning_rate"] == settings["learning_rate"][rows.DATA_SETS[data]]
        )
        assert config["schedule"]["warmup_epochs"] == 0
        assert config["optimizer"]["momentum"] == settings["momentum"]
        assert 2 * config["optimizer"]["l2"] == settings["l2_weight"] == 5e-4
        assert config["optimizer"]["decay_normalization"]
        assert config["optimizer"]["nesterov"] == EXTERNAL["nesterov"]
        assert config["training"]["num_epochs"] == settings["epochs"]
        assert config["prioritization"]["warmup_epochs"] == settings["warmup"]["epochs"]
        assert config["training"]["batch_size"] == int(EXTERNAL["batch_size"].split()[0])
        assert config["data"]["validation_fraction"] == 0.1
        assert config["data"]["seed"] == 0
        assert config["head"]["num_classes"] == settings["num_classes"][rows.DATA_SETS[data]]
        assert config["score"] == {"name": "entropy"}
        if name.startswith("targets"):
            assert config["mixing"]["alpha"] == target["alpha"][rows.DATA_SETS[data]]
            assert config["prioritization"]["record"]


@pytest.mark.parametrize("data", rows.DATA_SETS)
def test_the_range_of_pixels_is_that_of_the_codes_mean_and_deviation(data):
    mean, std = EXTERNAL["normalization"]["mean"], EXTERNAL["normalization"]["std"]
    chain = jobs(f"table_1_{data}")[0].config["data"]["eval"]
    low, high = ast.literal_eval(chain.removeprefix("value_range"))
    for i in range(3):
        assert low[i] == pytest.approx((0 - mean[i]) / std[i], abs=1e-4)
        assert high[i] == pytest.approx((1 - mean[i]) / std[i], abs=1e-4)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("data", rows.DATA_SETS)
def test_every_cell_has_its_own_hyper_parameter_and_the_number_of_the_paper(data, number):
    name = f"table_{number}_{data}"
    chosen = rows.TABLES[name]
    seen = set()
    for job in jobs(name):
        method, _, percent = job.row.rpartition("_")
        (cell,) = [
            row
            for row in PAPER["tables"][f"table_{number}"]["rows"]
            if (row["id"], row["dataset"], row["subset_percent"])
            == (method, rows.DATA_SETS[data], int(percent))
        ]
        hyper, config = cell.get("hyper", {}), job.config
        assert config["selection"] == {"name": "largest", "fraction": int(percent) / 100}
        found = {
            "label_smoothing": {"alpha": config["smoothing"].get("rate")},
            "mixup": {"alpha": config.get("mixing", {}).get("alpha")},
            "focal": {"gamma": config["loss"].get("gamma")},
            "none": {},
        }
        assert found.pop(method) == hyper
        assert not any(x is not None for other in found.values() for x in other.values())
        (row,) = [r for r in chosen.rows if r.name == job.row]
        assert table.paper_row(chosen, row, PAPER) == cell
        seen.add(job.row)
    assert len(seen) == (16 if number == 1 else 12)


def test_the_steps_are_those_derived_from_the_paper():
    derived = DERIVED["steps_batch_64"]
    assert rows.num_steps(45_000, 64, 200, 10, 10) == derived["10%"]["total"]
    assert rows.num_steps(45_000, 64, 200, 10, 100) == derived["full"]
    share = 10 * derived["per_full_epoch"] / derived["10%"]["total"]
    assert share == pytest.approx(derived["10%"]["warm_up_share"], abs=5e-4)


def test_a_target_is_the_run_of_the_same_seed_on_the_same_images():
    for scale in ("paper", "gpu"):
        targets = {job.seed: job for job in jobs("targets_cifar10", scale)}
        for job in jobs("table_2_cifar10", scale):
            target = targets[job.seed]
            assert study.Path(job.config["prioritization"]["target"]) == target.directory
            assert job.config["data"] == target.config["data"]
            assert job.config["training"]["num_epochs"] == target.config["training"]["num_epochs"]


@pytest.mark.parametrize("name", sorted(rows.TABLES))
def test_every_run_of_a_table_can_be_built(name):
    for scale in rows.TABLES[name].scales:
        checked = set()
        for job in jobs(name, scale):
            if job.row not in checked:
                assembly.check(job.config)
                checked.add(job.row)


def test_fewer_epochs_are_as_many_steps_as_the_fraction_that_they_control_for():
    at_cpu = {job.row: job.config for job in jobs("controls", "cpu") if job.seed == 0}
    for percent in (30, 10):
        chosen = rows.num_steps(5400, 64, 30, 3, percent)
        epochs = at_cpu[f"fewer_epochs_{percent}"]["training"]["num_epochs"]
        assert round(epochs * -(-5400 // 64)) == chosen
