"""Runs a command on a host of a slice, independently of the connection that started it.

    python3 launch/worker.py start WORDS...  starts a command, unless one is at work; it is an error
                                             if another command is at work
    python3 launch/worker.py check WORDS...  is an error if the command at work, or the last one, is
                                             another command
    python3 launch/worker.py follow [LINES]  prints the log, from its start or its last lines, until
                                             the command ends; exits with its status
    python3 launch/worker.py tail LINES      prints the name of this host and the last log lines
    python3 launch/worker.py status          prints "at work", "ended CODE" or "nothing"
    python3 launch/worker.py stop            sends SIGTERM, and SIGKILL after two minutes

It requires no package and no recent Python. Launchers of other versions of this code read its
output, so `status` and the message of `check` must not change.
"""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

OTHER_COMMAND = "another command is at work here"
_POLL_SECONDS = 0.5
_STOP_SECONDS = 120.0  # between SIGTERM and SIGKILL


def _folder() -> Path:
    # Outside of the checkout, which every installation replaces.
    return Path.home() / "heteroscedastic_run"


def start(words: list[str]) -> None:
    """Starts a command in its own session, unless one is at work."""
    folder = _folder()
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("a") as lock:
        # Several attempts, as `at_work` holds the lock for a moment.
        if not any(_acquire(lock) for _ in range(3)):
            check(words)
            print("a run is at work here already")
            return
        (folder / "ended").unlink(missing_ok=True)
        (folder / "words").write_text(json.dumps(words))
        if (folder / "log").exists():
            (folder / "log").rename(folder / "log.before")
        with (folder / "log").open("wb") as log:
            supervisor = subprocess.Popen(
                [
                    sys.executable,
                    os.path.abspath(__file__),
                    "supervise",
                    str(lock.fileno()),
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it receives no SIGHUP
                pass_fds=[lock.fileno()],  # the lock is held while it or the command runs
            )
        (folder / "session").write_text(str(supervisor.pid))


def check(words: list[str]) -> None:
    """Ends with an error if the command at work, or the last one, is another command."""
    path = _folder() / "words"
    last_words = json.loads(path.read_text()) if path.exists() else words
    if last_words != words:
        sys.exit(f"{OTHER_COMMAND}: {shlex.join(last_words)}")


def supervise(lock: str, words: list[str]) -> None:
    """Runs the command and records its exit status."""
    # SIGTERM is for the command; this process remains to record its status.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        code = subprocess.run(words, pass_fds=[int(lock)], check=False).returncode
    except OSError as error:
        print(error, file=sys.stderr)
        code = 127
    path = _folder() / "ended"
    path.with_suffix(".new").write_text(str(code if code >= 0 else 128 - code))
    path.with_suffix(".new").rename(path)


def at_work() -> bool:
    """Whether a command is running."""
    if not (_folder() / "lock").exists():
        return False
    with (_folder() / "lock").open("a") as lock:
        return not _acquire(lock)


def _acquire(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        return False
    return True


def exit_status() -> int:
    """The exit status of the last command; 137 if it could not be recorded."""
    path = _folder() / "ended"
    return int(path.read_text()) if path.exists() else 128 + signal.SIGKILL


def follow(lines: int | None) -> int:
    """Prints the log until the command ends, and returns its exit status."""
    with (_folder() / "log").open(errors="replace") as log:
        if lines is not None:
            print("".join(log.readlines()[-lines:]), end="", flush=True)
        while True:
            has_ended = not at_work()  # before reading, so that no output is missed
            print(log.read(), end="", flush=True)
            if has_ended:
                return exit_status()
            time.sleep(_POLL_SECONDS)


def tail(lines: int) -> None:
    """Prints the name of this host and the last lines of the log."""
    path = _folder() / "log"
    log = path.read_text(errors="replace").splitlines() if path.exists() else ["no log"]
    print("\n".join([f"{socket.gethostname()}:", *log[-lines:]]), flush=True)


def stop() -> None:
    """Sends SIGTERM to the command, and SIGKILL if it does not end."""
    if not at_work():
        return
    session = int((_folder() / "session").read_text())
    deadline = time.monotonic() + _STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):  # it ended in between
        os.killpg(session, signal.SIGTERM)
        while at_work():
            if time.monotonic() > deadline:
                os.killpg(session, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def _lines(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 10**9:
        sys.exit(f"LINES is {text}, but must be an integer >= 1.")
    return int(text)


def main() -> None:
    """Runs the action of the command line."""
    action, *rest = sys.argv[1:] or [""]
    if action == "start" and rest:
        start(rest)
    elif action == "supervise" and rest[1:]:
        supervise(rest[0], rest[1:])
    elif action == "check":
        check(rest)
    elif action == "follow":
        sys.exit(follow(_lines(rest[0]) if rest else None))
    elif action == "tail" and rest:
        tail(_lines(rest[0]))
    elif action == "status":
        has_log = (_folder() / "log").exists()
        print("at work" if at_work() else f"ended {exit_status()}" if has_log else "nothing")
    elif action == "stop":
        stop()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
