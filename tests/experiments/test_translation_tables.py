"""Tables of translation: their settings, curves over training, and the states of the decoder."""

import json
import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import noisy_translation

from experiments import run, study
from experiments.dataset_curation import (
    decoder_states,
    over_training,
    pictures,
    token_calibration,
    translations,
    word_pairs,
)
from heteroscedastic import files
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.uncertainty import by_token
from heteroscedastic.data.storage import store
from heteroscedastic.runs import loaded_run, predictions, schema, token_features

PAPER = json.loads((study.Path(translations.__file__).parent / "paper.json").read_text())


def jobs(name, scale="cpu"):
    return study.jobs(translations.TABLES[name], scale, study.Path("runs") / name)


@pytest.mark.parametrize("name", translations.TABLES)
def test_every_row_is_a_config_that_a_run_accepts(name):
    for scale in translations.TABLES[name].scales:
        for job in jobs(name, scale):
            if job.seed == 0:
                assert schema.checked(job.config)["task"] == job.config["task"]


def test_the_paper_scale_and_its_configs_have_the_papers_settings_and_those_of_fairseq():
    """Table 4, and readings D5, D16, D18 and D19 where the paper is silent."""
    settings = PAPER["settings"]["nlp_iwslt14"]
    recipe = PAPER["external"]["fairseq_iwslt14"]["values"]
    rate, schedule, warmup = recipe["lr"].split(", ")
    sizes = re.findall(r"(?:de|en) (\d+)", recipe["prepare"]["dictionaries"])
    table = jobs("figure_6_iwslt14", "paper")
    assert len(table) == 6 * 5
    names = "iwslt14_hom", "iwslt14_het_pe"
    for config in (*(study.config(name, {}) for name in names), *(job.config for job in table)):
        assert config["schedule"]["learning_rate"] == settings["learning_rate"] == float(rate)
        assert config["schedule"]["name"] == schedule
        assert config["schedule"]["warmup_steps"] == int(warmup.split()[0])
        assert config["schedule"]["warmup_epochs"] == 0
        optimizer = config["optimizer"]
        assert optimizer["name"] == settings["optimizer"].lower()
        assert [optimizer[name] for name in ("b1", "b2")] == settings["betas"]
        assert optimizer["eps"] == settings["adam_epsilon"]
        assert optimizer["weight_decay"] == recipe["weight_decay"]
        assert config["backbone"]["name"] == "TransformerIwslt"
        assert config["backbone"]["dropout"] == settings["dropout"] == recipe["dropout"]
        alpha = settings["label_smoothing_alpha"]
        assert config["smoothing"] == dict(name="uniform", rate=alpha, over="all")
        data, tokens = config["data"], settings["batch_size"]["max tokens"]
        assert config["training"]["batch_size"] * data["row_length"] == tokens
        assert config["training"]["num_steps"] == recipe["max_update"]["readme_2018"]
        assert f"{data['num_merges']:,}" == recipe["prepare"]["bpe"].split()[0]
        assert (data["name"], data["source"], data["target"]) == ("iwslt14", "de", "en")
        assert all(data["splits"][name] == name for name in ("train", "valid", "test"))
        found = config["backbone"]["num_source_words"], config["head"]["num_classes"]
        assert [str(size) for size in found] == sizes
        search = config["evals"]["test"]
        assert search["length_penalty"] == recipe["generate"]["lenpen"]
        assert search["max_tokens"] == recipe["generate"]["max_tokens_out"]
        assert search["beam_size"] in (None, recipe["generate"]["beam"])


@pytest.mark.parametrize(("data", "scale"), [("multi30k", "cpu"), ("iwslt14", "paper")])
def test_updates_are_equal_or_proportional_to_the_sentence_pairs(data, scale):
    fractions = PAPER["settings"]["dataset_size"]["fractions"]
    epochs = {"multi30k": 3_630 / 15, "iwslt14": 50_000 / 50}[data]  # steps of the whole set

    def num_steps(job, fraction):
        training = job.config["training"]
        return training["num_steps"] or training["num_epochs"] * epochs * fraction

    for name in ("figure_6", "figure_6_equal_epochs"):
        found = {}
        for job in jobs(f"{name}_{data}", scale):
            curation = job.config["curation"]
            fraction = float(curation[len("subset(fraction=") : -1]) if curation else 1.0
            found[fraction] = num_steps(job, fraction) / (epochs * fraction)  # epochs
            if name == "figure_6":  # as many checkpoints for every size
                assert job.config["training"]["checkpoint_epochs"] * fraction == pytest.approx(1)
        assert sorted(found) == sorted(fractions)
        expected = {f: found[1.0] / f if name == "figure_6" else found[1.0] for f in fractions}
        assert found == pytest.approx(expected)


def test_curves_are_of_an_evaluation_at_every_checkpoint():
    for name in translations.TABLES:
        if name.startswith("figure_6"):
            (scale,) = translations.TABLES[name].scales
            for job in jobs(name, scale):
                assert job.config["evals"][over_training.EVALUATION]["during"]


@pytest.mark.parametrize("condition", translations.CONDITIONS)
def test_heads_are_compared_under_the_condition_of_their_states(condition):
    overrides, _ = translations.CONDITIONS[condition]
    smoothings = []
    for name in ("noise", "states"):
        (scale,) = translations.TABLES[f"{name}_{condition}_multi30k"].scales
        found = jobs(f"{name}_{condition}_multi30k", scale)
        for job in found:
            smoothings.append(job.config["smoothing"])
            if name == "noise":
                assert job.config["curation"] == overrides.get("curation", "")
            else:
                assert job.config["data"]["name"].endswith(f"_{condition}_{job.seed}")
                # The NLL after a temperature requires all logits.
                sizes = {x["num_largest"] for x in job.config["evals"].values()}
                assert sizes == {job.config["head"]["num_classes"]}
                assert job.config["data"]["splits"]["train"].startswith("train")
                assert job.config["curation"] == ""
                assert "groups" in job.config["data"]["extras"]  # sentences, which intervals draw
    assert all(smoothing == smoothings[0] for smoothing in smoothings)
    assert (smoothings[0]["name"] == "hard") == ("hard" in condition)
    heads = [job.config["head"] for job in found]  # tuned alike
    assert {head["name"] for head in heads} == {"Deterministic", "Diagonal", "ParameterEfficient"}
    assert len(found) == 3 * 3 * 3


def test_missing_states_are_an_error_that_names_the_command(monkeypatch, tmp_path):
    flags = f"--table=states_hard_multi30k --scale=features --out={tmp_path} --data_dir={tmp_path}"
    monkeypatch.setattr("sys.argv", ["run", "--study=dataset_curation", *flags.split()])
    message = (
        r"multi30k_states_hard_0\.npz are not in .* experiments\.dataset_curation\.decoder_sta"
    )
    with pytest.raises(SystemExit, match=message):
        run.main()
    words = ["decoder_states", f"--runs={tmp_path}", f"--out={tmp_path}"]
    monkeypatch.setattr("sys.argv", words)
    message = r"error: .*no complete run; .*--table=smoothing_multi30k --scale=cpu --rows original"
    with pytest.raises(SystemExit, match=message):
        decoder_states.main()
    monkeypatch.setattr("sys.argv", [*words, "--rows", "hard*"])
    with pytest.raises(SystemExit, match="--rows hard"):
        decoder_states.main()
    monkeypatch.setattr("sys.argv", [*words, "--rows", "soft"])
    with pytest.raises(SystemExit, match=r"no row matches \['soft'\]; the rows are \['original', "):
        decoder_states.main()


LINES = [
    {"step": 0, "train/nll": 9.0},
    {"step": 5, **{f"evals/test/{n}": 1.0 for n in ("ece", "nll", "accuracy", "confidence")}},
    {"step": 20, **{f"evals/test/{n}": 4.0 for n in ("ece", "nll", "accuracy", "confidence")}},
]


def test_a_curve_is_over_the_share_of_the_updates():
    curve = over_training.of_run(LINES)
    assert curve["share"] == [0.25, 1.0]
    assert curve["ece"] == [1.0, 4.0]
    assert over_training.at(curve, "ece", 0.5) == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"has no evals/test/ece; train with .*during=True"):
        over_training.of_run(LINES[:1])


def test_a_picture_over_training_has_the_mean_and_deviation_of_each_row():
    curves = [{"share": [0.1, 1.0], "ece": [a, b]} for a, b in ((0.3, 0.1), (0.5, 0.3))]
    (axes,) = pictures.training_figure({"original": curves, "size_0.1": curves[:1]}).axes
    first, second = (line.get_xydata() for line in axes.lines)
    assert first[0] == pytest.approx([0.1, 0.4])
    assert first[-1] == pytest.approx([1.0, 0.2])
    assert second[-1] == pytest.approx([1.0, 0.1])
    band = axes.collections[0].get_paths()[0].vertices
    at_end = sorted(band[np.isclose(band[:, 0], 1.0), 1])
    deviation = math.sqrt(0.02)
    assert at_end[0] == pytest.approx(0.2 - deviation)
    assert at_end[-1] == pytest.approx(0.2 + deviation)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of seed 0 in the place of each row of the table of smoothing."""
    with pytest.MonkeyPatch.context() as patch:
        directory = noisy_translation(patch, tmp_path_factory)
        config = files.read_json(directory / "config.json")
        made = [
            study.Job(row, (), seed, directory, config, f"{row} {seed}")
            for row in ("original", "hard")
            for seed in (0, 1)
        ]
        yield made


@pytest.mark.slow
def test_the_states_of_each_condition_are_a_data_set(finished, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(decoder_states.study, "jobs", lambda *_: finished)
    monkeypatch.setattr("sys.argv", ["decoder_states", f"--out={tmp_path}"])
    decoder_states.main()
    assert capsys.readouterr().out.count("wrote") == 4
    stored = [
        store.load(f"multi30k_states_{name}_0", str(tmp_path)) for name in ("original", "hard")
    ]
    assert {"train", "valid", "test"} == set(stored[0].splits)
    assert stored[0].splits["train"].inputs.shape[1] == 8
    of_tokens = predictions.read(finished[0].directory, "test")
    name, extras = "multi30k_states_original_0", ("groups",)
    test = store.load(name, str(tmp_path), extras=extras).splits["test"]
    np.testing.assert_array_equal(test.ids, of_tokens.ids)
    np.testing.assert_array_equal(test.extras["groups"], of_tokens.groups)
    decoder_states.main()
    assert capsys.readouterr().out == ""  # they exist


@pytest.mark.slow
def test_saved_curves_are_those_of_the_runs(finished, monkeypatch, tmp_path, capsys):
    path = tmp_path / "results" / "figure_6_multi30k.cpu.json"
    monkeypatch.setattr(over_training.derived.study, "saved_path", lambda *_: path)
    monkeypatch.setattr(over_training.study, "jobs", lambda *_: finished)
    monkeypatch.setattr("sys.argv", ["over_training", "--save"])
    over_training.main()
    printed = capsys.readouterr().out
    results = json.loads((finished[0].directory / "results.json").read_text())
    last = f"{results['evals']['test']['ece']:.4f}"
    for line in printed.splitlines()[2:4]:
        assert line.split("|")[-2].split()[0] == last
    gone = [job._replace(directory=tmp_path / "gone") for job in finished]
    monkeypatch.setattr(over_training.study, "jobs", lambda *_: gone)
    monkeypatch.setattr("sys.argv", ["over_training"])
    over_training.main()
    again = capsys.readouterr().out
    assert [line for line in printed.splitlines() if "|" in line] == again.splitlines()
    monkeypatch.setattr("sys.argv", ["pictures", "--table=figure_6_multi30k", f"--out={tmp_path}"])
    pictures.main()
    assert any(tmp_path.glob("figure_6_multi30k.*"))


@pytest.mark.slow
def test_calibration_by_token_is_that_of_the_runs_of_a_row(finished, monkeypatch, tmp_path, capsys):
    path = tmp_path / "results" / "figure_6_multi30k.cpu.json"
    monkeypatch.setattr(token_calibration.derived.study, "saved_path", lambda *_: path)
    monkeypatch.setattr(token_calibration.study, "jobs", lambda *_: finished)
    monkeypatch.setattr("sys.argv", ["token_calibration", "--save"])
    token_calibration.main()
    printed = [line for line in capsys.readouterr().out.splitlines() if "|" in line]
    found = by_token.run_report(finished[0].directory, "test")
    words = found["end"]["words"]
    excess = f"{words['confidence'] - words['accuracy']:.4f} ± 0.0000"  # of two equal runs
    assert (
        f"| words | 2 | {words['count']:,} | {excess} | {words['ece']:.4f} ± 0.0000 |"
        in "".join(printed)
    )
    kind = "count of the predicted word"
    least, *_, most = found[kind].items()
    less = np.subtract(*(x["confidence"] - x["accuracy"] for _, x in (least, most)))
    cells = {line.split(" | ")[0]: line.split(" | ")[-1] for line in printed}
    assert cells[f"| {kind} {least[0]}"] == f"{less:+.4f} ± 0.0000 |"
    assert cells[f"| {kind} {most[0]}"] == " |"
    assert len(printed) == 2 + sum(map(len, found.values()))
    gone = [job._replace(directory=tmp_path / "gone") for job in finished]
    monkeypatch.setattr(token_calibration.study, "jobs", lambda *_: gone)
    token_calibration.main()
    assert [line for line in capsys.readouterr().out.splitlines() if "|" in line] == printed
    monkeypatch.setattr("sys.argv", ["token_calibration", "--row=missing"])
    with pytest.raises(SystemExit, match="has no row missing; give another --row"):
        token_calibration.main()


@pytest.mark.slow
def test_measures_of_word_pairs_are_means_over_the_test_tokens(finished):
    loaded, words = loaded_run.load(finished[0].directory), np.array([5, 9, 6, 20])
    run, params = loaded.run, loaded.state.params
    features = jnp.asarray(token_features.features(loaded, "test", 8))
    latent = run.latent_of_features(params, features)
    covariance = np.mean(latent_lib.covariance(latent), axis=0)[np.ix_(words, words)]
    probs = np.exp(run.predictive(None, latent))[:, words]
    found = word_pairs.measures(loaded, words)
    np.testing.assert_allclose(found["covariance"], np.abs(covariance), rtol=1e-3)
    expected = np.mean(probs[:, :, None] * probs[:, None], axis=0)
    np.testing.assert_allclose(found["p_i p_j"], expected, rtol=1e-3)
    variance = np.asarray(latent_lib.difference_variance(latent))[:, words][:, :, words]
    expected = np.mean(probs[:, :, None] * probs[:, None] * variance, axis=0)
    np.testing.assert_allclose(found["seen"], expected, rtol=1e-3, atol=1e-6 * expected.max())
    np.testing.assert_allclose(np.diag(found["embedding cosine"]), 1)


@pytest.mark.slow
def test_the_pairs_of_words_of_a_table_are_tested(finished, monkeypatch, tmp_path, capsys):
    path = tmp_path / "results" / "noise_original_multi30k.cpu.json"
    monkeypatch.setattr(word_pairs.derived.study, "saved_path", lambda *_: path)
    monkeypatch.setattr(word_pairs.study, "jobs", lambda *_: finished[:1])
    monkeypatch.setattr(word_pairs, "_LEAST_COUNT", 1)
    every = np.stack(np.triu_indices(12, 1), axis=1)  # spelled numbers have no synonyms
    monkeypatch.setattr(word_pairs.lexicon, "common_origins", lambda *_: every)
    monkeypatch.setattr(word_pairs.lexicon, "rarely_together", lambda pairs, _: pairs[:2])
    monkeypatch.setattr("sys.argv", ["word_pairs", "--save"])
    word_pairs.main()
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:8]]
    assert [line[1] for line in lines] == [
        *("covariance", "correlation", "centred_correlation", "seen", "p_i p_j", "embedding cosine")
    ]
    (saved,) = json.loads(path.with_name("word_pairs").joinpath(path.name).read_text()).values()
    assert saved["numbers"]["test"]["covariance"]["pairs"] == 2
    assert 0 < saved["numbers"]["test"]["covariance"]["p"] <= 1


@pytest.mark.slow
def test_saved_predictions_know_the_sentence_of_each_token(finished):
    saved = predictions.read(finished[0].directory, "test")
    np.testing.assert_array_equal(saved.groups, saved.ids // 1024)
    assert len(np.unique(saved.groups)) < len(saved.ids)
