"""The worker of a host, whose command outlives the connection, in separate processes."""

import os
import shlex
import socket
import subprocess
import sys
import time

import pytest
from subprocesses import ROOT

PYTHON = [sys.executable, "-S"]


@pytest.fixture
def worker(tmp_path):
    """Calls worker.py with its own home directory, and stops the command afterwards."""

    def call(*words, **settings):
        command = [*PYTHON, str(ROOT / "launch" / "worker.py"), *words]
        environment = {**os.environ, "HOME": str(tmp_path)}
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **settings,
        )

    yield call
    call("stop")


def program(text):
    return [*PYTHON, "-u", "-c", text]


def wait_for(path):
    while not path.exists():
        time.sleep(0.02)


def test_a_run_is_followed_to_its_end_and_its_exit_status(worker):
    worker(
        "start",
        *program("import time; print('one'); time.sleep(1); print('two'); raise SystemExit(7)"),
    )
    assert worker("status").stdout == "at work\n"
    result = worker("follow")
    assert (result.stdout, result.returncode) == ("one\ntwo\n", 7)
    assert worker("status").stdout == "ended 7\n"
    assert worker("follow", "1").stdout == "two\n"  # after a reconnection


def test_one_command_is_at_work_at_a_time(worker, tmp_path):
    words = program("import time; time.sleep(60)")
    worker("start", *words)
    assert worker("start", *words).stdout == "a run is at work here already\n"
    other = worker("start", *program("open('second', 'w')"), cwd=tmp_path)
    assert other.returncode == 1
    assert f"another command is at work here: {shlex.join(words)}" in other.stderr
    assert worker("check", *words).returncode == 0
    assert worker("check", "true").stderr == other.stderr
    worker("stop")
    assert not (tmp_path / "second").exists()


def test_the_last_log_lines_are_printed_under_the_name_of_the_host(worker, tmp_path):
    assert worker("tail", "2").stdout == f"{socket.gethostname()}:\nno log\n"
    worker("start", *program("print('a'); print('b'); print('c')"))
    worker("follow")
    assert worker("tail", "2").stdout == f"{socket.gethostname()}:\nb\nc\n"
    worker("start", *program("print('d')"))
    worker("follow")
    assert (tmp_path / "heteroscedastic_run" / "log.before").read_text() == "a\nb\nc\n"


def test_a_command_runs_in_the_current_folder_with_its_arguments_unchanged(worker, tmp_path):
    words = ["--config.data.train=inception_crop(224)|flip_lr; touch x", "*", ""]
    worker(
        "start",
        *program("import sys; print(sys.argv[1:]); print(open('here').read())"),
        *words,
        cwd=tmp_path,
    )
    assert worker("follow").returncode == 1  # the file does not exist
    (tmp_path / "here").write_text("here")
    worker(
        "start",
        *program("import sys; print(sys.argv[1:]); print(open('here').read())"),
        *words,
        cwd=tmp_path,
    )
    assert worker("follow").stdout == f"{words}\nhere\n"


def test_a_command_continues_if_its_follower_is_killed(worker, tmp_path):
    text = f"import time; time.sleep(1.5); open({str(tmp_path / 'done')!r}, 'w')"
    worker("start", *program(text))
    command = [*PYTHON, str(ROOT / "launch" / "worker.py"), "follow"]
    follower = subprocess.Popen(
        command, env={**os.environ, "HOME": str(tmp_path)}, start_new_session=True
    )
    time.sleep(0.3)
    follower.kill()
    follower.wait()
    wait_for(tmp_path / "done")
    assert worker("follow").returncode == 0


def test_a_stopped_command_can_save(worker, tmp_path):
    text = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(tmp_path / 'saved')!r}, 'w'),"
        " sys.exit(75)))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w')\n"
        "time.sleep(60)\n"
    )
    worker("start", *program(text))
    wait_for(tmp_path / "ready")
    worker("stop")
    assert (tmp_path / "saved").exists()
    assert worker("status").stdout == "ended 75\n"


def test_a_command_without_a_recorded_status_was_killed(worker, tmp_path):
    worker("start", *program("import time; time.sleep(60)"))
    session = int((tmp_path / "heteroscedastic_run" / "session").read_text())
    os.killpg(session, 9)
    while worker("status").stdout == "at work\n":
        time.sleep(0.1)
    assert worker("status").stdout == "ended 137\n"
    assert worker("follow").returncode == 137


def test_a_missing_program_is_reported(worker):
    worker("start", "no_such_program")
    result = worker("follow")
    assert result.returncode == 127
    assert "no_such_program" in result.stdout


def test_without_a_command_there_is_no_status(worker):
    assert worker("status").stdout == "nothing\n"
    assert worker("stop").returncode == 0
    assert worker("start").returncode == 1
