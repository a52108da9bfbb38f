"""Epochs of equal and of unequal length."""

import pytest

from heteroscedastic.training.epochs import Epochs


@pytest.mark.parametrize("epochs", [Epochs(7), Epochs(3, (7, 7)), Epochs(5, (1, 9, 2))])
def test_every_step_is_in_one_epoch_in_order(epochs):
    counted = [(e, i) for e in range(9) for i in range(epochs.num_steps(e))]
    assert [epochs.position(step) for step in range(len(counted))] == counted


@pytest.mark.parametrize("epochs", [Epochs(7), Epochs(3, (7, 7)), Epochs(5, (1, 9, 2))])
def test_epochs_passed_rise_with_the_steps_and_are_whole_at_the_end_of_each(epochs):
    passed = [epochs.passed(step) for step in range(40)]
    assert passed == sorted(set(passed))
    step = 0
    for epoch in range(5):
        assert epochs.passed(step) == epoch
        step += epochs.num_steps(epoch)


def test_of_equal_epochs_the_value_has_the_bits_of_a_division():
    assert all(Epochs(7).passed(step) == step / 7 for step in range(1000))
