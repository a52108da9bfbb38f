import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import datasets

from heteroscedastic import files, tasks
from heteroscedastic.analysis.errors import label_errors
from heteroscedastic.calibration import scores
from heteroscedastic.data import augment
from heteroscedastic.runs import loaded_run


@pytest.fixture(scope="module")
def het(with_noise):
    return loaded_run.load(with_noise)


@pytest.fixture(scope="module")
def labels(het):
    return label_errors.label_scores(het)


def latent(result, split):
    data = result.run.dataset.splits[split]
    inputs = jnp.stack(
        [
            augment.value_range(jax.random.key(0), {"image": jnp.asarray(x)}, low=-1, high=1)[
                "image"
            ]
            for x in data.inputs
        ]
    )
    return result.run.model.apply(
        {"params": result.state.params}, inputs, jnp.ones(len(inputs), bool)
    )


def label_entries(values, labels):
    return np.take_along_axis(values, labels[:, None], axis=-1)[:, 0]


def largest_other(values, labels):
    others = np.array(values)
    others[np.arange(len(labels)), labels] = -np.inf
    return others.max(axis=-1)


def test_without_noise_every_score_follows_from_the_saved_probabilities(without_noise):
    result = loaded_run.load(without_noise)
    labels = label_errors.label_scores(result, "valid")
    saved = np.load(without_noise / "predictions" / "valid.npz")
    np.testing.assert_array_equal(labels.ids, saved["ids"])
    np.testing.assert_array_equal(labels.labels, saved["labels"])
    log_probs = special.log_softmax(saved["logits"], axis=-1)
    expected = -label_entries(log_probs, labels.labels)
    np.testing.assert_allclose(labels.scores.noise_free, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(labels.scores.probability, expected, rtol=1e-4, atol=1e-5)
    probs = np.exp(log_probs)
    margin = largest_other(probs, labels.labels) - label_entries(probs, labels.labels)
    np.testing.assert_allclose(labels.scores.margin, margin, atol=1e-5)
    # A softmax is an argmax with independent Gumbel noise of variance pi^2 / 6.
    logits = largest_other(saved["logits"], labels.labels) - label_entries(
        saved["logits"], labels.labels
    )
    np.testing.assert_allclose(
        labels.scores.standardised, logits / np.sqrt(np.pi**2 / 3), rtol=1e-3, atol=1e-4
    )


def test_with_noise_scores_follow_from_location_probabilities_and_covariance(het, labels):
    one = latent(het, "train")
    loc = np.asarray(one.loc, np.float64)
    np.testing.assert_allclose(
        labels.scores.noise_free,
        -label_entries(special.log_softmax(loc, axis=-1), labels.labels),
        rtol=1e-3,
        atol=1e-4,
    )
    np.testing.assert_array_equal(labels.suggestions != labels.labels, True)
    np.testing.assert_allclose(
        label_entries(loc, labels.suggestions),
        largest_other(loc, labels.labels),
        rtol=1e-3,
        atol=1e-4,
    )
    loadings = np.asarray(one.factor_loadings, np.float64)
    covariance = np.einsum("bir,bjr->bij", loadings, loadings)
    covariance += np.eye(10) * np.asarray(one.scale_diag, np.float64)[:, None] ** 2
    own = np.einsum("bii->bi", covariance)
    rows = np.arange(len(loc))
    spread = (
        own + own[rows, labels.labels][:, None] - 2 * covariance[rows, labels.labels] + np.pi**2 / 3
    )
    distances = (loc - label_entries(loc, labels.labels)[:, None]) / np.sqrt(spread)
    expected = largest_other(distances, labels.labels)
    np.testing.assert_allclose(labels.scores.standardised, expected, rtol=1e-3, atol=1e-3)
    some = jax.tree.map(lambda x: x[:100], one)
    probs = np.mean(jax.nn.softmax(some.loc + _noise(some, 4000)), axis=0)  # by plain sampling
    error = np.abs(
        np.exp(-labels.scores.probability[:100])
        - label_entries(np.asarray(probs), labels.labels[:100])
    )
    assert np.mean(error) < 0.04


def _noise(one, num):
    keys = jax.random.split(jax.random.key(3))
    factors = jax.random.normal(keys[0], (num, *one.factor_loadings.shape[::2]))
    own = jax.random.normal(keys[1], (num, *one.loc.shape))
    return jnp.einsum("bkr,sbr->sbk", one.factor_loadings, factors) + one.scale_diag * own


def test_the_known_errors_are_the_labels_that_noise_changed(with_noise, labels):
    np.testing.assert_array_equal(labels.clean_labels, datasets.load_digits().target[labels.ids])
    counted = sum(
        n for a, b, n in files.read_json(with_noise / "dataset.json")["label_noise"] if a != b
    )
    assert labels.is_wrong.sum() == counted > 0


def test_validation_labels_have_the_noise_and_test_labels_have_none(het):
    clean, splits = het.run.pipeline.clean_labels, het.run.dataset.splits
    np.testing.assert_array_equal(
        clean["valid"], datasets.load_digits().target[splits["valid"].ids]
    )
    assert (clean["valid"] != splits["valid"].labels).any()
    np.testing.assert_array_equal(clean["test"], splits["test"].labels)


def test_without_known_errors_the_summary_is_the_counts(labels):
    clean = labels._replace(labels=labels.clean_labels)
    assert label_errors.summary(clean) == {"num_examples": len(labels.ids), "num_known_errors": 0}
    assert "clean" not in label_errors.table(clean, list("abcdefghij"))[0]


def test_a_label_without_a_known_clean_one_is_neither_right_nor_wrong(labels):
    half = np.arange(len(labels.ids)) % 2 == 0
    clean = np.where(half, labels.clean_labels, -1)
    known = labels._replace(clean_labels=clean)
    of_half = label_errors.LabelScores(
        *(x[half] for x in labels[:-2]),
        scores=type(labels.scores)(*(x[half] for x in labels.scores)),
        log_probs=labels.log_probs[half],
    )
    actual, expected = label_errors.summary(known), label_errors.summary(of_half)
    assert actual["num_known_errors"] == expected["num_known_errors"] < labels.is_wrong.sum()
    for name in ("noise_free", "probability", "margin"):
        assert actual["scores"][name] == pytest.approx(expected["scores"][name])
    assert actual["given_predicted"] == pytest.approx(expected["given_predicted"])
    names = list("abcdefghij")
    shown = {row["id"]: row["clean"] for row in label_errors.table(known, names)}
    assert [shown[i] == "" for i in labels.ids.tolist()] == (~half).tolist()
    assert "not known" in label_errors.captions(known, names, np.flatnonzero(~half)[:1])[0]


def test_planted_errors_are_found_far_above_chance(labels):
    result = label_errors.summary(labels)["scores"]["noise_free"]
    assert result["auroc"] > 0.75
    assert result["average_precision"] > 2 * labels.is_wrong.mean()


def test_memorised_labels_are_those_that_the_run_predicts(labels):
    at_random = np.random.default_rng(0).permutation(len(labels.ids))
    as_given, as_true = (np.eye(10)[classes] for classes in (labels.labels, labels.clean_labels))
    shares = [
        label_errors.summary(labels._replace(log_probs=x))["given_predicted"]
        for x in (as_given, as_true)
    ]
    assert shares == [{"right": 1.0, "wrong": 1.0}, {"right": 1.0, "wrong": 0.0}]
    result = label_errors.summary(labels)["given_predicted"]
    assert result["right"] > 0.8 > result["wrong"]
    wrong = label_errors.summary(labels._replace(log_probs=labels.log_probs[at_random]))[
        "given_predicted"
    ]
    assert wrong["right"] < result["right"]


def test_the_table_has_every_label_once_the_most_suspicious_first(labels, het):
    names = het.dataset["class_names"]
    rows = label_errors.table(labels, names)
    assert sorted(row["id"] for row in rows) == sorted(labels.ids)
    descending = [float(row["noise_free"]) for row in rows]
    assert descending == sorted(descending, reverse=True)
    at = {int(i): n for n, i in enumerate(labels.ids)}
    for row in rows[:5]:
        assert row["label"] == names[labels.labels[at[row["id"]]]]
        assert row["clean"] == names[labels.clean_labels[at[row["id"]]]]


def test_cleanlab_ranks_by_probability_and_margin_as_well(labels):
    rank = pytest.importorskip("cleanlab.rank", reason="needs cleanlab, of the extra `cleanlab`")
    for name, ours in (("self_confidence", "probability"), ("normalized_margin", "margin")):
        theirs = -rank.get_label_quality_scores(labels.labels, labels.probs, method=name)
        values = getattr(labels.scores, ours)
        assert scores.average_precision(theirs, labels.is_wrong) == pytest.approx(
            scores.average_precision(values, labels.is_wrong), abs=1e-3
        )
        assert (
            np.corrcoef(np.argsort(np.argsort(theirs)), np.argsort(np.argsort(values)))[0, 1]
            > 0.9999
        )
    result = label_errors.summary(labels)
    issues = label_errors.cleanlab_issues(labels)
    assert result["cleanlab_issues"]["precision"] == pytest.approx(labels.is_wrong[issues].mean())
    assert result["cleanlab_issues"]["recall"] == pytest.approx(issues[labels.is_wrong].mean())
    assert "cleanlab_entropy" in result["scores"]


def test_a_missing_split_and_label_lists_are_errors(het):
    with pytest.raises(
        ValueError, match="no split 'validation'; its splits are test, train, valid"
    ):
        label_errors.label_scores(het, "validation")
    run = dataclasses.replace(het.run, task=tasks.multilabel())
    with pytest.raises(ValueError, match="one label per example"):
        label_errors.label_scores(dataclasses.replace(het, run=run))


def command(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["label_errors", *flags])
    label_errors.main()


def test_the_command_writes_under_analysis_alone(with_noise, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")

    def contents():
        return {
            p: p.read_bytes()
            for p in with_noise.rglob("*")
            if p.is_file() and "analysis" not in p.parts
        }

    before = contents()
    command(monkeypatch, f"--run={with_noise}")
    assert contents() == before
    stem = "label_errors_train_best"
    expected = {f"{stem}.csv", f"{stem}.json"}
    expected |= {
        f"{stem}_{what}.{kind}" for what in ("images", "precision") for kind in ("png", "svg")
    }
    assert {p.name for p in (with_noise / "analysis").glob(f"{stem}*")} == expected
    facts = files.read_json(with_noise / "analysis" / f"{stem}.json")
    assert facts["checkpoint"] == "best"
    assert "known to be wrong" in capsys.readouterr().out


def test_without_known_errors_the_command_draws_images_and_says_so(
    with_noise, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")
    command(
        monkeypatch, f"--run={with_noise}", "--split=test", "--checkpoint=last", f"--out={tmp_path}"
    )
    assert "no error is known" in capsys.readouterr().out
    assert not list(tmp_path.glob("*precision*"))
    assert (tmp_path / "label_errors_test_last_images.png").exists()
