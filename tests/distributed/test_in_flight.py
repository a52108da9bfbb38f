from types import SimpleNamespace

from heteroscedastic.distributed import in_flight
from heteroscedastic.distributed.in_flight import StepsInFlight


class Loss:
    """Of a step that the device ends so many seconds after the one before."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.is_done = clock, seconds, False

    def block_until_ready(self):
        self.clock.now += self.seconds
        self.is_done = True

    def is_ready(self):
        return self.is_done


def made(monkeypatch, seconds, steps, alone=True):
    """The number of steps in flight after each, and the steps that were yielded."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(in_flight, "time", SimpleNamespace(monotonic=lambda: clock.now))
    found, left, given = StepsInFlight(alone), [], []
    for step in range(steps):
        found.add(step, SimpleNamespace(loss=Loss(clock, seconds)))
        given += [step for step, _ in found.done(everything=False)]
        left.append(step + 1 - len(given))
    given += [step for step, _ in found.done(everything=True)]
    assert found.is_idle()
    return left, given


def test_quick_steps_are_eight_at_once_and_all_are_given_in_order(monkeypatch):
    left, given = made(monkeypatch, 0.01, 40)
    assert left[0] == 1
    assert left[-1] == max(left) == 8
    assert given == list(range(40))


def test_slow_steps_are_as_few_as_take_two_seconds(monkeypatch):
    for seconds, most in ((0.5, 4), (1.5, 1), (30.0, 1)):
        left, given = made(monkeypatch, seconds, 40)
        assert max(left) == most
        assert given == list(range(40))


def test_of_several_processes_each_has_as_many_however_slow(monkeypatch):
    for seconds in (0.01, 30.0):
        left, given = made(monkeypatch, seconds, 40, alone=False)
        assert left[:8] == list(range(1, 9))
        assert set(left[8:]) == {8}
        assert given == list(range(40))


def test_a_device_with_a_step_in_flight_is_not_idle():
    found = StepsInFlight(alone=True)
    assert found.is_idle()
    found.add(1, SimpleNamespace(loss=Loss(SimpleNamespace(now=0.0), 1.0)))
    assert not found.is_idle()
    assert [step for step, _ in found.done(everything=True)] == [1]
    assert found.is_idle()
