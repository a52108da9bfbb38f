import os
import signal
import threading
import time

import pytest
from subprocesses import EXTRAS, run_without

from heteroscedastic.distributed import hosts, preemption
from heteroscedastic.distributed.preemption import Agreement, StopEvent, StoppedError


@pytest.fixture
def asked(monkeypatch):
    """The steps at which hosts ask each other; each step takes `seconds`."""

    class Asked(list):
        now, seconds, step, other = 0.0, 1.0, 0, False

        def largest(self, *here):
            self.append(self.step)
            return here[0] or self.other, *here[1:]

        def until(self, agreement, last, stop_event=None):
            """The step at which it stops, None where it does not."""
            for self.step in range(1, last + 1):
                if agreement.stops(stop_event or StopEvent(), self.step):
                    return self.step
                self.now += self.seconds
            return None

    made = Asked()
    monkeypatch.setattr(preemption.hosts, "is_alone", lambda: False)
    monkeypatch.setattr(preemption.hosts, "largest", made.largest)
    monkeypatch.setattr(preemption.time, "monotonic", lambda: made.now)
    return made


@pytest.mark.parametrize("seconds", [5.0, 0.5, 0.01, 0.0])
def test_hosts_ask_each_other_about_every_two_seconds_whatever_a_step_takes(asked, seconds):
    asked.seconds = seconds
    assert asked.until(Agreement(0), 3000) is None
    assert asked[:3] == [1, 2, 3] if seconds > 2 else asked[:3] == [1, 2, 4]
    apart = {b - a for a, b in zip(asked[-3:], asked[-2:])}
    assert apart <= (
        {1}
        if seconds > 2
        else {4}
        if seconds == 0.5
        else {199, 200, 201}
        if seconds
        else {512, 1024}
    )


def test_a_first_step_that_took_no_time_does_not_put_off_the_next_question(asked):
    agreement = Agreement(0)  # as before an evaluation, whose first question comes at once
    assert not agreement.stops(StopEvent(), 1)
    asked.now, asked.other = 20.0, True
    assert agreement.stops(StopEvent(), 2)


def test_one_that_is_told_stops_all(asked):
    stop_event = StopEvent()
    stop_event.set()
    assert asked.until(Agreement(0), 10, stop_event) == 1
    asked.other = True
    assert asked.until(Agreement(0), 10) == 1


SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _signals_as_a_terminal_has_them():
    """Whatever started the tests may ignore some of them, as nohup does."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_that_asks_to_leave_is_heard_and_is_what_it_was_afterwards(number):
    before = signal.getsignal(number)
    with StopEvent() as stop_event:
        os.kill(os.getpid(), number)
        assert stop_event.is_set()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_was_ignored_at_the_start_stays_ignored(number):
    """As nohup ignores SIGHUP, and a shell SIGINT of what it starts in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopEvent() as stop_event:
            os.kill(os.getpid(), number)
            assert not stop_event.is_set()
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def in_a_moment(number):
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_heard_while_an_input_blocks_for_ever(number):
    def feeds():
        yield 1
        in_a_moment(number)
        threading.Event().wait()

    found = []
    with StopEvent() as stop_event, pytest.raises(StoppedError):
        found.extend(stop_event.feeds(feeds()))
    assert found == [1]


def test_feeds_are_what_they_were_and_their_error_is_theirs():
    def feeds():
        yield from range(3)
        raise ValueError("damaged")

    found = []
    with StopEvent() as stop_event, pytest.raises(ValueError, match="damaged"):
        found.extend(stop_event.feeds(feeds()))
    with StopEvent() as stop_event:
        assert list(stop_event.feeds(iter(range(100)))) == list(range(100))


def test_what_compiles_is_given_up_once_a_signal_came():
    with StopEvent() as stop_event:
        assert stop_event.unless_set(lambda: 3) == 3
        in_a_moment(signal.SIGTERM)
        with pytest.raises(StoppedError):
            stop_event.unless_set(threading.Event().wait)
        with pytest.raises(StoppedError):
            stop_event.unless_set(lambda: 3)  # nothing more is begun


def test_of_several_hosts_one_whose_input_blocks_leaves_once_it_is_out_of_patience(monkeypatch):
    monkeypatch.setattr(preemption.hosts, "is_alone", lambda: False)
    monkeypatch.setattr(preemption, "_SECONDS_OF_PATIENCE", 1.0)

    def late():
        in_a_moment(signal.SIGTERM)
        time.sleep(0.6)
        yield 1  # in time, so that all hosts stop after the same step
        threading.Event().wait()

    with StopEvent() as stop_event:
        feeds = stop_event.feeds(late())
        assert next(feeds) == 1
        with pytest.raises(hosts.HostError, match="its input gave nothing for 1 s"):
            next(feeds)


def test_a_second_ctrl_c_ends_a_process_at_once_whatever_it_computes():
    """The main thread is in C, where no handler of Python runs."""
    program = """
import hashlib, os, signal, threading, time
from heteroscedastic.distributed.preemption import StopEvent
def interrupt():
    for _ in range(2):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
with StopEvent():
    threading.Thread(target=interrupt, daemon=True).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
    done = run_without(EXTRAS, program)
    assert done.returncode == 130, done.stderr
    assert "Ctrl-C again ends it at once" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_with_nothing_to_save_leaves_at_once_with_the_status_of_one_that_saved(number):
    program = f"""
import hashlib, os, threading, time
from heteroscedastic.distributed import preemption
def stop():
    time.sleep(0.5)
    os.kill(os.getpid(), {int(number)})
with preemption.leaving_at_once():
    threading.Thread(target=stop, daemon=True).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
    done = run_without(EXTRAS, program)
    assert done.returncode == preemption.EXIT_CODE, done.stderr
    assert "nothing to save" in done.stderr


def test_a_call_that_still_compiles_does_not_abort_a_process_that_leaves():
    """Python ends its threads at exit, which C++ answers by an abort; see `preemption.leave`."""
    program = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp
from heteroscedastic.distributed import preemption
from heteroscedastic.distributed.preemption import StopEvent, StoppedError
class EndsLate:
    def __del__(self):
        time.sleep(10)
sys.modules["ends_late"] = EndsLate()
def product(x):
    for i in range(800):
        x = jnp.sin(x + i) @ x
    return x
try:
    with StopEvent() as stop_event:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        stop_event.unless_set(lambda: jax.jit(product)(jnp.ones((8, 8))))
except StoppedError:
    preemption.leave()
"""
    done = run_without(EXTRAS, program)
    assert done.returncode == preemption.EXIT_CODE, done.stderr
