"""Slices that a fake gcloud plays: what is called in which order, and what is left."""

import shlex
import signal
import subprocess
import sys
import time

import fakes
import pytest
from subprocesses import ROOT

FLAGS = (
    "--name=slice",
    "--config=configs/imagenet21k_het_pe.py",
    "--workdir=gs://bucket/run",
    "--data_dir=gs://bucket/data",
    "--poll=0.01",
)
GIT = """
import sys
if "status" in sys.argv and {dirty} == "changed":
    print(" M heteroscedastic/losses.py")
if "ls-files" in sys.argv and {dirty} == "new":
    sys.exit("error: pathspec 'configs/imagenet21k_het_pe.py' did not match any file(s) known to git")
if "bundle" in sys.argv:
    open(sys.argv[-2], "w").close()
"""
BEGIN = ["scp", "install", "start"]  # what is done on a slice once it is ready


def launch(folder, environment, *more):
    words = [sys.executable, "-S", "-m", "launch.tpu", *FLAGS, *more]  # it needs no packages
    return subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def launched(folder, *more, dirty=None, state=None, **plays):
    """Exit status, output and errors of a launch in a cloud that plays so."""
    fakes.program(folder, "git", GIT.format(dirty=repr(dirty)))
    process = launch(folder, fakes.cloud(folder, state, **plays), *more)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def acts(folder):
    """The calls of gcloud, each as a word."""
    found = []
    for words in fakes.calls(folder):
        command = next((w for w in words if w.startswith("--command=")), "")
        of_command = ("uv pip", "follow", "status", "tail", "stop", "start")
        found.append(
            next((a for a in of_command if a in command), words[3]).replace("uv pip", "install")
        )
    return found


def one(folder, act):
    return fakes.calls(folder)[acts(folder).index(act)]


def test_a_run_is_created_installed_started_followed_and_deleted(tmp_path):
    code, output, errors = launched(tmp_path, "--accelerator=v3-128", "--config.seed=3")
    assert code == 0, errors
    assert acts(tmp_path) == [
        "describe",
        "create",
        "describe",
        *BEGIN,
        "follow",
        "describe",
        "delete",
    ]
    assert "step 1" in output  # the log of the first host
    assert "complete: gs://bucket/run/results.json" in errors
    assert fakes.state(tmp_path) is None
    assert set(one(tmp_path, "create")) >= {
        "--accelerator-type=v3-128",
        "--version=tpu-ubuntu2204-base",
        "--zone=europe-west4-a",
    }
    assert "--spot" not in one(tmp_path, "create")
    assert "--worker=all" in one(tmp_path, "scp")
    assert "--worker=all" in one(tmp_path, "start")
    assert "--worker=0" in one(tmp_path, "follow")
    started = shlex.split(next(w for w in one(tmp_path, "start") if w.startswith("--command=")))
    assert started[started.index("main.py") :] == [
        "main.py",
        *FLAGS[1:4],
        "--config.seed=3",
        "--hosts",
    ]


@pytest.mark.parametrize(
    "more", [(), ("--queued", "--spot"), ("--accelerator=v5litepod-64",), ("--accelerator=v6e-32",)]
)
def test_a_dry_run_prints_what_a_run_calls_and_calls_nothing(tmp_path, more):
    for name in ("gcloud", "git"):
        fakes.program(tmp_path, name, "raise SystemExit('called')")
    environment = fakes.program(tmp_path, "ssh", "raise SystemExit('called')")
    process = launch(tmp_path, environment, *more, "--dry_run")
    told, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors == ""
    printed = [shlex.split(line) for line in told.splitlines()]
    assert launched(tmp_path, *more)[0] == 0
    called = [["gcloud", *words] for words in fakes.calls(tmp_path)]
    temporary = next(
        w
        for w in called[[c[4] for c in called].index("scp")]
        if w.endswith(".bundle") and ":" not in w
    )
    assert [w for w in printed if w[0] == "gcloud"] == [
        ["TEMPORARY/heteroscedastic.bundle" if w == temporary else w for w in words]
        for words in called
    ]
    assert [w[3] for w in printed if w[0] == "git"] == ["status", "ls-files", "bundle"]


def test_one_that_is_preempted_is_made_again_and_the_same_command_continues(tmp_path):
    code, _, errors = launched(tmp_path, "--spot", follow=["preempted"])
    assert code == 0, errors
    once = ["create", "describe", *BEGIN, "follow"]
    lost = ["status", "describe", "describe", "describe", "delete", "describe"]
    assert acts(tmp_path) == ["describe", *once, *lost, *once, "describe", "delete"]
    starts = [words for words, act in zip(fakes.calls(tmp_path), acts(tmp_path)) if act == "start"]
    assert starts[0] == starts[1]
    assert "--spot" in one(tmp_path, "create")
    assert "slice is PREEMPTED, so it is deleted and made again" in errors
    assert fakes.state(tmp_path) is None


def test_one_that_was_told_to_leave_and_is_not_preempted_continues_where_it_is(tmp_path):
    code, _, errors = launched(tmp_path, "--restarts=0", follow=["75", "75"])
    assert code == 0, errors
    assert acts(tmp_path).count("create") == 1
    assert acts(tmp_path).count("stop") == 2


def test_one_that_fails_as_hosts_are_lost_is_preempted_though_it_is_told_later(tmp_path):
    code, _, errors = launched(
        tmp_path,
        "--restarts=0",
        create=[["READY", "READY", "READY", "READY", "PREEMPTED"]],
        follow=["1"],
    )
    assert code == 0, errors
    assert acts(tmp_path).count("create") == 2
    assert "slice was taken away; the run continues on another" in errors


def test_by_way_of_the_queue(tmp_path):
    waits = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    code, _, errors = launched(
        tmp_path, "--queued", "--patience=6", create=[waits], follow=["preempted"]
    )
    assert code == 0, errors
    created = one(tmp_path, "create")
    assert created[2] == "queued-resources"
    assert {
        "--node-id=slice",
        "--valid-until-duration=6h",
        "--runtime-version=tpu-ubuntu2204-base",
    } <= set(created)
    assert acts(tmp_path)[:8] == ["describe", "create", "describe", "describe", "describe", *BEGIN]
    assert acts(tmp_path).count("create") == 2
    deletions = [
        words for words, act in zip(fakes.calls(tmp_path), acts(tmp_path)) if act == "delete"
    ]
    assert all(words[2] == "queued-resources" and "--force" in words for words in deletions)
    assert all(
        words[2] == "tpu-vm"
        for words, act in zip(fakes.calls(tmp_path), acts(tmp_path))
        if act in BEGIN
    )
    assert fakes.state(tmp_path) is None


def test_a_request_that_fails_in_the_queue_is_deleted_and_told(tmp_path):
    code, _, errors = launched(tmp_path, "--queued", create=[["FAILED"]])
    assert code == 1
    assert "the request slice failed in the queue and was deleted" in errors
    assert fakes.state(tmp_path) is None


@pytest.mark.parametrize("play", ["denied", "half"])
def test_where_it_cannot_be_created_it_says_why_and_leaves_nothing(tmp_path, play):
    code, _, errors = launched(tmp_path, create=[play])
    assert code == 1
    assert "slice could not be created, and is not there: ERROR:" in errors
    assert fakes.state(tmp_path) is None
    assert acts(tmp_path).count("create") == 1
    assert "scp" not in acts(tmp_path)


def test_where_there_is_no_room_it_asks_again(tmp_path):
    code, _, errors = launched(tmp_path, create=["no capacity", "no capacity"])
    assert code == 0, errors
    assert errors.count("there is no room for v3-32 now") == 2
    assert acts(tmp_path).count("create") == 3


def test_where_there_is_no_room_for_long_it_gives_up(tmp_path):
    code, _, errors = launched(tmp_path, "--patience=0", create=["no capacity"] * 5)
    assert code == 1
    assert "there was no v3-32 for 0 hours; nothing is left of the request" in errors
    assert fakes.state(tmp_path) is None


def test_a_connection_that_drops_is_made_again_and_the_run_is_left_alone(tmp_path):
    code, _, errors = launched(tmp_path, follow=["dropped", "dropped"])
    assert code == 0, errors
    again = ["follow", "status", "describe"]
    assert acts(tmp_path) == [
        "describe",
        "create",
        "describe",
        *BEGIN,
        *again,
        *again,
        "follow",
        "describe",
        "delete",
    ]


def test_a_cloud_that_cannot_be_reached_for_a_while_is_waited_for(tmp_path):
    ready = [None, None, "cut off"]  # the third look is that of the dropped connection
    code, _, errors = launched(tmp_path, follow=["dropped"], describe=ready)
    assert code == 0, errors
    assert "no route to host" in errors
    assert acts(tmp_path).count("create") == 1


def test_a_cloud_that_cannot_be_reached_at_all_is_told_at_once(tmp_path):
    code, _, errors = launched(tmp_path, describe=["cut off"])
    assert code == 1
    assert "gcloud cannot tell whether slice is there: ERROR: no route to host" in errors
    assert acts(tmp_path) == ["describe"]


def test_while_nobody_knows_what_is_there_nothing_is_deleted(tmp_path):
    code, _, errors = launched(
        tmp_path, follow=["dropped"], describe=[None, None, *["cut off"] * 20]
    )
    assert code == 1
    assert "slice, if it is there, goes on, and costs. The same command follows it" in errors
    assert fakes.state(tmp_path) == "READY"


def test_a_slice_that_is_there_is_found_and_its_run_followed(tmp_path):
    code, _, errors = launched(tmp_path, state="READY")
    assert code == 0, errors
    assert "create" not in acts(tmp_path)
    assert acts(tmp_path)[:4] == ["describe", *BEGIN]  # which leave alone what is at work


def test_a_slice_that_was_preempted_before_is_made_again(tmp_path):
    code, _, errors = launched(tmp_path, state="TERMINATED")
    assert code == 0, errors
    assert acts(tmp_path)[:4] == ["describe", "delete", "describe", "create"]


def test_a_run_that_fails_is_begun_again_twice_then_told_and_its_slice_deleted(tmp_path):
    code, _, errors = launched(tmp_path, follow=["1"] * 9)
    assert code == 1
    assert "the run failed on slice: main.py ended with 1. The same command continues it." in errors
    assert acts(tmp_path).count("start") == 3
    assert acts(tmp_path).count("stop") == 2
    assert acts(tmp_path).count("tail") == 3  # before what they said is gone
    assert "--worker=all" in one(tmp_path, "tail")
    assert acts(tmp_path)[-1] == "delete"
    assert fakes.state(tmp_path) is None


def test_a_slice_that_is_at_other_work_is_left_alone(tmp_path):
    code, _, errors = launched(
        tmp_path, state="READY", install=["another command is at work here: python main.py"]
    )
    assert code == 1
    assert "slice is left alone: another command is at work here: python main.py" in errors
    assert "Give another --name" in errors
    assert acts(tmp_path) == ["describe", "scp", "install"]  # before any host begins
    (install,) = (w for w in one(tmp_path, "install") if w.startswith("--command="))
    assert "worker.py check .venv/bin/python -u main.py" in install.replace("env ", "")
    assert fakes.state(tmp_path) == "READY"


def test_an_installation_that_fails_says_what_the_hosts_said(tmp_path):
    code, _, errors = launched(tmp_path, "--restarts=0", install=["no space left on device"])
    assert code == 1
    assert "installing on the hosts failed: no space left on device" in errors
    assert "start" not in acts(tmp_path)
    assert fakes.state(tmp_path) is None


def test_a_slice_that_cannot_be_deleted_is_told_with_the_command(tmp_path):
    code, _, errors = launched(tmp_path, delete=["denied"])
    assert code == 1
    assert "slice could not be deleted and may go on costing money" in errors
    assert "gcloud compute tpus tpu-vm delete slice --zone=europe-west4-a" in errors


def test_kept_and_deleted_by_hand(tmp_path):
    code, _, errors = launched(tmp_path, "--keep")
    assert code == 0, errors
    assert fakes.state(tmp_path) == "READY"
    assert "slice stays, and costs until --delete deletes it" in errors
    (tmp_path / "calls").unlink()
    code, _, errors = launched(tmp_path, "--delete", state="READY")
    assert (code, acts(tmp_path)) == (0, ["describe", "delete"]), errors


def test_deleting_what_is_not_there_is_no_error(tmp_path):
    assert launched(tmp_path, "--delete")[0] == 0
    assert acts(tmp_path) == ["describe"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_the_run_at_work_and_says_so(tmp_path, sent):
    fakes.program(tmp_path, "git", GIT.format(dirty=None))
    environment = fakes.cloud(tmp_path, "READY", follow=["dropped"] * 10_000)
    process = launch(tmp_path, environment, "--poll=5")
    while "status" not in acts(tmp_path):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "interrupted. slice, if it is there, goes on, and costs" in errors
    assert fakes.state(tmp_path) == "READY"


@pytest.mark.parametrize(
    ("dirty", "told"), [("changed", "M heteroscedastic/losses.py"), ("new", "known to git")]
)
def test_changes_that_are_not_committed_would_not_reach_the_hosts(tmp_path, dirty, told):
    code, _, errors = launched(tmp_path, dirty=dirty)
    assert code == 1
    assert told in errors
    assert acts(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--workdir=runs/x"], "must be in a bucket"),
        (["--accelerator=v3"], "--accelerator is 'v3', but must be v3, v5litepod, v6e and a size"),
        (["--accelerator=h100-8"], "--accelerator is 'h100-8'"),
        (["--config=configs/none.py"], "must be a file of this checkout"),
        (["--config=experiments/none.py:table_8@gs://b/r"], "must be a file of this checkout"),
        (["--name=-rf"], "--name must be of small letters"),
        (["--learning_rate=1"], "nobody reads '--learning_rate=1'"),
        (["--process_id=1"], "nobody reads '--process_id=1'"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_called(tmp_path, flags, told):
    code, _, errors = launched(tmp_path, *flags)
    assert code == 2
    assert told in errors
    assert fakes.calls(tmp_path) == []


def test_without_gcloud_it_says_so(tmp_path):
    environment = fakes.program(tmp_path, "git", GIT.format(dirty=None))
    process = launch(tmp_path, {**environment, "PATH": str(tmp_path / "bin")})
    assert "there is no program 'gcloud' here" in process.communicate(timeout=300)[1]


def test_calls_are_words_that_a_shell_reads_back(tmp_path):
    code, _, errors = launched(
        tmp_path, "--config.data.train=inception_crop(224)|flip_lr; touch 'x'"
    )
    assert code == 0, errors
    started = next(w for w in one(tmp_path, "start") if w.startswith("--command=")).removeprefix(
        "--command="
    )
    assert "--config.data.train=inception_crop(224)|flip_lr; touch 'x'" in shlex.split(started)
