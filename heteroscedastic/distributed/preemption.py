"""Requests to stop a run: signals arrive at any time, and the run stops between two steps."""

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from heteroscedastic import user_errors
from heteroscedastic.distributed import hosts

# EX_TEMPFAIL of sysexits.h. Not 128 + SIGTERM, which a shell also reports of a process that SIGTERM
# ended before it saved.
EXIT_CODE = 75
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_OF_PATIENCE = 30.0  # with an input whose batch other hosts wait for
# A notice of preemption leaves half a minute, and a checkpoint takes most of it.
_SECONDS_BETWEEN_AGREEMENTS = 2.0


class StoppedError(Exception):
    """A call was abandoned because the run is to stop."""


class _Signals:
    """Calls a function for each signal during this context; only in the main thread.

    Python's handlers wait while the main thread computes or compiles in C++. The byte that Python
    writes to a socket arrives at once, and another thread reads it.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        heard: Callable[[int], Any],
        handler: Callable[[], Any] = lambda: None,
    ):
        """Takes the numbers of the signals, what they call, and what Python's handler calls."""
        self._numbers, self._heard, self._handler = numbers, heard, handler
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        """Whether signals are heard."""
        return bool(self._before)

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            return self
        self._received, ours = socket.socketpair()
        ours.setblocking(False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, lambda *_: self._handler())
        self._ours, self._fd_before = (
            ours,
            signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False),
        )
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_):
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._ours.close()  # which ends the listening thread

    def _listen(self) -> None:
        while number := self._received.recv(1):
            if number[0] in self._before:
                self._heard(number[0])
        self._received.close()


def _not_ignored(*numbers: int) -> list[int]:
    """The signals that are not ignored, as under nohup."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def leave() -> NoReturn:
    """Ends this process with EXIT_CODE at once, without the orderly exit of Python.

    A call that was abandoned may still compile in another thread. Python ends that thread when it
    exits, and C++ then aborts the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_CODE)


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP end the process with EXIT_CODE at once.

    For a process that has nothing to save yet, or nothing any more.
    """

    def heard(number: int) -> None:
        # Not by hosts.log, which may start JAX.
        print(
            "terminated, with nothing to save; the same command continues the run.", file=sys.stderr
        )
        leave()

    with _Signals([signal.SIGTERM, *_not_ignored(signal.SIGHUP)], heard):
        yield


class StopEvent(threading.Event):
    """An event that SIGTERM, SIGINT or SIGHUP sets during this context, in the main thread.

    A second SIGINT ends the process at once. SIGINT and SIGHUP stay ignored if they were ignored
    before, as under nohup.
    """

    _signals: _Signals | None = None
    _is_interrupted = False

    def __enter__(self):
        numbers = [signal.SIGTERM, *_not_ignored(signal.SIGINT, signal.SIGHUP)]
        self._signals = _Signals(numbers, self._heard, handler=self.set).__enter__()
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        if self._signals:
            threading.Thread(target=self._make_calls, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._signals.__exit__()
        self._calls.put(None)

    def _heard(self, number: int) -> None:
        self.set()
        if number != signal.SIGINT:
            return
        if self._is_interrupted:
            os._exit(user_errors.INTERRUPTED)
        self._is_interrupted = True
        print(
            "interrupted: saving before it leaves; Ctrl-C again ends it at once.",
            file=sys.stderr,
            flush=True,
        )

    def unless_set(self, call: Callable[[], Any]) -> Any:
        """Makes a call that may compile, and so take long, and returns its value.

        The call runs in another thread, as this one could not handle a signal while it runs C++.
        With several hosts it runs in this thread, as none of them can stop alone.

        Raises:
          StoppedError: the event is set before the call ends; the call may still be running.
        """
        return self._called(call, 0.0) if hosts.is_alone() else call()

    def feeds(self, feeds: Iterator[Any]) -> Iterator[Any]:
        """The feeds of an input pipeline, which may block for ever; each is read by `unless_set`.

        Raises:
          HostError: with several hosts, which cannot save without this one, if the event is set and
            no feed comes within half a minute.
        """
        end, patience = object(), 0.0 if hosts.is_alone() else _SECONDS_OF_PATIENCE
        try:
            while (feed := self._called(lambda: next(feeds, end), patience)) is not end:
                yield feed
        except StoppedError:
            if hosts.is_alone():
                raise
            raise hosts.HostError(
                f"this host is to stop, but its input gave nothing for {patience:.0f} s; the same"
                " command on all hosts continues from the last checkpoint."
            ) from None

    def _called(self, call: Callable[[], Any], patience: float) -> Any:
        if not self._signals:
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
        while item := self._calls.get():
            call, answer = item
            try:
                answer.put((call(), None))
            except BaseException as error:
                answer.put((None, error))


class Agreement:
    """The decision of all hosts of a run to stop after the same step.

    The hosts ask each other at the same steps, about two seconds apart. The time of a step is
    unknown at first, so they begin with steps one, two, four and so on.
    """

    def __init__(self, step: int):
        """Starts to count at this step."""
        self._began, self._step, self._asked_at, self._due = step, step, time.monotonic(), 0

    def stops(self, stop_event: StopEvent, step: int, asks: bool = False) -> bool:
        """Whether all hosts stop after this step.

        Args:
          stop_event: event of this host; all hosts stop if it is set on one.
          step: number of the finished step.
          asks: whether to ask even if it is not time yet; the same on all hosts.
        """
        if hosts.is_alone():
            return stop_event.is_set()
        if step < self._due and not asks:
            return False
        now = time.monotonic()
        stops, seconds = hosts.largest(
            stop_event.is_set(), (now - self._asked_at) / max(1, step - self._step)
        )
        self._step, self._asked_at = step, now
        apart = int(_SECONDS_BETWEEN_AGREEMENTS / max(seconds, 1e-3))
        self._due = step + max(1, min(apart, step - self._began))
        return bool(stops)
