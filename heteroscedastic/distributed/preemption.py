"""A polite request to stop: heard at any moment, answered between two steps."""

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from heteroscedastic import user_errors
from heteroscedastic.distributed import hosts

# Of sysexits.h: a failure that passes. Not 128 + SIGTERM, which is also told of a process that
# SIGTERM ended unsaved.
EXIT_CODE = 75
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_OF_PATIENCE = 30.0  # with an input, where other hosts wait for what is made of it
_SECONDS_BETWEEN_AGREEMENTS = (
    2.0  # a notice of preemption leaves half a minute, and a checkpoint wants most of it
)


class StoppedError(Exception):
    """What was under way was given up, as the run is to stop."""


class Terminated(threading.Event):
    """Set by SIGTERM, SIGINT or SIGHUP while this context lasts, where signals can be had.

    A second SIGINT ends the process at once. SIGINT and SIGHUP stay ignored where they were, as
    under nohup.
    """

    _before: dict[int, Any] = {}

    def __enter__(self):
        self._before: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return self
        may_be_ignored = [
            s for s in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(s) is not signal.SIG_IGN
        ]
        for number in (signal.SIGTERM, *may_be_ignored):
            self._before[number] = signal.signal(number, lambda *_: self.set())
        # Python's handlers wait while the main thread computes or compiles; what is written here
        # arrives at once.
        self._told, ours = socket.socketpair()
        ours.setblocking(False)
        self._ours, self._fd_before = (
            ours,
            signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False),
        )
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        for work in (self._listen, self._make_calls):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_):
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._ours.close()  # with which the other threads end
            self._calls.put(None)

    def _listen(self) -> None:
        is_interrupted = False
        while number := self._told.recv(1):
            if number[0] not in self._before:
                continue
            self.set()
            if number[0] == signal.SIGINT:
                if is_interrupted:
                    os._exit(user_errors.INTERRUPTED)
                is_interrupted = True
                print(
                    "interrupted: saving before it leaves; Ctrl-C again ends it at once.",
                    file=sys.stderr,
                    flush=True,
                )
        self._told.close()

    def unless_set(self, call: Callable[[], Any]) -> Any:
        """What a call returns that may compile, which takes long.

        It is made in another thread, as a call into C++ would keep this one from hearing a signal.
        Of several hosts none can leave alone, so there it is made here.

        Raises:
          StoppedError: this was set first; the call is given up, and may still be under way.
        """
        return self._made(call, 0.0) if hosts.is_alone() else call()

    def feeds(self, feeds: Iterator[Any]) -> Iterator[Any]:
        """The feeds of an input pipeline, which may block for ever; each is waited for as by
        `unless_set`.

        Raises:
          HostError: there are other hosts, which cannot save without this one, and it is out of
            patience.
        """
        end, patience = object(), 0.0 if hosts.is_alone() else _SECONDS_OF_PATIENCE
        try:
            while (feed := self._made(lambda: next(feeds, end), patience)) is not end:
                yield feed
        except StoppedError:
            if hosts.is_alone():
                raise
            raise hosts.HostError(
                f"this host was told to stop, and its input gave nothing for {patience:.0f} s; the"
                " same command on all"
                " of them continues from the last checkpoint."
            ) from None

    def _made(self, call: Callable[[], Any], patience: float) -> Any:
        if not self._before:
            return call()
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._calls.put((call, answer))
        deadline = None
        while True:
            if self.is_set():
                deadline = deadline or time.monotonic() + patience
                if time.monotonic() >= deadline:
                    raise StoppedError
            with contextlib.suppress(queue.Empty):
                value, error = answer.get(timeout=_SECONDS_BETWEEN_LOOKS)
                if error is not None:
                    raise error
                return value

    def _make_calls(self) -> None:
        while given := self._calls.get():
            call, answer = given
            try:
                answer.put((call(), None))
            except BaseException as error:
                answer.put((None, error))


class Agreement:
    """Whether the hosts of a run stop, which they do all after the same step.

    They ask each other at steps about two seconds apart, which they count alike. How long a step
    takes is known only once some were made, so at first they ask after one, two, four and so on.
    """

    def __init__(self, step: int):
        """From this step on."""
        self._began, self._step, self._asked_at, self._due = step, step, time.monotonic(), 0

    def stops(self, terminated: Terminated, step: int, asks: bool = False) -> bool:
        """Whether this step is the last for now.

        Args:
          terminated: on this host; one that is stops all.
          step: that is done.
          asks: also where it is not time yet; the same on all hosts.
        """
        if hosts.is_alone():
            return terminated.is_set()
        if step < self._due and not asks:
            return False
        now = time.monotonic()
        stops, seconds = hosts.largest(
            terminated.is_set(), (now - self._asked_at) / max(1, step - self._step)
        )
        self._step, self._asked_at = step, now
        apart = int(_SECONDS_BETWEEN_AGREEMENTS / max(seconds, 1e-3))
        self._due = step + max(1, min(apart, step - self._began))
        return bool(stops)
