import csv
import dataclasses
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from heteroscedastic import latent as latent_lib
from heteroscedastic import tasks
from heteroscedastic.analysis.covariance import average, examples, known_noise, pairs, summary
from heteroscedastic.data import resident
from heteroscedastic.runs import loaded_run


@pytest.fixture(scope="module")
def last_run(with_noise):
    return loaded_run.load(with_noise)


@pytest.fixture(scope="module")
def changed(with_noise):
    """The best checkpoint, with a temperature that differs from the learned one."""
    best_run = loaded_run.load(with_noise, "best")
    head = best_run.state.params["head"] | {"temperature": jnp.float32(0.7)}
    state = best_run.state._replace(params=best_run.state.params | {"head": head})
    return dataclasses.replace(best_run, state=state)


@pytest.fixture(scope="module")
def measured(changed):
    return summary.measures(changed, "valid")


def temperature(loaded):
    """The temperature of the parameter, in plain numpy."""
    return 1.0 + 3.0 / (1.0 + np.exp(-np.asarray(loaded.state.params["head"]["temperature"])))


def test_results_report_the_learned_temperature(last_run):
    assert last_run.results["temperature"] == pytest.approx(temperature(last_run), rel=1e-6)
    assert abs(last_run.results["temperature"] - 2.5) > 0.01  # its initial value


def test_measures_are_plain_averages_in_units_of_the_utilities(changed, measured):
    loaded, measures = changed, measured
    split = loaded.run.dataset.splits["valid"]
    inputs = np.asarray(split.inputs, np.float32) / 127.5 - 1  # value_range(-1, 1)

    @jax.jit
    def in_plain_steps(params, inputs):
        predicted = loaded.run.model.apply({"params": params}, inputs, jnp.ones(len(inputs), bool))
        latent = latent_lib.temper(predicted, 1 / float(temperature(loaded)))  # of the utilities
        probs = jnp.mean(
            jax.nn.softmax(latent_lib.sample(jax.random.key(1), predicted, 2000)), axis=0
        )
        return latent_lib.covariance(latent), latent_lib.difference_variance(latent), probs

    covariances, differences, probs = map(
        np.asarray, in_plain_steps(loaded.state.params, jnp.asarray(inputs))
    )
    expected = np.mean(covariances, axis=0)
    np.testing.assert_allclose(measures.covariance, expected, rtol=1e-3, atol=1e-4)
    deviations = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(
        measures.correlation, expected / np.outer(deviations, deviations), rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(measures.overlap.sum(), 1.0, rtol=1e-4)  # sum_ij p_i p_j = 1
    # the weighted variance of differences, within the Monte Carlo error of p
    seen = np.mean(probs[:, :, None] * probs[:, None] * differences, axis=0)
    np.testing.assert_allclose(measures.seen, seen, rtol=0.2, atol=0.1 * seen.max())
    np.testing.assert_allclose(measures.seen.sum(), seen.sum(), rtol=0.02)  # smaller in the sum


def test_confusions_come_from_the_dataset_of_the_run(last_run):
    shares = known_noise.confusion_matrix(last_run.dataset)
    np.testing.assert_array_equal(shares, shares.T)
    assert np.count_nonzero(shares) == 6  # three pairs, either way
    assert shares[shares > 0] == pytest.approx(0.4, abs=0.08)


def test_measures_require_one_label_per_example(last_run):
    run = dataclasses.replace(last_run.run, task=tasks.multilabel())
    with pytest.raises(ValueError, match="one label per example"):
        summary.measures(dataclasses.replace(last_run, run=run))


def test_a_run_that_is_not_complete_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no complete run"):
        loaded_run.load(tmp_path)


def test_features_and_head_give_the_latents_of_the_run(last_run):
    run, params = last_run.run, last_run.state.params
    feed = next(resident.feeds(np.arange(20), 20))
    split, model_state = run.dataset.splits["valid"], last_run.state.model_state
    features, _ = jax.jit(run.features)(params, model_state, split, feed)
    latent, _ = jax.jit(run.latents)(params, model_state, split, feed)
    by_head = jax.jit(run.model.head.apply)({"params": params["head"]}, features)
    jax.tree.map(np.testing.assert_array_equal, by_head, latent)


def test_visible_variance_of_pairs_agrees_with_all_pairs(changed, measured):
    rows, cols = np.array([1, 7, 3, 3]), np.array([7, 1, 3, 9])
    np.testing.assert_allclose(
        pairs.visible_variance(changed, "valid", rows, cols), measured.seen[rows, cols], rtol=1e-4
    )


def test_the_summary_holds_fractions_of_the_trace(last_run):
    averaged = summary.average_covariance(last_run, "valid")
    matrix = average.covariance_rows(averaged, np.arange(10))
    facts = summary.summary(averaged)
    assert facts["diagonal"] + facts["factors"] == pytest.approx(1)
    assert facts["mean_variance"] == pytest.approx(np.trace(matrix) / 10)
    assert facts["common"] == pytest.approx(matrix.sum() / 10 / np.trace(matrix))
    assert 0 < facts["diagonal"] < 1


def run_main(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["covariance", *flags])
    summary.main()


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_command_reports_pairs_and_writes_only_under_analysis(with_noise, monkeypatch, capsys):
    before = {p for p in with_noise.rglob("*") if p.is_file()}
    run_main(monkeypatch, f"--run={with_noise}", "--split=valid", "--num_pairs=7", "--top=3")
    written = {p for p in with_noise.rglob("*") if p.is_file()} - before
    out = with_noise / "analysis" / "covariance" / "valid_last"
    assert {p.parent for p in written} == {out}
    names = {
        "pairs.csv",
        "classes.csv",
        "summary.json",
        "heat_map.csv",
        "heat_map.png",
        "heat_map.svg",
        "measures.npz",
    }
    assert {p.name for p in written} == names
    rows = read(out / "pairs.csv")
    assert len(rows) == 7
    seen = [float(row["seen"]) for row in rows]
    assert seen == sorted(seen, reverse=True)
    with np.load(out / "measures.npz") as measures:
        assert seen[0] == pytest.approx(np.max(measures["seen"]), rel=1e-4)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3 + 3
    assert (
        json.loads((out / "summary.json").read_text())["agreement_with_known_noise"]["seen"]["auc"]
        > 0.5
    )
    saved = np.load(out / "measures.npz")
    upper = np.triu_indices(10, 1)
    for name, result in json.loads((out / "summary.json").read_text())[
        "with_probabilities"
    ].items():
        expected = stats.spearmanr(np.abs(saved[name][upper]), saved["overlap"][upper]).statistic
        assert result["rho"] == pytest.approx(expected, abs=1e-5)
        assert 0.001 <= result["p"] <= 1


def test_the_command_leaves_unfinished_checkpoints(with_noise, tmp_path, monkeypatch):
    run = shutil.copytree(with_noise, tmp_path / "run", ignore=shutil.ignore_patterns("analysis"))
    half = run / "checkpoints" / "99.orbax-checkpoint-tmp"
    half.mkdir()
    (half / "array").write_text("half")
    before = set(run.rglob("*"))
    run_main(monkeypatch, f"--run={run}", "--class=3")
    assert before == {p for p in run.rglob("*") if "analysis" not in p.relative_to(run).parts}


def test_the_command_creates_no_checkpoints(with_noise, tmp_path, monkeypatch):
    run = shutil.copytree(
        with_noise, tmp_path / "run", ignore=shutil.ignore_patterns("analysis", "checkpoints")
    )
    before = set(run.rglob("*"))
    with pytest.raises(SystemExit, match="checkpoints is missing"):
        run_main(monkeypatch, f"--run={run}")
    assert before == set(run.rglob("*"))


def test_the_command_reports_table_4_with_a_named_group(with_noise, monkeypatch):
    flags = [
        f"--run={with_noise}",
        "--split=valid",
        "--by=covariance",
        "--classes",
        "two",
        "nine",
        "one",
    ]
    run_main(monkeypatch, *flags)
    out = with_noise / "analysis" / "covariance" / "valid_last"
    sizes = [abs(float(row["covariance"])) for row in read(out / "pairs.csv")]
    assert len(sizes) == 45
    assert sizes == sorted(sizes, reverse=True)
    assert {row[n] for row in read(out / "heat_map.csv") for n in ("class", "other")} == {
        "one",
        "two",
        "nine",
    }


def test_the_command_reports_the_pairs_of_a_class(with_noise, monkeypatch):
    run_main(monkeypatch, f"--run={with_noise}", "--split=valid", "--class=three", "--num_pairs=4")
    rows = read(with_noise / "analysis" / "covariance" / "valid_last" / "neighbours_of_class_3.csv")
    assert {row["class"] for row in rows} == {"three"}
    seen = [float(row["seen"]) for row in rows]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len({row["other"] for row in rows} - {"three"}) == 4


def test_an_example_covariance_is_that_of_its_latent(with_noise, last_run, monkeypatch):
    split = last_run.run.dataset.splits["test"]
    chosen, classes = int(split.ids[30]), np.array([7, 1, 4])
    feed = resident.Feed(np.array([30]), np.ones(1), np.int32(0))

    @jax.jit
    def moments(state):
        latent, _ = last_run.run.latents(state.params, state.model_state, split, feed)
        samples = jax.nn.softmax(latent_lib.sample(jax.random.key(1), latent, 20_000))
        of_utilities = latent_lib.temper(latent, 1 / float(temperature(last_run)))
        return latent_lib.covariance(of_utilities), jnp.mean(samples, axis=0)

    expected, probs = (np.asarray(x)[0] for x in moments(last_run.state))
    example = examples.example_covariance(last_run, "test", chosen, classes)
    np.testing.assert_allclose(
        example.covariance, expected[classes][:, classes], rtol=1e-4, atol=1e-4
    )
    deviations = np.sqrt(np.diag(example.covariance))
    np.testing.assert_allclose(
        examples.correlation(example.covariance),
        example.covariance / np.outer(deviations, deviations),
        rtol=1e-9,
    )
    np.testing.assert_allclose(example.probs, probs[classes], atol=0.03)
    assert example.labels == (split.labels[30],)
    probable = examples.example_covariance(last_run, "test", chosen, num_classes=4)
    assert (np.diff(probable.probs) <= 0).all()
    assert probable.probs[0] >= example.probs.max()

    run_main(
        monkeypatch, f"--run={with_noise}", f"--id={chosen}", "--classes", "seven", "one", "four"
    )
    path = with_noise / "analysis" / "covariance" / "test_last" / f"example_{chosen}"
    written = [float(row["covariance"]) for row in read(path.with_suffix(".csv"))]
    np.testing.assert_allclose(
        written, example.covariance[np.triu_indices(3)], rtol=1e-4, atol=1e-4
    )
    assert path.with_suffix(".png").exists()


def test_the_figure_of_an_example_shows_the_clean_label(last_run):
    from heteroscedastic.analysis.plots import heat_map

    split, clean = last_run.run.dataset.splits["valid"], last_run.run.pipeline.clean_labels["valid"]
    for noisy in (True, False):
        row = np.flatnonzero((split.labels != clean) == noisy)[0]
        example = examples.example_covariance(last_run, "valid", int(split.ids[row]))
        assert (example.labels, example.clean_labels) == ((split.labels[row],), (clean[row],))
        names = last_run.dataset["class_names"]
        title = heat_map.example_map(example, names, "").axes[0].get_title()
        assert (
            title
            == f"label: {names[split.labels[row]]}" + f"\nclean label: {names[clean[row]]}" * noisy
        )


def test_a_missing_split_example_or_class_is_an_error(with_noise, monkeypatch):
    for flags, message in (
        (["--split=dev"], "no split 'dev'; its splits are test, train, valid"),
        (["--id=123456"], "no example with id 123456"),
        (["--class=ten"], "no class 'ten'"),
    ):
        with pytest.raises(SystemExit, match=message):
            run_main(monkeypatch, f"--run={with_noise}", *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--id=3", "--class=two"), "without --class and --by; leave them out"),
        (("--id=3", "--by=seen"), "without --class and --by; leave them out"),
        (("--class=two", "--classes", "one", "two"), "all pairs of a class; leave out --classes"),
    ],
)
def test_flags_that_are_of_another_report_are_refused(
    monkeypatch, with_noise, capsys, flags, message
):
    with pytest.raises(SystemExit):
        run_main(monkeypatch, f"--run={with_noise}", *flags)
    assert message in capsys.readouterr().err


def test_a_head_without_noise_is_an_error_and_nothing_is_written(
    without_noise, tmp_path, monkeypatch
):
    shutil.copytree(without_noise, tmp_path / "run", ignore=shutil.ignore_patterns("analysis"))
    with pytest.raises(SystemExit, match="Deterministic, which has no noise"):
        run_main(monkeypatch, f"--run={tmp_path / 'run'}")
    assert not (tmp_path / "run" / "analysis").exists()


def test_a_run_of_one_class_has_no_pairs(with_noise):
    run = loaded_run.load(with_noise)
    one = dataclasses.replace(run, dataset=run.dataset | {"class_names": ["zero"]})
    with pytest.raises(ValueError, match="the run has one class"):
        summary.class_pairs(one)


@pytest.mark.parametrize("flag", ["--classes=two", "--num_classes=1", "--top=0", "--num_pairs=0"])
def test_numbers_that_are_too_small_are_errors_and_nothing_is_written(
    tmp_path, monkeypatch, with_noise, flag
):
    shutil.copytree(with_noise, tmp_path / "run", ignore=shutil.ignore_patterns("analysis"))
    with pytest.raises(
        SystemExit, match=r"must be at least 1; --num_classes and .* --classes must be at least 2"
    ):
        run_main(monkeypatch, f"--run={tmp_path / 'run'}", flag)
    assert not (tmp_path / "run" / "analysis").exists()


def test_label_lists_have_covariances_but_no_measure_of_a_softmax(several_labels_run, monkeypatch):
    run_main(monkeypatch, f"--run={several_labels_run}", "--split=valid")
    out = several_labels_run / "analysis" / "covariance" / "valid_last"
    assert "seen" not in read(out / "pairs.csv")[0]
    assert not (out / "measures.npz").exists()
    with pytest.raises(SystemExit, match="--by=seen requires one label"):
        run_main(monkeypatch, f"--run={several_labels_run}", "--split=valid", "--by=seen")
    arguments = ("--split=valid", "--by=seen", "--class=0")
    with pytest.raises(SystemExit, match="--by=seen requires one label"):
        run_main(monkeypatch, f"--run={several_labels_run}", *arguments)
