import json

import pytest

from experiments import run, study, table
from experiments.correlated_label_noise import rows
from experiments.study import Regime, Row, Scale, Table
from heteroscedastic import losses, predictive
from heteroscedastic.bind import bind

NUMBERS = json.loads((study.Path(rows.__file__).parent / "paper.json").read_text())
PAPER = {name: chosen for name, chosen in rows.TABLES.items() if chosen.paper and "paper" in chosen.scales}
OF_SEVERAL_RUNS = ("hom_ensemble", "het_ensemble")  # of the rows of single models, see ensembles.py


@pytest.mark.parametrize("name", sorted(NUMBERS["tables"]))
def test_every_row_of_the_papers_table_is_a_row_here(name):
    tables = [chosen for of, chosen in PAPER.items() if of == name or of.startswith(f"{name}_")]
    found = [table.paper_row(chosen, row, NUMBERS) for chosen in tables for row in chosen.rows]
    for row in NUMBERS["tables"][name]["rows"]:
        assert row in found or row.get("quoted") or row["id"] in OF_SEVERAL_RUNS
    assert None not in found


@pytest.mark.parametrize("name", sorted(name for name, chosen in PAPER.items() if chosen.paper))
def test_every_column_of_the_papers_table_is_a_metric_here(name):
    columns = {column["key"] for column in NUMBERS["tables"][PAPER[name].paper["table"]]["columns"]}
    told = {
        table.paper_column(PAPER[name], regime, metric)
        for regime in PAPER[name].regimes.values()
        for metric in PAPER[name].paper["columns"]
    }
    assert told <= columns
    whole = told == columns if PAPER[name].paper["table"] != "table_3" else len(told) == len(columns) / 2
    assert whole


def test_likelihoods_of_one_answer_and_of_many_do_not_stand_beside_each_other():
    of_both = []
    for name, chosen in rows.TABLES.items():
        if len({study.config(row.config, row.overrides)["loss"]["name"] for row in chosen.rows}) > 1:
            assert set(chosen.metrics) <= {"accuracy", "top5_accuracy"}
            of_both.append(name)
    assert of_both == ["table_11"]


def jobs():
    return [job for name, chosen in PAPER.items() for job in study.jobs(chosen, "paper", study.Path("runs") / name)]


def test_a_directory_is_of_one_config_whichever_tables_have_it():
    configs = {}
    for job in jobs():
        assert configs.setdefault(job.directory, job.config) == job.config


def settings_of_shape(section):
    """Without the temperature, and without the classes, which every task of Table 6 has its own number of."""
    return {name: value for name, value in section.items() if name not in ("temperature", "num_classes")}


def test_the_rows_have_the_models_of_their_configs_whose_shapes_are_checked():
    for name, chosen in PAPER.items():
        own = {row.name: study.config(row.config, {}) for row in chosen.rows}
        for job in study.jobs(chosen, "paper", study.Path("runs") / name):
            base = own[job.row]
            for section in ("backbone", "head"):
                assert settings_of_shape(job.config[section]) == settings_of_shape(base[section])
            bind(predictive, **job.config["predictive"])
            bind(losses, **job.config["loss"])
            for regime in chosen.regimes.values():
                assert {regime.select, regime.report} - {None} <= set(job.config["evals"])


def test_of_table_2_each_set_stands_beside_its_own_numbers(tmp_path):
    """Runs of seconds, two evaluations of which stand for the two sets."""
    settings = {"training.num_epochs": None, "training.num_steps": 2, "predictive": dict(name="deterministic")}
    small = PAPER["table_2"]._replace(
        rows=(
            Row("hom", "digits_hom", paper="homoscedastic"),
            Row("het_full", "digits_hom", {"head.temperature": 3.0}, paper="het_full"),
        ),
        regimes={
            "WebVision": Regime(None, "test", prefix="webvision_"),
            "ILSVRC12": Regime(None, "valid", prefix="ilsvrc12_"),
        },
        scales={"cpu": Scale((0,), settings)},
        runs="another",
    )
    for job in study.jobs(small, "cpu", tmp_path / "table_2"):
        assert job.directory.is_relative_to(tmp_path / "another")
        assert run.run(job, None) is None
    made = study.made(small, "cpu", tmp_path / "table_2")
    text = table.text(small, made, NUMBERS)
    webvision, ilsvrc12 = text.split("**ILSVRC12**")
    for part, numbers, evaluation in (
        (webvision, ("76.1 ± 0.07", "76.6 ± 0.13", "| 69.1 |"), "test"),
        (ilsvrc12, ("67.0 ± 0.08", "68.6 ± 0.17", "| 61.0 |"), "valid"),
    ):
        assert all(number in part for number in numbers)
        for found in made:
            assert table.spread([found.results["evals"][evaluation]["accuracy"]]) in part
    assert "Missing" not in text


def test_a_row_that_the_paper_lacks_has_no_number():
    chosen = Table("", (), ("nll",), {}, "nll", {}, paper=dict(table="table_2", where={}, columns={"nll": "nll"}))
    assert table.paper_number(chosen, Regime(None, "test", "webvision_"), Row("x", "x"), "nll", NUMBERS) == "-"
    cleannet = Row("x", "x", paper="lee_2018")
    assert table.paper_number(chosen, Regime(None, "test", "webvision_"), cleannet, "nll", NUMBERS) == "-"
