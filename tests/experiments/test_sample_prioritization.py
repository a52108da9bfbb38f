"""Can Calibration Improve Sample Prioritization?: settings of the paper, its cells, and ours."""

import ast
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mostly_extended

from experiments import metric_values, paper_numbers, study
from experiments.sample_prioritization import cells, choices, pictures, rows, statistics
from heteroscedastic.runs import assembly, loaded_run, loop

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
        assert paper_numbers.matching_row(chosen, row, PAPER) == cell
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


@pytest.mark.parametrize(
    "name",
    mostly_extended(
        sorted(rows.TABLES), set(rows.TABLES) - {"table_1_cifar100", "table_2_cifar100"}
    ),
)
def test_every_run_of_a_table_can_be_built(name):
    for scale in rows.TABLES[name].scales:
        checked = set()
        for job in jobs(name, scale):
            if job.row not in checked:
                assembly.check(job.config)
                checked.add(job.row)
        assert checked


def test_fewer_epochs_are_as_many_steps_as_the_fraction_that_they_control_for():
    at_cpu = {job.row: job.config for job in jobs("controls", "cpu") if job.seed == 0}
    for percent in (30, 10):
        chosen = rows.num_steps(5400, 64, 30, 3, percent)
        epochs = at_cpu[f"fewer_epochs_{percent}"]["training"]["num_epochs"]
        assert round(epochs * -(-5400 // 64)) == chosen


def small_convolutional(**settings):
    """A config with batch statistics, of which an epoch has one or several batches."""
    return study.config(
        "digits_hom",
        {
            "backbone": dict(name="ConvNet", widths=(4, 8)),
            "data.train": "value_range(-1, 1)",
            "training.num_epochs": 1.0,
        }
        | settings,
    )


@pytest.fixture(scope="module")
def loaded_in_one_batch(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    loop.train(
        small_convolutional(**{"training.batch_size": 120, "data.max_examples": 150}),
        str(directory),
    )
    return loaded_run.load(directory)


def test_with_the_statistics_of_a_single_batch_evaluation_is_the_forward_pass_of_training(
    loaded_in_one_batch,
):
    run, state = loaded_in_one_batch.run, loaded_in_one_batch.state
    assert run.pipeline.sizes["train"] == run.steps.batch_size
    model_state = statistics.reestimated(loaded_in_one_batch)
    inputs = run.dataset.splits["train"].inputs / 127.5 - 1.0
    present = jnp.ones(len(inputs), bool)

    @functools.partial(jax.jit, static_argnames="train")
    def latent(model_state, train):
        variables = {"params": state.params, **model_state}
        mutable = {"mutable": ["batch_stats"]} if train else {}
        found = run.model.apply(
            variables, jnp.asarray(inputs, jnp.float32), present, train=train, **mutable
        )
        return (found[0] if train else found).loc

    in_training = latent(state.model_state, train=True)
    np.testing.assert_allclose(latent(model_state, train=False), in_training, rtol=1e-3, atol=1e-3)
    before = latent(state.model_state, train=False)
    assert np.abs(before - in_training).max() > 0.05


def test_with_the_statistics_as_they_are_the_metrics_are_those_of_the_run(loaded_in_one_batch):
    found = statistics.metrics(loaded_in_one_batch, loaded_in_one_batch.state.model_state, "test")
    for name, value in loaded_in_one_batch.results["evals"]["test"].items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_a_table_is_drawn_with_a_point_for_each_row_at_its_cost():
    def run(accuracy, seconds):
        evals = {"test": {"accuracy": accuracy, "ece": 0.1}}
        return {"evals": evals, "step": 50, "goodput": {"steps": seconds, "scores": 2.0}}

    results = {"a": [run(0.5, 3.0), run(0.7, 5.0)], "b": [run(0.4, 1.0)]}
    figure = pictures.panels(results, "test", {"a"})
    steps, seconds = figure.axes[:2]
    assert (len(steps.containers), len(seconds.containers)) == (2, 1)
    (point,) = seconds.containers[0][0].get_xydata()
    np.testing.assert_allclose(point, (6.0, 0.6))
    assert [axes.get_xlabel() for axes in figure.axes[2:]] == ["steps", "seconds"]


def test_costs_are_medians_of_a_row_with_steps_and_scoring_apart():
    def run(step, steps, waiting, scores):
        return {"step": step, "goodput": {"steps": steps, "input": waiting, "scores": scores}}

    runs = [run(50, 3.0, 0.5, 2.0), run(50, 5.0, 0.0, 1.0), run(52, 4.0, 1.0, 9.0)]
    _, _, *lines = pictures.costs({"a": runs, "b": runs}, {"a"})
    assert lines == ["| a | 50 | 5.0 | 2.0 |", "| b | 50 |  |  |"]


def line(overlap, class_counts, wrong_labels=None):
    return {
        "num_examples": sum(class_counts),
        "overlap": overlap,
        "class_counts": class_counts,
        "wrong_label_fraction": wrong_labels,
    }


def test_what_a_run_chose_is_a_mean_over_the_epochs_after_the_first_choice():
    full, first = line(1.0, [5, 5], 0.4), line(1.0, [4, 0], 0.0)  # all of the first are of the last
    epochs = [full, full, first, line(0.5, [3, 1], 0.25), line(0.75, [2, 2], 0.75)]
    assert choices.of_run(epochs) == {"overlap": 0.625, "largest_class": 0.625, "wrong_labels": 0.5}
    assert choices.of_run([full, first, line(0.5, [3, 1])]) == {
        "overlap": 0.5,
        "largest_class": 0.75,
    }
    assert choices.of_run([full, full]) == {}


def test_the_signed_gap_is_confidence_less_accuracy_before_and_after_scaling():
    (job, *_) = jobs("controls", "cpu")
    evals = {"test": {"accuracy": 0.5, "confidence": 0.75, "scaled_confidence": 0.25}}
    result = study.JobResult(job, {"evals": evals})
    regime = rows.TABLES["controls"].regimes["test"]
    assert metric_values.value(result, regime, "signed_gap") == 0.25
    assert metric_values.value(result, regime, "scaled_signed_gap") == -0.25


def test_each_method_is_compared_with_none_and_each_cell_with_that_of_a_target():
    complete = {(t, m, p) for t in (1, 2) for m in ("none", "mixup") for p in (30, 10)}
    complete |= {(1, "none", 100), (1, "mixup", 100)}
    found = cells.comparisons(complete)
    assert set(found) == {
        *(f"Table {t}, {p} %: mixup less none" for t in (1, 2) for p in (30, 10)),
        "Table 1, 100 %: mixup less none",
        *(f"{p} %, {m}: Table 2 less Table 1" for p in (30, 10) for m in ("none", "mixup")),
    }
    assert found["Table 2, 10 %: mixup less none"] == ((2, "mixup", 10), (2, "none", 10))
    assert found["10 %, mixup: Table 2 less Table 1"] == ((2, "mixup", 10), (1, "mixup", 10))
    controls = {("controls", "random", 30), ("controls", "entropy", 30)}
    (beside,) = set(cells.comparisons(complete | controls)) - set(found)
    assert beside == "30 %: Table 2, none less random"
    pair = cells.comparisons(complete | controls)[beside]
    assert pair == ((2, "none", 30), ("controls", "random", 30))
    assert cells.paper_difference("cifar10", pair, "ece") is None
    of_first = {cell for cell in complete if cell[0] == 1 and cell[2] != 100}
    assert set(cells.comparisons(of_first)) == {
        f"Table 1, {p} %: mixup less none" for p in (30, 10)
    }


def test_the_papers_differences_are_those_derived_from_its_tables():
    largest = DERIVED["largest_accuracy_loss_against_baseline"]["table_1"]
    assert largest["cell"] == "CIFAR-100, focal, 10%"
    loss = cells.paper_difference("cifar100", ((1, "focal", 10), (1, "none", 10)), "accuracy")
    assert loss == pytest.approx(largest["points"] / 100)
    in_every_cell = PAPER["derived"]["claims"][0]
    assert in_every_cell.endswith("in every cell (true in both tables)")
    for data in rows.DATA_SETS:
        for table in (1, 2):
            for method in rows.METHODS[1:]:
                for percent in (30, 20, 10):
                    pair = (table, method, percent), (table, "none", percent)
                    assert cells.paper_difference(data, pair, "ece") < 0


def test_cells_without_runs_say_what_to_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cells", "--data=cifar100", "--scale=gpu"])
    with pytest.raises(SystemExit, match=r"no two cells .* --table=table_1_cifar100 --scale=gpu"):
        cells.main()
