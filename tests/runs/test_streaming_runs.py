"""Whole runs over streams."""

import json
import logging
import re
import shutil
import signal
import sys
import time

import jax
import numpy as np
import pytest
from pack import PACK, needs
from streams import NUM_TEST, NUM_TRAIN, prepare, relabelled
from subprocesses import EXTRAS, MAIN, free_address, outputs, run_without, start_without

pytest.importorskip("tensorflow_datasets")

from experiments import study
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.data.storage import tfds
from heteroscedastic.runs import assembly, by_example, loaded_run, loop, predictions, workdir
from heteroscedastic.training import evaluate

pytestmark = pytest.mark.usefixtures("programs_once")

SPLITS = {"train": "train", "test": "test"}


def config(name="same", **data):
    """Three classes of small images, in five epochs of six steps."""
    section = dict(
        pipeline="streaming",
        name=name,
        splits=SPLITS,
        train="flip_lr|value_range(-1, 1)",
        eval="value_range(-1, 1)",
        validation_fraction=0.0,
        reader_shards=4,
        window=5,
    )
    made = study.config("digits_hom", {})
    made["data"], made["curation"], made["validation"] = section | data, "", None
    made["head"]["num_classes"] = 3
    made["evals"] = {"test": {"split": "test"}, "train": {"split": "train"}}
    made["training"] |= dict(batch_size=8, num_epochs=5.0, num_steps=None, checkpoint_epochs=0.5)
    return made


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    prepare(directory, "same", size=(20, 24))
    prepare(directory, "broken", (3, 30))
    return str(directory)


def test_evaluation_is_that_of_the_resident_pipeline(data_dir):
    streaming, in_memory = config(), config()
    for word in ("pipeline", "reader_shards", "window"):
        del in_memory["data"][word]
    found = []
    for made in (streaming, in_memory):
        run = assembly.build(made, data_dir)
        state = jax.jit(run.init)(run.root_key)
        step = jax.jit(run.eval_step)

        def one(feed, key, run=run, state=state, step=step):
            return step(state.params, state.model_state, run.pipeline.arrays["test"], feed, key)

        sums, told = evaluate.evaluate(
            one, run.pipeline.feeds("test", np.arange(8)), jax.random.key(0)
        )
        rows = np.argsort(told.ids)
        found.append((sums, jax.tree.map(lambda x, rows=rows: x[rows], told)))
    assert len(found[0][1].ids) == NUM_TEST
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *found)


@pytest.mark.parametrize(
    ("part", "counts"),
    [
        ({}, False),
        ({"loss": dict(name="logit_adjusted")}, True),
        ({"weighting": dict(name="effective_number", beta=0.9)}, True),
    ],
)
def test_a_stream_counts_its_labels_for_the_parts_that_depend_on_the_counts(data_dir, part, counts):
    streamed = assembly.build({**config(), **part}, data_dir).pipeline
    assert streamed.class_counts.sum() == (NUM_TRAIN if counts else 0)


def test_what_could_not_be_decoded_is_told_with_the_results_and_the_rest_is_read_by_analysis(
    data_dir, tmp_path, caplog
):
    made = config(
        "broken",
        train="inception_crop(8)|flip_lr|value_range(-1, 1)",
        eval="resize(8)|value_range(-1, 1)",
    )
    made["training"]["num_epochs"] = 1.0
    with caplog.at_level(logging.WARNING):
        results = loop.train(made, str(tmp_path / "run"), data_dir)
    assert results["left_out"] == {"train": [3, 30]}
    assert "cannot be decoded" in caplog.text
    with np.load(tmp_path / "run" / "predictions" / "train.npz") as stored:
        assert (np.diff(stored["ids"]) < 0).any()  # shards take turns
    found = predictions.read(tmp_path / "run", "train")
    np.testing.assert_array_equal(found.ids, np.setdiff1d(np.arange(NUM_TRAIN), (3, 30)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["calibration", f"--run={tmp_path / 'run'}", "--fit=test"])
        calibration.main()
    again = loaded_run.load(tmp_path / "run", data_dir=data_dir)
    assert again.run.dataset.splits["test"] is again.run.dataset.splits["test"]  # decoded once
    averaged = by_example.map_latents(
        again, "test", lambda key, latent, batch: (latent.loc, batch.ids)
    )
    found = predictions.read(tmp_path / "run", "test")
    np.testing.assert_array_equal(averaged[1], found.ids)
    log_probs = jax.nn.log_softmax(averaged[0], axis=-1)
    np.testing.assert_allclose(log_probs, jax.nn.log_softmax(found.logits, axis=-1), atol=1e-4)


@pytest.mark.extended
def test_a_run_that_too_many_images_stopped_goes_on_once_more_are_allowed(data_dir, tmp_path):
    made = config(
        "broken",
        train="inception_crop(8)|flip_lr|value_range(-1, 1)",
        eval="resize(8)|value_range(-1, 1)",
    )
    made["evals"], made["training"]["num_epochs"] = {"test": {"split": "test"}}, 2.0
    whole = loop.train(made, str(tmp_path / "whole"), data_dir)
    strict = {**made, "data": {**made["data"], "max_corrupt": 1}}
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"more than 1 images cannot be decoded.*raise config.data.max_corrupt"
        ):
            loop.train(strict, str(tmp_path / "run"), data_dir)
    again = loop.train(made, str(tmp_path / "run"), data_dir)
    assert (again["evals"], again["left_out"]) == (whole["evals"], {"train": [3, 30]})
    # What was left out is known to a process that reads none of it.
    (tmp_path / "run" / "results.json").unlink()
    assert loop.train(made, str(tmp_path / "run"), data_dir)["left_out"] == {"train": [3, 30]}


@pytest.mark.extended
def test_a_file_of_records_that_vanishes_ends_a_run_that_continues_once_it_is_back(
    data_dir, tmp_path, monkeypatch
):
    directory = shutil.copytree(data_dir, tmp_path / "data")
    (record, *_) = sorted((directory / "same").rglob("*-train.tfrecord-*"))
    made = config() | {"mixing": dict(name="cutmix", draws="example")}
    made["training"]["num_epochs"] = 2.0
    write = workdir.Writer.write

    def without(self, step, values):
        write(self, step, values)
        if step == 9:
            record.rename(tmp_path / "away")

    with monkeypatch.context() as patched:
        patched.setattr(workdir.Writer, "write", without)
        with pytest.raises(
            ValueError, match=rf"train cannot be read: {record} is missing, .* restore the file"
        ):
            loop.train(made, str(tmp_path / "run"), str(directory))
    (tmp_path / "away").rename(record)
    again = loop.train(made, str(tmp_path / "run"), str(directory))
    assert again["evals"] == loop.train(made, str(tmp_path / "whole"), str(directory))["evals"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"pipeline": "stream"}, "data.pipeline is 'stream'; choose one of resident, streaming"),
        ({"reader_shards": 0}, "config.data.reader_shards is 0; it must be a whole number >= 1"),
        ({"window": 0}, "config.data.window is 0"),
        (
            {"pipeline": "resident"},
            "config.data.reader_shards is a setting of the streaming",
        ),
        (
            {"train": "shift(1)"},
            "config.data.train: ops has no 'shift'; choose one of blend_jitter",
        ),
        (
            {"splits": {"train": "train"}},
            "splits \\['test'\\] are evaluated, but the data set has \\['train'\\]",
        ),
        (
            {"reader_shards": 3},
            "config.data.reader_shards is 3, but must divide config.training.batch_size, 8",
        ),
    ],
)
def test_a_config_that_asks_for_no_stream_there_is_says_so(data_dir, data, message):
    with pytest.raises(ValueError, match=message):
        assembly.build(config(**data), data_dir)


def test_without_tensorflow_a_stream_says_what_to_do(data_dir, tmp_path):
    program = (
        "import sys; from experiments import study; from heteroscedastic.runs import assembly\n"
        "config = study.config('tiny_imagenet_hom', {})\n"
        "assembly.build(config, sys.argv[1])\n"
    )
    done = run_without(EXTRAS, program, data_dir)
    assert (
        "config.data.pipeline is 'streaming', which reads by TensorFlow, and that is not installed"
        in done.stderr
    )
    assert "pip install -e" in done.stderr


PROGRAM = """
import json, sys, zlib
from heteroscedastic.data.streaming import stream as streaming
from heteroscedastic.distributed import hosts
from heteroscedastic.runs import loop
feeds = streaming.Streaming.training_feeds
def told(self, *which):
    for feed in feeds(self, *which):
        print("fed", feed.ids.tolist(), zlib.crc32(feed.inputs.tobytes()), flush=True)
        yield feed
streaming.Streaming.training_feeds = told
config, directory, data_dir, coordinator, number, index = sys.argv[1:]
if int(number) > 1:
    hosts.start(coordinator, int(number), int(index))
loop.train(json.loads(config), directory, data_dir)
"""


def start(number, directory, data_dir, made):
    coordinator = free_address()
    common = (json.dumps(made), str(directory), data_dir, coordinator, str(number))
    return [start_without({"tensorboard"}, PROGRAM, *common, str(i)) for i in range(number)]


@pytest.mark.extended
def test_two_processes_that_are_killed_go_on_as_one_with_the_next_example(data_dir, tmp_path):
    made = config()
    (alone,) = start(1, tmp_path / "alone", data_dir, made)
    together = start(2, tmp_path / "together", data_dir, made)
    lines = tmp_path / "together" / "metrics.jsonl"
    while not lines.exists() or len(lines.read_text().splitlines()) < 3:
        assert together[0].poll() is None, together[0].communicate()
        time.sleep(0.001)
    for process in together:
        process.kill()
    assert {p.wait() for p in together} == {-signal.SIGKILL}
    whole, errors = alone.communicate(timeout=300)
    assert alone.returncode == 0, errors
    (rest,) = start(1, tmp_path / "together", data_dir, made)
    output, errors = rest.communicate(timeout=300)
    assert rest.returncode == 0, errors
    # From there on every step has the examples of the run that was left alone, bit for bit.
    step = int(re.search(r"continuing from step (\d+)", output)[1])
    one, other = (
        [line for line in text.splitlines() if line.startswith("fed ")] for text in (whole, output)
    )
    assert len(one) == 30 > step > 0
    assert other == one[step:]
    one, other = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("alone", "together")
    )
    assert [line["step"] for line in other] == [line["step"] for line in one]
    for a, b in zip(one, other):
        assert b == pytest.approx(a, rel=1e-3, abs=1e-4, nan_ok=True)
    for name in made["evals"]:
        a, b = (
            np.load(tmp_path / run / "predictions" / f"{name}.npz") for run in ("alone", "together")
        )
        np.testing.assert_array_equal(a["ids"], b["ids"])
        np.testing.assert_allclose(a["logits"], b["logits"], rtol=1e-3, atol=1e-3)


@pytest.mark.extended
def test_what_either_of_two_processes_cannot_decode_is_told_of_the_run(data_dir, tmp_path):
    made = config(
        "broken",
        train="inception_crop(8)|flip_lr|value_range(-1, 1)",
        eval="resize(8)|value_range(-1, 1)",
    )
    made["training"]["num_epochs"], made["evals"] = 1.0, {"test": {"split": "test"}}
    both = start(2, tmp_path / "run", data_dir, made)
    said = outputs(both)
    assert [process.returncode for process in both] == [0, 0], said
    assert json.loads((tmp_path / "run" / "results.json").read_text())["left_out"] == {
        "train": [3, 30]
    }
    # Each was found by one process alone.
    assert sorted(re.findall(r"images of ids \[(.*?)\] cannot", errors) for _, errors in said) == [
        ["3"],
        ["30"],
    ]


@pytest.mark.extended
def test_what_one_of_two_hosts_reads_wrong_ends_both_and_names_what_it_was(data_dir, tmp_path):
    made = tmp_path / "made.py"
    made.write_text(
        "from ml_collections import ConfigDict\ndef get_config(): return"
        f" ConfigDict({config()!r})\n"
    )
    faults, running = ("a label", "an empty file"), []
    for fault in faults:
        directory = shutil.copytree(data_dir, tmp_path / fault)
        *_, last = sorted(
            (directory / "same").rglob("*-train.tfrecord-*")
        )  # which the second host reads alone
        if fault == "a label":
            relabelled(last, 3, "label", [99])
        else:
            last.write_bytes(b"")
        coordinator = f"--coordinator={free_address()}"
        words = [
            f"--config={made}",
            f"--workdir={directory / 'run'}",
            f"--data_dir={directory}",
            "--hosts",
            coordinator,
        ]
        words.append("--num_processes=2")
        running.append(
            [start_without({"tensorboard"}, MAIN, *words, f"--process_id={i}") for i in range(2)]
        )
    said = [[errors for _, errors in outputs(pair, 180)] for pair in running]
    for fault, pair, (_, errors) in zip(faults, running, said):
        assert all(process.returncode not in (0, None) for process in pair), said
        expected = (
            "of id 30 has label 99, but the 3"
            if fault == "a label"
            else "has 0 records, but its metadata states"
        )
        assert f"same in {tmp_path / fault}: train" in errors, said
        assert expected in errors, said


@pytest.mark.extended
@needs("coco")
def test_a_row_of_jft_runs_on_the_public_set_of_its_form(tmp_path):
    (tmp_path / "coco").symlink_to(f"{PACK}/coco")
    tfds.library().builder("coco_labels", data_dir=tmp_path).download_and_prepare()
    splits = dict(train="train[8:]", valid="train[:8]", test="validation")
    small = {
        "backbone": dict(name="ResNet8"),
        "predictive.num_samples": 8,
        "head.num_factors": 3,
        "data.reader_shards": 4,
    }
    view = {
        "data.train": "inception_crop(32)|flip_lr|value_range(-1, 1)",
        "data.eval": "resize(32)|value_range(-1, 1)",
    }
    made = study.config(
        "jft_het_pe",
        {"data.name": "coco_labels", "data.splits": splits, "head.num_classes": 80, **small, **view}
        | {"training.batch_size": 16, "training.num_epochs": 1.0, "schedule.warmup_steps": 2},
    )
    made["evals"] = {"test": made["evals"]["test"]}
    results = loop.train(made, str(tmp_path / "run"), str(tmp_path))
    assert results["step"] == 6
    assert 0 < results["evals"]["test"]["gap"] < 1
    assert np.isfinite(results["evals"]["test"]["nll"])
    labels = np.load(tmp_path / "run" / "predictions" / "test.npz")["labels"]
    assert labels.shape[0] == 60
    assert (labels >= 0).sum() > 60
