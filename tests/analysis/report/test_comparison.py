import json
import shutil

import numpy as np
import pytest
from scipy import stats
from small_runs import of_earlier_version

from heteroscedastic import files
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.report.comparison import Group
from heteroscedastic.runs import loaded_run


def changed_copy(run, to, file=None, **values):
    """A copy of a run with other values in one of its files; None removes a value."""
    of_earlier_version(shutil.copytree(run, to, ignore=shutil.ignore_patterns("checkpoints")))
    if file:
        content = files.read_json(to / f"{file}.json") | values
        files.write_json(
            to / f"{file}.json",
            {name: value for name, value in content.items() if value is not None},
        )
    return to


def test_runs_that_differ_only_by_the_seed_are_one_group(digit_runs):
    groups = comparison.groups([digit_runs[1], digit_runs[2], digit_runs[0]])
    assert [group.name for group in groups] == ["hom", "het_full"]
    assert [[run.config["seed"] for run in group.runs] for group in groups] == [[0, 1], [0]]
    named = comparison.groups(digit_runs, ["plain", "low rank"])
    assert [group.name for group in named] == ["plain", "low rank"]
    with pytest.raises(ValueError, match="got 1 names"):
        comparison.groups(digit_runs, ["plain"])
    with pytest.raises(ValueError, match="are not unique"):
        comparison.groups(digit_runs, ["plain", "plain"])


@pytest.mark.parametrize(
    ("section", "name"), [("warm_start", "workdir"), ("prioritization", "target")]
)
def test_seeds_that_start_from_or_follow_runs_of_their_seeds_are_one_group(
    digit_runs, tmp_path, section, name
):
    def started(seed, source):
        config = files.read_json(digit_runs[seed] / "config.json")
        settings = (config.get(section) or {}) | {name: f"runs/{source}/seed_{seed}"}
        to = tmp_path / source / f"seed_{seed}"
        return changed_copy(digit_runs[seed], to, "config", **{section: settings})

    groups = comparison.groups([started(0, "hard"), started(1, "hard"), started(1, "adaptive")])
    assert [[run.config["seed"] for run in group.runs] for group in groups] == [[0, 1], [1]]


def test_a_single_group_has_the_name_of_its_head(digit_runs):
    assert [group.name for group in comparison.groups(digit_runs[:2])] == ["Deterministic"]


def test_names_are_paths_if_the_first_folder_is_not_unique(digit_runs, tmp_path):
    config = files.read_json(digit_runs[0] / "config.json")
    for rate in (0.1, 0.2):
        settings = {"schedule": config["schedule"] | {"learning_rate": rate}}
        changed_copy(
            digit_runs[0], tmp_path / "hom" / f"rate_{rate}" / "seed_0", "config", **settings
        )
    het = changed_copy(digit_runs[2], tmp_path / "het_full" / "rate_0.1" / "seed_0")
    groups = comparison.groups(
        [tmp_path / "hom" / "rate_0.1" / "seed_0", tmp_path / "hom" / "rate_0.2" / "seed_0", het]
    )
    assert [group.name for group in groups] == [
        "hom/rate_0.1/seed_0",
        "hom/rate_0.2/seed_0",
        "het_full/rate_0.1/seed_0",
    ]


def test_names_are_unique_where_a_folder_holds_a_seed_of_each_config(digit_runs, tmp_path):
    for last, expected in (("{}", ["hom", "het"]), ("{}_{seed}", ["Deterministic 0", "LowRank 1"])):
        directories = []
        for seed in (0, 1):
            for name, of in (("hom", 0), ("het", 2)):
                to = tmp_path / f"{len(last)}" / f"seed_{seed}" / last.format(name, seed=seed)
                directories.append(changed_copy(digit_runs[of], to, "config", seed=seed))
        assert [group.name for group in comparison.groups(directories)] == expected


def test_differences_are_the_settings_that_differ(digit_runs):
    result = comparison.differences(comparison.groups(digit_runs))
    assert result["head.name"] == [["Deterministic"], ["LowRank"]]
    assert result["head.num_factors"] == [[None], [6]]
    assert "seed" not in result
    assert result["training.num_epochs"] == [[2.0], [8.0]]
    assert not any(name.startswith(("data.", "backbone.", "curation")) for name in result)
    assert comparison.differences(comparison.groups(digit_runs[:2])) == {}


def test_runs_are_compared_on_the_same_examples(digit_runs):
    run_set = comparison.load(comparison.groups(digit_runs))
    assert [len(group) for group in run_set.predictions] == [2, 1]
    assert run_set.fit == "valid"
    assert run_set.link == "softmax"
    with pytest.raises(ValueError, match=r"on different examples in 'valid'.*--on=test"):
        comparison.load(comparison.groups(digit_runs), "valid")


def test_runs_with_other_labels_classes_or_data_are_refused(digit_runs, tmp_path):
    run = digit_runs[0]
    config = files.read_json(run / "config.json")
    other = changed_copy(
        run, tmp_path / "labels", "config", weighting={"name": "inverse_frequency"}
    )
    arrays = dict(np.load(other / "predictions" / "test.npz"))
    np.savez(
        other / "predictions" / "test.npz",
        **arrays | {"labels": 1 - np.minimum(arrays["labels"], 1)},
    )
    with pytest.raises(ValueError, match="with different labels in 'test'"):
        comparison.load(comparison.groups([run, other]))
    other = changed_copy(run, tmp_path / "classes", "dataset", class_names=list("abcdefghij"))
    files.write_json(other / "config.json", config | {"weighting": {"name": "inverse_frequency"}})
    with pytest.raises(ValueError, match="have different classes; report them separately"):
        comparison.load(comparison.groups([run, other]))
    other = changed_copy(run, tmp_path / "data", "dataset", fingerprint="0" * 64)
    files.write_json(other / "config.json", config | {"weighting": {"name": "inverse_frequency"}})
    with pytest.raises(ValueError, match="same seed but saw different data"):
        comparison.load(comparison.groups([run, other]))


def test_the_first_head_without_noise_is_the_reference(digit_runs):
    plain, noisy = comparison.groups(digit_runs[1:])
    second = comparison.Group("second", plain.runs)
    assert comparison.reference_first([noisy, plain, second]) == [plain, noisy, second]
    assert comparison.reference_first([plain, noisy]) == [plain, noisy]
    assert comparison.reference_first([noisy, noisy]) == [noisy, noisy]


def test_a_run_counts_once(digit_runs, tmp_path):
    with pytest.raises(ValueError, match="is given twice"):
        comparison.groups([digit_runs[0], digit_runs[0]])
    copy = changed_copy(digit_runs[0], tmp_path / "copy")
    with pytest.raises(ValueError, match="have the same config and seed"):
        comparison.groups([digit_runs[0], copy])


def test_without_an_evaluation_to_fit_no_temperature_is_fitted(digit_runs):
    assert comparison.load(comparison.groups(digit_runs[:1]), "valid").fit_predictions is None
    with pytest.raises(FileNotFoundError, match="nowhere"):
        comparison.load(comparison.groups(digit_runs), fit="nowhere")


def test_temperatures_are_fitted_on_held_out_examples_with_the_same_checkpoint(digit_runs):
    saved_run = loaded_run.read(digit_runs[0])
    assert loaded_run.held_out_evaluation(saved_run, "test") == "valid"
    assert loaded_run.held_out_evaluation(saved_run, "test_best") == "valid_best"
    assert loaded_run.held_out_evaluation(saved_run, "unknown") == "valid"
    assert loaded_run.held_out_evaluation(saved_run, "valid") is None
    groups = comparison.groups(digit_runs)
    assert comparison.load(groups, "test_best").fit == "valid_best"
    config = saved_run.config
    other = config["evals"] | {
        "wide": {"split": "dev"},
        "valid_best": {"split": "other", "checkpoint": "best"},
    }
    changed = saved_run._replace(config=config | {"evals": other})
    assert loaded_run.held_out_evaluation(changed, "test_best") is None
    assert (
        loaded_run.held_out_evaluation(
            changed._replace(config=changed.config | {"validation": None}), "test"
        )
        == "valid"
    )
    by_dev = changed.config | {"validation": {"split": "dev", "metric": "nll"}}
    assert loaded_run.held_out_evaluation(changed._replace(config=by_dev), "test") == "wide"
    # "valid_best" is saved, but is of another checkpoint than this run reports.
    by_last = config["evals"] | {"test_best": config["evals"]["test"]}
    run = groups[1].runs[0]
    run = run._replace(config=run.config | {"evals": by_last})
    assert comparison.load([groups[0], Group("last", (run,))], "test_best").fit is None


def test_a_checkpoint_is_the_last_or_the_best(digit_runs):
    with pytest.raises(ValueError, match="checkpoint is 'bets'; choose 'last' or 'best'"):
        loaded_run.load(digit_runs[0], "bets")


def test_an_unfinished_damaged_or_incompatible_run_is_an_error_that_says_what_to_do(
    digit_runs, tmp_path
):
    with pytest.raises(FileNotFoundError, match=r"holds no complete run.*python main.py --config"):
        loaded_run.read(tmp_path)
    begun = changed_copy(digit_runs[0], tmp_path / "begun")
    (begun / "results.json").unlink()
    with pytest.raises(FileNotFoundError, match="its training is not finished"):
        loaded_run.read(begun)
    nameless = changed_copy(digit_runs[0], tmp_path / "nameless", "dataset", class_names=None)
    with pytest.raises(ValueError, match=r"dataset.json lacks class_names.*another version"):
        loaded_run.read(nameless)
    old = changed_copy(digit_runs[0], tmp_path / "old", "results", evals=None)
    with pytest.raises(ValueError, match=r"results.json lacks evals"):
        loaded_run.read(old)
    torn = changed_copy(digit_runs[0], tmp_path / "torn")
    (torn / "dataset.json").write_text('{"class_names": [')
    with pytest.raises(ValueError, match="is damaged"):
        loaded_run.read(torn)
    other = changed_copy(digit_runs[0], tmp_path / "other", "config", mixing={"name": "mixup"})
    with pytest.raises(ValueError, match=r"cannot be built by this version.*mixing"):
        loaded_run.build(loaded_run.read(other))


def test_clean_labels_are_looked_up_by_id(digit_runs):
    run = loaded_run.build(loaded_run.read(digit_runs[0]))
    ids, labels = run.pipeline.example_ids["valid"], run.pipeline.clean_labels["valid"]
    some = np.random.default_rng(0).permutation(len(ids))[:50]
    np.testing.assert_array_equal(loaded_run.clean_labels(run, "valid", ids[some]), labels[some])


def test_clean_labels_are_the_labels_before_noise(digit_runs):
    saved_run = loaded_run.read(digit_runs[0])
    run = loaded_run.build(saved_run)
    clean, noisy = loaded_run.clean_labels_by_id(saved_run, "valid"), run.dataset.splits["valid"]
    confused = {
        tuple(sorted((int(clean[i]), int(c))))
        for i, c in zip(noisy.ids.tolist(), noisy.labels)
        if clean[i] != c
    }
    known = {tuple(sorted((a, b))) for a, b, n in saved_run.dataset["label_noise"] if a != b}
    assert confused == known  # the same pairs as in training
    test = run.dataset.splits["test"]
    assert loaded_run.clean_labels_by_id(saved_run, "test") == dict(
        zip(test.ids.tolist(), test.labels)
    )


def test_differences_are_paired():
    ours, theirs = [0.75, 0.84, 0.78], [0.70, 0.80, 0.75]
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    mean, half = comparison.paired(ours, theirs)
    np.testing.assert_allclose([mean - half, mean + half], interval)
    assert np.isnan(comparison.paired([1.0], [0.5])[1])


def test_a_difference_uses_the_common_seeds():
    ours, theirs = {0: 0.75, 1: 0.84, 2: 0.78, 7: 0.1}, {0: 0.70, 1: 0.80, 2: 0.75, 5: 0.9}
    interval = stats.ttest_rel([0.75, 0.84, 0.78], [0.70, 0.80, 0.75]).confidence_interval(0.95)
    assert (
        comparison.difference(ours, theirs, 3)
        == f"+0.040 ± {(interval.high - interval.low) / 2:.3f}"
    )
    assert comparison.difference({0: 0.5}, {0: 0.75, 1: 0.1}) == "-0.2500"
    assert comparison.difference({0: 0.5}, {1: 0.1}) == ""


def test_settings_have_dotted_names():
    assert comparison.settings({"a": {"b": 1, "c": {}}, "d": None}) == {
        "a.b": 1,
        "a.c": {},
        "d": None,
    }
    assert json.dumps(comparison.settings({})) == '{"": {}}'
