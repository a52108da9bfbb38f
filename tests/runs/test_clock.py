import dataclasses
import time

import pytest
from small_runs import small

from heteroscedastic.runs import assembly
from heteroscedastic.runs import clock as clock_lib
from heteroscedastic.runs.clock import Clock
from heteroscedastic.runs.progress import Progress, table
from heteroscedastic.training import epochs


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
    for i in clock.timed_feeds(feeds(moment, [1, 10, 4]), lambda: next(idle)):
        moment.now += 20
        if i == 0:
            clock.end_start(1)  # what was compiled is start too
    with clock.timed("evaluation"):
        moment.now += 7
    with clock.timed("checkpoints"):
        moment.now += 2
    told = clock.goodput()
    assert told == pytest.approx(
        {
            "wall": 89,
            "start": 2 + 3 + 20,
            "input": 1 + 4,  # not the ten in which the devices had work
            "evaluation": 7,
            "checkpoints": 2,
            "scores": 0,
            "steps": 20 + 20 + 10,
            "lost": 0,
            "share": 50 / 89,
        }
    )
    assert (
        sum(told[name] for name in ("start", "input", "evaluation", "checkpoints", "steps", "lost"))
        == told["wall"]
    )


def test_what_a_kill_undid_and_the_time_until_somebody_came_are_lost(moment):
    clock = Clock(moment.now)
    moment.now += 5
    clock.end_start(1)
    moment.now += 30
    saved = clock.state()
    moment.now += 100  # that no checkpoint knows of, and nobody at work
    clock = Clock(moment.now, saved)
    moment.now += 3
    clock.end_start(1)
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
    clock.end_start(1)
    with clock.timed("evaluation"):
        moment.now += 1000  # which is no time between evaluations
    clock.begin_interval()
    for _ in clock.timed_feeds(feeds(moment, [wait] * 10), lambda: True):
        moment.now += 1.0
    assert clock.bound().startswith(said)


def test_the_host_that_waits_most_holds_up_all(moment, monkeypatch):
    monkeypatch.setattr(
        clock_lib.hosts, "largest", lambda *here: tuple(x + 4.0 for x in here)
    )  # of another one
    clock = Clock(moment.now)
    clock.end_start(1)
    for _ in clock.timed_feeds(feeds(moment, [0.1] * 10), lambda: True):
        moment.now += 0.9
    assert clock.bound() == "input-bound (50% waiting for data)"
    told = clock.goodput()
    assert (told["input"], told["steps"]) == pytest.approx((5.0, 5.0))


def test_what_went_before_the_first_step_holds_up_no_interval(moment):
    clock = Clock(moment.now - 50)
    for i in clock.timed_feeds(feeds(moment, [30, 0.01, 0.01]), lambda: True):
        moment.now += 1.0
        if i == 0:
            clock.end_start(1)
    assert clock.bound() == "compute-bound (1% waiting for data)"


def test_a_clock_of_a_real_process_never_tells_more_than_there_was():
    began = time.monotonic()
    clock = Clock(began)
    time.sleep(0.01)
    clock.end_start(1)
    told = clock.goodput()
    assert 0 <= told["steps"] <= told["wall"]
    assert 0 <= told["lost"] < 0.01


def test_the_rate_excludes_compilation_evaluations_and_checkpoints(
    moment,
):
    clock = Clock(moment.now)
    moment.now += 1000  # compilation
    clock.end_start(1)
    assert clock.rate(1) is None  # no step since
    moment.now += 20
    assert clock.rate(11) == pytest.approx(0.5)
    for name in ("evaluation", "checkpoints"):
        with clock.timed(name):
            moment.now += 500
    for _ in clock.timed_feeds(
        feeds(moment, [1.0] * 10), lambda: True
    ):  # an input that is waited for counts
        moment.now += 1.0
    assert clock.rate(21) == pytest.approx(0.5)
    moment.now += 1
    assert clock.rate(31) == pytest.approx(10.0)


def test_the_rate_of_a_process_that_continues_is_its_own(moment):
    clock = Clock(moment.now - 500, {"seconds": 9000.0, "evaluation": 300.0})
    clock.end_start(101)
    moment.now += 5
    assert clock.rate(111) == pytest.approx(2.0)


@pytest.fixture(scope="module")
def run():
    """240 examples to validate, 597 to test."""
    config = small() | {"evals": {"a": {"split": "test"}, "b": {"split": "test"}}}
    run = assembly.build(config)
    steps = dataclasses.replace(
        run.steps, total=100, total_full=100, full_length=10, per_checkpoint=20
    )
    return dataclasses.replace(run, steps=steps)


def test_the_time_left_is_that_of_the_steps_and_of_the_evaluations_still_to_come(moment, run):
    clock = Clock(moment.now)
    progress = Progress(run, clock)
    moment.now += 1000
    clock.end_start(0)
    assert progress.line(0, epochs.equal(0, 10)) == "step 0/100  epoch 0.0"
    moment.now += 20
    assert (
        progress.line(20, epochs.equal(20, 10))
        == "step 20/100  epoch 2.0  64 examples/s  0:01:20 left"
    )
    progress.evaluated("valid", 300.0)  # the first one compiles, and tells nothing of the others
    moment.now += 20
    assert progress.line(40, epochs.equal(40, 10)).endswith("0:01:00 left")
    progress.evaluated("valid", 24.0)  # a tenth of a second for each example
    moment.now += 10
    assert progress.line(50, epochs.equal(50, 10)).endswith(
        "0:04:01 left"
    )  # 50 s of steps, three validations of 24 s, two tests of 59.7 s
    moment.now += 50
    assert progress.line(100, epochs.equal(100, 10)).endswith("0:01:59 left")


def test_without_validation_the_time_left_is_that_of_the_steps(moment, run):
    clock = Clock(moment.now)
    progress = Progress(
        dataclasses.replace(run, config=run.config | {"validation": {}, "evals": {}}), clock
    )
    clock.end_start(0)
    moment.now += 4
    assert progress.line(2, epochs.equal(2, 10)).endswith("0:03:16 left")
    assert progress.line(2, epochs.equal(2, 10)).endswith(
        "0:03:16 left"
    )  # no step since; as it was


def test_a_table_of_an_evaluation_is_aligned_and_short():
    values = {f"metric_{i}" + "x" * (i % 4): float(i) for i in range(12)}
    title, *rows = table("test:", values).splitlines()
    assert title == "test:"
    assert len(rows) == 4
    assert len(set(map(len, rows))) == 1
    words = " ".join(rows).split()
    assert dict(zip(words[::2], map(float, words[1::2]))) == values
    assert table("test:", {"accuracy": float("nan")}).splitlines()[1].split() == ["accuracy", "nan"]
