"""Slices of a fake gcloud: the order of calls and the final state."""

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
    sys.exit("error: pathspec 'configs/x.py' did not match any file(s) known to git")
if "bundle" in sys.argv:
    open(sys.argv[-2], "w").close()
"""
START = ["scp", "install", "start"]  # calls on a slice once it is ready


def launch(folder, environment, *more):
    words = [sys.executable, "-S", "-m", "launch.tpu", *FLAGS, *more]  # it requires no packages
    return subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def launched(folder, *more, dirty=None, state=None, **plays):
    """Exit status, output and errors of a launch in a fake cloud; see fakes.cloud."""
    fakes.program(folder, "git", GIT.format(dirty=repr(dirty)))
    process = launch(folder, fakes.cloud(folder, state, **plays), *more)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def acts(folder):
    """The calls of gcloud, each as one word."""
    names = []
    for words in fakes.calls(folder):
        command = next((w for w in words if w.startswith("--command=")), "")
        actions = ("uv pip", "follow", "status", "tail", "stop", "start")
        names.append(
            next((a for a in actions if a in command), words[3]).replace("uv pip", "install")
        )
    return names


def call_of(folder, act):
    return fakes.calls(folder)[acts(folder).index(act)]


def test_a_slice_is_created_used_for_the_run_and_deleted(tmp_path):
    code, output, errors = launched(tmp_path, "--accelerator=v3-128", "--config.seed=3")
    assert code == 0, errors
    assert acts(tmp_path) == [
        "describe",
        "create",
        "describe",
        *START,
        "follow",
        "describe",
        "delete",
    ]
    assert "step 1" in output  # the log of the first host
    assert "complete: gs://bucket/run/results.json" in errors
    assert fakes.state(tmp_path) is None
    assert set(call_of(tmp_path, "create")) >= {
        "--accelerator-type=v3-128",
        "--version=tpu-ubuntu2204-base",
        "--zone=europe-west4-a",
    }
    assert "--spot" not in call_of(tmp_path, "create")
    assert "--worker=all" in call_of(tmp_path, "scp")
    assert "--worker=all" in call_of(tmp_path, "start")
    assert "--worker=0" in call_of(tmp_path, "follow")
    started = shlex.split(next(w for w in call_of(tmp_path, "start") if w.startswith("--command=")))
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
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors == ""
    printed = [shlex.split(line) for line in output.splitlines()]
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


def test_a_dry_run_of_delete_prints_the_deletion_and_calls_nothing(tmp_path):
    environment = fakes.program(tmp_path, "gcloud", "raise SystemExit('called')")
    process = launch(tmp_path, environment, "--delete", "--dry_run")
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert [shlex.split(line)[4] for line in output.splitlines()] == ["describe", "delete"]


def test_a_preempted_slice_is_created_again_with_the_same_command(tmp_path):
    code, _, errors = launched(tmp_path, "--spot", follow=["preempted"])
    assert code == 0, errors
    once = ["create", "describe", *START, "follow"]
    lost = ["status", "describe", "describe", "describe", "delete", "describe"]
    assert acts(tmp_path) == ["describe", *once, *lost, *once, "describe", "delete"]
    starts = [words for words, act in zip(fakes.calls(tmp_path), acts(tmp_path)) if act == "start"]
    assert starts[0] == starts[1]
    assert "--spot" in call_of(tmp_path, "create")
    assert "slice is PREEMPTED; it is deleted and created again" in errors
    assert fakes.state(tmp_path) is None


def test_a_run_that_saved_without_a_preemption_continues_on_its_slice(tmp_path):
    code, _, errors = launched(tmp_path, "--restarts=0", follow=["75", "75"])
    assert code == 0, errors
    assert acts(tmp_path).count("create") == 1
    assert acts(tmp_path).count("stop") == 2


def test_a_failure_before_a_reported_preemption_counts_as_a_preemption(tmp_path):
    code, _, errors = launched(
        tmp_path,
        "--restarts=0",
        create=[["READY", "READY", "READY", "READY", "PREEMPTED"]],
        follow=["1"],
    )
    assert code == 0, errors
    assert acts(tmp_path).count("create") == 2
    assert "slice was preempted; the run continues on another" in errors


def test_a_slice_can_be_a_queued_resource(tmp_path):
    waits = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    code, _, errors = launched(
        tmp_path, "--queued", "--patience=6", create=[waits], follow=["preempted"]
    )
    assert code == 0, errors
    created = call_of(tmp_path, "create")
    assert created[2] == "queued-resources"
    assert {
        "--node-id=slice",
        "--valid-until-duration=6h",
        "--runtime-version=tpu-ubuntu2204-base",
    } <= set(created)
    assert acts(tmp_path)[:8] == ["describe", "create", "describe", "describe", "describe", *START]
    assert acts(tmp_path).count("create") == 2
    deletions = [
        words for words, act in zip(fakes.calls(tmp_path), acts(tmp_path)) if act == "delete"
    ]
    assert all(words[2] == "queued-resources" and "--force" in words for words in deletions)
    assert all(
        words[2] == "tpu-vm"
        for words, act in zip(fakes.calls(tmp_path), acts(tmp_path))
        if act in START
    )
    assert fakes.state(tmp_path) is None


def test_a_failed_queued_resource_is_deleted_and_reported(tmp_path):
    code, _, errors = launched(tmp_path, "--queued", create=[["FAILED"]])
    assert code == 1
    assert "the queued resource slice failed and was deleted" in errors
    assert fakes.state(tmp_path) is None


@pytest.mark.parametrize("play", ["denied", "half"])
def test_a_failed_creation_is_reported_and_leaves_nothing(tmp_path, play):
    code, _, errors = launched(tmp_path, create=[play])
    assert code == 1
    assert "slice could not be created and does not exist: ERROR:" in errors
    assert fakes.state(tmp_path) is None
    assert acts(tmp_path).count("create") == 1
    assert "scp" not in acts(tmp_path)


def test_without_capacity_the_creation_is_repeated(tmp_path):
    code, _, errors = launched(tmp_path, create=["no capacity", "no capacity"])
    assert code == 0, errors
    assert errors.count("there is no capacity for v3-32 now") == 2
    assert acts(tmp_path).count("create") == 3


def test_without_capacity_for_too_long_the_launch_fails(tmp_path):
    code, _, errors = launched(tmp_path, "--patience=0", create=["no capacity"] * 5)
    assert code == 1
    assert "no v3-32 was available for 0 hours; the request was deleted" in errors
    assert fakes.state(tmp_path) is None


def test_a_lost_connection_is_restored_without_a_restart(tmp_path):
    code, _, errors = launched(tmp_path, follow=["dropped", "dropped"])
    assert code == 0, errors
    again = ["follow", "status", "describe"]
    assert acts(tmp_path) == [
        "describe",
        "create",
        "describe",
        *START,
        *again,
        *again,
        "follow",
        "describe",
        "delete",
    ]


def test_a_temporary_loss_of_the_network_is_tolerated(tmp_path):
    ready = [None, None, "cut off"]  # the third query follows the dropped connection
    code, _, errors = launched(tmp_path, follow=["dropped"], describe=ready)
    assert code == 0, errors
    assert "no route to host" in errors
    assert acts(tmp_path).count("create") == 1


def test_a_cloud_that_was_never_reachable_is_reported_immediately(tmp_path):
    code, _, errors = launched(tmp_path, describe=["cut off"])
    assert code == 1
    assert "gcloud cannot describe slice: ERROR: no route to host" in errors
    assert acts(tmp_path) == ["describe"]


def test_nothing_is_deleted_while_the_state_is_unknown(tmp_path):
    code, _, errors = launched(
        tmp_path, follow=["dropped"], describe=[None, None, *["cut off"] * 20]
    )
    assert code == 1
    assert (
        "If slice exists, it continues to run and to cost money. The same command follows" in errors
    )
    assert fakes.state(tmp_path) == "READY"


def test_an_existing_slice_is_found_and_its_run_followed(tmp_path):
    code, _, errors = launched(tmp_path, state="READY")
    assert code == 0, errors
    assert "create" not in acts(tmp_path)
    assert acts(tmp_path)[:4] == ["describe", *START]  # which do not interrupt a command at work


def test_a_slice_that_was_preempted_before_is_created_again(tmp_path):
    code, _, errors = launched(tmp_path, state="TERMINATED")
    assert code == 0, errors
    assert acts(tmp_path)[:4] == ["describe", "delete", "describe", "create"]


def test_a_failing_run_is_restarted_twice_then_reported_and_its_slice_deleted(tmp_path):
    code, _, errors = launched(tmp_path, follow=["1"] * 9)
    assert code == 1
    assert "the run failed on slice: main.py exited with 1. The same command resumes it." in errors
    assert acts(tmp_path).count("start") == 3
    assert acts(tmp_path).count("stop") == 2
    assert acts(tmp_path).count("tail") == 3  # before the logs are replaced
    assert "--worker=all" in call_of(tmp_path, "tail")
    assert acts(tmp_path)[-1] == "delete"
    assert fakes.state(tmp_path) is None


def test_a_slice_with_another_command_is_not_interrupted(tmp_path):
    code, _, errors = launched(
        tmp_path, state="READY", install=["another command is at work here: python main.py"]
    )
    assert code == 1
    assert "slice is busy: another command is at work here: python main.py" in errors
    assert "Give another --name" in errors
    assert acts(tmp_path) == ["describe", "scp", "install"]  # before any host starts
    (install,) = (w for w in call_of(tmp_path, "install") if w.startswith("--command="))
    assert "worker.py check .venv/bin/python -u main.py" in install.replace("env ", "")
    assert fakes.state(tmp_path) == "READY"


def test_a_failed_installation_reports_the_output_of_the_hosts(tmp_path):
    code, _, errors = launched(tmp_path, "--restarts=0", install=["no space left on device"])
    assert code == 1
    assert "installing on the hosts failed: no space left on device" in errors
    assert "start" not in acts(tmp_path)
    assert fakes.state(tmp_path) is None


def test_a_failed_deletion_is_reported_with_the_command(tmp_path):
    code, _, errors = launched(tmp_path, delete=["denied"])
    assert code == 1
    assert "slice could not be deleted and may continue to cost money" in errors
    assert "gcloud compute tpus tpu-vm delete slice --zone=europe-west4-a" in errors


def test_a_slice_can_be_kept_and_deleted_manually(tmp_path):
    code, _, errors = launched(tmp_path, "--keep")
    assert code == 0, errors
    assert fakes.state(tmp_path) == "READY"
    assert "slice is kept and costs money until --delete deletes it" in errors
    (tmp_path / "calls").unlink()
    code, _, errors = launched(tmp_path, "--delete", state="READY")
    assert (code, acts(tmp_path)) == (0, ["describe", "delete"]), errors


def test_deleting_a_missing_slice_is_no_error_and_says_where_it_was_not_found(tmp_path):
    code, _, errors = launched(tmp_path, "--delete")
    assert (code, acts(tmp_path)) == (0, ["describe"])
    assert "there is no slice among tpu-vm --zone=europe-west4-a, so nothing was deleted" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_launch_leaves_the_run_at_work(tmp_path, number):
    fakes.program(tmp_path, "git", GIT.format(dirty=None))
    environment = fakes.cloud(tmp_path, "READY", follow=["dropped"] * 10_000)
    process = launch(tmp_path, environment, "--poll=5")
    while "status" not in acts(tmp_path):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "interrupted. If slice exists, it continues to run" in errors
    assert fakes.state(tmp_path) == "READY"


@pytest.mark.parametrize(
    ("dirty", "message"), [("changed", "M heteroscedastic/losses.py"), ("new", "known to git")]
)
def test_uncommitted_changes_are_an_error(tmp_path, dirty, message):
    code, _, errors = launched(tmp_path, dirty=dirty)
    assert code == 1
    assert message in errors
    assert acts(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workdir=runs/x"], "must be in a bucket"),
        (["--accelerator=v3"], "--accelerator is 'v3', but must be one of v3, v5litepod, v6e and"),
        (["--accelerator=h100-8"], "--accelerator is 'h100-8'"),
        (["--config=configs/none.py"], "must be a file of this checkout"),
        (["--config=experiments/none.py:table_8@gs://b/r"], "must be a file of this checkout"),
        (["--name=-rf"], "--name must consist of lower-case letters"),
        (["--learning_rate=1"], "unknown argument '--learning_rate=1'"),
        (["--process_id=1"], "unknown argument '--process_id=1'"),
    ],
)
def test_invalid_flags_are_an_error_before_any_call(tmp_path, flags, message):
    code, _, errors = launched(tmp_path, *flags)
    assert code == 2
    assert message in errors
    assert fakes.calls(tmp_path) == []


def test_the_error_without_gcloud_says_so(tmp_path):
    environment = fakes.program(tmp_path, "git", GIT.format(dirty=None))
    process = launch(tmp_path, {**environment, "PATH": str(tmp_path / "bin")})
    assert "program 'gcloud' is not installed" in process.communicate(timeout=300)[1]


def test_arguments_are_quoted_for_the_shell(tmp_path):
    code, _, errors = launched(
        tmp_path, "--config.data.train=inception_crop(224)|flip_lr; touch 'x'"
    )
    assert code == 0, errors
    started = next(
        w for w in call_of(tmp_path, "start") if w.startswith("--command=")
    ).removeprefix("--command=")
    assert "--config.data.train=inception_crop(224)|flip_lr; touch 'x'" in shlex.split(started)
