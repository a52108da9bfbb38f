"""Dataset Curation Beyond Accuracy: settings, numbers of runs, and tables by class."""

import functools
import json

import numpy as np
import pytest
from scipy import stats

from experiments import metric_values, paper_numbers, save_results, study
from experiments.dataset_curation import by_position, logit_curves, pictures, rows, translations
from experiments.study import JobResult, Regime
from heteroscedastic import bind, curation
from heteroscedastic.models import backbones

PAPER = json.loads((study.Path(rows.__file__).parent / "paper.json").read_text())
SETTINGS = PAPER["settings"]
OF_PAPER = sorted(  # of images; test_translation_tables.py has those of text
    name
    for name, chosen in rows.TABLES.items()
    if "paper" in chosen.scales and name not in translations.TABLES
)
ON_FEATURES = sorted(
    set(OF_PAPER).intersection(n for n, t in rows.TABLES.items() if "features" in t.scales)
)


@functools.cache
def jobs(name, scale="paper"):
    return study.jobs(rows.TABLES[name], scale, study.Path("runs") / name)


@pytest.mark.parametrize("name", OF_PAPER)
def test_every_run_has_the_papers_settings(name):
    """Table 3, and readings D7, D8 and D13 where the paper is silent."""
    common, data = SETTINGS["common_vision"], name.rsplit("_", 1)[1].replace("2019", "")
    sizes = common["data"][data]
    for job in jobs(name):
        config = job.config
        assert config["head"]["num_classes"] == sizes["classes"] == common["num_classes"][data]
        assert config["backbone"]["name"] == common["architecture"].replace("-", "")
        assert config["backbone"]["stem"] == ("imagenet" if data == "inaturalist" else "cifar")
        schedule, optimizer = config["schedule"], config["optimizer"]
        assert schedule["name"] == "steps"
        assert schedule["learning_rate"] == common["learning_rate"]
        assert schedule["factor"] == common["lr_decay_factor"]
        milestones = common["lr_milestones_epochs"]["fraction of training"]
        assert list(schedule["milestones"]) == milestones
        assert optimizer["momentum"] == common["momentum"]
        assert 2 * optimizer["l2"] == pytest.approx(common["l2_weight"])
        assert optimizer["decay_normalization"]
        assert not optimizer["nesterov"]
        assert optimizer["clip_norm"] is None
        assert config["training"]["batch_size"] == common["batch_size"]
        assert config["data"]["validation_fraction"] == 0
        if "equal_steps" in name:
            # The paper rounds its number of steps, 160 epochs of the whole set.
            assert config["training"]["num_steps"] == pytest.approx(
                sizes["gradient_steps"], rel=0.014
            )
        else:
            assert config["training"]["num_epochs"] == common["epochs"]
        if not job.row.startswith("no_"):
            assert f"pad_crop({sizes['crop_padding']})|flip_lr|" in config["data"]["train"]
        assert f"resize({sizes['size'][0]})|" in config["data"]["train"] or data != "eurosat"


def test_the_papers_own_runs_are_as_many_as_it_reports():
    extra = ("focal_1", "logit_adjusted", "het_full", "gce")
    own = {
        name: {
            job.directory
            for job in jobs(name)
            if not job.row.startswith(extra) and "equal_steps" not in name
        }
        for name in OF_PAPER
    }

    def union(prefix):
        return set().union(*(own[name] for name in own if name.startswith(prefix)))

    expected = PAPER["derived"]["checks_by_us"]["runs_of_the_paper"]
    assert len(union("table_1")) == expected["table_1"]
    assert len(union("figure_2")) == expected["figure_2"]
    assert len(union("figure_3")) == expected["figure_3"]
    assert len(union("figure_4") - union("figure_2")) == expected["figure_4_more"]
    assert len(union("figure_5") - union("figure_2")) == expected["figure_5_more"]
    assert len(union("")) == expected["total"]


def test_tables_that_share_a_directory_share_its_config():
    for scale in ("cpu", "gpu", "paper", "features"):
        fingerprints = {}
        for name, chosen in rows.TABLES.items():
            for job in jobs(name, scale) if scale in chosen.scales else ():
                assert fingerprints.setdefault(job.directory, job.fingerprint) == job.fingerprint
        # No run is trained twice, except that figure 4 on a CPU has no augmentation as a baseline.
        num_twice = len(rows.TABLES["figure_5_cifar10"].scales["cpu"].seeds) * (scale == "cpu")
        assert len(set(fingerprints.values())) == len(fingerprints) - num_twice


def test_every_row_of_the_papers_table_has_a_row_here():
    found = []
    for name, chosen in rows.TABLES.items():
        if name.startswith("table_1"):
            found += [
                paper_numbers.matching_row(chosen, row, PAPER) for row in chosen.rows if row.paper
            ]
    assert len(found) == len(PAPER["tables"]["table_1"]["rows"])
    assert all(row in found for row in PAPER["tables"]["table_1"]["rows"])


def test_curation_is_the_papers():
    imbalance = SETTINGS["imbalance_mitigation"]["imbalance"]
    for kind in ("exponential", "step"):
        for job in jobs(f"table_1_{kind}_cifar10"):
            assert job.config["curation"] == f"{kind}(ratio={imbalance['rho']})"
    levels = [job.config["curation"] for job in jobs("figure_2_cifar10")]
    for level in SETTINGS["label_noise"]["noise"]["levels"]:
        assert (f"permute_labels(rate={level})" if level else "") in levels
    fractions = {job.config["curation"] for job in jobs("figure_4_cifar10")}
    expected = SETTINGS["dataset_size"]["fractions"]
    assert fractions == {f"subset(fraction={f})" if f < 1 else "" for f in expected}
    chains = {job.row: job.config["data"]["train"] for job in jobs("figure_5_eurosat")}
    assert len(chains) == len(SETTINGS["augmentation_ablation"]["augmentation"])
    assert chains == {
        "original": "resize(32)|pad_crop(4)|flip_lr|value_range(-1, 1)",
        "no_flip": "resize(32)|pad_crop(4)|value_range(-1, 1)",
        "no_crop": "resize(32)|flip_lr|value_range(-1, 1)",
        "no_crop_or_flip": "resize(32)|value_range(-1, 1)",
    }
    rising = {job.config["curation"] for job in jobs("rising_noise_cifar10")}
    assert rising == {"rising_noise(highest=0.5)"}
    assert SETTINGS["label_noise_nonuniform"]["noise"]["p_i"].startswith("linear from 0.0 to 0.5")
    (splits,) = {json.dumps(job.config["data"]["splits"]) for job in jobs("figure_5_eurosat")}
    assert json.loads(splits) == {"train": "train[10%:]", "test": "train[:10%]"}


@pytest.mark.parametrize("kind", ["exponential", "step"])
def test_remedies_are_those_of_the_reading(kind):
    """Each changes one part of `original`, which has none."""
    read = SETTINGS["imbalance_mitigation"]["read_as"]
    parts = ("smoothing", "weighting", "loss", "selection", "mixing", "head", "curation")
    plain = {
        "smoothing": {"name": "hard"},
        "weighting": {"name": "equal"},
        "loss": {"name": "cross_entropy"},
    }
    changes = {
        "original": {},
        "sampling": {"selection": {"name": "balanced"}},
        "weighted": {"weighting": {"name": "inverse_frequency"}},
        "label_smooth": {"smoothing": {"name": "uniform", "rate": read["label_smoothing_alpha"]}},
        "focal_2": {"loss": {"name": "focal", "gamma": read["focal_gamma"][0]}},
        "focal_1": {"loss": {"name": "focal", "gamma": read["focal_gamma"][1]}},
        "cb": {"weighting": {"name": "effective_number", "beta": read["cb_beta"]}},
        "logit_adjusted": {"loss": {"name": "logit_adjusted", "strength": 1.0}},
    }
    configs = {job.row: job.config for job in jobs(f"table_1_{kind}_cifar10") if job.seed == 0}
    original = configs["original"]
    assert {part: original[part] for part in plain} == plain
    assert not {"selection", "mixing", "prioritization"} & set(original)
    assert original["head"]["name"] == "Deterministic"
    for row, change in changes.items():
        config = configs[row]
        assert {p: config.get(p) for p in parts} == {p: original.get(p) for p in parts} | change
    heads = {row: configs[row]["head"]["name"] for row in set(configs) - set(changes)}
    assert heads == {"het_full": "LowRank", "het_full_weighted": "LowRank"}
    assert configs["het_full"]["weighting"] == plain["weighting"]
    assert configs["het_full_weighted"]["weighting"] == changes["weighted"]["weighting"]


def test_a_scale_may_have_some_of_the_rows():
    assert {job.row for job in jobs("figure_4_cifar10", "cpu")} == {
        "original",
        "size_0.4",
        "size_0.1",
    }


def test_equal_steps_are_those_of_all_images():
    for name in ("cpu", "gpu"):
        original = jobs("figure_5_cifar10", name)[0].config
        num_images = 12_500 if name == "cpu" else 50_000
        steps = -(-num_images // original["training"]["batch_size"])
        equal = jobs("figure_4_equal_steps_cifar10", name)
        assert {job.config["training"]["num_steps"] for job in equal} == {
            steps * original["training"]["num_epochs"]
        }


@pytest.mark.parametrize("name", ON_FEATURES)
def test_features_change_the_inputs_the_network_and_the_duration_alone(name):
    """So that a row is the same method on features as on images."""
    changed = {
        *("data.name", "data.splits", "data.train", "data.eval", "data.standardize"),
        *("backbone", "schedule.learning_rate", "training.num_epochs", "training.num_steps"),
    }
    on_images = {job.row: job.config for job in jobs(name) if job.seed == 0}
    on_features = {job.row: job.config for job in jobs(name, "features") if job.seed == 0}
    assert set(on_features) <= set(on_images)
    is_of_table_1 = name.startswith(("table_1_", "figure_1_", "figure_8_"))
    assert len({job.seed for job in jobs(name, "features")}) == (20 if is_of_table_1 else 10)
    for row, config in on_features.items():
        for section, settings in config.items():
            before = on_images[row][section]
            if not isinstance(settings, dict):
                assert settings == before
            elif section not in changed:
                different = {k for k in {*settings, *before} if settings.get(k) != before.get(k)}
                assert {f"{section}.{k}" for k in different} <= changed, (row, section)


@pytest.mark.parametrize("name", ["tuned_noise", "tuned_imbalance"])
def test_all_rows_are_tuned_over_the_same_temperatures_on_held_out_examples(name):
    grids = {}
    for job in jobs(name, "features"):
        assert job.config["data"]["validation_fraction"] > 0
        grids.setdefault((job.row, job.seed), []).append(job.config["head"]["temperature"])
    assert len({tuple(grid) for grid in grids.values()}) == 1
    assert all(regime.select == "valid" for regime in rows.TABLES[name].regimes.values())
    assert {row for row, _ in grids} == {row.name for row in rows.TABLES[name].rows}


def test_the_networks_of_the_smaller_scales_are_for_small_images():
    for scale, expected in (("cpu", "ResNet8"), ("gpu", "ResNet18")):
        for job in jobs("table_1_exponential_cifar10", scale):
            backbone = job.config["backbone"]
            assert backbone["name"] == expected
            assert bind.bind(backbones, **backbone).stem == "cifar"


def test_the_correlation_within_runs_is_spearmans_and_its_p_value_that_of_permutations():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 8))
    y = 0.3 * x + rng.normal(size=(3, 8))
    correlation, p = by_position.permutation_test(x, y)
    assert correlation == pytest.approx(
        np.mean([stats.spearmanr(a, b).statistic for a, b in zip(x, y)])
    )
    # The variance of Spearman's correlation of independent values is 1 / (k - 1).
    normal = 2 * stats.norm.sf(abs(correlation) * np.sqrt(3 * 7))
    assert p == pytest.approx(normal, abs=0.03)
    # One run of four classes: 2 of the 24 orders are as extreme as a perfect one.
    _, p = by_position.permutation_test(np.arange(4.0)[None], np.arange(4.0)[None])
    assert p == pytest.approx(2 / 24, abs=0.01)


def by_class_result(seed, counts, ece):
    job = study.Job("original", (), seed, study.Path("runs"), {}, str(seed))
    classes = {"train_count": counts, "ece": ece, "gap": ece}
    return JobResult(job, {"evals": {"test": {"classes": classes}}})


def test_a_line_is_the_class_at_a_position_of_each_run():
    chosen = rows.TABLES["figure_1_cifar10"]
    tuned = {
        ("original", 0): by_class_result(0, [10, 1000, 100], [0.3, 0.1, 0.2]),
        ("original", 1): by_class_result(1, [1000, 10, 100], [0.1, 0.4, 0.2]),
    }
    lines = chosen.layout(chosen, tuned, PAPER)
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| 1000", "| 100", "| 10"]
    assert "0.3500 ± 0.0707 | +0.350" in lines[4]
    assert "| original | 2 | -1.00 |" in lines[-1]


def test_positions_of_rising_noise_are_those_of_curation():
    seed, k = 7, 4
    ids = np.arange(4000)
    labels = (ids % k).astype(np.int32)
    _, noisy = curation.rising_noise(seed, ids, labels, k)
    wrong = np.array([(noisy != labels)[labels == c].mean() for c in range(k)])
    result = by_class_result(seed, [1000] * k, wrong.tolist())
    chosen = rows.TABLES["figure_3_cifar10"]
    lines = chosen.layout(chosen, {("original", seed): result}, PAPER)
    values = [float(line.split(" | ")[1].split(" ")[0]) for line in lines[2 : 2 + k]]
    np.testing.assert_allclose(values, [0, 1 / 6, 1 / 3, 1 / 2], atol=0.05)
    assert "| original | 1 | +1.00 |" in lines[-1]


def test_a_scaled_metric_requires_data_for_its_temperature():
    result = by_class_result(0, [1], [0.1])
    with pytest.raises(ValueError, match="scaled_ece requires an evaluation"):
        metric_values.value(result, Regime(None, "test"), "scaled_ece")


def test_label_smoothing_has_the_minimum_of_figure_7_and_cross_entropy_has_none(monkeypatch):
    """With and without noise of a bounded variance."""
    monkeypatch.setattr(logit_curves, "_NUM_POINTS", 512)  # the same for every utility
    k, rate = 10, SETTINGS["logit_curves"]["read_as"]["label_smoothing_alpha"]
    utility = np.linspace(-2, 12, 1401)
    result = logit_curves.curves(utility)
    log_sum = np.log(np.exp(utility) + k - 1)
    np.testing.assert_allclose(result.cross_entropy, log_sum - utility, atol=1e-5)
    own = 1 - rate + rate / k
    np.testing.assert_allclose(result.label_smoothing, log_sum - own * utility, atol=1e-5)
    least = utility[result.label_smoothing.argmin()]
    assert least == pytest.approx(SETTINGS["logit_curves"]["read_as"]["minimum_at"], abs=0.02)
    assert np.all(np.diff(result.cross_entropy_with_noise[::20]) < 0)  # beyond rounding
    assert np.all(result.cross_entropy_with_noise[utility > 3] > result.cross_entropy[utility > 3])


def test_a_picture_has_a_panel_for_each_row_but_the_first():
    ece = {name: np.full((2, 3), i / 10) for i, name in enumerate(("original", "cb", "focal"))}
    figure = pictures.panels(ece, by_position.COUNT)
    assert [axes.get_title() for axes in figure.axes] == ["cb", "focal"]
    for axes, value in zip(figure.axes, (0.1, 0.2)):
        first, second = (line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 3)
        assert first.tolist() == [0.0] * 3
        assert second.tolist() == [value] * 3


def test_measures_by_class_are_saved_as_they_are_printed():
    chosen = rows.TABLES["figure_1_cifar10"]
    result = by_class_result(0, [10, 1000, 100], [0.3, 0.1, 0.2])
    result = result._replace(results=result.results | {"seconds": 1.0, "device": "1 x cpu"})
    saved = save_results.table_metrics(chosen, result)
    again = JobResult(result.job, json.loads(json.dumps(saved)))
    layouts = [chosen.layout(chosen, {("original", 0): r}, PAPER) for r in (result, again)]
    assert layouts[0] == layouts[1]


def test_a_picture_by_row_has_the_mean_and_deviation_of_each_row_and_metric():
    ece = {"ece": {"a": [0.1, 0.3], "b": [0.4]}, "scaled_ece": {"a": [0.02, 0.02], "b": [0.05]}}
    (axes,) = pictures.rows_figure(ece).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    points = [np.asarray(c.lines[0].get_ydata(), float) for c in axes.containers]
    np.testing.assert_allclose(points, [[0.2, 0.4], [0.02, 0.05]])
    bar = np.asarray(axes.containers[0].lines[2][0].get_segments()[0], float)
    np.testing.assert_allclose(bar[:, 1], [0.2 - 0.02**0.5, 0.2 + 0.02**0.5])
