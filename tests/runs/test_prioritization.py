"""Epochs of chosen examples: their steps, their scores, and runs that are interrupted in them."""

import dataclasses
import itertools
import json
import re
import shutil

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from small_runs import assert_same_bits, outcome, plain, small
from subprocesses import EXTRAS, free_address, outputs, start_without, with_devices

from experiments.sample_prioritization import choices
from heteroscedastic.data import resident
from heteroscedastic.distributed.in_flight import NotFiniteError
from heteroscedastic.distributed.preemption import Agreement, StopEvent, StoppedError
from heteroscedastic.runs import (
    assembly,
    by_example,
    checkpoint,
    compiled,
    loaded_run,
    loop,
    predictions,
    prioritization,
    provenance,
)
from heteroscedastic.training import state as state_lib

pytestmark = pytest.mark.usefixtures("programs_once")

NUM_TRAIN, BATCH = 960, 64  # 15 steps
WARMUP = 2


def config(fraction=0.3, choice="largest", score="entropy", overrides=(), base=plain, **settings):
    chosen = dict(rate=fraction) if choice == "pruned" else dict(fraction=fraction)
    sections = {
        "selection": dict(name=choice, **chosen),
        "score": dict(name=score),
        "prioritization": dict(warmup_epochs=WARMUP, **settings),
    }
    training = {"training.num_epochs": 5.0, "training.checkpoint_epochs": 2.0}
    return base(**sections | training | dict(overrides))


def with_own(made):
    """The config with an evaluation of the training examples."""
    return made | {"evals": dict(own=dict(split="train", checkpoint="last", answers=None))}


def lines(directory, name="epochs"):
    return [json.loads(x) for x in (directory / f"{name}.jsonl").read_text().splitlines()]


def without_seconds(directory):
    return [
        {k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines(directory)
    ]


def saved_scores(path):
    with np.load(path) as file:
        return {name: file[name] for name in ("ids", "scores")}


def restamped(path, arrays):
    """Writes a file of scores of the same run."""
    owner = str(np.load(path)["owner"])
    np.savez(path, **provenance.stamped_arrays(path.stem, arrays, owner))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run of these settings, which is made once. Recorded is what most read."""
    runs = {}

    def made(**settings):
        settings = dict(fraction=0.3, scores="training", record=True, base=plain) | settings
        name = str(sorted(settings.items(), key=str))
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp("run") / "run"
            loop.train(config(**settings), str(runs[name]))
        return runs[name]

    return made


def test_a_fraction_of_one_is_plain_training_up_to_rounding(trained, tmp_path):
    """The steps also compute scores, so the compiler may round other values in another way."""
    sections = ("selection", "score", "prioritization")
    loop.train({k: v for k, v in config().items() if k not in sections}, str(tmp_path))
    ours, theirs = outcome(trained(fraction=1.0)), outcome(tmp_path)
    for line, other in zip(*([json.loads(x) for x in lines] for _, lines, _ in (ours, theirs))):
        assert line["train/score"] > 0
        for name in ("train/nll", "train/gradient_norm"):
            np.testing.assert_allclose(line[name], other[name], rtol=1e-4)
    for name, arrays in theirs[2].items():
        np.testing.assert_array_equal(ours[2][name]["ids"], arrays["ids"])
        np.testing.assert_allclose(ours[2][name]["logits"], arrays["logits"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("fraction", "batch_size"),
    [
        (0.3, BATCH),
        (0.002, BATCH),
        pytest.param(0.3, 50, marks=pytest.mark.extended),  # 50 divides neither 960 nor 288
    ],
)
def test_the_steps_are_those_of_the_epochs_that_were_chosen(fraction, batch_size, trained):
    settings = {"fraction": fraction}
    if batch_size != BATCH:  # else the run is that of other tests
        settings["overrides"] = {"training.batch_size": batch_size}
    directory = trained(**settings)
    full, chosen = (-(-n // batch_size) for n in (NUM_TRAIN, round(fraction * NUM_TRAIN)))
    expected = WARMUP * full + 3 * chosen
    assert json.loads((directory / "results.json").read_text())["step"] == expected
    assert [line["num_steps"] for line in lines(directory)] == [full, full, *3 * [chosen]]
    assert assembly.build(config(**settings)).steps.total == expected
    assert [line["epoch"] for line in lines(directory, "metrics")] == [2, 4, 5]


def test_examples_are_chosen_after_the_warm_up_and_then_every_so_many_epochs():
    run = assembly.build(config(every_epochs=3))
    assert [n for n in range(9) if prioritization.chooses(run, n)] == [WARMUP, WARMUP + 3, 8]


def test_every_seed_and_every_epoch_has_its_own_choice_at_random():
    runs = [
        assembly.build(config(choice="random", overrides={"seed": seed, "data.seed": 0}))
        for seed in (0, 0, 1)
    ]
    first, again, other = (run.selected(2).rows for run in runs)
    np.testing.assert_array_equal(first, again)
    for rows in (other, runs[0].selected(3).rows):
        assert len(np.intersect1d(first, rows)) < 0.6 * len(first)


def test_scores_have_the_noise_of_the_predictions_in_training_and_in_evaluation():
    """So the difference from predictions with the key of the score is zero."""
    made = config(base=small, scores="training", overrides={"training.batch_size": 8})
    run = assembly.build(made | {"backbone": dict(name="MLP", widths=(4,))})

    def difference(key, latent, logits, labels):
        again = jax.nn.softmax(run.predictive(key, latent))
        return 1 + jnp.abs(again - jax.nn.softmax(logits)).max(axis=-1)

    parts = run.parts._replace(score=difference)
    run, state = dataclasses.replace(run, parts=parts), run.init(run.root_key)
    (feed,), split = resident.feeds(np.arange(8), 8), run.pipeline.arrays["train"]
    _, _, values = jax.jit(run.train_step)(state, split, feed, run.root_key)
    scores = jax.jit(run.score_step)(
        state.params, state.model_state, split, feed, jax.random.key(0), jnp.zeros(NUM_TRAIN)
    )
    np.testing.assert_allclose(values.scores, 1, atol=1e-5)
    np.testing.assert_allclose(scores[:8], 1, atol=1e-5)


def test_the_learning_rate_at_an_epoch_is_the_same_for_every_fraction(trained):
    rates = [
        [line["learning_rate"] for line in lines(trained(fraction=f), "metrics")]
        for f in (1.0, 0.3, 0.002)
    ]
    assert len(set(rates[0])) == 3
    assert all(rate == rates[0] for rate in rates)


def test_the_rate_of_a_step_follows_the_epochs_that_have_passed():
    """The optimizer moves a parameter of constant gradient by the rate of the full step."""
    run = assembly.build(config(0.1))
    params = {"w": jnp.ones(())}
    optimizer = assembly.build(
        config(0.1, overrides={"optimizer.momentum": 0.0, "optimizer.l2": 0.0})
    ).optimizer
    opt_state = optimizer.init(params)
    empty = state_lib.no_scores(NUM_TRAIN)
    for step, (epoch, start, length) in {
        0: (0, 0, 15),
        17: (1, 15, 15),
        30: (2, 30, 2),
        31: (2, 30, 2),
        34: (4, 34, 2),
    }.items():
        scores = empty._replace(
            epoch=jnp.int32(epoch), start=jnp.int32(start), num_steps=jnp.int32(length)
        )
        full = scores.full_step(jnp.int32(step), run.steps.full_length)
        assert full == pytest.approx((epoch + (step - start) / length) * 15)
        updates, opt_state = optimizer.update(params, opt_state, params, schedule_step=full)
        assert -updates["w"] == pytest.approx(float(run.steps.learning_rate(float(full))), rel=1e-6)


def test_a_training_step_moves_the_parameters_by_the_rate_of_the_full_step():
    """At places of a run with the same parameters and batch the gradient is the same."""
    overrides = {
        "optimizer.momentum": 0.0,
        "optimizer.l2": 0.0,
        "data.train": "value_range(-1, 1)",
    }
    run = assembly.build(config(0.1, overrides=overrides))
    initial = run.init(run.root_key)
    feed = next(run.pipeline.training_feeds(0, 0, np.arange(BATCH)))
    before, _ = jax.flatten_util.ravel_pytree(initial.params)
    step = jax.jit(run.train_step)

    def change_and_rate(epoch, start, num_steps, taken):
        place = dict(epoch=epoch, start=start, num_steps=num_steps)
        scores = initial.scores._replace(**{k: jnp.int32(v) for k, v in place.items()})
        state = initial._replace(step=jnp.int32(start + taken), scores=scores)
        after, _, _ = step(state, run.pipeline.arrays["train"], feed, run.root_key)
        full = (epoch + taken / num_steps) * run.steps.full_length
        moved = jax.flatten_util.ravel_pytree(after.params)[0] - before
        return np.asarray(moved), float(run.steps.learning_rate(full))

    first, rate = change_and_rate(2, 30, 2, 0)
    assert np.abs(first).max() > 1e-3
    for place in ((1, 15, 15, 8), (2, 30, 2, 1), (4, 34, 2, 0), (4, 34, 2, 1)):
        change, other = change_and_rate(*place)
        assert abs(other / rate - 1) > 0.02
        np.testing.assert_allclose(change, first * (other / rate), rtol=1e-3, atol=1e-6)


# In an epoch of all examples, at ends, in epochs of five steps; and in the third batch of the pass
# that scores the examples at step 30. Scores of an evaluation depend on its noise.
@pytest.mark.parametrize(
    ("source", "base", "moments"),
    [
        pytest.param("training", plain, (7, 33, 35), marks=pytest.mark.extended),
        ("evaluation", small, (15, 3, 38)),
    ],
)
def test_a_run_that_is_interrupted_in_epochs_and_between_them_ends_with_the_same_bits(
    source, base, moments, trained, tmp_path, monkeypatch
):
    undisturbed = trained(scores=source, base=base)
    made = config(scores=source, base=base, record=True)
    for moment in moments:
        with monkeypatch.context() as patched:
            patched.setattr(
                Agreement,
                "stops",
                lambda self, event, step, asks=False, moment=moment: step == moment,
            )
            with pytest.raises(SystemExit):
                loop.train(made, str(tmp_path))

    checked = loop._Trainer._checked

    def lost(self, step, sums):
        if step == 42:
            raise RuntimeError("lost")
        return checked(self, step, sums)

    with monkeypatch.context() as patched:
        patched.setattr(loop._Trainer, "_checked", lost)
        with pytest.raises(RuntimeError, match="lost"):  # and so are the steps since the checkpoint
            loop.train(made, str(tmp_path))
    loop.train(made, str(tmp_path))
    assert_same_bits(outcome(tmp_path), outcome(undisturbed))
    assert without_seconds(tmp_path) == without_seconds(undisturbed)
    for epoch in range(5):
        a, b = (np.load(d / "scores" / f"{epoch}.npz") for d in (tmp_path, undisturbed))
        np.testing.assert_array_equal(a["scores"], b["scores"])


def test_a_run_that_is_stopped_before_the_first_feed_of_a_shorter_epoch_ends_with_the_same_bits(
    trained, tmp_path, monkeypatch
):
    """After 30 steps in epochs of 15 an interval of 7 is under way, which two steps would end."""
    overrides = {"training.checkpoint_epochs": 0.45}
    undisturbed = trained(fraction=0.1, overrides=overrides)
    made = config(fraction=0.1, scores="training", record=True, overrides=overrides)
    feeds, calls = StopEvent.feeds, []

    def stopped(self, each):
        calls.append(each)
        if len(calls) == 3:
            raise StoppedError
        return feeds(self, each)

    with monkeypatch.context() as patched:
        patched.setattr(StopEvent, "feeds", stopped)
        with pytest.raises(SystemExit):
            loop.train(made, str(tmp_path))
    loop.train(made, str(tmp_path))
    assert_same_bits(outcome(tmp_path), outcome(undisturbed))


def test_an_example_that_is_not_chosen_keeps_its_score_and_the_chosen_have_the_largest(trained):
    directory = trained()
    saved = [np.load(directory / "scores" / f"{epoch}.npz")["scores"] for epoch in range(5)]
    for before, after in itertools.pairwise(saved[1:]):
        changed = np.flatnonzero(before != after)
        largest = np.argsort(before)[-288:]
        assert set(changed) == set(largest)
    chosen = np.sort(saved[1])[-288:]
    assert lines(directory)[2]["chosen_score"] == pytest.approx(chosen.mean(), rel=1e-6)


def test_the_steps_of_chosen_examples_count_their_mirrored_images_too():
    run = assembly.build(config(overrides={"data.train": "with_mirrored|value_range(-1, 1)"}))
    assert run.steps.full_length == 2 * NUM_TRAIN // BATCH
    scores = state_lib.no_scores(NUM_TRAIN)._replace(
        epoch=np.int32(WARMUP - 1), values=np.arange(NUM_TRAIN, dtype=np.float32)
    )
    chosen, _ = prioritization.choice(run, scores, 60)
    feeds = run.pipeline.training_feeds(
        WARMUP, 0, np.arange(BATCH), prioritization.selected(chosen)
    )
    assert len(list(feeds)) == chosen.num_steps == 2 * 0.3 * NUM_TRAIN / BATCH


def test_pruning_ends_at_seven_eighths_of_the_epochs_of_a_run():
    run = assembly.build(config(0.5, "pruned", "loss", {"training.num_epochs": 8.0}))
    scores = np.random.default_rng(0).standard_normal(NUM_TRAIN).astype(np.float32)
    for epoch in range(8):
        has_all = np.array_equal(run.selected(epoch, scores).rows, np.arange(NUM_TRAIN))
        assert has_all == (epoch / 8 >= 7 / 8)


def test_a_padding_row_writes_no_score():
    values = jnp.arange(4.0)
    rows, weights = jnp.array([2, 0, 0, 0]), jnp.array([1.0, 0.0, 0.0, 0.0])
    new = assembly._at_rows(values, rows, weights, jnp.full(4, 9.0))
    np.testing.assert_array_equal(new, [0, 1, 9, 3])


def test_of_an_example_that_is_twice_in_a_batch_the_largest_score_stays():
    values, rows = jnp.array([5.0, 6.0, 7.0]), jnp.array([1, 2, 1, 1])
    for order in itertools.permutations(range(4)):
        chosen = jnp.array(order)
        new = assembly._at_rows(
            values,
            rows[chosen],
            jnp.array([1.0, 1.0, 1.0, 0.0])[chosen],
            jnp.array([-3.0, 2.0, -4.0, 8.0])[chosen],
        )
        np.testing.assert_array_equal(new, [5, -3, 2])


def test_damaged_lines_of_epochs_are_left_out_and_a_run_says_so(tmp_path, caplog, monkeypatch):
    text = ['{"epoch": 0, "a": 1}', '{"epoch": 1', '{"epoch": 2, "a": 3}', "[]", '{"epoch": 3}']
    (tmp_path / "epochs.jsonl").write_text("\n".join(text) + "\n")
    assert [line["epoch"] for line in prioritization.lines_of(tmp_path)] == [0, 2, 3]
    prioritization.Record(assembly.build(config()), tmp_path, "owner", 3)
    assert "epochs.jsonl lacks 1 of the 3 epochs before this one" in caplog.text
    assert [line["epoch"] for line in lines(tmp_path)] == [0, 2]
    settings = {"training": {"num_epochs": 2.5}, "prioritization": {}}
    saved = loaded_run.SavedRun(tmp_path, settings, {}, {})
    monkeypatch.setattr(loaded_run, "read", lambda _: saved)
    for present in ((0, 2), (0, 1)):
        text = "".join(json.dumps({"epoch": epoch}) + "\n" for epoch in present)
        (tmp_path / "epochs.jsonl").write_text(text)
        with pytest.raises(ValueError, match="lacks epochs, as it was changed or removed"):
            choices._read(tmp_path)


def entropies(directory, evaluation):
    saved = predictions.read(directory, evaluation)
    probs = np.exp(saved.logits) / np.exp(saved.logits).sum(axis=-1, keepdims=True)
    return stats.entropy(probs, axis=-1)[np.argsort(saved.ids)], np.sort(saved.ids)


def test_fresh_scores_are_those_of_the_weights_before_the_epoch_without_augmentation(tmp_path):
    """With a rate of zero they are those of the last weights."""
    overrides = {
        "schedule.learning_rate": 0.0,
        "data.train": "pad_crop(2)|value_range(-1, 1)",
    }
    made = config(scores="evaluation", record=True, overrides=overrides)
    loop.train(with_own(made), str(tmp_path))
    expected, ids = entropies(tmp_path, "own")
    saved = np.load(tmp_path / "scores" / "4.npz")
    order = np.argsort(saved["ids"])
    np.testing.assert_array_equal(saved["ids"][order], ids)
    np.testing.assert_allclose(saved["scores"][order], expected, rtol=1e-4)
    goodput = json.loads((tmp_path / "results.json").read_text())["goodput"]
    for name in ("scores", "steps"):
        seconds = [line[f"seconds_{name}"] for line in lines(tmp_path)]
        assert min(seconds) > 0
        if name == "scores":  # seconds of steps include those of their input
            assert sum(seconds) == pytest.approx(goodput[name])


def test_nothing_is_compiled_again_between_epochs(tmp_path, monkeypatch):
    made = []
    programs = compiled.programs

    def kept(*arguments):
        made.append(programs(*arguments))
        return made[-1]

    monkeypatch.setattr(compiled, "programs", kept)
    loop.train(config(0.1, choice="pruned", score="loss", scores="evaluation"), str(tmp_path))
    assert len({line["num_examples"] for line in lines(tmp_path)}) > 1
    assert made[0].train_step._cache_size() == 1
    assert made[0].score_step._cache_size() == 1


PROGRAM = """
import json, sys
import jax
process, number, port = (int(x) for x in sys.argv[3:])
if number > 1:
    jax.distributed.initialize(f"localhost:{port}", number, process)
from heteroscedastic.runs import loop
loop.train(json.loads(sys.argv[1]), sys.argv[2])
print(jax.device_count(), jax.process_count())
"""


@pytest.mark.parametrize(
    ("source", "num_processes", "devices"),
    [("evaluation", 1, 8), pytest.param("training", 2, 1, marks=pytest.mark.extended)],
)
def test_devices_and_processes_choose_the_same_examples(
    source, num_processes, devices, trained, tmp_path
):
    directory = tmp_path / "run"
    text = json.dumps(config(scores=source, record=True))
    port = free_address().partition(":")[2]
    started = [
        start_without(
            EXTRAS - {"sklearn"},
            PROGRAM,
            *(text, str(directory), str(i), str(num_processes), str(port)),
            env=with_devices(devices),
        )
        for i in range(num_processes)
    ]
    texts = outputs(started)
    assert not any(process.returncode for process in started), texts
    assert texts[0][0].splitlines()[-1] == f"{devices * num_processes} {num_processes}"
    one = trained(scores=source)
    for ours, theirs in zip(without_seconds(directory), without_seconds(one), strict=True):
        assert ours["class_counts"] == theirs["class_counts"]
        assert ours["overlap"] == theirs["overlap"]
    ours, theirs = (loaded_run.load(path).state.scores for path in (directory, one))
    assert set(np.asarray(ours.rows)) == set(np.asarray(theirs.rows))  # of the last epoch
    for epoch in range(5):
        a, b = (np.load(d / "scores" / f"{epoch}.npz")["scores"] for d in (directory, one))
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_a_target_guides_the_epoch_of_the_same_number_until_the_run_is_complete(trained, tmp_path):
    target = shutil.copytree(trained(), tmp_path / "target")
    made = config(scores="target", target=str(target))
    results = loop.train(made, str(tmp_path / "run"))
    for line in lines(tmp_path / "run")[WARMUP:]:
        saved = np.load(target / "scores" / f"{line['epoch']}.npz")["scores"]
        assert line["chosen_score"] == pytest.approx(np.sort(saved)[-288:].mean(), rel=1e-6)
        assert line["other_score"] == pytest.approx(np.sort(saved)[:-288].mean(), rel=1e-6)
    assert results["target"]["workdir"] == str(target)
    shutil.rmtree(target)
    assert loop.train(made, str(tmp_path / "run")) == json.loads(json.dumps(results))


def test_the_last_weights_of_a_target_choose_one_subset_for_ever(tmp_path):
    target = tmp_path / "target"
    loop.train(with_own(config()), str(target))
    loop.train(config(scores="target_final", target=str(target)), str(tmp_path / "run"))
    expected, _ = entropies(target, "own")
    for line in lines(tmp_path / "run")[WARMUP:]:
        assert line["chosen_score"] == pytest.approx(np.sort(expected)[-288:].mean(), rel=1e-4)
    assert [line["overlap"] for line in lines(tmp_path / "run")[WARMUP + 1 :]] == [1, 1]


def test_excess_subtracts_the_scores_of_the_last_weights_of_a_target_of_other_images(tmp_path):
    overrides = {"schedule.learning_rate": 0.0}
    target, own = tmp_path / "target", tmp_path / "own"
    loop.train(plain(**overrides, **{"training.num_epochs": 1.0, "data.seed": 5}), str(target))
    settings = dict(choice="excess", score="loss", scores="evaluation", target=str(target))
    loop.train(config(overrides=overrides | {"seed": 1}, **settings), str(own))
    run = assembly.build(config(overrides=overrides | {"seed": 1}, **settings))

    def scores(directory):
        loaded = loaded_run.with_pipeline(loaded_run.read(directory), run.pipeline)

        def value(key, latent, batch):
            logits = run.parts.predictive(key, latent)
            return run.parts.score(key, latent, logits, batch.labels)

        return by_example.map_latents(loaded, "train", value)

    ours, theirs = scores(own), scores(target)
    chosen = np.argsort(ours - theirs)[-288:]
    line = lines(own)[WARMUP]
    assert line["chosen_score"] == pytest.approx(ours[chosen].mean(), rel=1e-4)


def test_between_choices_an_epoch_has_the_examples_of_the_last(trained):
    overlaps = [line["overlap"] for line in lines(trained(every_epochs=2, record=False))[WARMUP:]]
    assert overlaps[1] == 1 > overlaps[2]
    assert overlaps[0] == 1  # of the examples of the warm-up, which are all


def test_a_line_says_what_was_chosen(trained):
    run = assembly.build(config())
    scores = prioritization.on_host(state_lib.no_scores(NUM_TRAIN))
    values = np.random.default_rng(0).standard_normal(NUM_TRAIN).astype(np.float32)
    all_rows = np.arange(NUM_TRAIN, dtype=np.int32)
    scores = scores._replace(epoch=np.int32(1), values=values, rows=all_rows)
    first = prioritization.choice(run, scores, 30)
    again = prioritization.choice(run, first.scores._replace(values=np.roll(values, 1)), 35)
    train = run.dataset.splits["train"]
    a, b = (prioritization.selected(x.scores).rows for x in (first, again))
    np.testing.assert_array_equal(a, np.sort(np.argsort(values)[-288:]))
    assert again.facts["overlap"] == pytest.approx(len(set(a) & set(b)) / 288)
    assert first.facts["class_counts"] == np.bincount(train.labels[a], minlength=10).tolist()
    wrong = run.pipeline.clean_labels["train"] != train.labels
    assert wrong.any()
    assert first.facts["wrong_label_fraction"] == pytest.approx(wrong[a].mean())
    clean = run.pipeline.clean_labels["train"].copy()
    clean[a[::2]] = -1  # unknown
    run.pipeline.clean_labels["train"] = clean
    partly = prioritization.choice(run, scores, 30)
    assert partly.facts["wrong_label_fraction"] == pytest.approx(wrong[a[1::2]].mean())


def test_a_score_that_is_nan_stops_the_run_with_ids_and_step(tmp_path, monkeypatch):
    step = assembly.train_step

    def with_nan(state, feed, key, **settings):
        new, sums, values = step(state, feed, key, **settings)
        scores = jnp.where((values.ids == 13) & (state.step >= 15), jnp.nan, values.scores)
        return new, sums._replace(score=jnp.sum(scores)), values._replace(scores=scores)

    monkeypatch.setattr(assembly, "train_step", with_nan)
    run = config()
    held = set(assembly.build(run).dataset.splits["train"].ids.tolist())
    assert 13 in held
    with pytest.raises(NotFiniteError, match=r"examples 13 is not finite at step (1[6-9]|2\d|30)"):
        loop.train(run, str(tmp_path))


def test_a_fresh_score_that_is_infinite_stops_the_run_before_it_chooses(tmp_path, monkeypatch):
    scores = loop._Trainer._scores

    def with_infinite(self, *arguments):
        return scores(self, *arguments).at[7].set(jnp.inf)

    monkeypatch.setattr(loop._Trainer, "_scores", with_infinite)
    made = config(scores="evaluation")
    example = assembly.build(made).dataset.splits["train"].ids[7]
    with pytest.raises(NotFiniteError, match=rf"examples {example} is not finite at step 30;"):
        loop.train(made, str(tmp_path))


def test_a_fresh_score_that_is_infinite_is_not_recorded_in_the_warm_up(tmp_path, monkeypatch):
    scores = loop._Trainer._scores

    def with_infinite(self, run, program, state, epoch):
        values = scores(self, run, program, state, epoch)
        return values.at[7].set(jnp.inf) if epoch == 1 else values

    monkeypatch.setattr(loop._Trainer, "_scores", with_infinite)
    with pytest.raises(NotFiniteError, match=r"not finite at step 15;"):
        loop.train(config(scores="evaluation", record=True), str(tmp_path))
    assert [path.name for path in (tmp_path / "scores").iterdir()] == ["0.npz"]


def test_a_nan_in_the_scores_that_a_target_saved_is_an_error_of_the_target(trained, tmp_path):
    target = shutil.copytree(trained(), tmp_path / "target")
    path = target / "scores" / "3.npz"
    arrays = saved_scores(path)
    arrays["scores"][[5, 8]] = np.nan
    example, other = arrays["ids"][[5, 8]]
    restamped(path, arrays)
    run = assembly.build(config(scores="target", target=str(target)))
    message = rf"target's score of the training examples {example}, {other} is not.*3\.npz; train"
    with pytest.raises(ValueError, match=message):
        prioritization.Target(run).scores(3)


def test_a_nan_of_the_last_weights_of_the_target_of_excess_stops_the_run(
    trained, tmp_path, monkeypatch
):
    scores = loop._Trainer._scores

    def with_nan(self, run, *arguments):
        values = scores(self, run, *arguments)
        return values if run is self.run else values.at[7].set(jnp.nan)

    monkeypatch.setattr(loop._Trainer, "_scores", with_nan)
    made = config(choice="excess", score="loss", target=str(trained()))
    example = assembly.build(made).dataset.splits["train"].ids[7]
    message = rf"target's score of the training examples {example} is not finite by its last"
    with pytest.raises(ValueError, match=message):
        loop.train(made, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(fraction=0.0), r"selection: largest.*fraction is 0\.0|fraction is 0\.0"),
        (dict(fraction=1e-4), r"no example of 960"),
        (dict(warmup_epochs=0), r"warmup_epochs is 0, but scores of training steps"),
        (dict(scores="newest"), r"prioritization\.scores is 'newest'; choose one of training"),
        (dict(scores="target"), r"target is None, but scores='target' reads"),
        (dict(choice="excess"), r"target is None, but the selection 'excess' reads"),
        (dict(target="somewhere"), r"does not read it"),
        (dict(scores="target", target="nowhere"), r"nowhere holds no complete run"),
        (dict(choice="excess", scores="target", target="x"), r"choose 'training' or 'evaluation'"),
        (dict(scores="target", target="x", record=True), r"record saves own scores"),
        (dict(every_epochs=0), r"prioritization\.every_epochs is 0"),
        (dict(score="uncertainty"), r"score has no 'uncertainty'; choose one of entropy"),
        (dict(epochs=3), r"prioritization has no setting 'epochs'"),
    ],
)
def test_bad_settings_are_named(change, message, tmp_path):
    settings = dict(change)
    made = config(**{k: v for k, v in settings.items() if k != "warmup_epochs"})
    if "warmup_epochs" in settings:
        made["prioritization"]["warmup_epochs"] = settings["warmup_epochs"]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        loop.train(made, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("score", r"has no section 'score'; add one"),
        ("prioritization", r"'largest' reads the scores of examples"),
    ],
)
def test_a_missing_section_is_named(without, message):
    made = config()
    del made[without]
    with pytest.raises(ValueError, match=message):
        assembly.build(made)


def test_scores_that_nothing_reads_are_an_error():
    with pytest.raises(ValueError, match=r"config\.score is read by config\.prioritization alone"):
        assembly.build(plain(score=dict(name="entropy")))


def test_steps_in_place_of_epochs_are_an_error():
    made = config(overrides={"training.num_epochs": None, "training.num_steps": 50})
    with pytest.raises(ValueError, match=r"requires config\.training\.num_epochs"):
        assembly.build(made)


def test_a_stream_has_no_prioritization():
    made = config()
    made["data"] |= {"pipeline": "streaming", "reader_shards": 8}
    with pytest.raises(ValueError, match=r"reads files in order"):
        assembly.build(made)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training.num_epochs": 7.0}, r"has 5 epochs, but this run has 7;"),
        ({"training.num_epochs": 4.0}, r"has 5 epochs, but this run has 4;"),
        ({"data.seed": 3}, r"was trained on other examples: \d+ ids differ, such as \d+"),
        (
            {"data.splits": dict(train="test", test="train")},
            r"on split 'train' of 'digits', but this run is trained on 'test' of 'digits'",
        ),
        ({"score": dict(name="loss")}, r"the score 'entropy', but config\.score\.name is 'loss'"),
    ],
)
def test_a_target_of_another_number_of_epochs_or_of_other_examples_is_an_error(
    overrides, message, trained, tmp_path
):
    target = trained()
    with pytest.raises(ValueError, match=message):
        loop.train(
            config(scores="target", target=str(target), overrides=overrides), str(tmp_path / "run")
        )


def test_the_last_weights_of_a_target_of_features_of_another_scale_are_an_error(trained):
    run = assembly.build(config(scores="target_final", target=str(trained())))
    saved = loaded_run.read(trained())
    data = saved.config["data"] | {"standardize": True}
    with pytest.MonkeyPatch.context() as patch:
        other = saved._replace(config=saved.config | {"data": data})
        patch.setattr(loaded_run, "read", lambda name: other)
        with pytest.raises(ValueError, match=r"standardize=True, and this run False; its last"):
            prioritization.Target(run)
        run.config["data"]["standardize"] = True
        prioritization.Target(run)  # of the same examples
        run.description["examples_fingerprint"] = "another"
        with pytest.raises(ValueError, match=r"standardize=True of other examples, and this run"):
            prioritization.Target(run)


def test_scores_that_do_not_exist_are_none(trained):
    for line in lines(trained(choice="random", record=False)):
        assert line["chosen_score"] is line["other_score"] is None


def test_a_target_that_lacks_the_scores_of_an_epoch_is_an_error(trained, tmp_path):
    target = shutil.copytree(trained(), tmp_path / "target")
    (target / "scores" / "4.npz").unlink()
    run = assembly.build(config(scores="target", target=str(target)))
    with pytest.raises(ValueError, match=r"lacks the scores of epoch 4 of the 5 epochs"):
        prioritization.Target(run)
    loop.train(plain(**{"training.num_epochs": 1.0}), str(tmp_path / "plain"))  # has no score
    run = assembly.build(config(scores="target", target=str(tmp_path / "plain")))
    with pytest.raises(ValueError, match=r"lacks the scores of epoch 0 .*record=True"):
        prioritization.Target(run)


def test_the_scores_of_a_target_are_matched_by_id(trained, tmp_path):
    target = shutil.copytree(trained(), tmp_path / "target")
    run = assembly.build(config(scores="target", target=str(target)))
    expected = prioritization.Target(run).scores(3)
    path = target / "scores" / "3.npz"
    order = np.random.default_rng(0).permutation(NUM_TRAIN)
    restamped(path, {name: values[order] for name, values in saved_scores(path).items()})
    np.testing.assert_array_equal(prioritization.Target(run).scores(3), expected)


@pytest.mark.parametrize(
    "data",
    [
        {"data.seed": 3},
        {"data.validation_fraction": 0.5},
        {
            "data.validation_fraction": 0.0,
            "data.splits": dict(train="train[:90%]", valid="train[90%:]", test="test"),
        },
        {"data.validation_fraction": 0.0, "data.splits": dict(train="train[90%:]", test="train")},
    ],
)
def test_the_last_weights_of_a_target_that_was_trained_on_what_the_run_holds_out_are_an_error(
    data, trained
):
    run = assembly.build(config(scores="target_final", target=str(trained()), overrides=data))
    theirs = assembly.build(config()).dataset.splits["train"].ids
    split = "valid" if "valid" in run.dataset.splits else "test"
    seen = set(theirs.tolist()) & set(run.dataset.splits[split].ids.tolist())
    message = rf"trained on {len(seen):,} examples of this run's split '{split}', such as id (\d+),"
    with pytest.raises(ValueError, match=message) as error:
        prioritization.Target(run)
    assert int(re.search(message, str(error.value))[1]) in seen


@pytest.mark.parametrize(
    "data",
    [
        {"seed": 9},  # of the run; the data are the same
        {"data.validation_fraction": 0.1},  # among those that the target holds out
        {"curation": ""},  # other labels of the same examples
        {
            "data.validation_fraction": 0.0,
            "data.splits": dict(train="train", valid="test", test="test"),
        },
    ],
)
def test_the_last_weights_of_a_target_that_saw_nothing_held_out_are_no_error(data, trained):
    data = {"data.seed": 0, **data}
    run = assembly.build(config(scores="target_final", target=str(trained()), overrides=data))
    assert prioritization.Target(run).saved.directory == trained()


def test_the_target_of_excess_may_have_the_examples_of_validation_but_not_those_of_test(trained):
    settings = dict(choice="excess", score="loss", scores="evaluation", target=str(trained()))
    splits = dict(train="train[90%:]", valid="train[:40%]", test="test")
    data = {"data.validation_fraction": 0.0, "data.splits": splits}
    prioritization.Target(assembly.build(config(overrides=data, **settings)))
    data["data.splits"] = dict(train="train[90%:]", valid="test", test="train[:40%]")
    run = assembly.build(config(overrides=data, **settings))
    with pytest.raises(ValueError, match=r"was trained on \d+ examples of this run's split 'test'"):
        prioritization.Target(run)


def test_a_target_without_its_last_weights_is_an_error_before_anything_is_written(
    trained, tmp_path
):
    target = shutil.copytree(trained(), tmp_path / "target")
    shutil.rmtree(target / "checkpoints")
    with pytest.raises(checkpoint.CheckpointError):
        loop.train(config(scores="target_final", target=str(target)), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_steps_that_a_target_traced_need_not_be_steps_of_its_follower(trained):
    run = assembly.build(config(scores="target_final", target=str(trained())))
    saved = loaded_run.read(trained())
    training = saved.config["training"] | {"profile_steps": (10**6, 10**6)}
    followed = saved._replace(config=saved.config | {"training": training})
    loaded = loaded_run.with_pipeline(followed, run.pipeline)
    assert loaded.run.config["training"]["profile_steps"] is None


def test_equal_ids_of_another_stored_split_are_other_examples(trained):
    splits = dict(train="train", valid="test", test="test")
    data = {"data.validation_fraction": 0.0, "data.splits": splits}
    run = assembly.build(config(scores="target_final", target=str(trained()), overrides=data))
    ours, valid = run.dataset.splits, run.dataset.splits["valid"]
    ours["valid"] = valid._replace(ids=ours["train"].ids[: len(valid.ids)])
    assert prioritization.Target(run).saved.directory == trained()


@pytest.mark.parametrize("seed", [0, 5])
def test_a_line_says_how_many_examples_excess_shares_with_its_target(seed, trained, capsys):
    settings = dict(choice="excess", score="loss", scores="evaluation", target=str(trained()))
    run = assembly.build(config(overrides={"data.seed": seed}, **settings))
    prioritization.Target(run).log_shared()
    theirs = assembly.build(config()).dataset.splits["train"].ids
    number = len(np.intersect1d(theirs, run.dataset.splits["train"].ids))
    assert f"trained on {number:,} of the 960 training examples" in capsys.readouterr().out


def test_no_line_is_logged_on_a_target_of_other_examples(tmp_path, capsys):
    def halves(first, **settings):
        splits = {"train": first, "test": "test"}
        return {"data.validation_fraction": 0.0, "data.splits": splits} | settings

    loop.train(plain(**halves("train[:50%]", **{"training.num_epochs": 1.0})), str(tmp_path))
    settings = dict(choice="excess", score="loss", target=str(tmp_path))
    run = assembly.build(config(overrides=halves("train[50%:]"), **settings))
    capsys.readouterr()
    prioritization.Target(run).log_shared()
    assert not capsys.readouterr().out


def test_a_target_of_other_classes_or_one_that_is_not_complete_is_an_error(trained, tmp_path):
    target = shutil.copytree(trained(), tmp_path / "target")
    made = config(scores="target", target=str(target))
    content = json.loads((target / "dataset.json").read_text())
    content["class_names"][0] = "another"
    run = assembly.build(made)
    saved = loaded_run.read(target)
    other = saved._replace(dataset=content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded_run, "read", lambda name: other)
        with pytest.raises(ValueError, match=r"has other classes than this run"):
            prioritization.Target(run)
    (target / "results.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"Finish the training: python main\.py"):
        loop.train(made, str(tmp_path / "run"))


def test_the_state_has_twelve_bytes_for_each_example():
    sizes = [sum(x.nbytes for x in state_lib.no_scores(n)) for n in (1000, 2000)]
    assert sizes[1] - sizes[0] == 12 * 1000


def test_a_target_without_recorded_scores_is_an_error(trained, tmp_path):
    settings = dict(scores="target", target=str(trained(every_epochs=2, record=False)))
    with pytest.raises(ValueError, match=r"it has none\).*record=True"):
        loop.train(config(**settings), str(tmp_path / "run"))


def test_scores_that_were_changed_are_an_error(trained, tmp_path):
    target = shutil.copytree(trained(), tmp_path / "target")
    path = target / "scores" / "3.npz"
    arrays = dict(np.load(path))
    arrays["scores"][0] += 1
    np.savez(path, **arrays)
    run = assembly.build(config(scores="target", target=str(target)))
    with pytest.raises(ValueError, match=r"3\.npz was changed"):
        prioritization.Target(run).scores(3)
