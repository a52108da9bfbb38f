import contextlib
import gc
import json
import random
import resource
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.distributed import hosts
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training.state import TrainState

TOLD = {"best_step": 1, "best_score": -0.1, "sums": [1.5, 2e-30]}


def state_of(step=1, shape=(64, 65), dtype=jnp.float32, name="kernel"):
    """Noise, which does not compress."""
    kernel = jax.random.normal(jax.random.key(step), shape).astype(dtype)
    zeros = {"negative": -jnp.zeros(3), "mask": jnp.array([True, False]), "count": jnp.uint32(7)}
    return TrainState(jnp.int32(step), {name: kernel}, zeros, (jnp.ones(4, jnp.bfloat16),), None)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(path, "run") as checkpoints:
        checkpoints.save(state_of(), TOLD)
    return path


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_checkpoint_comes_back_as_it_was(saved, read_only):
    for owner in ("run", None):
        with Checkpoints(saved, owner, read_only) as checkpoints:
            state, told = checkpoints.last(state_of(step=2))
        assert_same(state, state_of())
        assert told == TOLD


def test_a_checkpoint_without_a_digest_is_that_of_an_older_version(copy):
    (copy / "1" / "told" / "metadata").write_text(json.dumps(TOLD))
    with Checkpoints(copy, "run") as checkpoints:
        assert checkpoints.restore(1, state_of())[1] == TOLD


def test_what_another_host_cannot_read_is_read_by_none(copy, monkeypatch):
    monkeypatch.setattr(
        hosts, "any_says", lambda here: True
    )  # as where the other's disk is damaged
    with Checkpoints(copy, "run") as checkpoints:
        with pytest.raises(CheckpointError, match="another host cannot read it"):
            checkpoints.restore(1, state_of())
        with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
            checkpoints.last(state_of())
    assert (copy / "1").is_dir()  # and it stays where it was


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (state_of(shape=(32, 65)), "shape"),
        (state_of(shape=(65, 64)), "shape"),
        (state_of(dtype=jnp.bfloat16), "its bits differ"),
        (state_of(name="weights"), "tree structures do not match"),
        (state_of()._replace(opt_state=()), "tree structures do not match"),
        (state_of()._replace(scores=jnp.ones(3)), "another model"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(saved, template, message):
    with (
        Checkpoints(saved, "run") as checkpoints,
        pytest.raises(CheckpointError, match=rf"step 1 in .* cannot be read \(.*{message}"),
    ):
        checkpoints.restore(1, template)


def test_a_checkpoint_of_another_run_or_step_is_refused(copy):
    with (
        Checkpoints(copy, "another") as checkpoints,
        pytest.raises(CheckpointError, match="belongs to another run"),
    ):
        checkpoints.restore(1, state_of())
    (copy / "1").rename(copy / "2")
    with (
        Checkpoints(copy, "run") as checkpoints,
        pytest.raises(CheckpointError, match="it holds the state of step 1"),
    ):
        checkpoints.restore(2, state_of())


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_changes_nothing_or_is_told(copy, seed):
    draws, found = random.Random(seed), []
    for path in sorted(p for p in copy.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[draws.randrange(len(whole))] ^= 1 << draws.randrange(8)
        path.write_bytes(damaged)
        with Checkpoints(copy, "run") as checkpoints:
            try:
                state, told = checkpoints.restore(1, state_of())
            except CheckpointError as error:
                found.append(str(error))
            else:
                assert_same(state, state_of())
                assert told == TOLD
        path.write_bytes(whole)
    # The digest alone protects the arrays.
    assert any("its bits differ from those that were saved" in error for error in found)


def test_the_last_two_checkpoints_and_the_best_survive_a_reopen(tmp_path):
    def save(steps, best_step):
        with Checkpoints(tmp_path / "checkpoints") as checkpoints:
            for step in steps:
                checkpoints.save(state_of(step), TOLD, best_step)
        return {int(path.name) for path in (tmp_path / "checkpoints").iterdir()}

    assert save([1, 2, 3], None) == {2, 3}
    assert save([4, 5, 6], 2) == {2, 5, 6}
    assert save([7], 2) == {2, 6, 7}
    assert save([8], 8) == {7, 8}


@pytest.mark.parametrize("damage", ["", '{"best_st', "null", '{"best_step": 2}'])
def test_a_damaged_dictionary_is_told(copy, damage):
    path = copy / "1" / "told" / "metadata"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"best_step": 2})
        if damage.endswith("}")
        else damage
    )
    with (
        Checkpoints(copy, "run") as checkpoints,
        pytest.raises(CheckpointError, match=r"step 1 in .* cannot be read"),
    ):
        checkpoints.restore(1, state_of())


@pytest.fixture(params=["a full disk", "a file that may not grow"])
def disk(request, tmp_path):
    """A directory, and what fills its disk and makes room again."""
    yield from _filled(request.param, tmp_path)
    # A writer that failed, collected while a thread starts, waits for a lock that this thread holds
    # (CPython 3.11).
    gc.collect()


def _filled(kind, tmp_path):
    if kind == "a full disk":
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True
        )
        if mounted.returncode:
            pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
        filler = tmp_path / "filler"

        def fill():
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

        yield tmp_path, fill, filler.unlink
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    else:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def limit(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))

        yield tmp_path, lambda: limit(10_000), lambda: limit(limits[0])
        limit(limits[0])


def save_three(path, fill, stop=lambda: None):
    """The second one onto a full disk."""
    with Checkpoints(path) as checkpoints:
        checkpoints.save(state_of(1), TOLD)
        checkpoints.wait()
        fill()
        checkpoints.save(state_of(2), TOLD)
        stop()
        checkpoints.save(state_of(3), TOLD)


def test_a_checkpoint_that_the_disk_has_no_room_for_is_told_and_the_one_before_stays(disk):
    path, fill, make_room = disk
    path = path / "checkpoints"
    with pytest.raises(
        CheckpointError, match=r"step 2 could not be written .*earlier checkpoints are intact"
    ):
        save_three(path, fill)
    gc.collect()  # see disk
    make_room()
    with Checkpoints(path) as checkpoints:
        assert_same(checkpoints.last(state_of())[0], state_of(1))
        checkpoints.save(state_of(2), TOLD)
    with Checkpoints(path) as checkpoints:  # the failed writer is gone now, and so is what it left
        assert_same(checkpoints.last(state_of())[0], state_of(2))
        assert sorted(p.name for p in path.iterdir()) == ["1", "2"]


def test_a_write_that_fails_does_not_hide_why_the_run_stopped(disk, caplog):
    path, fill, make_room = disk
    with pytest.raises(ZeroDivisionError):
        save_three(path / "checkpoints", fill, stop=lambda: 1 / 0)
    make_room()
    assert "step 2 could not be written" in caplog.text
