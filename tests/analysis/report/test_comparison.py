import json
import shutil

import numpy as np
import pytest
from scipy import stats
from small_runs import of_earlier_version

from heteroscedastic import files
from heteroscedastic.analysis.report import comparison
from heteroscedastic.runs import loaded_run


def changed(run, to, file=None, **values):
    """A copy of a run that says something else in one of its files; None takes it away."""
    of_earlier_version(shutil.copytree(run, to, ignore=shutil.ignore_patterns("checkpoints")))
    if file:
        told = files.read_json(to / f"{file}.json") | values
        files.write_json(
            to / f"{file}.json", {name: value for name, value in told.items() if value is not None}
        )
    return to


def test_runs_of_one_config_but_for_the_seed_are_together(digit_runs):
    found = comparison.groups([digit_runs[1], digit_runs[2], digit_runs[0]])
    assert [group.name for group in found] == ["hom", "het_full"]
    assert [[run.config["seed"] for run in group.runs] for group in found] == [[0, 1], [0]]
    named = comparison.groups(digit_runs, ["plain", "low rank"])
    assert [group.name for group in named] == ["plain", "low rank"]
    with pytest.raises(ValueError, match="1 names"):
        comparison.groups(digit_runs, ["plain"])
    with pytest.raises(ValueError, match="not all different"):
        comparison.groups(digit_runs, ["plain", "plain"])


def test_one_config_is_called_by_its_head(digit_runs):
    assert [group.name for group in comparison.groups(digit_runs[:2])] == ["Deterministic"]


def test_names_are_whole_where_the_first_folder_does_not_part_them(digit_runs, tmp_path):
    config = files.read_json(digit_runs[0] / "config.json")
    for rate in (0.1, 0.2):
        settings = {"schedule": config["schedule"] | {"learning_rate": rate}}
        changed(digit_runs[0], tmp_path / "hom" / f"rate_{rate}" / "seed_0", "config", **settings)
    het = changed(digit_runs[2], tmp_path / "het_full" / "rate_0.1" / "seed_0")
    found = comparison.groups(
        [tmp_path / "hom" / "rate_0.1" / "seed_0", tmp_path / "hom" / "rate_0.2" / "seed_0", het]
    )
    assert [group.name for group in found] == [
        "hom/rate_0.1/seed_0",
        "hom/rate_0.2/seed_0",
        "het_full/rate_0.1/seed_0",
    ]


def test_what_differs_between_the_configs(digit_runs):
    found = comparison.differences(comparison.groups(digit_runs))
    assert found["head.name"] == [["Deterministic"], ["LowRank"]]
    assert found["head.num_factors"] == [[None], [6]]
    assert "seed" not in found
    assert found["training.num_epochs"] == [[2.0], [8.0]]
    assert not any(name.startswith(("data.", "backbone.", "curation")) for name in found)
    assert comparison.differences(comparison.groups(digit_runs[:2])) == {}


def test_runs_are_compared_on_the_same_examples(digit_runs):
    compared = comparison.compare(comparison.groups(digit_runs))
    assert [len(told) for told in compared.told] == [2, 1]
    assert compared.fit == "valid"
    assert compared.link == "softmax"
    with pytest.raises(ValueError, match=r"on other examples in 'valid'.*--on=test"):
        comparison.compare(comparison.groups(digit_runs), on="valid")


def test_other_labels_other_classes_and_other_data_are_told(digit_runs, tmp_path):
    run = digit_runs[0]
    config = files.read_json(run / "config.json")
    other = changed(run, tmp_path / "labels", "config", weighting={"name": "inverse_frequency"})
    told = dict(np.load(other / "predictions" / "test.npz"))
    np.savez(
        other / "predictions" / "test.npz", **told | {"labels": 1 - np.minimum(told["labels"], 1)}
    )
    with pytest.raises(ValueError, match="with other labels in 'test'"):
        comparison.compare(comparison.groups([run, other]))
    other = changed(run, tmp_path / "classes", "dataset", class_names=list("abcdefghij"))
    files.write_json(other / "config.json", config | {"weighting": {"name": "inverse_frequency"}})
    with pytest.raises(ValueError, match="have other classes; report them apart"):
        comparison.compare(comparison.groups([run, other]))
    other = changed(run, tmp_path / "data", "dataset", fingerprint="0" * 64)
    files.write_json(other / "config.json", config | {"weighting": {"name": "inverse_frequency"}})
    with pytest.raises(ValueError, match="same seed but saw different data"):
        comparison.compare(comparison.groups([run, other]))


def test_a_run_counts_once(digit_runs, tmp_path):
    with pytest.raises(ValueError, match="is given twice"):
        comparison.groups([digit_runs[0], digit_runs[0]])
    copy = changed(digit_runs[0], tmp_path / "copy")
    with pytest.raises(ValueError, match="are one config with one seed"):
        comparison.groups([digit_runs[0], copy])


def test_without_the_evaluation_to_fit_on_nothing_is_fitted(digit_runs):
    assert comparison.compare(comparison.groups(digit_runs), fit="nowhere").fitted_on is None


def test_temperatures_are_fitted_on_what_is_held_out_by_the_same_weights(digit_runs):
    told = loaded_run.read(digit_runs[0])
    assert loaded_run.held_out(told, "test") == "valid"
    assert loaded_run.held_out(told, "test_best") == "valid_best"
    assert loaded_run.held_out(told, "unknown") == "valid"
    assert comparison.compare(comparison.groups(digit_runs), "test_best").fit == "valid_best"
    config = told.config
    other = config["evals"] | {
        "wide": {"split": "dev"},
        "valid_best": {"split": "other", "checkpoint": "best"},
    }
    changed = told._replace(config=config | {"evals": other})
    assert loaded_run.held_out(changed, "test_best") is None
    assert (
        loaded_run.held_out(changed._replace(config=changed.config | {"validation": None}), "test")
        == "valid"
    )
    by_dev = changed.config | {"validation": {"split": "dev", "metric": "nll"}}
    assert loaded_run.held_out(changed._replace(config=by_dev), "test") == "wide"


def test_a_run_that_is_not_finished_damaged_or_of_another_version_says_what_to_do(
    digit_runs, tmp_path
):
    with pytest.raises(FileNotFoundError, match=r"holds no complete run.*python main.py --config"):
        loaded_run.read(tmp_path)
    begun = changed(digit_runs[0], tmp_path / "begun")
    (begun / "results.json").unlink()
    with pytest.raises(FileNotFoundError, match="its training is not finished"):
        loaded_run.read(begun)
    nameless = changed(digit_runs[0], tmp_path / "nameless", "dataset", class_names=None)
    with pytest.raises(
        ValueError, match=r"dataset.json says nothing of class_names.*another version"
    ):
        loaded_run.read(nameless)
    old = changed(digit_runs[0], tmp_path / "old", "results", evals=None)
    with pytest.raises(ValueError, match=r"results.json says nothing of evals"):
        loaded_run.read(old)
    torn = changed(digit_runs[0], tmp_path / "torn")
    (torn / "dataset.json").write_text('{"class_names": [')
    with pytest.raises(ValueError, match="is damaged"):
        loaded_run.read(torn)
    other = changed(digit_runs[0], tmp_path / "other", "config", mixing={"name": "mixup"})
    with pytest.raises(ValueError, match=r"cannot be built by this version.*mixing"):
        loaded_run.build(loaded_run.read(other))


def test_clean_labels_are_found_by_id(digit_runs):
    run = loaded_run.build(loaded_run.read(digit_runs[0]))
    ids, labels = run.pipeline.kept["valid"], run.pipeline.clean_labels["valid"]
    some = np.random.default_rng(0).permutation(len(ids))[:50]
    np.testing.assert_array_equal(loaded_run.clean_labels_of(run, "valid", ids[some]), labels[some])


def test_the_clean_labels_are_those_before_the_noise(digit_runs):
    told = loaded_run.read(digit_runs[0])
    run = loaded_run.build(told)
    clean, noisy = loaded_run.clean_labels(told, "valid"), run.dataset.splits["valid"]
    seen = {
        tuple(sorted((int(clean[i]), int(c))))
        for i, c in zip(noisy.ids.tolist(), noisy.labels)
        if clean[i] != c
    }
    known = {tuple(sorted((a, b))) for a, b, n in told.dataset["label_noise"] if a != b}
    assert seen == known  # the pairs that training confuses, and no others
    test = run.dataset.splits["test"]
    assert loaded_run.clean_labels(told, "test") == dict(zip(test.ids.tolist(), test.labels))


def test_differences_are_paired():
    ours, theirs = [0.75, 0.84, 0.78], [0.70, 0.80, 0.75]
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    mean, half = comparison.paired(ours, theirs)
    np.testing.assert_allclose([mean - half, mean + half], interval)
    assert np.isnan(comparison.paired([1.0], [0.5])[1])


def test_a_difference_is_told_of_the_seeds_that_both_have():
    ours, theirs = {0: 0.75, 1: 0.84, 2: 0.78, 7: 0.1}, {0: 0.70, 1: 0.80, 2: 0.75, 5: 0.9}
    interval = stats.ttest_rel([0.75, 0.84, 0.78], [0.70, 0.80, 0.75]).confidence_interval(0.95)
    assert (
        comparison.difference(ours, theirs, 3)
        == f"+0.040 ± {(interval.high - interval.low) / 2:.3f}"
    )
    assert comparison.difference({0: 0.5}, {0: 0.75, 1: 0.1}) == "-0.2500"
    assert comparison.difference({0: 0.5}, {1: 0.1}) == ""


def test_settings_are_dotted():
    assert comparison.settings({"a": {"b": 1, "c": {}}, "d": None}) == {
        "a.b": 1,
        "a.c": {},
        "d": None,
    }
    assert json.dumps(comparison.settings({})) == '{"": {}}'
