"""On each host of a slice: a run that outlives the connection that started it. Needs no package,
and no new Python.

python3 launch/worker.py start WORDS...  runs a command, unless it is at work; an error while
another is python3 launch/worker.py check WORDS...  is an error where the command at work is another
one python3 launch/worker.py follow [LINES]  prints its log, from the start or the last lines on,
and exits as it does python3 launch/worker.py tail LINES      prints the name of this host and the
last lines of its log python3 launch/worker.py status          prints "at work", "ended CODE" or
"nothing" python3 launch/worker.py stop            lets it save and leave, or kills it after two
minutes
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

OTHER = "another command is at work here"
_SECONDS = 0.5
_SECONDS_TO_LEAVE = 120.0


def _folder() -> Path:
    return (
        Path.home() / "heteroscedastic_run"
    )  # beside the checkout, which is replaced by each installation


def start(words: list[str]) -> None:
    """Runs a command in a session of its own, unless one is at work."""
    folder = _folder()
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("a") as lock:
        if not any(
            _take(lock) for _ in range(3)
        ):  # somebody who asks whether one is at work has it for a moment
            check(words)
            print("a run is at work here already")
            return
        (folder / "ended").unlink(missing_ok=True)
        (folder / "words").write_text(json.dumps(words))
        if (folder / "log").exists():
            (folder / "log").rename(folder / "log.before")
        with (folder / "log").open("wb") as log:
            keeper = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "keep", str(lock.fileno()), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # no hang-up reaches it
                pass_fds=[lock.fileno()],  # the lock is held while it, or the command, lives
            )
        (folder / "session").write_text(str(keeper.pid))


def check(words: list[str]) -> None:
    """Ends with an error where the command that runs, or ran last, is another one."""
    path = _folder() / "words"
    known = json.loads(path.read_text()) if path.exists() else words
    if known != words:
        sys.exit(f"{OTHER}: {shlex.join(known)}")


def keep(lock: str, words: list[str]) -> None:
    """Runs the command and writes down how it ended."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # it is for the command, whose end is to be told
    try:
        code = subprocess.run(words, pass_fds=[int(lock)], check=False).returncode
    except OSError as error:
        print(error, file=sys.stderr)
        code = 127
    ended = _folder() / "ended"
    ended.with_suffix(".new").write_text(str(code if code >= 0 else 128 - code))
    ended.with_suffix(".new").rename(ended)


def at_work() -> bool:
    """Whether a command runs."""
    if not (_folder() / "lock").exists():
        return False
    with (_folder() / "lock").open("a") as lock:
        return not _take(lock)


def _take(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        return False
    return True


def ended() -> int:
    """The exit status of the command that ran last; 137 where nobody could write it down."""
    path = _folder() / "ended"
    return int(path.read_text()) if path.exists() else 128 + signal.SIGKILL


def follow(lines: int | None) -> int:
    """Prints the log until the command ends, and returns its exit status."""
    with (_folder() / "log").open(errors="replace") as log:
        if lines is not None:
            print("".join(log.readlines()[-lines:]), end="", flush=True)
        while True:
            ends = not at_work()  # asked first, so that nothing is written after the last look
            print(log.read(), end="", flush=True)
            if ends:
                return ended()
            time.sleep(_SECONDS)


def tail(lines: int) -> None:
    """Prints what the command said last, under the name of this host."""
    path = _folder() / "log"
    said = path.read_text(errors="replace").splitlines() if path.exists() else ["nothing ran here"]
    print("\n".join([f"{socket.gethostname()}:", *said[-lines:]]), flush=True)


def stop() -> None:
    """Asks the command to leave, and kills it where it does not."""
    if not at_work():
        return
    session = int((_folder() / "session").read_text())
    deadline = time.monotonic() + _SECONDS_TO_LEAVE
    with contextlib.suppress(ProcessLookupError):  # it left meanwhile
        os.killpg(session, signal.SIGTERM)
        while at_work():
            if time.monotonic() > deadline:
                os.killpg(session, signal.SIGKILL)
            time.sleep(_SECONDS)


def _lines(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 10**9:
        sys.exit(f"LINES is {text}, but must be a whole number of 1 or more.")
    return int(text)


def main() -> None:
    """One of these."""
    action, *rest = sys.argv[1:] or [""]
    if action == "start" and rest:
        start(rest)
    elif action == "keep" and rest[1:]:
        keep(rest[0], rest[1:])
    elif action == "check":
        check(rest)
    elif action == "follow":
        sys.exit(follow(_lines(rest[0]) if rest else None))
    elif action == "tail" and rest:
        tail(_lines(rest[0]))
    elif action == "status":
        known = (_folder() / "log").exists()
        print("at work" if at_work() else f"ended {ended()}" if known else "nothing")
    elif action == "stop":
        stop()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
