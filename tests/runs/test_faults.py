"""What can befall a whole run, each in this process; kills are in test_loop.py."""

import os
import resource
import shutil
import signal

import jax
import pytest
from small_runs import assert_same_bits, outcome

from experiments import study
from heteroscedastic.runs import loop, trace, workdir
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training import evaluate

pytestmark = pytest.mark.usefixtures("programs_once")
STEPS = 15  # an epoch


def config(**overrides):
    """Four epochs, each with a checkpoint."""
    settings = {"training.num_epochs": 4.0, "training.checkpoint_epochs": 1.0}
    made = study.config("digits_hom", settings | overrides)
    return made | {"evals": {name: made["evals"][name] for name in ("test", "test_best")}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing befell."""
    path = tmp_path_factory.mktemp("whole") / "run"
    loop.train(config(), str(path))
    return path


@pytest.fixture
def room():
    """Sets how large a file may grow: beyond it, writes fail as on a full disk, in whatever
    language.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size=limits[0]: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_is_full_again_and_again_stops_a_run_that_ends_with_the_same_bits(
    whole, tmp_path, room, monkeypatch
):
    directory = tmp_path / "run"
    path = directory / "metrics.jsonl"
    write, save, arrays = workdir.Writer.write, Checkpoints.save, evaluate.arrays

    def save_and_wait(self, *args):  # so that the disk is full for one file alone
        save(self, *args)
        self.wait()

    monkeypatch.setattr(Checkpoints, "save", save_and_wait)

    def full_at(number, size, after):
        def wrapped(self, step, values):
            if after:
                write(self, step, values)
            if step == number:
                room(size())
            if not after:
                write(self, step, values)

        return wrapped

    def room_for_one_line():
        return path.stat().st_size + 30

    with monkeypatch.context() as patched:  # metrics
        patched.setattr(workdir.Writer, "write", full_at(2 * STEPS, room_for_one_line, after=False))
        with pytest.raises(OSError, match=r"File too large: .*metrics.jsonl"):
            loop.train(config(), str(directory))
    room()
    assert len(path.read_text().splitlines()) == 1
    with monkeypatch.context() as patched:  # a checkpoint
        patched.setattr(workdir.Writer, "write", full_at(3 * STEPS, lambda: 20_000, after=True))
        with pytest.raises(
            CheckpointError, match=r"step 45 could not be written .*the same command resumes"
        ):
            loop.train(config(), str(directory))
    room()
    run = loop.assembly.build(config())
    with Checkpoints(directory / "checkpoints") as checkpoints:
        assert int(checkpoints.last(jax.jit(run.init)(run.root_key))[0].step) == 2 * STEPS

    def full(predictions):
        room(1_000)
        return arrays(predictions)

    with monkeypatch.context() as patched:  # predictions
        patched.setattr(evaluate, "arrays", full)
        with pytest.raises(OSError, match=r"File too large: .*test.npz"):
            loop.train(config(), str(directory))
    room()
    assert not list((directory / "predictions").iterdir())
    loop.train(config(), str(directory))
    assert_same_bits(outcome(directory), outcome(whole))
    assert not list(directory.rglob("*tmp*"))


def test_a_run_is_not_continued_from_the_checkpoints_of_another(whole, tmp_path):
    theirs = {p.name for p in (whole / "checkpoints").iterdir()}
    directory = tmp_path / "run"
    shutil.copytree(whole / "checkpoints", directory / "checkpoints")
    other = config(seed=1)
    workdir.files.write_json(directory / "config.json", other)
    with pytest.raises(
        CheckpointError, match=r"none of the \d checkpoints .*it belongs to another run"
    ):
        loop.train(other, str(directory))
    assert {p.name for p in (directory / "checkpoints").iterdir()} == theirs


def test_a_damaged_best_checkpoint_is_told_before_results_are_written(whole, tmp_path, monkeypatch):
    directory = shutil.copytree(whole, tmp_path / "run")
    (directory / "results.json").unlink()
    best, arrays = outcome(whole)[0]["best_step"], evaluate.arrays

    def damaging(predictions):  # after the first evaluation, which is that of the last checkpoint
        shutil.rmtree(directory / "checkpoints" / str(best) / "state", ignore_errors=True)
        return arrays(predictions)

    monkeypatch.setattr(evaluate, "arrays", damaging)
    with pytest.raises(
        CheckpointError,
        match=rf"step {best} in .* cannot be read .* is the best checkpoint.* Restore it",
    ):
        loop.train(config(), str(directory))
    assert not (directory / "results.json").exists()


def test_a_second_sigterm_while_saving_changes_nothing(whole, tmp_path, monkeypatch):
    def terminated_around(method):
        def wrapped(self, *args):
            if is_terminated:
                os.kill(os.getpid(), signal.SIGTERM)
            method(self, *args)
            if is_terminated:
                os.kill(os.getpid(), signal.SIGTERM)

        return wrapped

    is_terminated = []

    def terminated_in_the_second_epoch(self, step, state):
        if step == STEPS + 1:
            is_terminated.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(trace.Trace, "before", terminated_in_the_second_epoch)
        patched.setattr(Checkpoints, "save", terminated_around(Checkpoints.save))
        patched.setattr(Checkpoints, "wait", terminated_around(Checkpoints.wait))
        with pytest.raises(SystemExit):
            loop.train(config(), str(tmp_path / "run"))
    saved = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert saved == {str(STEPS), str(STEPS + 1)}
    loop.train(config(), str(tmp_path / "run"))
    assert_same_bits(outcome(tmp_path / "run"), outcome(whole))
