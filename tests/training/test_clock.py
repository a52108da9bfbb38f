import time

import pytest

from heteroscedastic.training import clock as clock_lib
from heteroscedastic.training.clock import Clock


class Time:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + 5e8


@pytest.fixture
def moment(monkeypatch):
    made = Time()
    monkeypatch.setattr(clock_lib, "time", made)
    return made


def feeds(moment, seconds):
    for i, duration in enumerate(seconds):
        moment.now += duration
        yield i


def test_every_second_is_told_once(moment):
    clock = Clock(moment.now - 2)
    moment.now += 3  # after two, in which the run was built
    idle = iter([True, False, True])
    for i in clock.waited_for(feeds(moment, [1, 10, 4]), lambda: next(idle)):
        moment.now += 20
        if i == 0:
            clock.starts(1)  # what was compiled is start too
    with clock.counts("evaluation"):
        moment.now += 7
    with clock.counts("checkpoints"):
        moment.now += 2
    told = clock.goodput()
    assert told == pytest.approx(
        {
            "wall": 89,
            "start": 2 + 3 + 20,
            "input": 1 + 4,  # not the ten in which the devices had work
            "evaluation": 7,
            "checkpoints": 2,
            "steps": 20 + 20 + 10,
            "lost": 0,
            "share": 50 / 89,
        }
    )
    assert sum(told[name] for name in ("start", "input", "evaluation", "checkpoints", "steps", "lost")) == told["wall"]


def test_what_a_kill_undid_and_the_time_until_somebody_came_are_lost(moment):
    clock = Clock(moment.now)
    moment.now += 5
    clock.starts(1)
    moment.now += 30
    saved = clock.told()
    moment.now += 100  # that no checkpoint knows of, and nobody at work
    clock = Clock(moment.now, saved)
    moment.now += 3
    clock.starts(1)
    moment.now += 20
    told = clock.goodput()
    assert told["lost"] == pytest.approx(100)
    assert (told["start"], told["steps"]) == pytest.approx((8, 50))
    assert told["share"] == pytest.approx(50 / 158)
    assert clock.seconds() == pytest.approx(58)


@pytest.mark.parametrize(
    ("wait", "said"), [(0.5, "input-bound (33% waiting for data)"), (0.01, "compute-bound (1% wai")]
)
def test_a_run_says_whether_data_holds_it_up(moment, wait, said):
    clock = Clock(moment.now)
    clock.starts(1)
    with clock.counts("evaluation"):
        moment.now += 1000  # which is no time between evaluations
    clock.begins_interval()
    for _ in clock.waited_for(feeds(moment, [wait] * 10), lambda: True):
        moment.now += 1.0
    assert clock.bound().startswith(said)


def test_the_host_that_waits_most_holds_up_all(moment, monkeypatch):
    monkeypatch.setattr(clock_lib.hosts, "largest", lambda *here: tuple(x + 4.0 for x in here))  # of another one
    clock = Clock(moment.now)
    clock.starts(1)
    for _ in clock.waited_for(feeds(moment, [0.1] * 10), lambda: True):
        moment.now += 0.9
    assert clock.bound() == "input-bound (50% waiting for data)"
    told = clock.goodput()
    assert (told["input"], told["steps"]) == pytest.approx((5.0, 5.0))


def test_what_went_before_the_first_step_holds_up_no_interval(moment):
    clock = Clock(moment.now - 50)
    for i in clock.waited_for(feeds(moment, [30, 0.01, 0.01]), lambda: True):
        moment.now += 1.0
        if i == 0:
            clock.starts(1)
    assert clock.bound() == "compute-bound (1% waiting for data)"


def test_a_clock_of_a_real_process_never_tells_more_than_there_was():
    began = time.monotonic()
    clock = Clock(began)
    time.sleep(0.01)
    clock.starts(1)
    told = clock.goodput()
    assert 0 <= told["steps"] <= told["wall"]
    assert 0 <= told["lost"] < 0.01
