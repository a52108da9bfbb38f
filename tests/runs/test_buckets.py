import signal
import time

import fsspec
import numpy as np
import pytest
from buckets import served
from small_runs import assert_same_bits, outcome, plain
from subprocesses import EXTRAS, MAIN, start_without

from heteroscedastic import files
from heteroscedastic.analysis.report import comparison, curves_section
from heteroscedastic.data.storage import store
from heteroscedastic.runs import loaded_run, loop, predictions, warm_start, workdir
from heteroscedastic.runs.checkpoint import Checkpoints
from heteroscedastic.runs.workdir import WorkdirError

pytestmark = pytest.mark.usefixtures("programs_once")


def config():
    """Three epochs, each with a checkpoint."""
    return plain(**{"training.num_epochs": 3.0, "training.checkpoint_epochs": 1.0})


@pytest.fixture(scope="module")
def bucket():
    with served() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on a disk that nothing befell."""
    path = tmp_path_factory.mktemp("whole") / "run"
    loop.train(config(), str(path))
    return path


@pytest.fixture(scope="module")
def in_bucket(bucket):
    """The same run in a bucket."""
    loop.train(config(), "gs://bucket/run")
    return "gs://bucket/run"


@pytest.mark.slow
def test_a_run_in_a_bucket_is_the_run_on_a_disk_and_is_read_like_it(in_bucket, whole):
    assert_same_bits(outcome(files.as_path("gs://bucket/run")), outcome(whole))
    names = {path.name for path in files.as_path("gs://bucket/run").iterdir()}
    (events,) = (name for name in names if name.startswith("events"))
    own = {p.name for p in whole.iterdir() if not p.name.startswith((".", "events"))}
    assert names == own | {events}
    (on_disk,) = whole.glob("events*")
    uploaded = files.as_path("gs://bucket/run") / events
    assert len(uploaded.read_bytes()) == len(on_disk.read_bytes())  # they differ in times alone
    again = loop.train(config(), "gs://bucket/run")
    assert again == loaded_run.read("gs://bucket/run").results
    with pytest.raises(WorkdirError, match="another config"):
        loop.train(config() | {"seed": 1}, "gs://bucket/run")
    there, here = (loaded_run.load(place) for place in ("gs://bucket/run", whole))
    np.testing.assert_array_equal(
        there.state.params["head"]["loc"]["kernel"], here.state.params["head"]["loc"]["kernel"]
    )
    assert predictions.names("gs://bucket/run") == predictions.names(whole)
    np.testing.assert_array_equal(
        predictions.read("gs://bucket/run", "test").logits, predictions.read(whole, "test").logits
    )
    curves = curves_section.read_metrics("gs://bucket/run")
    np.testing.assert_array_equal(
        curves["train/loss"], curves_section.read_metrics(whole)["train/loss"]
    )


@pytest.mark.slow
def test_a_bucket_that_is_down_for_a_while_delays_a_run(bucket, whole, monkeypatch):
    save = Checkpoints.save

    def save_while_it_is_down(self, *arguments):
        bucket.down_until = time.monotonic() + 2.0
        save(self, *arguments)

    monkeypatch.setattr(Checkpoints, "save", save_while_it_is_down)
    before = bucket.refused
    loop.train(config(), "gs://bucket/delayed")
    assert bucket.refused > before
    assert_same_bits(outcome(files.as_path("gs://bucket/delayed")), outcome(whole))


@pytest.mark.slow
def test_a_bucket_that_refuses_ends_a_run_that_continues_once_it_takes_files_again(
    bucket, whole, monkeypatch
):
    write = workdir.Writer.write

    def refused(self, step, values):
        if step == 30:
            bucket.answer, bucket.down_until = 403, time.monotonic() + 1000
        write(self, step, values)

    with monkeypatch.context() as patched:
        patched.setattr(workdir.Writer, "write", refused)
        with pytest.raises(OSError, match=r"metrics.jsonl could not be written.*Forbidden"):
            loop.train(config(), "gs://bucket/refused")
    bucket.answer, bucket.down_until = 503, 0.0
    loop.train(config(), "gs://bucket/refused")
    assert_same_bits(outcome(files.as_path("gs://bucket/refused")), outcome(whole))


@pytest.mark.extended
def test_a_killed_run_in_a_bucket_continues(bucket):
    """It may be killed while a checkpoint is half uploaded."""
    command = [
        "--config=configs/digits_het_pe.py",
        "--config.training.num_epochs=2.0",
        "--config.training.checkpoint_epochs=0.2",
        "--config.predictive.num_samples=8",
    ]
    process = start_without(EXTRAS - {"sklearn"}, MAIN, *command, "--workdir=gs://bucket/killed")
    directory = files.as_path("gs://bucket/killed/checkpoints")
    deadline = time.monotonic() + 200
    while not (directory.exists() and len(list(directory.iterdir())) > 1):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ended = start_without(EXTRAS - {"sklearn"}, MAIN, *command, "--workdir=gs://bucket/killed")
    output, errors = ended.communicate(timeout=300)
    assert ended.returncode == 0, errors
    assert "continuing from step" in output
    assert loaded_run.read("gs://bucket/killed").results["step"] == 30


def test_data_in_a_bucket_is_the_data_on_a_disk(bucket):
    here = store.load("digits")
    assert not store.is_there("mine", "gs://bucket/data")
    store.write(files.as_path("gs://bucket/data/mine.npz"), here)
    assert store.is_there("mine", "gs://bucket/data")
    there = store.load("mine", "gs://bucket/data")
    for split in here.splits:
        np.testing.assert_array_equal(there.splits[split].inputs, here.splits[split].inputs)
        np.testing.assert_array_equal(there.splits[split].labels, here.splits[split].labels)


def test_another_kind_of_bucket_is_an_error_that_says_which_one_is_known():
    with pytest.raises(ValueError, match=r"s3://.*gs://BUCKET"):
        loop.train(config(), "s3://bucket/run")


@pytest.mark.slow
def test_runs_in_a_bucket_are_compared(in_bucket):
    (group,) = comparison.groups([in_bucket])
    assert group.runs[0].results == loaded_run.read(in_bucket).results
    with pytest.raises(ValueError, match="given twice"):
        comparison.groups([in_bucket, f"{in_bucket}/"])


@pytest.mark.slow
def test_a_run_starts_from_a_run_in_a_bucket(in_bucket, whole):
    template = loaded_run.load(whole).state
    there, here = (
        warm_start.read(dict(workdir=str(x), checkpoint="last", head=True, weights=None), template)
        for x in (in_bucket, whole)
    )
    assert there.arrays.keys() == here.arrays.keys()
    for name, array in here.arrays.items():
        np.testing.assert_array_equal(there.arrays[name], array)


@pytest.mark.extended
def test_a_damaged_checkpoint_in_a_bucket_is_moved_aside_and_made_again(in_bucket, whole):
    """The last one to use this run, as it damages it."""
    path = files.as_path(in_bucket)
    (path / "results.json").unlink()
    last = max((p for p in (path / "checkpoints").iterdir()), key=lambda p: int(p.name))
    for name in fsspec.filesystem("gs").find(str(last / "state")):
        file = files.as_path(f"gs://{name}")
        file.write_bytes(file.read_bytes()[:10])
    loop.train(config(), str(path))
    assert [p.name for p in (path / "checkpoints_damaged").iterdir()] == [last.name]
    assert_same_bits(outcome(path), outcome(whole))
