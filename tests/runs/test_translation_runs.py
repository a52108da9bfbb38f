"""Runs that translate."""

import functools
import json
import os
import re
import shutil
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu
from scipy import special
from small_runs import NUM_WORDS, assert_same_bits, outcome, tiny_transformer, translator
from subprocesses import run_without, with_devices

from experiments import study
from heteroscedastic.analysis.uncertainty import by_token
from heteroscedastic.batch import SentencePairs
from heteroscedastic.data import packing, resident
from heteroscedastic.data.storage import store
from heteroscedastic.data.text import numbers, words
from heteroscedastic.data.text.pipeline import Text
from heteroscedastic.models.beam import Hypotheses
from heteroscedastic.runs import (
    assembly,
    embed,
    loaded_run,
    loop,
    predictions,
    translate,
    translation,
)
from launch.command import SAVED

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture(autouse=True, scope="module")
def _tiny(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        tiny_transformer(patch, tmp_path_factory.getbasetemp() / "cache")
        yield


def with_beam():
    config = translator(**{"evals.test.beam_size": 3, "evals.test.max_tokens": 8})
    del config["evals"]["valid"]  # which validation evaluates
    return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory, programs_once):
    """A finished run, which tests leave as it is."""
    directory = tmp_path_factory.mktemp("translation") / "whole"
    loop.train(with_beam(), str(directory))
    return directory


def test_translations_of_the_training_split_are_an_error():
    config = translator(**{"evals.test.beam_size": 3, "evals.test.split": "train"})
    with pytest.raises(ValueError, match=r"evals\.test\.beam_size: the loss of the split 'train'"):
        assembly.build(config)


def command(monkeypatch, directory, *flags):
    paths = {"run": directory} | {
        flag: directory.parent / f"{name}.txt" for flag, name in (("input", "in"), ("out", "out"))
    }
    words = [f"--{flag}={path}" for flag, path in paths.items()]
    monkeypatch.setattr(sys, "argv", ["translate", *words, *flags])
    translate.main()


@pytest.mark.slow
def test_a_run_resumes_with_the_same_bits_and_its_metrics_are_those_of_its_predictions(
    tmp_path, monkeypatch, whole
):
    config, whole = with_beam(), shutil.copytree(whole, tmp_path / "whole")
    feeds = Text.training_feeds

    def terminated(self, epoch, start, *arguments, **settings):
        for step, feed in enumerate(feeds(self, epoch, start, *arguments, **settings), start):
            if (epoch, step) == (1, 1):
                os.kill(os.getpid(), signal.SIGTERM)
            yield feed

    with monkeypatch.context() as context:
        context.setattr(Text, "training_feeds", terminated)
        with pytest.raises(SystemExit) as left:
            loop.train(config, str(tmp_path / "parts"))
    assert left.value.code == SAVED
    loop.train(config, str(tmp_path / "parts"))
    uninterrupted = outcome(whole)
    assert_same_bits(uninterrupted, outcome(tmp_path / "parts"))

    results, logged = uninterrupted[0]["evals"]["test"], list(map(json.loads, uninterrupted[1]))
    # The evaluation with `during` is on every line, and validation alone chooses.
    assert all("evals/test/nll" in line for line in logged)
    best = min(logged, key=lambda line: line["valid/nll"])
    assert uninterrupted[0]["best_step"] == best["step"]
    translated = (whole / "predictions" / "test.txt").read_text().splitlines()
    sources, references = numbers.splits("de", "en")["test"]
    # The same sentences as new text, in capitals, with a line without words, in smaller batches.
    (tmp_path / "in.txt").write_text("\n".join([*map(str.title, sources), "", sources[0]]))
    command(monkeypatch, whole, "--beam_size=3", "--max_tokens=8", "--batch_size=7")
    lines = (tmp_path / "out.txt").read_text().split("\n")
    assert lines == [*translated, "", translated[0], ""]
    bleu = sacrebleu.metrics.BLEU(lowercase=True)
    assert results.pop("bleu") == bleu.corpus_score(translated, [references]).score
    assert 0 <= results.pop("bleu_moses") <= 100
    beam = {name: results.pop(f"beam_{name}") for name in ("accuracy", "confidence", "ece")}
    assert abs(beam["accuracy"] - beam["confidence"]) <= beam["ece"] + 1e-9
    assert 0 < beam["confidence"] < 1
    signatures = json.loads((whole / "results.json").read_text())["signatures"]
    assert signatures["bleu"] == str(bleu.get_signature())
    assert "tok:none|smooth:none" in signatures["bleu_moses"]
    assert {name: logged[-1][f"evals/test/{name}"] for name in results} == results
    record = predictions.read(whole, "test")
    log_probs = special.log_softmax(record.logits.astype(np.float64), axis=-1)
    own = np.take_along_axis(log_probs, record.labels[:, None], axis=-1)
    assert results["nll"] == pytest.approx(-own.mean(), rel=1e-5)
    assert results["accuracy"] == np.mean(predictions.is_correct(record))
    dataset = json.loads((whole / "dataset.json").read_text())
    assert len(record.ids) == dataset["num_examples"]["test"]

    (tmp_path / "out.txt").unlink()
    shutil.rmtree(whole / "checkpoints")
    with pytest.raises(SystemExit, match=r"error: .*checkpoint"):
        command(monkeypatch, whole)


@pytest.mark.slow
def test_calibration_by_token_has_the_metrics_of_the_run_and_every_sentence_once(whole):
    found = by_token.run_report(whole, "test")
    results = json.loads((whole / "results.json").read_text())["evals"]["test"]
    for name in ("accuracy", "confidence", "ece"):
        assert found["all"]["all tokens"][name] == pytest.approx(results[name], rel=1e-4)
    num_sentences = len(numbers.splits("de", "en")["test"][0])
    assert found["end"]["end of sentence"]["count"] == num_sentences
    assert found["position"]["0"]["count"] == num_sentences
    counts = np.array(json.loads((whole / "dataset.json").read_text())["class_counts"])
    predicted = predictions.predicted_classes(predictions.read(whole, "test"))
    _, expected = np.unique(np.digitize(counts[predicted], by_token._COUNTS), return_counts=True)
    groups = found["count of the predicted word"].values()
    assert [x["count"] for x in groups] == expected.tolist()


@pytest.mark.slow
def test_the_head_on_saved_features_gives_the_logits_of_the_run(whole, tmp_path, monkeypatch):
    words_of_command = ["embed", f"--run={whole}", f"--out={tmp_path}", "--batch_size=7"]
    monkeypatch.setattr(sys, "argv", [*words_of_command, "--data=multi30k"])
    with pytest.raises(SystemExit, match=r"error: .*own sentences are embedded; give --data=numb"):
        embed.main()
    monkeypatch.setattr(sys, "argv", [*words_of_command, "--data=numbers"])
    embed.main()
    stored = store.load("numbers_TransformerSmall", str(tmp_path))
    loaded = loaded_run.load(whole)
    run, state = loaded.run, loaded.state
    assert stored.class_names == run.pipeline.class_names
    assert {n: len(x.ids) for n, x in stored.splits.items()} == loaded.dataset["num_examples"]

    saved, record = stored.splits["test"], predictions.read(whole, "test")
    order = np.argsort(saved.ids)[np.argsort(np.argsort(record.ids))]
    np.testing.assert_array_equal(saved.ids[order], record.ids)
    np.testing.assert_array_equal(saved.labels[order], record.labels)
    features = jnp.asarray(saved.inputs[order], jnp.float32)
    latent = run.latent_of_features(state.params, features)
    np.testing.assert_allclose(run.predictive(None, latent), record.logits, atol=5e-3)

    # In training a row has several pairs. Each token has the features of its pair in a row alone.
    text, length = run.pipeline.text, run.pipeline.length
    sides = text.source["train"].split(), text.target["train"].split()
    number = len(sides[0])
    fits = [[i] for i in range(number) if max(len(side[i]) for side in sides) <= length]
    rows = packing.packed(fits, *sides, np.arange(number), length, words.PAD)
    feed = resident.Feed(np.arange(len(fits)), np.ones(len(fits), np.float32), np.int32(0))
    expected, batch = run.features(state.params, state.model_state, rows, feed)
    expected, ids = (np.asarray(x)[batch.weights > 0] for x in (expected, batch.ids))
    saved = stored.splits["train"]
    np.testing.assert_array_equal(np.sort(saved.ids), ids)
    np.testing.assert_allclose(saved.inputs[np.argsort(saved.ids)], expected, atol=5e-3)


_ON_DEVICES = """
import json, sys, jax, numpy as np
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.models.transformer import TransformerSmall
from heteroscedastic.runs import assembly, compiled

TransformerSmall.num_layers, TransformerSmall.width, TransformerSmall.hidden_width = 1, 8, 8
run = assembly.build(json.loads(sys.argv[1]))
data = run.pipeline
for number in (1, 8):
    placement = Placement(8, devices=jax.devices()[:number])
    programs, slots = compiled.programs(run, placement), placement.slots(8)
    arrays = placement.put(data.arrays, placement.replicated)
    feed = placement.feed(next(data.training_feeds(0, 0, slots)), 8)
    start = programs.start(run.root_key, {})
    state, sums, _ = programs.train_step(start, arrays["train"], feed, run.root_key)
    weights = state.params, state.model_state
    feed = placement.feed(next(data.feeds("test", slots)), 8)
    evaluated, _ = programs.eval_step(*weights, arrays["test"], feed, jax.random.key(0))
    source = placement.feed(data.arrays["test"].source[:8], 8)
    found = programs.hypotheses(*weights, source, beam_size=2, length_penalty=1.0, max_tokens=6)
    leaves = jax.tree.leaves((state.params, sums, evaluated, found.words, found.scores))
    print(json.dumps([np.asarray(x, float).ravel().tolist() for x in leaves]))
"""


@pytest.mark.extended
def test_eight_devices_train_evaluate_and_translate_as_one():
    # With a large eps the first step of Adam is smooth in a gradient that is nearly 0.
    config = translator(**{"training.microbatches": 1, "optimizer.eps": 1e-2})
    done = run_without(set(), _ON_DEVICES, json.dumps(config), env=with_devices(8))
    assert done.returncode == 0, done.stderr
    one, eight = map(json.loads, done.stdout.splitlines()[-2:])
    assert len(one) > 20
    for a, b in zip(one, eight, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"backbone.num_source_words": 100},
            rf"num_source_words is 100, but numbers has {NUM_WORDS[0]} words of 'de'",
        ),
        ({"head.num_classes": 100}, rf"num_classes is 100, but numbers has {NUM_WORDS[1]} classes"),
        ({"data.row_length": 3}, r"config\.data: row_length is 3, but the shortest pair has"),
        ({"data.row_length": 2000}, r"config\.data\.row_length is 2000"),
        ({"data.source": "fr"}, r"config\.data: the set 'numbers' has the languages de and en"),
        ({"data.splits": {"train": {"label": "x"}}}, r"section of split and name of another set"),
        ({"curation": "symmetric(rate=0.1)"}, r"config\.curation: symmetric: sentence pairs are"),
        ({"task": "multiclass"}, r"are for sentences, but config\.task 'multiclass' are not"),
        ({"mixing": dict(name="mixup", alpha=0.2, draws="batch")}, r"remove config\.mixing"),
    ],
)
def test_what_does_not_suit_sentences_is_an_error(overrides, message):
    with pytest.raises(ValueError, match=message):
        assembly.build(translator(**overrides))


def test_a_translation_has_no_start_and_no_padding():
    run = assembly.build(translator())
    # All words have the same probability, and a search takes the first of those that are equal.
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), run.shapes)
    source = jnp.full((2, 3), words.UNKNOWN)
    found = translation.model_search(run, state, beam_size=8, length_penalty=0.0)(source, 4)
    assert np.isfinite(found.scores).all()
    assert np.unique(found.words)[:2].tolist() == [words.END, words.UNKNOWN]
    assert (found.words[..., 0] != words.END).all()  # no translation is empty
    # Start and padding have their share of the probability, as for the words of a reference.
    lengths = np.argmax(found.words == words.END, axis=-1) + 1
    log_probs = found.word_log_probs.sum(axis=-1)
    np.testing.assert_allclose(log_probs, -lengths * np.log(NUM_WORDS[1]), rtol=1e-6)
    np.testing.assert_array_equal(found.scores, log_probs)  # at a length penalty of 0


def test_a_decoded_word_has_its_teacher_forced_probability_however_long_the_rows_are():
    noise = {"head.num_factors": 2, "predictive": dict(name="softmax", num_samples=4)}
    run = assembly.build(translator("multi30k_het_pe", **noise))
    rng, num_beams, room = np.random.default_rng(0), 2, 6
    state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), run.shapes)
    search = translation.model_search(run, state, beam_size=num_beams, length_penalty=1.0)
    sentences = sorted(run.pipeline.text.source["test"].split(), key=len)[::20]

    def padded(length, value=words.PAD):
        rows = [np.pad(x, (0, length - len(x)), constant_values=value) for x in sentences]
        return np.stack(rows).astype(np.int32)

    length = len(sentences[-1])
    found, other = (search(padded(n), room) for n in (length, length + 8))
    np.testing.assert_array_equal(found.words, other.words)
    np.testing.assert_allclose(found.word_log_probs, other.word_log_probs, rtol=1e-4, atol=1e-5)

    labels = np.reshape(found.words, (-1, room))
    is_word = np.arange(room) <= np.argmax(labels == words.END, axis=-1)[:, None]
    sides = padded(length), padded(length, -1) >= 0
    inputs = SentencePairs(
        *(np.repeat(side, num_beams, axis=0) for side in sides),
        np.roll(np.where(is_word, labels, words.END), 1, axis=-1),
        is_word,
    )

    @jax.jit
    def log_probs(params, inputs):
        latent = run.model.apply({"params": params}, inputs, inputs.target_segments > 0)
        return jax.nn.log_softmax(run.predictive(None, latent))

    forced = log_probs(state.params, jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), inputs))
    forced = np.take_along_axis(np.asarray(forced), labels[..., None], axis=-1)[..., 0]
    expected = np.sum(forced, axis=-1, where=is_word)
    np.testing.assert_allclose(np.ravel(found.word_log_probs.sum(axis=-1)), expected, rtol=1e-4)
    scores = expected / is_word.sum(axis=-1)
    np.testing.assert_allclose(np.ravel(found.scores), scores, rtol=1e-4)
    assert len(np.unique(found.words[:, 0], axis=0)) > 1


def test_every_sentence_is_translated_in_its_place_also_where_the_first_search_has_no_room():
    rng = np.random.default_rng(0)
    # Of length 1 to 40; translated, each word w is there w % 8 times.
    sources = [rng.integers(4, 12, n).astype(np.int32) for n in rng.integers(1, 41, 23)]
    rooms = []

    def search(source, room):
        rooms.append(room)
        found = np.full((len(source), 1, room), words.END, np.int32)
        for row, sentence in enumerate(source):
            translated = np.repeat(sentence[sentence >= 4], sentence[sentence >= 4] % 8)
            translated = translated[: room - 1]
            found[row, 0, : len(translated)] = translated
        return hypotheses(found, -found.astype(np.float32))

    best = translation.best_hypotheses(sources, 4, search, 100)
    assert set(rooms) == {32, 64, 100}
    for source, found in zip(sources, best):
        expected = np.repeat(source, source % 8)[:99]
        np.testing.assert_array_equal(found.words, expected)
        np.testing.assert_array_equal(found.log_probs, -expected.astype(np.float32))


def hypotheses(found, log_probs):
    scores = jnp.zeros(found.shape[:2])
    return Hypotheses(jnp.asarray(found), jnp.asarray(log_probs), scores)


def test_words_of_the_references_are_right_and_the_ends_of_sentences_count_for_nothing():
    run = assembly.build(translator())
    text, number = run.pipeline.text, sum(map(len, run.pipeline.text.target["test"].split()))
    sides = zip(text.source["test"].split(), text.target["test"].split(), strict=True)
    references = {tuple(source.tolist()): target[:-1] for source, target in sides}
    number -= len(references)
    assert len(references) == 60  # no sentence is there twice

    def search(source, room, more):
        found = np.full((len(source), 1, room), words.END, np.int32)
        log_probs = np.full(found.shape, -9.0, np.float32)
        for row, sentence in enumerate(source):
            sentence = sentence[sentence != words.PAD]
            translated = [*more, *references[tuple(sentence.tolist())]]
            found[row, 0, : len(translated)] = translated
            log_probs[row, 0, : len(translated)] = np.log(0.75)
        return hypotheses(found, log_probs)

    for more in ([], [words.UNKNOWN]):
        found = translation.translations(run, "test", functools.partial(search, more=more), 100)
        accuracy = number / (number + 60 * len(more))
        assert found.scores["beam_accuracy"] == pytest.approx(accuracy)
        assert found.scores["beam_confidence"] == pytest.approx(0.75)
        assert found.scores["beam_ece"] == pytest.approx(abs(accuracy - 0.75))
        assert (found.scores["bleu_moses"] == pytest.approx(100)) == (not more)


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"eins\n\xff\n", (), r"in\.txt line 2 is not UTF-8"),
        (b"\n \n", (), r"in\.txt has no sentence; write one a line\."),
        (b"eins\n", ("--beam_size=0",), r"--beam_size is 0; it must be a whole number >= 1"),
        (b"eins\n", (), r"is of the task 'multiclass', which has no translations; give a run"),
        (b"eins\n", (), r"out\.txt exists already; remove it, or give another --out\."),
        (b"eins\n", ("--out=a.gz",), r"--out=a\.gz would be plain text; give a name that does"),
    ],
)
def test_what_cannot_be_translated_is_an_error_of_one_line(
    tmp_path, monkeypatch, content, flags, message
):
    run, config = tmp_path / "run", study.config("digits_hom", {})
    run.mkdir()
    records = {
        "config": config,
        "results": {"evals": {name: {} for name in config["evals"]}, "step": 1},
        "dataset": {"class_names": ["a"]},
    }
    for name, record in records.items():
        (run / f"{name}.json").write_text(json.dumps(record))
    (tmp_path / "in.txt").write_bytes(content)
    if "exists" in message:
        (tmp_path / "out.txt").touch()
    with pytest.raises(SystemExit) as caught:
        command(monkeypatch, run, *flags)
    assert re.match(rf"error: .*{message}", str(caught.value)), caught.value
    assert (tmp_path / "out.txt").exists() == ("exists" in message)


def test_new_sentences_keep_their_lines_and_one_that_is_too_long_is_an_error_that_names_its_line():
    run, lengths = assembly.build(translator()), set()

    def search(source, room):  # one word for each sentence
        lengths.update(np.sum(source != words.PAD, axis=1).tolist())
        found = np.full((len(source), 1, room), words.END, np.int32)
        found[..., 0] = 4
        return hypotheses(found, np.zeros(found.shape, np.float32))

    translated = functools.partial(
        translate.translations, run, search=search, batch_size=2, max_tokens=8, source="FILE"
    )
    (word,) = words.detokenized([run.pipeline.text.target_words[4]], "en")
    assert translated([", " * 1023, "", ",", "\x01"]) == [word, "", word, ""]
    assert lengths == {1024, 2}
    with pytest.raises(ValueError, match=r"^FILE line 3 has 1,025 tokens, but .* 1,024; split it"):
        translated([",", ", " * 1023, ", " * 1024])
