"""Epochs of equal and of unequal length."""

from fractions import Fraction

import pytest

from heteroscedastic.training import epochs
from heteroscedastic.training.epochs import Epoch

LENGTHS = (7, 7, 3, 1, 9, 3)
FULL = 7


def position(step):
    """The epoch of the step that follows, counted one by one."""
    start = 0
    for index, length in enumerate(LENGTHS):
        if step < start + length:
            return Epoch(index, start, length, FULL)
        start += length
    raise AssertionError


def test_of_equal_epochs_full_steps_are_the_steps_and_passed_has_the_bits_of_a_division():
    for step in range(1000):
        epoch = epochs.equal(step, 7)
        assert epoch.start <= step < epoch.end == epoch.start + 7
        assert epoch.num_full(step) == step
        assert epoch.passed(step) == step / 7


def test_every_epoch_makes_as_many_full_steps_however_long_it_is():
    total = sum(LENGTHS)
    for step in range(total):
        epoch = position(step)
        exact = epoch.index + Fraction(step - epoch.start, epoch.num_steps)
        assert epoch.passed(step) == pytest.approx(float(exact), abs=1e-12)
        for length in (1, 2, 5, 7, 14):
            assert epoch.num_full(step, length) == exact * FULL // length
            if step > epoch.start:  # the end of an epoch is the start of the next
                continue
            if epoch.index:
                assert position(step - 1).num_full(step, length) == epoch.num_full(step, length)
