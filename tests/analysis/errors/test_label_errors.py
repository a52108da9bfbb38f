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
def told(het):
    return label_errors.labels(het)


def latent(found, split):
    data = found.run.dataset.splits[split]
    inputs = jnp.stack(
        [
            augment.value_range(jax.random.key(0), jnp.asarray(x), low=-1, high=1)
            for x in data.inputs
        ]
    )
    return found.run.model.apply(
        {"params": found.state.params}, inputs, jnp.ones(len(inputs), bool)
    )


def of_label(values, labels):
    return np.take_along_axis(values, labels[:, None], axis=-1)[:, 0]


def largest_other(values, labels):
    others = np.array(values)
    others[np.arange(len(labels)), labels] = -np.inf
    return others.max(axis=-1)


def test_of_a_head_without_noise_every_score_is_of_the_probabilities_it_wrote_down(without_noise):
    found = loaded_run.load(without_noise)
    told = label_errors.labels(found, "valid")
    saved = np.load(without_noise / "predictions" / "valid.npz")
    np.testing.assert_array_equal(told.ids, saved["ids"])
    np.testing.assert_array_equal(told.given, saved["labels"])
    log_probs = special.log_softmax(saved["logits"], axis=-1)
    expected = -of_label(log_probs, told.given)
    np.testing.assert_allclose(told.suspicion.noise_free, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(told.suspicion.probability, expected, rtol=1e-4, atol=1e-5)
    probs = np.exp(log_probs)
    margin = largest_other(probs, told.given) - of_label(probs, told.given)
    np.testing.assert_allclose(told.suspicion.margin, margin, atol=1e-5)
    # A softmax is an argmax with Gumbel noise, of which each has the variance pi^2 / 6.
    logits = largest_other(saved["logits"], told.given) - of_label(saved["logits"], told.given)
    np.testing.assert_allclose(
        told.suspicion.standardised, logits / np.sqrt(np.pi**2 / 3), rtol=1e-3, atol=1e-4
    )


def test_of_a_head_with_noise_they_are_of_its_location_its_probabilities_and_its_covariance(
    het, told
):
    one = latent(het, "train")
    loc = np.asarray(one.loc, np.float64)
    np.testing.assert_allclose(
        told.suspicion.noise_free,
        -of_label(special.log_softmax(loc, axis=-1), told.given),
        rtol=1e-3,
        atol=1e-4,
    )
    np.testing.assert_array_equal(told.suggested != told.given, True)
    np.testing.assert_allclose(
        of_label(loc, told.suggested), largest_other(loc, told.given), rtol=1e-3, atol=1e-4
    )
    loadings = np.asarray(one.factor_loadings, np.float64)
    covariance = np.einsum("bir,bjr->bij", loadings, loadings)
    covariance += np.eye(10) * np.asarray(one.scale_diag, np.float64)[:, None] ** 2
    own = np.einsum("bii->bi", covariance)
    rows = np.arange(len(loc))
    spread = own + own[rows, told.given][:, None] - 2 * covariance[rows, told.given] + np.pi**2 / 3
    distances = (loc - of_label(loc, told.given)[:, None]) / np.sqrt(spread)
    expected = largest_other(distances, told.given)
    np.testing.assert_allclose(told.suspicion.standardised, expected, rtol=1e-3, atol=1e-3)
    some = jax.tree.map(lambda x: x[:100], one)
    probs = np.mean(
        jax.nn.softmax(some.loc + _noise(some, 4000)), axis=0
    )  # what the noise is, by plain sampling
    error = np.abs(
        np.exp(-told.suspicion.probability[:100]) - of_label(np.asarray(probs), told.given[:100])
    )
    assert np.mean(error) < 0.04


def _noise(one, num):
    keys = jax.random.split(jax.random.key(3))
    factors = jax.random.normal(keys[0], (num, *one.factor_loadings.shape[::2]))
    own = jax.random.normal(keys[1], (num, *one.loc.shape))
    return jnp.einsum("bkr,sbr->sbk", one.factor_loadings, factors) + one.scale_diag * own


def test_the_known_errors_are_the_labels_that_noise_changed(with_noise, told):
    np.testing.assert_array_equal(told.clean, datasets.load_digits().target[told.ids])
    counted = sum(
        n for a, b, n in files.read_json(with_noise / "dataset.json")["label_noise"] if a != b
    )
    assert told.wrong.sum() == counted > 0


def test_held_out_labels_have_the_same_noise_and_clean_ones_none(het):
    clean, splits = het.run.pipeline.clean_labels, het.run.dataset.splits
    np.testing.assert_array_equal(
        clean["valid"], datasets.load_digits().target[splits["valid"].ids]
    )
    assert (clean["valid"] != splits["valid"].labels).any()
    np.testing.assert_array_equal(clean["test"], splits["test"].labels)


def test_without_known_errors_there_is_nothing_to_tell(told):
    clean = told._replace(given=told.clean)
    assert label_errors.summary(clean) == {"num_examples": len(told.ids), "num_known_errors": 0}
    assert "clean" not in label_errors.table(clean, list("abcdefghij"))[0]


def test_planted_errors_are_found_far_above_chance(told):
    found = label_errors.summary(told)["scores"]["noise_free"]
    assert found["auroc"] > 0.75
    assert found["average_precision"] > 2 * told.wrong.mean()


def test_what_is_memorised_is_the_share_of_labels_predicted_as_they_stand(told):
    at_random = np.random.default_rng(0).permutation(len(told.ids))
    as_given, as_true = (np.eye(10)[classes] for classes in (told.given, told.clean))
    shares = [
        label_errors.summary(told._replace(log_probs=x))["given_predicted"]
        for x in (as_given, as_true)
    ]
    assert shares == [{"right": 1.0, "wrong": 1.0}, {"right": 1.0, "wrong": 0.0}]
    found = label_errors.summary(told)["given_predicted"]
    assert found["right"] > 0.8 > found["wrong"]
    wrong = label_errors.summary(told._replace(log_probs=told.log_probs[at_random]))[
        "given_predicted"
    ]
    assert wrong["right"] < found["right"]


def test_the_table_has_every_label_once_the_most_suspect_first(told, het):
    names = het.dataset["class_names"]
    rows = label_errors.table(told, names)
    assert sorted(row["id"] for row in rows) == sorted(told.ids)
    falling = [float(row["noise_free"]) for row in rows]
    assert falling == sorted(falling, reverse=True)
    at = {int(i): n for n, i in enumerate(told.ids)}
    for row in rows[:5]:
        assert row["label"] == names[told.given[at[row["id"]]]]
        assert row["clean"] == names[told.clean[at[row["id"]]]]


def test_cleanlab_ranks_by_probability_and_margin_as_we_do(told):
    rank = pytest.importorskip("cleanlab.rank", reason="needs cleanlab, of the extra `cleanlab`")
    for name, ours in (("self_confidence", "probability"), ("normalized_margin", "margin")):
        theirs = -rank.get_label_quality_scores(told.given, told.probs, method=name)
        values = getattr(told.suspicion, ours)
        assert scores.average_precision(theirs, told.wrong) == pytest.approx(
            scores.average_precision(values, told.wrong), abs=1e-3
        )
        assert (
            np.corrcoef(np.argsort(np.argsort(theirs)), np.argsort(np.argsort(values)))[0, 1]
            > 0.9999
        )
    found = label_errors.summary(told)
    issues = label_errors.cleanlab_issues(told)
    assert found["cleanlab_issues"]["precision"] == pytest.approx(told.wrong[issues].mean())
    assert found["cleanlab_issues"]["recall"] == pytest.approx(issues[told.wrong].mean())
    assert "cleanlab_entropy" in found["scores"]


def test_a_split_that_is_not_there_and_several_labels_are_told(het):
    with pytest.raises(ValueError, match="no split 'validation', but test, train, valid"):
        label_errors.labels(het, "validation")
    run = dataclasses.replace(het.run, task=tasks.multilabel())
    with pytest.raises(ValueError, match="one label an example"):
        label_errors.labels(het._replace(run=run))


def command(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["label_errors", *flags])
    label_errors.main()


def test_the_command_writes_under_analysis_alone(with_noise, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, of the extra `analysis`")

    def kept():
        return {
            p: p.read_bytes()
            for p in with_noise.rglob("*")
            if p.is_file() and "analysis" not in p.parts
        }

    before = kept()
    command(monkeypatch, f"--run={with_noise}")
    assert kept() == before
    stem = "label_errors_train_best"
    expected = {f"{stem}.csv", f"{stem}.json"}
    expected |= {
        f"{stem}_{what}.{kind}" for what in ("images", "precision") for kind in ("png", "svg")
    }
    assert {p.name for p in (with_noise / "analysis").glob(f"{stem}*")} == expected
    facts = files.read_json(with_noise / "analysis" / f"{stem}.json")
    assert facts["checkpoint"] == "best"
    assert "known to be wrong" in capsys.readouterr().out


def test_without_known_errors_it_draws_images_and_says_so(
    with_noise, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, of the extra `analysis`")
    command(
        monkeypatch, f"--run={with_noise}", "--split=test", "--checkpoint=last", f"--out={tmp_path}"
    )
    assert "no error of them is known" in capsys.readouterr().out
    assert not list(tmp_path.glob("*precision*"))
    assert (tmp_path / "label_errors_test_last_images.png").exists()
