import itertools
import json
import logging
import os
import random
import re
import shutil
import signal
import time

import jax
import numpy as np
import pytest
from small_runs import assert_same_bits, outcome, plain, small
from subprocesses import EXTRAS, MAIN, run_without, start_without, with_devices

from heteroscedastic.data.storage import store
from heteroscedastic.runs import assembly, loop, predictions, workdir
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.runs.trace import Trace
from heteroscedastic.training import evaluate
from launch.command import SAVED

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    store.write(path / "digits.npz", store.load("digits"))
    return path


def arguments(directory, data_dir):
    """The run of `small` in a process of its own."""
    return (
        "--config=configs/digits_het_pe.py",
        "--config.training.num_epochs=4.0",
        "--config.training.checkpoint_epochs=1.0",
        "--config.predictive.num_samples=8",
        f"--workdir={directory}",
        f"--data_dir={data_dir}",
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A small run, made in this process, and the results. A test that changes it copies it."""
    directory = tmp_path_factory.mktemp("complete") / "run"
    return directory, loop.train(small(), str(directory))


@pytest.fixture(scope="module")
def complete(first):
    """The directory of the small run."""
    return first[0]


def num_lines(directory):
    path = directory / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def until_lines(process, directory, number):
    while num_lines(directory) < number and process.poll() is None:
        time.sleep(0.001)


# A line is written just before a checkpoint is, so that a kill falls into writing one, or soon
# after; None falls anywhere between the start and the first steps.
@pytest.mark.slow
@pytest.mark.parametrize(
    "killed_at",
    [
        ("line",),
        pytest.param(("line", None, "evaluations"), marks=pytest.mark.extended),
    ],
)
def test_a_run_that_others_find_in_use_and_that_is_terminated_and_killed_ends_with_the_same_bits(
    killed_at, complete, data_dir, tmp_path
):
    draws, directory = random.Random(0), tmp_path / "run"
    process = start_without(EXTRAS, MAIN, *arguments(directory, data_dir))
    began = time.monotonic()
    until_lines(process, directory, 1)
    start_up = time.monotonic() - began
    process.send_signal(signal.SIGSTOP)  # it would end before the second has begun
    with pytest.raises(workdir.WorkdirError, match="another process is using"):
        loop.train(small(), str(directory), str(data_dir))
    process.terminate()
    process.send_signal(signal.SIGCONT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == SAVED, errors
    assert "is saved in" in output

    num_kills, num_starts = 0, 0
    moments = list(killed_at)
    while moments:
        moment = moments.pop(0)
        num_starts += 1
        assert num_starts < 20, "processes end before they are killed"
        process = start_without(EXTRAS, MAIN, *arguments(directory, data_dir))
        if moment is None:
            time.sleep(draws.uniform(0, start_up))
        elif moment == "evaluations":
            while not list((directory / "predictions").glob("*.npz")) and process.poll() is None:
                time.sleep(0.001)
        else:
            until_lines(process, directory, num_lines(directory) + 1)
            time.sleep(draws.choice((0, 0.05, 0.2)) * draws.random())
        process.kill()
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            num_kills += 1
        else:  # the machine was too fast this time
            moments.append(None)
        # Written before the kill, or before the process has left.
        (directory / "results.json").unlink(missing_ok=True)
    assert num_kills == len(killed_at)
    done = run_without(EXTRAS, MAIN, *arguments(directory, data_dir))
    assert "continuing from step" in done.stdout, done.stderr
    assert_same_bits(outcome(directory), outcome(complete))
    assert not list(directory.rglob("*tmp*"))


def test_sigterm_in_an_evaluation_ends_it_and_the_rest_is_the_same_bits(
    complete, tmp_path, monkeypatch
):
    """Each a process: the number of the evaluation, and of its step.

    Of four, the first four validate; the last continues among the evaluations at the end.
    """
    cut = tmp_path / "cut"
    evaluated = evaluate.evaluate
    for moment in [(1, 2), (0, 0), (5, 1), (2, 0)]:
        numbers, steps = itertools.count(), []

        def interrupted(step, feeds, key, keeps, moment=moment, numbers=numbers, steps=steps):
            number = next(numbers)

            def told(feed, key):
                if (number, len(steps)) == moment:
                    os.kill(os.getpid(), signal.SIGTERM)
                found = step(feed, key)
                steps.extend([found] if number == moment[0] else [])
                return found

            return evaluated(told, feeds, key, keeps)

        with monkeypatch.context() as patched:
            patched.setattr(evaluate, "evaluate", interrupted)
            with pytest.raises(SystemExit) as left:
                loop.train(small(), str(cut))
        assert left.value.code == SAVED
        assert len(steps) == moment[1]
        assert not (cut / "results.json").exists()
    loop.train(small(), str(cut))
    assert_same_bits(outcome(cut), outcome(complete))


@pytest.mark.extended
def test_eight_devices_agree_with_one(complete, data_dir, tmp_path):
    done = run_without(EXTRAS, MAIN, *arguments(tmp_path / "run", data_dir), env=with_devices(8))
    assert "on 8 x" in done.stdout, done.stderr
    one, eight = outcome(complete), outcome(tmp_path / "run")
    for ours, theirs in zip(one[1], eight[1], strict=True):
        assert json.loads(theirs)["valid/nll"] == pytest.approx(
            json.loads(ours)["valid/nll"], rel=1e-5
        )
    # Later rounding decides between classes of equal loc for the better Sobol points, and moves a
    # sample.
    assert eight[0]["evals"]["valid"]["nll"] == pytest.approx(
        one[0]["evals"]["valid"]["nll"], rel=1e-2
    )


def test_a_complete_run_is_left_alone(first, capsys):
    directory, results = first
    before = {p: p.stat().st_mtime_ns for p in directory.rglob("*")}
    again = loop.train(small(), str(directory))
    assert "complete; nothing to do" in capsys.readouterr().out
    assert again == results
    assert {p: p.stat().st_mtime_ns for p in directory.rglob("*")} == before


def test_a_run_of_another_config_is_refused_with_the_difference(complete):
    with pytest.raises(workdir.WorkdirError, match=r"head.temperature: 1.0 -> 3.0"):
        loop.train(small(**{"head.temperature": 3.0}), str(complete))


def test_a_directory_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(workdir.WorkdirError, match="no run"):
        loop.train(small(), str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_is_not_continued_on_other_data(tmp_path):
    data = store.load("digits")
    store.write(tmp_path / "digits.npz", data)
    made = plain(**{"training.num_epochs": 1.0})
    loop.train(made, str(tmp_path / "run"), str(tmp_path))
    (tmp_path / "run" / "results.json").unlink()
    data.splits["train"].inputs[0, 0, 0, 0] ^= 1
    store.write(tmp_path / "digits.npz", data)
    with pytest.raises(workdir.WorkdirError, match="other data"):
        loop.train(made, str(tmp_path / "run"), str(tmp_path))


def test_a_truncated_checkpoint_is_passed_over(complete, tmp_path, caplog):
    damaged = shutil.copytree(complete, tmp_path / "damaged")
    (damaged / "results.json").unlink()
    steps = sorted(int(p.name) for p in (damaged / "checkpoints").iterdir() if p.name.isdigit())
    for path in (damaged / "checkpoints" / str(steps[-1]) / "state").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    with caplog.at_level(logging.WARNING):
        loop.train(small(), str(damaged))
    assert re.search(rf"checkpoint of step {steps[-1]} in .* cannot be read", caplog.text)
    assert (damaged / "checkpoints_damaged" / str(steps[-1])).is_dir()
    assert_same_bits(outcome(damaged), outcome(complete))


def test_where_no_checkpoint_can_be_read_nothing_is_moved(complete, tmp_path):
    directory = shutil.copytree(complete, tmp_path / "run")
    (directory / "results.json").unlink()
    number = sum(path.name.isdigit() for path in (directory / "checkpoints").iterdir())
    for path in (directory / "checkpoints").glob("*/state/**/*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    before = {p: p.read_bytes() for p in (directory / "checkpoints").rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match=f"none of the {number} checkpoints"):
        loop.train(small(), str(directory))
    assert {
        p: p.read_bytes() for p in (directory / "checkpoints").rglob("*") if p.is_file()
    } == before


def test_the_best_checkpoint_outlives_a_restart(tmp_path):
    run = assembly.build(plain())
    state = jax.jit(run.init)(run.root_key)

    def at(step):
        return state._replace(step=jax.numpy.int32(step))

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(at(1), {"best_step": 1}, best_step=1)
    with Checkpoints(tmp_path) as checkpoints:
        told = checkpoints.last(state)[1]
        for step in (2, 3, 4, 5):
            checkpoints.save(at(step), told, best_step=told["best_step"])
    with Checkpoints(tmp_path) as checkpoints:
        assert int(checkpoints.restore(1, state)[0].step) == 1
        with pytest.raises(CheckpointError, match=r"step 2 in .* cannot be read"):
            checkpoints.restore(2, state)
    kept = sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit())
    assert kept == [1, 4, 5]


def test_the_best_checkpoint_is_the_one_of_smallest_validation_loss(tmp_path):
    """The rate rises at the end, so that the last checkpoint is not the best one."""
    schedule = dict(
        name="steps", learning_rate=0.05, milestones=(0.5,), factor=100.0, warmup_epochs=0.0
    )
    config = plain(schedule=schedule, **{"training.checkpoint_epochs": 1.0})
    config["validation"] = dict(split="valid", metric="nll")
    config["evals"] = {
        "valid": dict(split="valid", checkpoint="last"),
        "valid_best": dict(split="valid", checkpoint="best"),
    }
    results = loop.train(config, str(tmp_path / "run"))
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["valid/nll"] for line in lines if "valid/nll" in line}
    assert results["best_step"] == min(losses, key=losses.get) != max(losses)
    best = results["evals"]["valid_best"]["nll"]
    assert best == pytest.approx(min(losses.values()), rel=1e-2)
    assert best < results["evals"]["valid"]["nll"]


def test_a_loss_that_is_not_finite_stops_the_run_and_the_last_good_checkpoint_stays(tmp_path):
    explosion = tuple(0.55 + 0.001 * i for i in range(8))
    schedule = dict(
        name="steps", learning_rate=0.1, milestones=explosion, factor=1e4, warmup_epochs=0.0
    )
    settings = {"optimizer.clip_norm": None, "training.checkpoint_epochs": 1.0}
    config = plain(schedule=schedule, **settings)
    with pytest.raises(
        loop.NotFiniteError, match=r"at step 3\d;"
    ):  # 60 steps, the rate explodes after 33
        loop.train(config, str(tmp_path / "run"))
    assert not (tmp_path / "run" / "results.json").exists()
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    state, _ = checkpoints.last(assembly.build(config).shapes)
    assert int(state.step) == 30
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


def test_a_run_leaves_what_the_design_says(first):
    directory, results = first
    config = small()
    assert json.loads((directory / "config.json").read_text()) == json.loads(json.dumps(config))
    told = json.loads((directory / "dataset.json").read_text())
    assert told["class_names"][3] == "three"
    assert told["num_examples"] == {"train": 960, "valid": 240, "test": 597}
    for name, settings in config["evals"].items():
        saved = np.load(directory / "predictions" / f"{name}.npz")
        assert len(saved["ids"]) == told["num_examples"][settings["split"]]
        accuracy = (saved["logits"].argmax(-1) == saved["labels"]).mean()
        assert accuracy == pytest.approx(results["evals"][name]["accuracy"], abs=1e-9)
    assert results["step"] == 60
    assert results["best_step"] in range(15, 61, 15)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [15, 30, 45, 60]
    best = min(lines, key=lambda line: line["valid/nll"])
    assert best["step"] == results["best_step"]


def test_one_label_an_example_may_be_learned_as_yes_or_no_answers(tmp_path):
    """The question of Table 11: the highest log-odds predict, and the file holds lists of one
    label.
    """
    config = small(
        task="one_vs_rest",
        evals={"test": dict(split="test", checkpoint="last")},
        validation=None,
        loss=dict(name="sigmoid_cross_entropy"),
        predictive=dict(name="sigmoid"),
    )
    told = loop.train(config, str(tmp_path / "run"))["evals"]["test"]
    saved = np.load(tmp_path / "run" / "predictions" / "test.npz")
    logits, labels = saved["logits"].astype(np.float64), saved["labels"]
    assert labels.shape == (597, 1)
    holds = np.arange(10) == labels
    assert told["accuracy"] == pytest.approx((logits.argmax(-1) == labels[:, 0]).mean(), abs=1e-9)
    assert told["accuracy"] > 0.5
    assert told["nll"] == pytest.approx(
        np.logaddexp(0, np.where(holds, -logits, logits)).sum(-1).mean(), rel=1e-4
    )
    read = predictions.read(tmp_path / "run", "test")
    assert told["nll"] == pytest.approx(predictions.losses(read).mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"head.temperature": 0.0}, "config.head: temperature is 0.0"),
        ({"head.num_factors": -1}, "config.head: num_factors is -1"),
        ({"head.num_classes": 9}, "config.head.num_classes is 9, but digits has 10"),
        (
            {"head.name": "Full"},
            "config.head: heads has no 'Full'; choose one of Deterministic, Diagonal",
        ),
        ({"predictive.num_samples": 0}, "num_samples is 0"),
        ({"predictive": dict(name="deterministic")}, "ignores noise, but the latent has noise"),
        (
            {"predictive": dict(name="sigmoid_sampled", num_samples=8)},
            "is of the link sigmoid, but",
        ),
        (
            {"loss": dict(name="sigmoid_cross_entropy")},
            "config.loss 'sigmoid_cross_entropy' is of the link sigmoid, but config.task 'multi",
        ),
        (
            {"data.name": "digits_pairs", "curation": ""},
            "config.task is .multiclass., but digits_pairs has a list of labels per example",
        ),
        ({"backbone": dict(widths=(8,))}, "config.backbone is .* must be a section with a name"),
        (
            {"data": dict(name="digits", train="")},
            "config.data needs a value for 'eval', 'validation_fraction'",
        ),
        ({"loss": dict(name="hinge")}, "choose one of cross_entropy, focal"),
        ({"loss": dict(name="cross_entropy", gamma=2.0)}, "has no setting 'gamma'"),
        ({"data.train": "pad_crop(4)|rotate(10)"}, "config.data.train: augment has no 'rotate'"),
        ({"data.name": "mnist"}, "no data set 'mnist'"),
        ({"data.validation_fraction": 1.5}, "validation_fraction is 1.5"),
        ({"curation": "confuse_random_pairs(num_pairs=3, rate=1.4)"}, "rate is 1.4"),
        ({"optimizer.momentum": 1.0}, "momentum is 1.0"),
        ({"schedule.warmup_epochs": -1.0}, "warmup_epochs is -1.0"),
        ({"seed": -1}, "config.seed is -1"),
        ({"training.batch_size": 0}, "config.training.batch_size is 0"),
        ({"training.num_steps": 5}, "num_epochs or num_steps"),
        ({"validation.metric": "f1"}, "config.validation.metric is 'f1'; choose one of"),
        ({"evals.test": dict(split="testing")}, r"splits \['testing'\]"),
        ({"evals.test": dict(split="test", checkpoint="first")}, "choose one of last, best"),
        (
            {"evals.test": dict(split="test", crop=224)},
            "config.evals.test has no setting 'crop'; its settings are split",
        ),
    ],
)
def test_bad_values_are_told_before_anything_is_touched(overrides, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        loop.train(small(**overrides), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_section_or_setting_that_nobody_reads_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"has .mixin., which is not a section"):
        loop.train(small() | {"mixin": dict(name="mixup")}, str(tmp_path / "run"))
    config = small()
    config["data"]["cache"] = True
    with pytest.raises(ValueError, match=r"config\.data has no setting 'cache'"):
        loop.train(config, str(tmp_path / "run"))
    config = small()
    config["training"]["parameters"] = "scattered"
    with pytest.raises(ValueError, match="choose one of replicated, sharded"):
        loop.train(config, str(tmp_path / "run"))


def test_a_few_steps_are_traced_where_the_config_says_so_and_the_run_stays_the_run_that_it_was(
    tmp_path, capsys
):
    config = plain(**{"training.num_epochs": None, "training.num_steps": 12})
    config["training"]["profile_steps"] = (4, 13)
    with pytest.raises(ValueError, match="the first and the last step to trace, of 12"):
        loop.train(config, str(tmp_path / "run"))
    config["training"]["profile_steps"] = (4, 6)
    done = loop.train(config, str(tmp_path / "run"))
    traces = list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert len(traces) == 1
    assert traces[0].stat().st_size > 1000
    told = capsys.readouterr().out
    assert "steps 4 to 6 are traced: tensorboard --logdir=" in told
    assert re.search(r"(compute|input)-bound \(\d+% waiting for data\)", told)
    assert done["goodput"]["wall"] == pytest.approx(done["seconds"], abs=1)
    del config["training"]["profile_steps"]
    assert loop.train(config, str(tmp_path / "run"))["evals"] == done["evals"]


def test_a_process_that_begins_among_the_steps_to_trace_traces_the_rest(tmp_path, capsys):
    trace = Trace((4, 6), tmp_path, 4)
    for step in (5, 6, 7):
        trace.before(step, np.zeros(1))
        trace.after(step, np.zeros(1))
    assert "steps 5 to 6 are traced" in capsys.readouterr().out
    assert len(list((tmp_path / "profile").rglob("*.xplane.pb"))) == 1
    Trace((4, 6), tmp_path, 6)
    assert capsys.readouterr().out == ""
    Trace((4, 6), tmp_path / "other", 6)
    assert (
        "steps 4 to 6 are not traced, as this process resumes after step 6"
        in capsys.readouterr().out
    )
